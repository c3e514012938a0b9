# SPDX-License-Identifier: Apache-2.0
"""Occupancy equals that of CUDA's own calculator."""

from __future__ import annotations

from pathlib import Path

from patchctl.formats.occupancy import MULTIPROCESSORS, ctas_per_sm

TABLE = Path(__file__).parents[1] / "data" / "occupancy" / "sm_70.tsv"


def test_occupancy_equals_cuda_occupancy_h() -> None:
    """The table was printed by a program around CUDA 12.4's cuda_occupancy.h."""
    sm = MULTIPROCESSORS["sm_70"]
    rows = [[int(c) for c in line.split("\t")] for line in TABLE.read_text().splitlines()[1:]]
    wrong = [row for row in rows if ctas_per_sm(sm, *row[:3]) != row[3]]
    assert len(rows) == 1078
    assert wrong == []


def test_impossible_launches_do_not_fit() -> None:
    sm = MULTIPROCESSORS["sm_70"]
    assert ctas_per_sm(sm, 1056, 16, 0) == 0
    assert ctas_per_sm(sm, 256, 256, 0) == 0
    assert ctas_per_sm(sm, 288, 255, 0) == 0
    assert ctas_per_sm(sm, 256, 255, 98305) == 0
