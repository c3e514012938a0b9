# SPDX-License-Identifier: Apache-2.0
"""How each patch of a series fares on a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from patchctl.errors import AlreadyApplied, LockMismatch, PatchctlError, PatchDoesNotApply


class Fit(StrEnum):
    """How a patch fits a baseline; only an exact one passes."""

    EXACT = "exact"
    CONFLICT = "conflict"
    PRESENT = "already there"
    DRIFT = "drift"
    NOT_REACHED = "not reached"


@dataclass
class Cell:
    """One patch on one baseline. `builds` and `verifies` (of the series up to and with it) are
    None where nobody looked."""

    patch: str
    fit: Fit = Fit.NOT_REACHED
    builds: bool | None = None
    verifies: bool | None = None

    @property
    def passes(self) -> bool:
        """Whether nothing is wrong with it."""
        return self.fit is Fit.EXACT and self.builds is not False and self.verifies is not False

    def __str__(self) -> str:
        words = {None: [], True: ["builds"], False: ["does not build"]}[self.builds]
        words += {None: [], True: ["verifies"], False: ["does not verify"]}[self.verifies]
        return ", ".join([str(self.fit), *words])


def blame_patch(cells: Sequence[Cell], error: PatchctlError) -> None:
    """Let the cells say at which patch a replay ended with `error`; those before it fit."""
    culprit = error.data.get("patch", error.data.get("subject"))
    position = next((n for n, cell in enumerate(cells) if cell.patch == culprit), None)
    if position is None:
        return  # the baseline, not a patch
    for cell in cells[:position]:
        cell.fit = Fit.EXACT
    if isinstance(error, AlreadyApplied):
        cells[position].fit = Fit.PRESENT
    elif isinstance(error, PatchDoesNotApply):
        cells[position].fit = Fit.CONFLICT
    elif isinstance(error, LockMismatch):
        cells[position].fit = Fit.DRIFT
