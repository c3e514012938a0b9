# SPDX-License-Identifier: Apache-2.0
"""The cells of the table of patches by baselines."""

from __future__ import annotations

import pytest

from patchctl.errors import (
    AlreadyApplied,
    BuildFailed,
    LockMismatch,
    PatchctlError,
    PatchDoesNotApply,
)
from patchctl.formats.matrix import Cell, Fit, blame_patch


@pytest.mark.parametrize(
    ("error", "fits"),
    [
        (PatchDoesNotApply("", data={"patch": "b"}), ["exact", "conflict", "not reached"]),
        (AlreadyApplied("", data={"patch": "b"}), ["exact", "already there", "not reached"]),
        (LockMismatch("", data={"subject": "c"}), ["exact", "exact", "drift"]),
        (LockMismatch("", data={"subject": "the baseline"}), ["not reached"] * 3),
        (LockMismatch(""), ["not reached"] * 3),
    ],
)
def test_replay_that_ends_early_names_its_patch(error: PatchctlError, fits: list[str]) -> None:
    cells = [Cell(name) for name in "abc"]
    blame_patch(cells, error)
    assert [str(cell) for cell in cells] == fits
    assert not all(cell.passes for cell in cells)


@pytest.mark.parametrize(
    ("cell", "text", "passes"),
    [
        (Cell("a", Fit.EXACT), "exact", True),
        (Cell("a", Fit.EXACT, True, True), "exact, builds, verifies", True),
        (Cell("a", Fit.EXACT, True, False), "exact, builds, does not verify", False),
        (Cell("a", Fit.EXACT, False), "exact, does not build", False),
        (Cell("a"), "not reached", False),
    ],
)
def test_cell_in_words(cell: Cell, text: str, passes: bool) -> None:
    assert (str(cell), cell.passes) == (text, passes)


def test_error_without_a_patch_blames_none() -> None:
    cells = [Cell("a", Fit.EXACT)]
    blame_patch(cells, BuildFailed("", data={"unit": "a"}))
    assert cells == [Cell("a", Fit.EXACT)]
