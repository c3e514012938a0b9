# SPDX-License-Identifier: Apache-2.0
"""Holding a library to what the patches in it promise (``Asserts:``)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ninja.ninja_syntax import escape_path

from patchctl.formats.asserts import Built, Kind, Promise, check_built, read_promises
from patchctl.formats.elf import defined_symbols
from patchctl.formats.findings import Finding
from patchctl.formats.ninjafile import object_of
from patchctl.formats.target import Target
from patchctl.stages.devicecode import demangle
from patchctl.stages.toolchain import Toolchain
from patchctl.system.files import sha256_bytes
from patchctl.system.project import Project
from patchctl.system.records import load_record


def replayed_promises(project: Project) -> tuple[Promise, ...]:
    """What the patches in the replayed tree promise: only those that were applied count.

    Raises:
        PatchDoesNotApply: a promise cannot be read.
    """
    record = load_record(project, "replay")
    if record is None:
        return ()
    names = [k.removeprefix("patch ") for k in record.inputs if k.startswith("patch ")]
    last = record.inputs.get("last patch", "")
    applied = names[: names.index(last) + 1] if last in names else names
    paths = [project.patches / name for name in applied]
    return tuple(
        promise
        for name, path in zip(applied, paths, strict=True)
        if path.is_file()
        for promise in read_promises(name, path.read_bytes())
    )


def promises_digest(project: Project) -> str:
    """Changes with the promises that a verification has to look at."""
    return sha256_bytes(repr(replayed_promises(project)).encode())


def check_promises(
    project: Project,
    target: Target,
    toolchain: Toolchain,
    data: bytes,
    kernels: Collection[str],
    operators: Collection[str] | None,
    *,
    built: bool,
) -> list[Finding]:
    """The promises of the replayed patches that the library with the bytes `data` breaks.

    `built`: it is the one that the project's last build made, so that what was compiled is known.
    """
    promises = replayed_promises(project)
    symbols: set[str] = set()
    if any(promise.kind is Kind.SYMBOL for promise in promises):
        names, _ = demangle(defined_symbols(data), toolchain)
        symbols = set(names) | set(names.values())
    units = _compiled_units(project, target, promises) if built else None
    return check_built(promises, Built(symbols, kernels, operators, units))


def _compiled_units(project: Project, target: Target, promises: Sequence[Promise]) -> set[str]:
    """Those of the promised files that the last build compiled into the library."""
    folder = project.objects(target.name)
    plan = folder / "build.ninja"
    lines = plan.read_text().splitlines() if plan.is_file() else []

    def is_compiled(unit: str) -> bool:
        name = object_of(unit)
        starts = tuple(f"build {escape_path(name)}{behind}" for behind in (":", " "))
        return (folder / name).is_file() and any(line.startswith(starts) for line in lines)

    return {p.subject for p in promises if p.kind is Kind.COMPILES and is_compiled(p.subject)}
