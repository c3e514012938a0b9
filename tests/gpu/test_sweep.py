# SPDX-License-Identifier: Apache-2.0
"""The sweep: combinations of everything that must work, each against float64 and PyTorch's fp16."""

from __future__ import annotations

import pytest
from combinations import Case, cases
from sweep import run

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case.index}")
def test_combination_matches_float64(case: Case):
    assert not run(case).complaints, str(case)
