# SPDX-License-Identifier: Apache-2.0
"""Seeded combinations in which every pair of settings occurs."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations as choose
from itertools import product
from typing import Any

Combination = dict[str, Any]
Factors = Mapping[str, Sequence[Any]]
Pair = frozenset[tuple[str, Any]]
Possible = Callable[[Mapping[str, Any]], bool]
"""False when a combination, or the part of one that is chosen already, cannot be."""


def pairs_of(combination: Mapping[str, Any]) -> set[Pair]:
    return {frozenset(pair) for pair in choose(combination.items(), 2)}


def possible_pairs(factors: Factors, possible: Possible) -> set[Pair]:
    """Every pair of settings that some whole combination can have."""
    found = set()
    for (name, settings), (other, others) in choose(factors.items(), 2):
        for one, two in product(settings, others):
            pair = {name: one, other: two}
            if _complete(dict(pair), factors, possible, lambda name, settings: settings):
                found.add(frozenset(pair.items()))
    return found


def generate(factors: Factors, possible: Possible, count: int, seed: int) -> list[Combination]:
    """At least `count` combinations that contain every possible pair, the same for each seed.

    Greedy: each combination begins with a pair that no earlier one has and takes the settings that
    add most new pairs. Once all are covered it starts again, so pairs occur several times.
    """
    rng = random.Random(seed)
    every = sorted(possible_pairs(factors, possible), key=_text)
    left: dict[Pair, None] = {}
    found: list[Combination] = []
    while len(found) < count or left:
        if not left:
            rng.shuffle(every)
            left = dict.fromkeys(every)
        start = dict(next(iter(left)))

        def best_first(name: str, settings: Sequence[Any]) -> list[Any]:
            gain = {
                s: sum(frozenset(((name, s), item)) in left for item in start.items())  # noqa: B023
                for s in settings
            }
            return sorted(rng.sample(list(settings), len(settings)), key=lambda s: -gain[s])

        names = rng.sample(list(factors), len(factors))
        shuffled = {name: factors[name] for name in names}
        if not _complete(start, shuffled, possible, best_first):
            raise ValueError(f"no combination contains {start}")
        for pair in pairs_of(start):
            left.pop(pair, None)
        found.append({name: start[name] for name in factors})
    return found


def _complete(
    start: Combination,
    factors: Factors,
    possible: Possible,
    order: Callable[[str, Sequence[Any]], Sequence[Any]],
) -> bool:
    """Adds the missing settings to `start`, going back where it gets stuck."""
    name = next((name for name in factors if name not in start), None)
    if name is None:
        return possible(start)
    if not possible(start):
        return False
    for setting in order(name, factors[name]):
        start[name] = setting
        if _complete(start, factors, possible, order):
            return True
    del start[name]
    return False


def _text(pair: Pair) -> str:
    return str(sorted(map(str, pair)))
