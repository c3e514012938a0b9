# SPDX-License-Identifier: Apache-2.0
"""Tables and findings for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from patchctl.formats.findings import Finding, Severity, totals, worst_first

if TYPE_CHECKING:
    from patchctl.system.project import Project

_COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}


def table(headers: Sequence[str], rows: Sequence[Sequence[object]], *, right: str = "") -> str:
    """Columns as wide as their content; `right` names the headers to align right (by comma)."""
    cells = [[str(c) for c in row] for row in (headers, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(headers))]
    flush_right = {name.strip() for name in right.split(",")}
    lines = []
    for row in cells:
        parts = [
            cell.rjust(width) if name in flush_right else cell.ljust(width)
            for name, cell, width in zip(headers, row, widths, strict=True)
        ]
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def findings_text(findings: Sequence[Finding]) -> str:
    """Every finding, worst first, and one total line."""
    lines = []
    for finding in worst_first(list(findings)):
        word = click.style(f"{finding.severity}:", fg=_COLOURS[finding.severity], bold=True)
        lines.append(f"{word} {finding.gate}: {finding.subject}: {finding.message}")
        if finding.hint:
            lines.append(f"  hint: {finding.hint}")
    lines.append(totals(findings))
    return "\n".join(lines)


def after_change(project: Project, unchanged: int) -> list[str]:
    """What to say when the series was changed: what is done, and what to do next."""
    from patchctl.stages.seriesedit import other_locks
    from patchctl.system.project import DEFAULT_BASELINE

    lock = project.relative(project.series_lock)
    option = "" if project.baseline == DEFAULT_BASELINE else f" --baseline {project.baseline}"
    return [
        f"{unchanged} unchanged; {lock} is renewed",
        *(f"also: patchctl --baseline {name} replay --lock" for name in other_locks(project)),
        f"next: patchctl{option} replay",
    ]
