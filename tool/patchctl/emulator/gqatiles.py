# SPDX-License-Identifier: Apache-2.0
"""The GQA prefill's tiles: which rows and keys they have, what they compute in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from patchctl.emulator.problem import Inputs, Problem
from patchctl.emulator.reference import Accuracy

Array = npt.NDArray[Any]

ROWS = 128
LOG2E = math.log2(math.e)


@dataclass(frozen=True)
class Schedule:
    """Who does what in the fused kernel (gqa_schedule.h)."""

    whole: int
    tail: int
    runs: int

    @classmethod
    def of(cls, tiles: int, sms: int) -> Schedule:
        return cls(tiles - tiles % sms, tiles % sms, sms)

    @property
    def ctas(self) -> int:
        return self.whole + (self.runs if self.tail else 0)

    @property
    def parts(self) -> int:
        return self.runs + self.tail - 1 if self.tail else 0

    def parts_of(self, tile: int) -> slice:
        """The parts of a tile of the tail, in the order of their keys."""
        t = tile - self.whole
        return slice(t * self.runs // self.tail + t, ((t + 1) * self.runs - 1) // self.tail + t + 1)


class Tiles:
    """All tiles of one causal sequence; tile 0 has its last rows."""

    def __init__(self, problem: Problem, data: Inputs) -> None:
        self.problem = problem
        (tokens,), (self.keys,) = problem.q_lengths, problem.k_lengths
        self.q, self.k, self.v = (x[0].astype(np.float64) for x in (data.q, data.k, data.v))
        self.rows = tokens * problem.ratio
        self.shift = self.keys - tokens
        self.per_head = -(-self.rows // ROWS)
        self.count = self.per_head * problem.kv_heads

    def kv_head(self, tile: int) -> int:
        return tile % self.problem.kv_heads

    def real(self, tile: int) -> int:
        """How many of its rows there are; the others repeat the last one."""
        return min(ROWS, self.rows - self._first(tile))

    def places(self, tile: int) -> tuple[Array, Array]:
        """Position and query head of each of its rows."""
        ratio = self.problem.ratio
        packed = np.minimum(self._first(tile) + np.arange(ROWS), self.rows - 1)
        return packed // ratio, self.kv_head(tile) * ratio + packed % ratio

    def end(self, tile: int) -> int:
        """Its keys are those below."""
        return max(0, int(self.places(tile)[0][-1]) + self.shift + 1)

    def scores(self, tile: int) -> Array:
        """[row, key], times log2(e), -infinity where the key is not seen."""
        position, head = self.places(tile)
        k = self.k[:, self.kv_head(tile)]
        scores = self.q[position, head] @ k.T * (self.problem.softmax_scale * LOG2E)
        seen = np.arange(self.keys) <= position[:, None] + self.shift
        return np.where(seen, scores, -np.inf)

    def attended(self, tile: int, keys: slice = slice(None)) -> tuple[Array, Array]:
        """O [row, column] and LSE [row] over some of the keys."""
        scores = self.scores(tile)[:, keys]
        peak = scores.max(axis=1, initial=-np.inf, keepdims=True)
        weights = np.exp2(scores - np.where(np.isfinite(peak), peak, 0.0))
        total = weights.sum(axis=1, keepdims=True)
        with np.errstate(divide="ignore"):
            lse = np.where(total > 0, np.log(total) + peak / LOG2E, -np.inf)[:, 0]
        o = weights / np.where(total > 0, total, 1.0) @ self.v[keys, self.kv_head(tile)]
        return o, lse

    def _first(self, tile: int) -> int:
        return (self.per_head - 1 - tile // self.problem.kv_heads) * ROWS


def also(accuracy: Accuracy, wrong: int) -> Accuracy:
    """More values that are not what they must be."""
    return replace(accuracy, missing=accuracy.missing + int(wrong))
