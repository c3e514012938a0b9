# SPDX-License-Identifier: Apache-2.0
"""Into how many parts the keys are split, with the library's own function on the CPU."""

from __future__ import annotations

import itertools
import math
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.build.test_layout_facts import headers  # noqa: F401  (a fixture)

SLOTS = 80  # CTAs that a V100 runs at once when each takes an SM
Choose = Callable[[list[tuple[int, int, int, int]]], list[int]]


@pytest.fixture(scope="module")
def choose(headers: Path, tmp_path_factory: pytest.TempPathFactory) -> Choose:  # noqa: F811
    program = tmp_path_factory.mktemp("splits") / "num_splits"
    source = Path(__file__).with_name("num_splits.cpp")
    subprocess.run(
        ["g++", "-std=c++17", "-Wall", "-Werror", f"-I{headers}", str(source), "-o", str(program)],
        check=True,
    )

    def choose(problems: list[tuple[int, int, int, int]]) -> list[int]:
        text = "\n".join(" ".join(map(str, problem)) for problem in problems)
        done = subprocess.run([program], input=text, capture_output=True, text=True, check=True)
        return [int(line) for line in done.stdout.split()]

    return choose


def test_limits_are_kept(choose: Choose) -> None:
    counts = (1, 2, 7, 79, 80, 81, 400)
    problems = list(itertools.product(counts, (0, 1, 3, 64, 5000), (80, 240), (0, 1, 5, 1000)))
    for (ctas, tiles, slots, most), splits in zip(problems, choose(problems), strict=True):
        assert 1 <= splits <= max(1, min(tiles, most, 128)), (ctas, tiles, slots, most)


def test_a_full_gpu_is_not_split(choose: Choose) -> None:
    full = [(waves * SLOTS, tiles, SLOTS, 1000) for waves in (1, 2, 5) for tiles in (1, 16, 4096)]
    assert set(choose(full)) == {1}
    assert set(choose([(ctas, 128, SLOTS, 1000) for ctas in range(73, SLOTS)])) == {1}


def test_few_rows_fill_the_gpu(choose: Choose) -> None:
    """Decoding: at least 85 % of the places have work in every wave."""
    problems = [(ctas, 512, SLOTS, 1000) for ctas in range(1, 41)]
    for (ctas, *_), splits in zip(problems, choose(problems), strict=True):
        waves = ctas * splits / SLOTS
        assert waves / math.ceil(waves) >= 0.85, (ctas, splits)


def test_short_keys_are_not_split_for_nothing(choose: Choose) -> None:
    assert choose([(1, 1, SLOTS, 1000), (1, 2, SLOTS, 1000), (8, 3, SLOTS, 1000)]) == [1, 1, 1]
