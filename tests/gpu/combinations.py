# SPDX-License-Identifier: Apache-2.0
"""What the sweep combines, and the lengths that go with each combination. Needs no torch."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pairwise

SEED = 20261129
COUNT, COUNT_PLAIN = 1000, 700
TILES = [64, 96, 128, 192, 256]

FACTORS: dict[str, list[Any]] = {
    "head_dim": list(range(8, 257, 8)),
    "operator": ["varlen_fwd", "fwd_kvcache"],
    "mask": ["none", "causal", "left", "right", "both", "causal, left"],
    "softcap": [0.0, 2.5, 30.0],
    "alibi": ["none", "heads", "batch and heads"],
    "heads": ["1/1", "4/4", "6/1", "6/2", "8/2", "10/2", "16/1", "24/1"],
    "queries": [1, 2, 3, 4, 5, 8, 13, 16, "tile", "long", "mixed"],
    "keys": ["few", "border", "some", "many", "fewer than queries"],
    "lengths": ["plain", "used", "leftpad", "used, leftpad"],
    "empty": ["none", "keys", "queries"],
    "page": [0, 16, 48, 64, 256, 784, 1056],  # 0: not paged
    "kv": ["separate", "interleaved"],
    "q": ["contiguous", "slice", "transposed"],
    "out": ["allocated", "given", "strided"],
    "num_splits": [0, 1, 2, 5, 17],
    "append": ["none", "plain", "rotary", "rotary interleaved"],
    "cache_batch_idx": [False, True],
}
"""The rows of the table of what must work, one factor or more for each."""

PLAIN: dict[str, list[Any]] = FACTORS | {
    "head_dim": TILES,
    "mask": ["none", "causal", "right"],
    "softcap": [0.0],
    "alibi": ["none"],
}
"""What the kernels for head sizes that fill their tile serve; few of all combinations are such."""

LONGEST = {"few": 40, "border": 193, "some": 420, "many": 1500, "fewer than queries": 200}
BORDERS = [31, 32, 33, 63, 64, 65, 95, 96, 97, 127, 128, 129, 191, 192, 193]


def possible(chosen: Mapping[str, Any]) -> bool:
    """Whether the operators take such a combination. Settings that are missing may be anything."""

    def may_be(name: str, *settings: Any) -> bool:
        return name not in chosen or chosen[name] in settings

    if chosen.get("operator") == "varlen_fwd" and not (
        may_be("append", "none") and may_be("cache_batch_idx", False)
    ):
        return False
    varies = chosen.get("queries") == "mixed" or chosen.get("empty") == "queries"
    if varies and not may_be("operator", "varlen_fwd"):
        return False
    if varies and not (may_be("append", "none") and may_be("cache_batch_idx", False)):
        return False
    if chosen.get("append", "none") != "none":
        if not may_be("lengths", "used", "used, leftpad"):
            return False
        if "rotary" in chosen["append"] and chosen.get("head_dim") == 8:
            return False  # rotary dimensions come in multiples of 16
    paged = chosen.get("page", 0) != 0
    # pages with left padding are refused; a table of pages replaces the index of the cache
    return not paged or (may_be("lengths", "plain", "used") and may_be("cache_batch_idx", False))


@dataclass(frozen=True)
class Case:
    """A combination and its lengths. For each sequence: queries, keys that are there before the
    call, keys appended by it, keys before the first one (`leftpad`)."""

    index: int
    settings: dict[str, Any]
    lengths_q: list[int]
    cached: list[int]
    appended: int
    leftpad: list[int]
    window: tuple[int, int]
    rotary_dim: int

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["settings"][name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def lengths_k(self) -> list[int]:
        return [length + self.appended for length in self.cached]

    @property
    def head_counts(self) -> tuple[int, int]:
        query, kv = self.settings["heads"].split("/")
        return int(query), int(kv)

    @property
    def seed(self) -> int:
        return SEED + self.index

    def __str__(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in self.settings.items())
        return (
            f"#{self.index}: {settings}; Q {self.lengths_q}, KV {self.cached} + {self.appended}, "
            f"leftpad {self.leftpad}, window {self.window}, rotary_dim {self.rotary_dim}"
        )


def cases(seed: int = SEED) -> list[Case]:
    settings = pairwise.generate(FACTORS, possible, COUNT, seed)
    settings += pairwise.generate(PLAIN, possible, COUNT_PLAIN, seed)
    return [_case(index, chosen) for index, chosen in enumerate(settings)]


def _case(index: int, settings: dict[str, Any]) -> Case:
    rng = random.Random(f"{SEED} {index}")
    varlen = settings["operator"] == "varlen_fwd"
    batch = rng.choice([2, 3, 4]) if settings["keys"] != "many" else 2
    lengths_q = _queries(rng, settings, batch, varlen)
    appended = 0
    if settings["append"] != "none":
        appended = rng.choice([lengths_q[0], lengths_q[0], 1, lengths_q[0] + 2])
    lengths_k = [max(_keys(rng, settings, q) - appended, 0) for q in lengths_q]
    leftpad = [0] * batch
    if "leftpad" in settings["lengths"]:
        leftpad = [rng.choice([0, 1, 7, 64, 90]) for _ in range(batch)]
    if not varlen and "used" not in settings["lengths"]:  # every sequence fills the cache
        capacity = max(map(sum, zip(lengths_k, leftpad, strict=True)))
        if settings["page"]:
            capacity = -(-capacity // settings["page"]) * settings["page"]
        lengths_k = [capacity - pad for pad in leftpad]
    if settings["empty"] == "queries":
        lengths_q[rng.randrange(batch)] = 0
    if settings["empty"] == "keys":
        entry = rng.randrange(batch)
        if varlen or "used" in settings["lengths"]:
            lengths_k[entry] = 0
        else:  # all of the cache of one sequence is padding, or the cache is empty
            full = max(map(sum, zip(lengths_k, leftpad, strict=True)))
            if "leftpad" in settings["lengths"]:
                leftpad[entry], lengths_k[entry] = full, 0
    # a bound past the longest K means "no bound" to FlashAttention-2
    longest = max(map(sum, zip(lengths_k, leftpad, strict=True))) + appended
    left = min(rng.choice([0, 1, 7, 33, 100]), max(longest - 1, 0))
    right = min(rng.choice([1, 5, 40]), max(longest - 1, 0))
    window = {
        "left": (left, -1), "right": (-1, right), "both": (left, right), "causal, left": (left, 0),
    }.get(settings["mask"], (-1, -1))  # fmt: skip
    rotary_dim = 0
    if "rotary" in settings["append"]:
        full = settings["head_dim"] // 16 * 16
        rotary_dim = rng.choice([full, full, 16, max(16, full // 32 * 16)])
    return Case(index, settings, lengths_q, lengths_k, appended, leftpad, window, rotary_dim)


def _queries(rng: random.Random, settings: dict[str, Any], batch: int, varlen: bool) -> list[int]:
    kind = settings["queries"]
    longest = 130 if settings["heads"] in ("16/1", "24/1") or settings["keys"] == "many" else 300

    def one() -> int:
        if isinstance(kind, int):
            return kind
        if kind == "mixed":  # prompts and generated tokens in one batch
            return rng.choice([1, 1, rng.randint(2, 16), rng.randint(17, longest)])
        return rng.randint(17, 64) if kind == "tile" else rng.randint(longest // 2, longest)

    if not varlen:
        return [one()] * batch
    lengths = [one() for _ in range(batch)]
    if isinstance(kind, int) and batch > 2 and kind > 1:
        lengths[-1] = rng.randint(1, kind)
    return lengths


def _keys(rng: random.Random, settings: dict[str, Any], queries: int) -> int:
    kind = settings["keys"]
    if kind == "border":
        return rng.choice(BORDERS)
    if kind == "fewer than queries":
        return rng.randint(1, max(1, min(queries - 1, LONGEST[kind])))
    shortest = {"few": 1, "some": 41, "many": 700}[kind]
    return rng.randint(shortest, LONGEST[kind])
