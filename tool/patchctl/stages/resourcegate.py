# SPDX-License-Identifier: Apache-2.0
"""The resources of every kernel against ``build/<target>.resources.toml``, and its renewal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from patchctl.formats.demangle import keys
from patchctl.formats.findings import Finding, has_errors
from patchctl.formats.measured import GATE, Library, measure
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
from patchctl.formats.target import Target
from patchctl.stages.devicecode import demangle
from patchctl.stages.toolchain import Toolchain
from patchctl.system.files import write_if_changed
from patchctl.system.project import Project


@dataclass
class ResourceGate:
    """One row a function, what is wrong, and what an update wrote."""

    rows: list[Row] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)


def check_resources(
    project: Project,
    target: Target,
    toolchain: Toolchain,
    device: Library,
    logs: Sequence[Path],
    applied: Sequence[str] | None,
    *,
    update: bool,
) -> ResourceGate:
    """Judge the device code; with `update` lock what was measured, unless a limit is broken.

    `applied` are the patches in the tree when they are a part of the series.

    Raises:
        UsageError: the file of budgets does not parse.
    """
    path = project.resources_file(target.name)
    where = project.relative(path)
    locked = read_resources(path.read_bytes(), where=where) if path.is_file() else Resources()
    reports = {project.relative(p): parse_ptxas(p.read_text("utf-8", "replace")) for p in logs}
    mangled = {f.name for f in device.functions}
    mangled |= {f.name for log in reports.values() for f in log.functions}
    names, program = demangle(mangled, toolchain)
    gate = ResourceGate()
    if names and not program:
        text = "no demangler (c++filt, cu++filt): kernels have their linker names"
        gate.findings.append(Finding(GATE, "names", text, hint="apt install binutils"))
    found = measure(device, reports, keys(names), target.arch)
    gate.rows = rows(found.functions, locked, target.arch)
    broken = found.findings + check_limits(gate.rows, locked.limits)
    gate.findings += broken
    if update and has_errors(broken):
        text = "refused to lock these numbers while one breaks a limit or is not known"
        gate.findings.append(Finding(GATE, where, text))
    elif update:
        new = renewed(gate.rows, locked, toolchain.version, applied)
        gate.changes = _changes(gate.rows, locked, new)
        write_if_changed(path, write_resources(new))
        locked = new
    gate.findings += compare(gate.rows, locked, toolchain.version, applied)
    return gate


def _changes(measured: list[Row], old: Resources, new: Resources) -> list[str]:
    budgets = {b.name: b for b in old.kernels}
    kept = {b.name for b in new.kernels}
    said = []
    if old.toolkit != new.toolkit:
        said.append(f"toolkit: {new.toolkit}, before {old.toolkit or 'none'}")
    for row in measured:
        budget = budgets.get(row.measured.name)
        if budget is None and row.measured.is_kernel:
            said.append(f"{row.measured.name}: new")
        elif budget is not None:
            said += [f"{row.measured.name}: {text}" for text in differences(row, budget)]
    return said + [f"{name}: gone" for name in budgets if name not in kept]
