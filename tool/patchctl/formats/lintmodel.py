# SPDX-License-Identifier: Apache-2.0
"""What `patchctl lint` says, and where."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from patchctl.errors import PatchctlError
from patchctl.formats.findings import Severity


@dataclass(frozen=True)
class Remark:
    """One thing wrong with line `line` (from 1) of `file` (a path from the project's root).

    `rule` is its short name, `area` what it is about: ``series``, ``patches`` or ``locks``.
    """

    file: str
    line: int
    area: str
    rule: str
    message: str
    severity: Severity = Severity.ERROR
    hint: str = ""

    def as_json(self) -> dict[str, object]:
        """The remark for ``--json``."""
        return {k: v for k, v in asdict(self).items() if v != ""}

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.severity}: {self.message} [{self.rule}]"


def from_error(error: PatchctlError, file: str, area: str, rule: str) -> Remark:
    """What reading `file` was refused with."""
    line = next((n for k in ("patch_line", "line") if isinstance(n := error.data.get(k), int)), 1)
    return Remark(file, line, area, rule, error.message, hint=error.hint)
