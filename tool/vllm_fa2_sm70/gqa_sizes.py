# SPDX-License-Identifier: Apache-2.0
"""How many bytes the GQA operators need beside their output, as their host code counts them.

The operators check what they are given and refuse less, so a difference between here and there
is an error and never a wrong result.
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm_fa2_sm70.gqa import FUSED, HEAD_DIM, QUERY_HEADS

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
    tiles = -(-rows // ROW_TILE)
    if operator == FUSED:
        return Sizes(_partials(tiles, multiprocessors), 0, out, lse)
    panel = min(tiles, multiprocessors)  # a wave: more memory makes it no faster
    return Sizes(panel * ROW_TILE * KEY_BLOCK * HALF, _state(tiles, panel), out, lse)


def _partials(tiles: int, multiprocessors: int) -> int:
    """O and LSE of each part of the tiles that do not fill a wave, and a number for each tile."""
    tail = tiles % multiprocessors
    parts = multiprocessors + tail - 1 if tail else 0
    return (parts * ROW_TILE * (HEAD_DIM + 1) + tiles) * FLOAT


def _state(tiles: int, panel: int) -> int:
    """Of each row O, maximum and sum; a maximum for each 64 keys, and more for each 2,048."""
    of_block = KEY_BLOCK // 64 + 8 * -(-KEY_BLOCK // 2048)
    return (panel * ROW_TILE * (HEAD_DIM + 2 + of_block) + tiles) * FLOAT
