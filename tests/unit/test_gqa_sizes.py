# SPDX-License-Identifier: Apache-2.0
"""What the GQA operators are given, against figures worked out from their host code."""

from __future__ import annotations

import pytest

from vllm_fa2_sm70.gqa import FUSED, WORKSPACE
from vllm_fa2_sm70.gqa_sizes import Sizes, sizes

OUT, LSE = 8000 * 6 * 256 * 2, 8000 * 6 * 4


@pytest.mark.parametrize(
    ("multiprocessors", "floats"),
    [
        (80, 134 * 128 * 257 + 375),  # 375 tiles: 4 waves and 55
        (132, 242 * 128 * 257 + 375),
        (75, 375),  # 5 whole waves
        (1000, 1374 * 128 * 257 + 375),
    ],
)
def test_fused_needs_partials_of_the_last_wave(multiprocessors: int, floats: int) -> None:
    need = sizes(FUSED, 8000, multiprocessors, out_given=False)
    assert need == Sizes(4 * floats, 0, OUT, LSE)
    assert need.transient == (OUT, LSE)


@pytest.mark.parametrize(("multiprocessors", "panel"), [(80, 80), (132, 132), (1000, 375)])
def test_workspace_holds_a_wave_of_row_tiles(multiprocessors: int, panel: int) -> None:
    need = sizes(WORKSPACE, 8000, multiprocessors, out_given=True)
    assert need.retained == panel * 128 * 8192 * 2
    assert need.state == 4 * (panel * 128 * (256 + 2 + 128 + 32) + 375)
    assert need.transient == (LSE, need.state)


def test_workspace_on_a_v100_retains_160_mib_and_of_all_rows_750() -> None:
    assert sizes(WORKSPACE, 8000, 80, out_given=False).retained == 160 * 2**20
    assert sizes(WORKSPACE, 8000, 375, out_given=False).retained == 750 * 2**20
