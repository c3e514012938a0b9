# SPDX-License-Identifier: Apache-2.0
"""From the replayed tree to the shared object: ninja compiles, we check and publish."""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from patchctl.errors import BuildFailed, UsageError
from patchctl.formats.elf import elf_problem
from patchctl.formats.globs import Include
from patchctl.formats.instances import HOST_SUFFIX, KERNEL_SUFFIX
from patchctl.formats.ninjafile import (
    NAMED_UNIT,
    NAMED_UNIT_FILE,
    Sources,
    Tools,
    linked_file,
    ninja_text,
)
from patchctl.formats.target import Target, read_target
from patchctl.stages.freshness import source_files, take_snapshot
from patchctl.stages.generate import GeneratedUnit, generate
from patchctl.stages.hostcompiler import Host, preflight
from patchctl.stages.localchanges import refuse_strays
from patchctl.stages.replay import replayed_tree
from patchctl.stages.runninja import run_ninja
from patchctl.stages.toolchain import Toolchain
from patchctl.system.files import sha256_bytes, sha256_of, write_file, write_if_changed
from patchctl.system.process import wait_for_others
from patchctl.system.project import Project
from patchctl.system.records import Record, drop_record, load_record, save_record
from patchctl.system.report import Reporter

EDITED = "edited by hand"
"""The recorded source of a library that is not the series's."""


class NothingToCompile(UsageError):
    """No file of the source tree matches the target's globs, and none is generated."""


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
        NothingToCompile: no source file matches the target's globs, and none is generated.
        LocalChanges: a file that is not of the series would have a part in the library.
        BuildFailed: a compiler or the linker failed (its first words are in the details), or a
            table of generated units or a template is wrong.
        Unavailable: the disk is full.
    """
    start = time.monotonic()
    host = preflight(toolchain, target.abi)
    folder = project.objects(target.name)
    files = source_files(project.source)
    if not edited:
        refuse_strays(project, target, files)
    wait_for_others("ninja", folder, report)
    generated = generate(project.source, target, folder)
    sources = _sources(project, target, files, generated)
    source = EDITED if edited else replayed_tree(project)
    inputs = _inputs(project, target, toolchain, host, source)
    watched = [*files, *(os.path.relpath(folder / unit, project.source) for unit in generated)]
    if not take_snapshot(project.source, watched, folder):
        report.warn("a source file changed without a newer time stamp: everything is compiled anew")
        shutil.rmtree(folder / "obj", ignore_errors=True)
    tools = _tools(project, folder, toolchain, host)
    write_if_changed(folder / NAMED_UNIT_FILE, NAMED_UNIT)
    write_if_changed(folder / "build.ninja", ninja_text(target, sources, tools))

    linked, library = folder / linked_file(target), built_library(project, target)
    record = load_record(project, record_name(target))
    published = record.outputs.get("library", "") if record else ""
    if linked.exists() and sha256_of(linked) != published:
        linked.unlink()  # a link that was cut short, or one that was never published
    origins = {unit: made.origin for unit, made in generated.items()}
    compiled = run_ninja(project, target, sources, host.ninja, report, jobs, origins)
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
        logs=tuple(folder / log for log in sources.logs),
        seconds=time.monotonic() - start,
    )


def _sources(
    project: Project, target: Target, files: list[str], generated: Mapping[str, GeneratedUnit]
) -> Sources:
    def matching(globs: tuple[str, ...], suffix: str) -> tuple[str, ...]:
        include = Include(globs)
        found = [name for name in files if include.matches(os.fsencode(name))]
        return (*found, *sorted(unit for unit in generated if unit.endswith(suffix)))

    sources = Sources(
        matching(target.kernels.sources, KERNEL_SUFFIX),
        matching(target.host.sources, HOST_SUFFIX),
        {unit: made.folder for unit, made in generated.items()},
    )
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
