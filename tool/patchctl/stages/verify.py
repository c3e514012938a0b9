# SPDX-License-Identifier: Apache-2.0
"""The gates: resources, architectures, symbols and schemas of a library against what is locked."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from patchctl.errors import GateFailed, UsageError
from patchctl.formats.cuobjdump import Embedded
from patchctl.formats.documents import read_toml
from patchctl.formats.elf import elf_problem, read_dynamic
from patchctl.formats.findings import Finding, Severity, has_errors, worst_first
from patchctl.formats.resources import Row
from patchctl.formats.schemas import compare_operators, read_schemas
from patchctl.formats.symbols import AbiRules, check_exports, check_symbols, parse_shims
from patchctl.formats.target import Target
from patchctl.formats.wording import counted
from patchctl.stages.build import built_library, built_otherwise
from patchctl.stages.devicecode import demangle, read_device_code
from patchctl.stages.interpreter import last_line
from patchctl.stages.libraryprobe import probe_library
from patchctl.stages.promisegate import check_promises, promises_digest
from patchctl.stages.replay import applied_patches
from patchctl.stages.resourcegate import check_resources
from patchctl.stages.toolchain import Toolchain
from patchctl.stages.torchpackage import find_torch_package
from patchctl.system.files import sha256_bytes, sha256_of
from patchctl.system.process import ProcessFailed
from patchctl.system.project import Project
from patchctl.system.records import Record, drop_record, load_record, save_record
from patchctl.system.report import Reporter

SHIM_HEADERS = (
    "csrc/stable/c/shim.h",
    "csrc/inductor/aoti_torch/c/shim.h",
    "csrc/inductor/aoti_torch/generated/c_shim_aten.h",
)
"""Torch's promises, below ``include/torch``; the other shims belong to its own compiler."""

LOG_SUFFIX = ".ptxas.log"


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
        f"`{done.library.name}` does not pass: {counted(errors, 'error')}",
        data=done.as_json(),
    )


def record_name(target: Target) -> str:
    """The name of a target's record."""
    return f"verify-{target.name}"


def ptxas_logs(project: Project, target: Target) -> tuple[Path, ...]:
    """The compiler's report beside each object; one without its object is of an older tree."""
    logs = sorted((project.objects(target.name) / "obj").rglob(f"*{LOG_SUFFIX}"))
    return tuple(log for log in logs if log.with_name(log.name.removesuffix(LOG_SUFFIX)).exists())


def verify_inputs(project: Project, target: Target) -> dict[str, str]:
    """What a verification depends on, by the name that people know."""
    library = built_library(project, target)
    logs = "".join(sha256_of(log) for log in ptxas_logs(project, target))
    torch = find_torch_package()
    inputs = {
        "library": sha256_of(library) if library.is_file() else "",
        "ptxas logs": sha256_bytes(logs.encode()),
        "architectures": f"{target.arch} {target.ptx}",
        "torch": torch.version if torch else "none",
        "oldest torch": target.abi.torch,
        "patches": " ".join(applied_patches(project) or ("all",)),
        "promises": promises_digest(project),
    }
    for name, path in (
        ("resources", project.resources_file(target.name)),
        ("schemas", project.schemas_file(target.name)),
        ("abi rules", project.abi_file(target.name)),
    ):
        inputs[name] = sha256_of(path) if path.is_file() else ""
    return inputs


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
    stage = record_name(target)
    of_project = library is None
    library = library or built_library(project, target)
    if not library.is_file():
        raise UsageError(f"there is no library `{library}`", hint="patchctl build")
    otherwise = built_otherwise(project, target) if of_project else ""
    # taken before the gates look: what changes under them was not verified
    inputs = verify_inputs(project, target) if of_project else {}
    if of_project and not (otherwise or update or force):
        record = load_record(project, stage)
        if record and not record.stale_because(inputs):
            return Verification(library, skipped=True)
    if of_project:
        drop_record(project, stage)
    done = Verification(library)
    if logs is None:
        logs = ptxas_logs(project, target) if of_project else ()
    if otherwise:
        done.findings.append(Finding("source", library.name, otherwise, hint="patchctl build"))
    with report.task(f"verifying {library.name}", 3, unit="gate") as task:
        data = library.read_bytes()
        problem = elf_problem(data, platform.machine())
        if problem:
            done.findings.append(Finding("file", library.name, problem, hint="patchctl build"))
            return done
        _symbols(done, project, target, toolchain, data)
        task.advance()
        _device_code(done, project, target, toolchain, logs, update=update)
        task.advance()
        operators = _schemas(done, project, target, toolchain)
        kernels = [row.measured.name for row in done.resources if row.measured.is_kernel]
        done.findings += check_promises(
            project, target, toolchain, data, kernels, operators, built=of_project
        )
        task.advance()
    if of_project and verify_inputs(project, target)["library"] != inputs["library"]:
        text = "was replaced while the gates looked at it"
        done.findings.append(Finding("source", library.name, text, hint="patchctl build"))
    if of_project and not done.failed:
        if update:
            inputs["resources"] = verify_inputs(project, target)["resources"]
        outputs = {"library": inputs["library"], "findings": str(len(done.findings))}
        save_record(project, Record(stage=stage, inputs=inputs, outputs=outputs))
    return done


def _device_code(
    done: Verification,
    project: Project,
    target: Target,
    toolchain: Toolchain,
    logs: Sequence[Path],
    *,
    update: bool,
) -> None:
    try:
        device, embedded = read_device_code(done.library, toolchain)
    except ProcessFailed as error:
        text = f"cuobjdump cannot read its device code: {last_line(error)}"
        done.findings.append(Finding("file", done.library.name, text, hint="patchctl build"))
        return
    done.findings += check_architectures(embedded, target, has_kernels=bool(logs))
    applied = applied_patches(project)
    gate = check_resources(project, target, toolchain, device, logs, applied, update=update)
    done.findings += gate.findings
    done.resources, done.changes = gate.rows, gate.changes


def check_architectures(
    embedded: Embedded, target: Target, *, has_kernels: bool = True
) -> list[Finding]:
    """SASS for exactly the target's architecture, and PTX beside every SASS image.

    The first patches of a series may bring no kernel: then nothing may be embedded.
    """
    if not has_kernels and not embedded.sass and not embedded.ptx:
        text = "no kernel was compiled, nothing is embedded"
        return [Finding("architectures", "SASS", text, Severity.NOTE)]
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
    text, where = _text(project.abi_file(target.name), project)
    rules = read_toml(text, AbiRules, where=where)
    dynamic = read_dynamic(data)
    names, _ = demangle((s.name for s in dynamic.undefined), toolchain)
    done.findings += check_symbols(dynamic, rules, _shims(), target.abi.torch, names)
    done.findings += check_exports(dynamic, target.library)


def _shims() -> Mapping[str, tuple[int, int]]:
    torch = find_torch_package()
    shims: dict[str, tuple[int, int]] = {}
    if torch is not None:
        for header in (torch.include / "torch" / name for name in SHIM_HEADERS):
            if header.is_file():
                shims |= parse_shims(header.read_text("utf-8", "replace"))
    return shims


def _schemas(
    done: Verification, project: Project, target: Target, toolchain: Toolchain
) -> list[str] | None:
    """The names of the operators; None if they could not be read."""
    text, where = _text(project.schemas_file(target.name), project)
    expected = read_schemas(text, where=where)
    probe = probe_library(done.library, target.library, expected, (toolchain.lib64,))
    done.torch = probe.torch
    done.findings += probe.findings
    if probe.operators is None:
        return None
    done.dispatch = {name: o.dispatch for name, o in probe.operators.items()}
    done.findings += compare_operators(expected, probe.operators, applied_patches(project))
    return list(probe.operators)
