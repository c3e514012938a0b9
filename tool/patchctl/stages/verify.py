# SPDX-License-Identifier: Apache-2.0
"""The gates: resources, architectures, symbols and schemas of a library against what is locked."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from patchctl.errors import GateFailed, UsageError
from patchctl.formats.cuobjdump import Embedded
from patchctl.formats.demangle import keys
from patchctl.formats.documents import read_toml
from patchctl.formats.elf import elf_problem, read_dynamic
from patchctl.formats.findings import Finding, Severity, has_errors, worst_first
from patchctl.formats.measured import measure
from patchctl.formats.ptxas import parse_ptxas
from patchctl.formats.resources import (
    Resources,
    Row,
    check_limits,
    compare,
    differences,
    read_resources,
    renewed,
    rows,
    write_resources,
)
from patchctl.formats.schemas import compare_operators, read_schemas
from patchctl.formats.symbols import AbiRules, check_exports, check_symbols, parse_shims
from patchctl.formats.target import Target
from patchctl.stages.devicecode import DeviceCode, demangle, read_device_code
from patchctl.stages.libraryprobe import probe_library
from patchctl.stages.toolchain import Toolchain
from patchctl.system.files import sha256_bytes, sha256_of, write_if_changed
from patchctl.system.project import Project
from patchctl.system.records import Record, drop_record, load_record, save_record
from patchctl.system.report import Reporter

SHIM_HEADERS = (
    "csrc/stable/c/shim.h",
    "csrc/inductor/aoti_torch/c/shim.h",
    "csrc/inductor/aoti_torch/generated/c_shim_aten.h",
)
"""Torch's promises, below ``include/torch``; the other shims belong to its own compiler."""


@dataclass
class Verification:
    """What the gates said.

    `resources` is one row a kernel, `dispatch` the keys of each operator, `changes` what an
    update wrote, `skipped` that the same files passed before and nothing was looked at again.
    """

    library: Path
    findings: list[Finding] = field(default_factory=list)
    resources: list[Row] = field(default_factory=list)
    dispatch: dict[str, tuple[str, ...]] = field(default_factory=dict)
    torch: str = ""
    changes: list[str] = field(default_factory=list)
    skipped: bool = False

    @property
    def failed(self) -> bool:
        """Whether a gate says no."""
        return has_errors(self.findings)

    def as_json(self) -> dict[str, object]:
        """Everything, for ``--json``."""
        return {
            "library": str(self.library),
            "torch": self.torch,
            "skipped": self.skipped,
            "findings": [f.as_json() for f in worst_first(self.findings)],
            "resources": [
                {"name": r.measured.name, "dynamic_shared": r.dynamic_shared, **r.numbers}
                for r in self.resources
            ],
            "dispatch": {name: list(has) for name, has in self.dispatch.items()},
            "changes": self.changes,
        }


def gate_error(done: Verification) -> GateFailed:
    """The error for a verification that failed; its data holds everything that was found."""
    errors = sum(f.severity is Severity.ERROR for f in done.findings)
    return GateFailed(
        f"`{done.library.name}` does not pass: {errors} error{'' if errors == 1 else 's'}",
        data=done.as_json(),
    )


def built_library(project: Project, target: Target) -> Path:
    """Where `build` leaves the library."""
    return project.objects(target.name) / target.filename


def ptxas_logs(project: Project, target: Target) -> tuple[Path, ...]:
    """The compiler's report beside each object."""
    return tuple(sorted((project.objects(target.name) / "obj").rglob("*.ptxas.log")))


def abi_file(project: Project, target: Target) -> Path:
    """The rules for undefined symbols."""
    return project.root / "build" / f"{target.name}.abi.toml"


def verify_inputs(project: Project, target: Target) -> dict[str, str]:
    """What a verification depends on, by the name that people know."""
    library = built_library(project, target)
    logs = "".join(sha256_of(log) for log in ptxas_logs(project, target))
    inputs = {
        "library": sha256_of(library) if library.is_file() else "",
        "ptxas logs": sha256_bytes(logs.encode()),
        "architectures": f"{target.arch} {target.ptx}",
        "torch": metadata.version("torch"),
        "oldest torch": target.abi.torch,
        "patches": " ".join(applied_patches(project) or ("all",)),
    }
    for name, path in (
        ("resources", project.resources_file(target.name)),
        ("schemas", project.schemas_file(target.name)),
        ("abi rules", abi_file(project, target)),
    ):
        inputs[name] = sha256_of(path) if path.is_file() else ""
    return inputs


def applied_patches(project: Project) -> tuple[str, ...] | None:
    """The patches in the replayed tree when they are only a part of the series, else None."""
    record = load_record(project, "replay")
    listed = record.outputs.get("patches") if record else None
    return tuple(listed.split()) if listed else None


def verify(
    project: Project,
    target: Target,
    toolchain: Toolchain,
    report: Reporter,
    *,
    update: bool = False,
    force: bool = False,
    library: Path | None = None,
    logs: Sequence[Path] | None = None,
) -> Verification:
    """Hold the library against its locks; every gate speaks, none hides another.

    A library that passed before is not looked at again while nothing changed, unless `force`.
    `update` writes the resources that were measured into the lock, but never while one breaks a
    limit. `library` and `logs` are of another build than the project's.

    Raises:
        UsageError: no library, or an expectation file that does not parse.
        ToolMissing: no cuobjdump, or no torch.
    """
    stage = f"verify-{target.name}"
    of_project = library is None
    library = library or built_library(project, target)
    if not library.is_file():
        raise UsageError(f"there is no library `{library}`", hint="patchctl build")
    if of_project and not (update or force):
        record = load_record(project, stage)
        if record and not record.stale_because(verify_inputs(project, target)):
            return Verification(library, skipped=True)
    drop_record(project, stage)
    done = Verification(library)
    if logs is None:
        logs = ptxas_logs(project, target) if of_project else ()
    with report.task(f"verifying {library.name}", 3, unit="gates") as task:
        data = library.read_bytes()
        problem = elf_problem(data, platform.machine())
        if problem:
            done.findings.append(Finding("file", library.name, problem, hint="patchctl build"))
            return done
        _symbols(done, project, target, toolchain, data)
        task.advance()
        code = read_device_code(library, toolchain)
        done.findings += check_architectures(code.embedded, target)
        _resources(done, project, target, toolchain, code, logs, update=update)
        task.advance()
        _schemas(done, project, target, toolchain)
        task.advance()
    if of_project and not done.failed:
        inputs = verify_inputs(project, target)
        outputs = {"library": inputs["library"], "findings": str(len(done.findings))}
        save_record(project, Record(stage=stage, inputs=inputs, outputs=outputs))
    return done


def check_architectures(embedded: Embedded, target: Target) -> list[Finding]:
    """SASS for exactly the target's architecture, and PTX beside every SASS image."""
    findings = []
    for what, got, wanted in (
        ("SASS", embedded.sass, target.arch),
        ("PTX", embedded.ptx, target.ptx),
    ):
        if set(got) != {wanted}:
            found = ", ".join(sorted(got)) or "none"
            text = f"embedded for {found}, expected exactly {wanted}"
            findings.append(Finding("architectures", what, text, hint="patchctl build"))
    sass, ptx = embedded.sass.get(target.arch, 0), embedded.ptx.get(target.ptx, 0)
    if not findings and sass != ptx:
        text = f"{ptx} images for {sass} of SASS: a unit was compiled without the other"
        findings.append(Finding("architectures", "PTX", text, hint="patchctl build"))
    return findings


def _text(path: Path, project: Project) -> tuple[bytes, str]:
    where = project.relative(path)
    try:
        return path.read_bytes(), where
    except FileNotFoundError as error:
        raise UsageError(f"there is no `{where}`, which says what to expect") from error


def _symbols(
    done: Verification, project: Project, target: Target, toolchain: Toolchain, data: bytes
) -> None:
    text, where = _text(abi_file(project, target), project)
    rules = read_toml(text, AbiRules, where=where)
    dynamic = read_dynamic(data)
    names, _ = demangle((s.name for s in dynamic.undefined), toolchain)
    done.findings += check_symbols(dynamic, rules, _shims(), target.abi.torch, names)
    done.findings += check_exports(dynamic, target.library)


def _shims() -> Mapping[str, tuple[int, int]]:
    spec = find_spec("torch")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    shims: dict[str, tuple[int, int]] = {}
    for header in SHIM_HEADERS:
        for folder in folders:
            path = Path(folder) / "include" / "torch" / header
            if path.is_file():
                shims |= parse_shims(path.read_text("utf-8", "replace"))
    return shims


def _resources(
    done: Verification,
    project: Project,
    target: Target,
    toolchain: Toolchain,
    code: DeviceCode,
    logs: Sequence[Path],
    *,
    update: bool,
) -> None:
    path = project.resources_file(target.name)
    locked = Resources()
    if path.is_file():
        text, where = _text(path, project)
        locked = read_resources(text, where=where)
    reports = {project.relative(p): parse_ptxas(p.read_text("utf-8", "replace")) for p in logs}
    mangled = {f.name for f in code.functions}
    mangled |= {f.name for log in reports.values() for f in log.functions}
    names, program = demangle(mangled, toolchain)
    if not program and names:
        why = "no demangler (c++filt, cu++filt): kernels have their linker names"
        done.findings.append(Finding("resources", "names", why, hint="apt install binutils"))
    found = measure(code.functions, reports, code.threads, keys(names), target.arch)
    measured = rows(found.functions, locked, target.arch)
    broken = found.findings + check_limits(measured, locked.limits)
    applied = applied_patches(project)
    done.findings += broken
    done.resources = measured
    if update and has_errors(broken):
        why = "refused to lock these numbers while one breaks a limit or is not known"
        done.findings.append(Finding("resources", project.relative(path), why))
    elif update:
        new = renewed(measured, locked, toolchain.version, applied)
        done.changes = _changes(measured, locked, new)
        write_if_changed(path, write_resources(new))
        locked = new
    done.findings += compare(measured, locked, toolchain.version, applied)


def _changes(measured: list[Row], old: Resources, new: Resources) -> list[str]:
    budgets = {b.name: b for b in old.kernels}
    kept = {b.name for b in new.kernels}
    said = []
    for row in measured:
        budget = budgets.get(row.measured.name)
        if budget is None and row.measured.is_kernel:
            said.append(f"{row.measured.name}: new")
        elif budget is not None:
            said += [f"{row.measured.name}: {text}" for text in differences(row, budget)]
    return said + [f"{name}: gone" for name in budgets if name not in kept]


def _schemas(done: Verification, project: Project, target: Target, toolchain: Toolchain) -> None:
    text, where = _text(project.schemas_file(target.name), project)
    expected = read_schemas(text, where=where)
    probe = probe_library(done.library, target.library, expected, (toolchain.lib64,))
    done.torch = probe.torch
    done.findings += probe.findings
    if probe.operators is not None:
        done.dispatch = {name: o.dispatch for name, o in probe.operators.items()}
        done.findings += compare_operators(expected, probe.operators, applied_patches(project))
