# SPDX-License-Identifier: Apache-2.0
"""The shim and the library as a wheel, in an environment; and out of it again."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from patchctl import __version__
from patchctl.errors import GateFailed, UsageError
from patchctl.formats.elf import elf_problem, read_dynamic
from patchctl.formats.target import Target
from patchctl.formats.wheel import Metadata, WheelName, platform_tag, wheel_bytes
from patchctl.stages import packagefiles
from patchctl.stages.build import built_library, built_otherwise
from patchctl.stages.interpreter import (
    MACHINE,
    Interpreter,
    Torch,
    ask,
    ask_torch,
    inspect,
    last_line,
    require_fit,
    require_torch,
    require_writable,
)
from patchctl.stages.verify import record_name, verify_inputs
from patchctl.system.files import sha256_bytes, write_if_changed
from patchctl.system.process import TAIL_LINES, ProcessFailed, stream
from patchctl.system.project import Project
from patchctl.system.records import load_record
from patchctl.system.report import Reporter

SHIM = Path(__file__).parents[2] / packagefiles.PACKAGE


@dataclass(frozen=True)
class Library:
    """A verified shared object: its content, and the wheel's tag for what it runs on."""

    path: Path
    data: bytes
    sha256: str
    platform: str

    @property
    def glibc(self) -> tuple[int, int]:
        """The oldest glibc that it runs with, (2, 34) say; (0, 0) when it names none."""
        numbers = [int(part) for part in self.platform.split("_") if part.isdigit()]
        return (numbers[0], numbers[1]) if self.platform.startswith("manylinux") else (0, 0)


@dataclass(frozen=True)
class Installed:
    """What an installation did.

    `wheel` is the file that was installed, `packages` the folder it went to, `replaced` the
    version that was there before ("" if none), `reason` why the functions refuse on this machine
    ("" if they do not).
    """

    wheel: Path
    sha256: str
    python: Path
    packages: Path
    torch: Torch
    replaced: str
    reason: str


@dataclass(frozen=True)
class Removed:
    """What an uninstallation did; `removed` is the version, "" when nothing was installed."""

    python: Path
    packages: Path
    removed: str


def verified_library(project: Project, target: Target) -> Library:
    """The built library, if it is whole and is the one that ``verify`` approved.

    Raises:
        GateFailed: it is not built, damaged, or another one than was verified.
    """
    path = built_library(project, target)
    if not path.is_file():
        raise GateFailed(
            f"there is no library `{project.relative(path)}`", hint="patchctl build, then verify"
        )
    data = path.read_bytes()
    if problem := elf_problem(data, MACHINE):
        raise GateFailed(f"`{project.relative(path)}` is damaged: {problem}", hint="patchctl build")
    if otherwise := built_otherwise(project, target):
        raise GateFailed(
            f"`{project.relative(path)}` was {otherwise}", hint="patchctl build, then verify"
        )
    digest = sha256_bytes(data)
    record = load_record(project, record_name(target))
    if record is None:
        raise GateFailed(f"`{project.relative(path)}` is not verified", hint="patchctl verify")
    stale = record.stale_because(verify_inputs(project, target))
    if stale or record.outputs.get("library") != digest:
        raise GateFailed(
            f"`{project.relative(path)}` (sha256 {digest[:12]}) is not what was verified",
            details=tuple(stale),
            hint="patchctl verify",
            data={"got": digest, "expected": record.outputs.get("library", "")},
        )
    versions = [symbol.version for symbol in read_dynamic(data).undefined]
    return Library(path, data, digest, platform_tag(versions, MACHINE))


def build_wheel(project: Project, target: Target, library: Library) -> Path:
    """Write the wheel with the shim and `library`; the same inputs give the same bytes."""
    python = "cp" + target.abi.python.replace(".", "")
    name = WheelName(packagefiles.PACKAGE, __version__, python, "abi3", library.platform)
    files = {
        f"{packagefiles.PACKAGE}/{path.name}": path.read_bytes()
        for path in SHIM.iterdir()
        if path.suffix in (".py", ".typed")
    }
    files[f"{packagefiles.PACKAGE}/{target.filename}"] = library.data
    metadata = Metadata(
        name=packagefiles.PACKAGE.replace("_", "-"),
        version=__version__,
        summary=f"FlashAttention-2 for {target.arch}, with the functions that vLLM calls",
        license="Apache-2.0 AND BSD-3-Clause",
        requires_python=f">={target.abi.python}",
        requires=(f"torch>={target.abi.torch}",),
        description=f"{target.filename}: sha256 {library.sha256}",
    )
    # the kernels are built from upstream's files, whose licence asks for its notice
    for notice in ("LICENSE", "AUTHORS"):
        path = project.source / notice
        if path.is_file():
            files[f"{name.dist_info}/licenses/flash-attn/{notice}"] = path.read_bytes()
    path = project.objects(target.name) / "wheel" / name.filename
    write_if_changed(path, wheel_bytes(name, metadata, files))
    return path


def install(
    project: Project, target: Target, report: Reporter, *, python: Path, force: bool = False
) -> Installed:
    """Build the wheel and install it into `python`'s environment.

    A child of that interpreter then imports the shim and must report the verified library;
    otherwise, and when the run is killed, what was installed before comes back.

    Args:
        force: replace an installed copy even if its files were edited.

    Raises:
        GateFailed: the library is not verified, or the environment does not load it.
        UsageError: the environment cannot take it.
        LocalChanges: the installed copy was edited.
        Unavailable: its folder cannot be written.
    """
    library = verified_library(project, target)
    interpreter = inspect(python)
    require_fit(interpreter, target, library.glibc)
    _refuse_managed(interpreter)
    require_writable(interpreter.packages)
    torch = ask_torch(interpreter)
    require_torch(torch, target, python)
    if torch.error:
        report.warn(f"`{python}` cannot import torch, so the functions refuse: {torch.error}")
    wheel = build_wheel(project, target, library)
    with packagefiles.replacing(interpreter.packages, report, force=force) as replaced:
        report.info(f"installing {wheel.name} into {interpreter.packages}")
        _unpack(interpreter, wheel)
        reason = _prove(interpreter, library, torch)
    return Installed(wheel, library.sha256, python, interpreter.packages, torch, replaced, reason)


def uninstall(
    project: Project, target: Target, report: Reporter, *, python: Path, force: bool = False
) -> Removed:
    """Take the shim and the library out of `python`'s environment.

    Args:
        force: also if the installed files were edited.

    Raises:
        LocalChanges: the installed copy was edited.
        Unavailable: its folder cannot be written.
    """
    interpreter = inspect(python)
    require_writable(interpreter.packages)
    with packagefiles.replacing(interpreter.packages, report, force=force) as removed:
        pass
    return Removed(python, interpreter.packages, removed)


def _refuse_managed(interpreter: Interpreter) -> None:
    if interpreter.externally_managed:
        raise UsageError(
            f"`{interpreter.python}` belongs to the operating system "
            f"(`{interpreter.externally_managed}`)",
            hint=f"{interpreter.python} -m venv DIR, then --python DIR",
        )


def _unpack(interpreter: Interpreter, wheel: Path) -> None:
    if not interpreter.pip:
        from installer import install as unpack
        from installer.destinations import SchemeDictionaryDestination
        from installer.sources import WheelFile

        place = SchemeDictionaryDestination(
            interpreter.paths, interpreter=str(interpreter.python), script_kind="posix"
        )
        with WheelFile.open(wheel) as source:
            unpack(source, place, additional_metadata={"INSTALLER": b"patchctl\n"})
        return
    # the user's settings (--user, --target, a constraint) must not send it somewhere else
    pip = [str(interpreter.python), "-m", "pip", "--isolated", "--disable-pip-version-check"]
    options = ["--no-input", "--no-deps", "--no-index", "--force-reinstall"]
    environment = {**os.environ, "PIP_CONFIG_FILE": os.devnull}
    said: list[str] = []
    # streamed: a pip that outlived a killed patchctl would write into what the next run repairs
    argv = [*pip, "install", *options, str(wheel)]
    if stream(argv, said.append, env=environment, cwd=wheel.parent) != 0:
        raise GateFailed(
            f"pip of `{interpreter.python}` refuses `{wheel.name}`",
            details=tuple(said[-TAIL_LINES:]),
        )


def _prove(interpreter: Interpreter, library: Library, torch: Torch) -> str:
    """Let the interpreter import what was installed; why it is unusable there, "" if it is not."""
    try:
        answer = ask(interpreter.python, "shim")
    except ProcessFailed as error:
        raise GateFailed(
            f"`{interpreter.python}` cannot import {packagefiles.PACKAGE}: {last_line(error)}",
            details=error.details,
        ) from error
    expected = interpreter.packages / packagefiles.PACKAGE
    found = Path(answer["package"]).parent
    if os.path.realpath(found) != os.path.realpath(expected):
        raise GateFailed(
            f"`{interpreter.python}` imports another {packagefiles.PACKAGE}: `{found}`, "
            f"installed `{expected}`",
            hint="remove that copy, or take it off PYTHONPATH",
        )
    if answer["sha256"] != library.sha256:
        raise GateFailed(
            f"`{answer['path']}` has sha256 {answer['sha256'][:12] or 'none'}, "
            f"verified {library.sha256[:12]}"
        )
    # a CPU build of torch has no CUDA runtime to load the library with
    if answer["load_error"] and torch.cuda:
        raise GateFailed(f"the library does not serve there: {answer['load_error']}")
    return str(answer["unusable"])
