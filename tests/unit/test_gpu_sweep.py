# SPDX-License-Identifier: Apache-2.0
"""The combinations of tests/gpu: every pair of settings occurs, and nothing that cannot be."""

from __future__ import annotations

import sys
from itertools import combinations as choose
from itertools import product
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "gpu"
sys.path.insert(0, str(FOLDER))
try:
    import combinations
    import pairwise
finally:
    sys.path.remove(str(FOLDER))

CASES = combinations.cases()


def test_enough_combinations() -> None:
    assert len(CASES) >= 1500
    assert len({str(case.settings) for case in CASES}) >= 1500


def test_every_pair_that_can_be_occurs() -> None:
    covered = set().union(*(pairwise.pairs_of(case.settings) for case in CASES))
    missing = pairwise.possible_pairs(combinations.FACTORS, combinations.possible) - covered
    assert not missing


def test_pairs_that_cannot_be_are_those_that_the_operators_refuse() -> None:
    """Were a rule wrong, it would hide pairs: here they are, without those of one operator."""
    possible = pairwise.possible_pairs(combinations.FACTORS, combinations.possible)
    names = sorted(
        {
            tuple(sorted((name, other)))
            for (name, settings), (other, others) in choose(combinations.FACTORS.items(), 2)
            for one, two in product(settings, others)
            if frozenset({(name, one), (other, two)}) not in possible
        }
    )
    assert names == [
        ("append", "empty"),
        ("append", "head_dim"),
        ("append", "lengths"),
        ("append", "operator"),
        ("append", "queries"),
        ("cache_batch_idx", "empty"),
        ("cache_batch_idx", "operator"),
        ("cache_batch_idx", "page"),
        ("cache_batch_idx", "queries"),
        ("empty", "operator"),
        ("lengths", "page"),
        ("operator", "queries"),
    ]


def test_every_tile_and_size_is_there() -> None:
    assert {case.head_dim for case in CASES} == set(range(8, 257, 8))
    plain = [case for case in CASES if case.head_dim in combinations.TILES and not case.softcap]
    assert len(plain) >= 600


def test_same_seed_gives_the_same_cases_and_another_one_others() -> None:
    again = combinations.cases()
    assert [str(case) for case in again] == [str(case) for case in CASES]
    other = combinations.cases(seed=1)
    assert [case.settings for case in other] != [case.settings for case in CASES]


def test_a_pair_without_a_combination_is_left_out() -> None:
    factors = {"a": [1, 2], "b": [1, 2], "c": [1, 2]}

    def possible(chosen: dict[str, int]) -> bool:
        return not (chosen.get("a") == 1 and chosen.get("b") == 1)

    found = pairwise.generate(factors, possible, 1, seed=3)  # type: ignore[arg-type]
    assert all(possible(chosen) for chosen in found)
    assert {(c["a"], c["b"]) for c in found} == {(1, 2), (2, 1), (2, 2)}


@pytest.mark.parametrize("case", CASES[:: len(CASES) // 40], ids=lambda case: str(case.index))
def test_lengths_fit_together(case: combinations.Case) -> None:
    batch = len(case.lengths_q)
    assert len(case.cached) == len(case.leftpad) == batch
    assert min(case.lengths_q + case.cached + case.leftpad) >= 0
    if case.operator == "fwd_kvcache":
        assert len(set(case.lengths_q)) == 1
    assert case.rotary_dim % 16 == 0 and case.rotary_dim <= case.head_dim
    assert (case.rotary_dim > 0) == ("rotary" in case.append)
