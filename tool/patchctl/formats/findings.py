# SPDX-License-Identifier: Apache-2.0
"""What a gate found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from patchctl.formats.wording import counted


class Severity(StrEnum):
    """How bad: an error fails the gate, a warning and a note do not."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


_ORDER = list(Severity)


@dataclass(frozen=True)
class Finding:
    """One thing that a gate has to say.

    `gate` is the gate's name ("resources"), `subject` what it is about (a kernel, an operator,
    a symbol), `message` what was got and expected.
    """

    gate: str
    subject: str
    message: str
    severity: Severity = Severity.ERROR
    hint: str = ""

    def as_json(self) -> dict[str, str]:
        """The finding for ``--json``."""
        return {k: str(v) for k, v in asdict(self).items() if v}


def worst_first(findings: list[Finding]) -> list[Finding]:
    """Errors, then warnings, then notes; inside each by gate and subject."""
    return sorted(findings, key=lambda f: (_ORDER.index(f.severity), f.gate, f.subject))


def has_errors(findings: list[Finding]) -> bool:
    """Whether the gate says no."""
    return any(f.severity is Severity.ERROR for f in findings)


def totals(findings: Sequence[Finding]) -> str:
    """``2 errors, 1 warning``, or ``no findings``."""
    counts = {s: sum(f.severity is s for f in findings) for s in Severity}
    return ", ".join(counted(n, s) for s, n in counts.items() if n) or "no findings"
