# SPDX-License-Identifier: Apache-2.0
"""From the replayed tree to the shared object: ninja compiles, we check and publish."""

from __future__ import annotations

import os
import platform
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from patchctl.errors import BuildFailed, PatchctlError, Unavailable, UsageError
from patchctl.formats.elf import elf_problem
from patchctl.formats.globs import Include
from patchctl.formats.ninjafile import (
    LINK_FOLDER,
    Sources,
    Tools,
    linked_file,
    ninja_text,
    ptxas_log_of,
)
from patchctl.formats.ninjalog import (
    STATUS_FORMAT,
    Failure,
    count_warnings,
    first_failure,
    read_status,
)
from patchctl.formats.target import Target, read_target
from patchctl.formats.wording import counted
from patchctl.stages.freshness import source_files, take_snapshot
from patchctl.stages.hostcompiler import Host, preflight
from patchctl.stages.localchanges import refuse_strays
from patchctl.stages.nvcc import compiler_environment
from patchctl.stages.replay import replayed_tree
from patchctl.stages.toolchain import Toolchain
from patchctl.system.files import sha256_bytes, sha256_of, write_file, write_if_changed
from patchctl.system.machine import MIB, available_memory, cores, parallel_jobs
from patchctl.system.process import run, stream, wait_for_others
from patchctl.system.project import Project
from patchctl.system.records import Record, drop_record, load_record, save_record
from patchctl.system.report import Reporter

LOW_SPACE = 16 * MIB
"""Bytes of free disk below which a command that failed without an error message ran out of it."""

EDITED = "edited by hand"
"""The recorded source of a library that is not the series's."""


class NothingToCompile(UsageError):
    """No file of the source tree matches the target's globs."""


@dataclass(frozen=True)
class BuildResult:
    """A library that is whole: its digest, how many objects were compiled for it just now, the
    ptxas logs of all its kernels, and the wall time in seconds."""

    library: Path
    sha256: str
    compiled: int
    logs: tuple[Path, ...]
    seconds: float


def load_target(project: Project, name: str) -> Target:
    """Read ``build/<name>.toml``.

    Raises:
        UsageError: there is no such file, or it does not parse.
    """
    path = project.target_file(name)
    where = project.relative(path)
    try:
        if Path(name).name != name:
            raise FileNotFoundError(name)  # a name, not a path out of `build`
        return read_target(path.read_bytes(), name=name, where=where)
    except FileNotFoundError:
        folder = project.root / "build"
        known = sorted(p.stem for p in folder.glob("*.toml") if "." not in p.stem)
        raise UsageError(
            f"there is no target `{name}`: no `{where}`",
            hint=f"--target with one of: {', '.join(known)}" if known else "",
        ) from None


def build_inputs(project: Project, target: Target, toolchain: Toolchain) -> dict[str, str]:
    """What decides the library's bytes, by names that people understand."""
    host = preflight(toolchain, target.abi)
    return _inputs(project, target, toolchain, host, replayed_tree(project))


def built_otherwise(project: Project, target: Target) -> str:
    """How the library in place differs from what the series and the target ask for now, or ""."""
    record = load_record(project, record_name(target))
    if record is None:
        return "made by no build that is on record"
    library, recorded = built_library(project, target), record.outputs.get("library", "")
    found = sha256_of(library) if library.is_file() else ""
    if found != recorded:
        return f"replaced after the build: sha256 {found[:12] or 'none'}, built {recorded[:12]}"
    source, tree = record.inputs.get("source", ""), replayed_tree(project)
    if source == EDITED:
        return "built from a source tree that was edited by hand"
    if source != tree:
        return f"built from tree {source[:12]}, but the replayed tree is {tree[:12] or 'unknown'}"
    if record.inputs.get("target") != sha256_of(project.target_file(target.name)):
        return f"built before `{project.relative(project.target_file(target.name))}` changed"
    return ""


def _inputs(
    project: Project, target: Target, toolchain: Toolchain, host: Host, source: str
) -> dict[str, str]:
    return {
        "source": source,
        "target": sha256_of(project.target_file(target.name)),
        "toolchain": f"CUDA {toolchain.version}, {toolchain.digest[:16]}",
        "compiler": f"{host.compiler.path.name} {host.compiler.version}",
        "torch": f"{host.torch.package.version}, headers {host.torch.digest[:16]}",
    }


def record_name(target: Target) -> str:
    """The name of a target's record."""
    return f"build-{target.name}"


def built_library(project: Project, target: Target) -> Path:
    """Where the library is put."""
    return project.objects(target.name) / target.filename


def build(
    project: Project,
    target: Target,
    toolchain: Toolchain,
    report: Reporter,
    *,
    jobs: int | None = None,
    edited: bool = False,
) -> BuildResult:
    """Compile what changed, link, check the library and move it into place.

    Whatever happens on the way, the library in place stays a whole one.

    Args:
        jobs: compilers at the same time; by default what cores and memory allow.
        edited: the source tree was not replayed just now; the record says so, and `verify`
            refuses the library.

    Raises:
        ToolMissing: no usable C++ compiler, headers, torch or ninja.
        NothingToCompile: no source file matches the target's globs.
        LocalChanges: a file that is not of the series would have a part in the library.
        BuildFailed: a compiler or the linker failed; its first words are in the details.
        Unavailable: the disk is full.
    """
    start = time.monotonic()
    host = preflight(toolchain, target.abi)
    folder = project.objects(target.name)
    files = source_files(project.source)
    if not edited:
        refuse_strays(project, target, files)
    sources = _sources(project, target, files)
    source = EDITED if edited else replayed_tree(project)
    inputs = _inputs(project, target, toolchain, host, source)
    if not take_snapshot(project.source, files, folder):
        report.warn("a source file changed without a newer time stamp: everything is compiled anew")
        shutil.rmtree(folder / "obj", ignore_errors=True)
    tools = _tools(project, folder, toolchain, host)
    write_if_changed(folder / "build.ninja", ninja_text(target, sources, tools))

    linked, library = folder / linked_file(target), built_library(project, target)
    record = load_record(project, record_name(target))
    published = record.outputs.get("library", "") if record else ""
    if linked.exists() and sha256_of(linked) != published:
        linked.unlink()  # a link that was cut short, or one that was never published
    compiled = _run_ninja(project, target, host.ninja, report, jobs)
    content = linked.read_bytes()
    digest = sha256_bytes(content)
    if digest != published or not library.exists() or sha256_of(library) != digest:
        problem = elf_problem(content, platform.machine())
        if problem:
            linked.unlink()
            raise BuildFailed(
                f"the linker made a `{target.filename}` that is not whole: {problem}",
                hint="run `patchctl build` again; if it repeats, check the disk",
            )
        drop_record(project, record_name(target))
        write_file(library, content, mode=0o755)
    outputs = {"library": digest}
    fresh = Record(stage=record_name(target), inputs=inputs, outputs=outputs)
    if load_record(project, record_name(target)) != fresh:
        save_record(project, fresh)
    return BuildResult(
        library=library,
        sha256=digest,
        compiled=compiled,
        logs=tuple(folder / ptxas_log_of(unit) for unit in sources.kernels),
        seconds=time.monotonic() - start,
    )


def _sources(project: Project, target: Target, files: list[str]) -> Sources:
    def matching(globs: tuple[str, ...]) -> tuple[str, ...]:
        include = Include(globs)
        return tuple(name for name in files if include.matches(os.fsencode(name)))

    sources = Sources(matching(target.kernels.sources), matching(target.host.sources))
    if not sources.kernels and not sources.hosts:
        globs = (*target.kernels.sources, *target.host.sources)
        raise NothingToCompile(
            f"nothing to compile: no file in `{project.relative(project.source)}` matches "
            + " or ".join(f"`{glob}`" for glob in globs),
            hint=f"check `sources` in `{project.relative(project.target_file(target.name))}`, "
            "then `patchctl replay`",
        )
    return sources


def _tools(project: Project, folder: Path, toolchain: Toolchain, host: Host) -> Tools:
    compiler = f"{host.compiler.path.name} {host.compiler.version}"
    return Tools(
        source=os.path.relpath(project.source, folder),
        nvcc=str(toolchain.nvcc),
        cxx=str(host.compiler.path),
        cuda_include=str(toolchain.include),
        cuda_lib=str(toolchain.lib64),
        torch_include=str(host.torch.package.include),
        torch_lib=str(host.torch.package.lib),
        python_include=str(host.python_include),
        kernel_key=f"CUDA {toolchain.digest[:16]}, {compiler}",
        host_key=f"{compiler}, torch {host.torch.digest[:16]}, CUDA {toolchain.digest[:16]}",
    )


def _run_ninja(
    project: Project, target: Target, ninja: Path, report: Reporter, jobs: int | None
) -> int:
    """Bring everything up to date; returns how many objects were compiled."""
    folder = project.objects(target.name)
    (folder / LINK_FOLDER).mkdir(exist_ok=True)
    wait_for_others("ninja", folder, report)
    environment = {**compiler_environment(), "NINJA_STATUS": STATUS_FORMAT}
    plan = run([ninja, "-n"], cwd=folder, env=environment, check=False)
    steps = [status for line in plan.out.splitlines() if (status := read_status(line))]
    if plan.code == 0 and not steps:
        return 0
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
    if code != 0:
        raise _failure(first_failure(lines), lines, code, count, log)
    run([ninja, "-t", "cleandead"], cwd=folder, env=environment, check=False)
    warnings = count_warnings(lines)
    if warnings:
        report.warn(f"{counted(warnings, 'warning')} of compilers; see `{project.relative(log)}`")
    return compiled


def _failure(
    failure: Failure | None, lines: list[str], code: int, jobs: int, log: Path
) -> PatchctlError:
    where = f"full log: {log}"
    if failure is None:
        return BuildFailed(
            f"ninja failed: exit code {code}", details=(*lines[-5:], where), data={"code": code}
        )
    unit = failure.output.removeprefix("obj/").removesuffix(".o")
    how = f" (exit code {failure.code})" if failure.code is not None else ""
    what = f"linking `{unit}`" if failure.output.startswith(LINK_FOLDER) else f"compiling `{unit}`"
    details = (*failure.shown(), where)
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
