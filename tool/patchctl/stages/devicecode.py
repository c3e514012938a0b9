# SPDX-License-Identifier: Apache-2.0
"""Asking cuobjdump and a demangler about a library."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from patchctl.formats.cuobjdump import (
    Embedded,
    parse_embedded,
    parse_resource_usage,
    parse_thread_limits,
)
from patchctl.formats.demangle import demanglable
from patchctl.formats.measured import Library
from patchctl.formats.sass import parse_sass
from patchctl.stages.toolchain import Toolchain
from patchctl.system.process import ProcessFailed, run

_NOTHING = "does not contain device code"


def read_device_code(library: Path, toolchain: Toolchain) -> tuple[Library, Embedded]:
    """Ask cuobjdump about every embedded image.

    Raises:
        ToolMissing: the toolkit has no cuobjdump.
        ProcessFailed: it failed for another reason than that there is no device code.
    """

    def ask(*options: str) -> str:
        done = run([toolchain.cuobjdump, *options, library], check=False)
        if done.code != 0 and _NOTHING not in done.out + done.err:
            raise ProcessFailed(done)
        return done.out

    device = Library(
        functions=parse_resource_usage(ask("--dump-resource-usage")),
        threads=parse_thread_limits(ask("-elf")),
        code=parse_sass(ask("-sass")),
    )
    return device, parse_embedded(ask("--list-elf") + ask("--list-ptx"))


def demangle(names: Iterable[str], toolchain: Toolchain) -> tuple[dict[str, str], str]:
    """The demangled form of each name, by one process; the name itself where that fails.

    The second value names the program, or is "" when there was none.
    """
    wanted = sorted(set(names))
    beside = toolchain.home / "bin" / "cu++filt"
    program = shutil.which("c++filt") or (str(beside) if beside.is_file() else "")
    if not program or not wanted:
        return {name: name for name in wanted}, Path(program).name
    text = "\n".join(demanglable(name)[0] for name in wanted) + "\n"
    done = run([program], input=text.encode(), check=False)
    lines = done.out.splitlines()
    if done.code != 0 or len(lines) != len(wanted):
        return {name: name for name in wanted}, ""
    return dict(zip(wanted, lines, strict=True)), Path(program).name
