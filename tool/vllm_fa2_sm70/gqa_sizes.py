# SPDX-License-Identifier: Apache-2.0
"""How many bytes the GQA operators need beside their output, as their host code counts them.

The operators check what they are given and refuse less, so a difference between here and there
is an error and never a wrong result.
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm_fa2_sm70.gqa import FUSED, HEAD_DIM, KV_HEADS, QUERY_HEADS
from vllm_fa2_sm70.preflight import MIB

FLOAT = 4
HALF = 2
ROW_TILE = 128
KEY_BLOCK = 8192
"""Keys that the workspace holds the probabilities of at a time."""


@dataclass(frozen=True)
class Sizes:
    """Bytes: `retained` are kept for the next call, `state` and the outputs are a call's own.

    `out` is 0 where the caller gives it.
    """

    retained: int
    state: int
    out: int
    lse: int

    @property
    def transient(self) -> tuple[int, ...]:
        """What a call allocates and gives back or returns."""
        return tuple(size for size in (self.out, self.lse, self.state) if size)


def sizes(operator: str, queries: int, multiprocessors: int, *, out_given: bool) -> Sizes:
    """What a call of `operator` needs."""
    rows = queries * QUERY_HEADS
    out = 0 if out_given else rows * HEAD_DIM * HALF
    lse = rows * FLOAT
    if operator == FUSED:
        return Sizes(_partials(queries, multiprocessors), 0, out, lse)
    return Sizes(_workspace(), _state(), out, lse)


def _partials(queries: int, multiprocessors: int) -> int:
    """O, maximum and sum of each part of the tiles that do not fill a wave; two lists of parts."""
    rows = queries * (QUERY_HEADS // KV_HEADS)
    tiles = -(-rows // ROW_TILE) * KV_HEADS
    tail = tiles % multiprocessors
    parts = multiprocessors + tail - 1 if tail else 0
    return (parts * ROW_TILE * (HEAD_DIM + 1) + tiles + parts) * FLOAT


def _workspace() -> int:
    return 160 * MIB


def _state() -> int:
    return (10_240 * (HEAD_DIM + 2) + 2 * 128 * 10_240) * FLOAT
