# SPDX-License-Identifier: Apache-2.0
"""Running ninja in the build folder, and saying what failed."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from patchctl.errors import BuildFailed, PatchctlError, Unavailable
from patchctl.formats.ninjafile import LINK_FOLDER, OBJECT_FOLDER, Sources
from patchctl.formats.ninjalog import (
    STATUS_FORMAT,
    Failure,
    count_warnings,
    first_failure,
    read_status,
)
from patchctl.formats.target import Target
from patchctl.formats.wording import counted
from patchctl.stages.nvcc import compiler_environment
from patchctl.stages.objects import forget_objects, remember_objects, settle_objects
from patchctl.system.files import write_file
from patchctl.system.machine import MIB, available_memory, cores, parallel_jobs
from patchctl.system.process import run, stream
from patchctl.system.project import Project
from patchctl.system.report import Reporter

LOW_SPACE = 16 * MIB
"""Bytes of free disk below which a command that failed without an error message ran out of it."""


def run_ninja(
    project: Project,
    target: Target,
    sources: Sources,
    ninja: Path,
    report: Reporter,
    jobs: int | None,
    origins: Mapping[str, str],
) -> int:
    """Bring everything up to date; returns how many objects were compiled.

    `origins` says what generated units were made from.

    Raises:
        BuildFailed: a compiler or the linker failed; its first words are in the details.
        Unavailable: the disk is full.
    """
    folder = project.objects(target.name)
    (folder / LINK_FOLDER).mkdir(exist_ok=True)
    settle_objects(folder, sources)
    environment = {**compiler_environment(), "NINJA_STATUS": STATUS_FORMAT}
    plan = run([ninja, "-n"], cwd=folder, env=environment, check=False)
    steps = [status for line in plan.out.splitlines() if (status := read_status(line))]
    if plan.code == 0 and not steps:
        remember_objects(folder)
        return 0
    forget_objects(folder)
    count = jobs or parallel_jobs(
        target.limits.memory_mib * MIB, cores=cores(), available=available_memory()
    )
    lines: list[str] = []
    compiled = 0
    log = folder / "build.log"
    try:
        with report.task(f"building {target.name} (-j {count})", len(steps), unit="step") as task:

            def follow(line: str) -> None:
                nonlocal compiled
                lines.append(line)
                status = read_status(line)
                if status is not None:
                    task.advance()
                    task.note(status.what)
                    compiled += not status.what.startswith("link ")

            code = stream([ninja, f"-j{count}"], follow, cwd=folder, env=environment)
    finally:
        write_file(log, "\n".join([*lines, ""]), sync=False)
        remember_objects(folder)
    if code != 0:
        raise _failure(first_failure(lines), lines, code, count, log, origins)
    warnings = count_warnings(lines)
    if warnings:
        report.warn(f"{counted(warnings, 'warning')} of compilers; see `{project.relative(log)}`")
    return compiled


def _failure(
    failure: Failure | None,
    lines: list[str],
    code: int,
    jobs: int,
    log: Path,
    origins: Mapping[str, str],
) -> PatchctlError:
    where = f"full log: {log}"
    if failure is None:
        return BuildFailed(
            f"ninja failed: exit code {code}", details=(*lines[-5:], where), data={"code": code}
        )
    unit = failure.output.removeprefix(f"{OBJECT_FOLDER}/").removesuffix(".o")
    how = f" (exit code {failure.code})" if failure.code is not None else ""
    what = f"linking `{unit}`" if failure.output.startswith(LINK_FOLDER) else f"compiling `{unit}`"
    made = [f"`{unit}` is made from {origins[unit]}"] if unit in origins else []
    details = (*failure.shown(), *made, where)
    data: dict[str, object] = {"unit": unit, "code": failure.code, "log": str(log)}
    # on a full disk what the compiler said may not have reached its log
    mute = not failure.says_why and shutil.disk_usage(log.parent).free < LOW_SPACE
    if failure.disk_full or mute:
        return Unavailable(
            f"{what} failed{how}: no space left on the disk",
            details=details,
            hint="free some space and run `patchctl build` again",
            data=data,
        )
    if failure.out_of_memory:
        return BuildFailed(
            f"{what} failed{how}: the compiler was killed, most likely for lack of memory",
            details=details,
            hint="patchctl build -j 1" if jobs > 1 else "close other programs or add memory",
            data={**data, "likely_cause": "memory"},
        )
    return BuildFailed(f"{what} failed{how}", details=details, data=data)
