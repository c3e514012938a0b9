# SPDX-License-Identifier: Apache-2.0
"""The GQA prefill's two GEMMs over a block of keys, with the probabilities between them.

All maxima are in base 2, probabilities and sums are scaled by 2^(15 - maximum).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from patchctl.emulator.gqatiles import LOG2E, ROWS, Tiles, also
from patchctl.emulator.memory import GlobalMemory
from patchctl.emulator.placement import Placement
from patchctl.emulator.problem import Problem, inputs
from patchctl.emulator.reference import Accuracy, judge
from patchctl.emulator.tasks import Placed, Shape

Array = npt.NDArray[Any]

NO_MAX = np.float32(-1e30)
_MAX_LOG2P = 15
_TILE_KEYS, _MAX_KEYS, _SEQUENCES = 128, 64, 4
_GROUP = np.array([0, 1, 4, 5, 16, 17, 20, 21])
_KEY_OF = np.array([[32 * (g >> 2) + 8 * (g >> 1 & 1) + 2 * (g & 1)] for g in range(8)]) + _GROUP
"""[group, half]: which of 64 keys it is."""


@dataclass(frozen=True)
class Block:
    """Keys [first, first + size) and what is known of those before. `run_tiles`: of a CTA."""

    problem: Problem
    first: int = 0
    size: int = 256
    run_tiles: int = 16

    @property
    def runs(self) -> int:
        return -(-self.size // (_TILE_KEYS * self.run_tiles))

    def keys(self, tiles: Tiles, tile: int) -> int:
        """How many of the block some row of the tile sees."""
        return max(0, min(tiles.end(tile) - self.first, self.size))

    def written(self, tiles: Tiles, tile: int) -> int:
        """Keys of which there are probabilities."""
        return -(-self.keys(tiles, tile) // _TILE_KEYS) * _TILE_KEYS

    def scores(self, tiles: Tiles, tile: int) -> Array:
        """[row, key of the block]; past the last key -infinity."""
        scores = np.full((ROWS, self.size), -np.inf)
        own = tiles.scores(tile)[:, self.first : self.first + self.size]
        scores[:, : own.shape[1]] = own
        return scores

    def before(self, tiles: Tiles, tile: int) -> tuple[Array, Array, Array]:
        """Maximum, sum and O of the keys before."""
        return _state(tiles, tile, slice(0, self.first))

    def parameters(self, tiles: Tiles, placement: Placement, addresses: dict[str, int]) -> bytes:
        values = placement.values
        numbers = (tiles.per_head, 0, tiles.count, self.first, self.size, self.run_tiles)
        strides = [2 * int(values[f"{name}_row_stride"]) for name in "kv"]
        names = ("p", "p_max", "run_max", "run_sum", "max", "sum", "o", "repair")
        pointers = [addresses.get(name, 0) for name in names]
        return placement.parameters + struct.pack("<8i8Q", *numbers, *strides, *pointers)


@dataclass(frozen=True)
class GqaQk:
    """Scores to probabilities. Judged: each one, normalised; the sums as an LSE."""

    block: Block

    def place(self, memory: GlobalMemory, shape: Shape) -> Placed:
        b = self.block
        data = inputs(b.problem)
        tiles = Tiles(b.problem, data)
        placement = Placement(b.problem, data, memory)
        rows, sequences = tiles.count * ROWS, b.runs * _SEQUENCES
        before = [b.before(tiles, tile)[0] for tile in range(tiles.count)]
        empty: dict[str, Array] = {
            "p": np.full((tiles.count, b.size // _MAX_KEYS, 8, ROWS, 8), np.nan, np.float16),
            "p_max": np.full((b.size // _MAX_KEYS, rows), np.nan, np.float32),
            "run_max": np.full((sequences, rows), np.nan, np.float32),
            "run_sum": np.full((sequences, rows), np.nan, np.float32),
        }
        addresses = {n: memory.add(n, x, writable=True).address for n, x in empty.items()}
        addresses["max"] = memory.add("max", np.concatenate(before)).address

        def verdict() -> Accuracy:
            arrays = {n: memory.tensors[n].array(x.dtype, x.shape) for n, x in empty.items()}
            got, expected, wrong = [], [], 0
            for tile in range(tiles.count):
                one = self._tile(tiles, tile, {n: x.astype(float) for n, x in arrays.items()})
                got.append(one[0])
                expected.append(one[1])
                wrong += one[2]
            return also(judge(got, expected), wrong)

        parameters = b.parameters(tiles, placement, addresses)
        return Placed(parameters, (tiles.count, b.runs, 1), tuple(empty), verdict)

    def _tile(
        self, tiles: Tiles, tile: int, arrays: dict[str, Array]
    ) -> tuple[tuple[Array, Array], tuple[Array, Array], int]:
        """What it left, what it must leave, and how much was written that must not be."""
        b, real = self.block, tiles.real(tile)
        own = slice(tile * ROWS, tile * ROWS + real)
        written = b.written(tiles, tile)
        p = _by_key(arrays["p"][tile])
        maxima = np.repeat(arrays["p_max"][:, own], _MAX_KEYS, axis=0).T
        stray = (~np.isnan(p[:, written:])).sum() + (~np.isnan(maxima[:, written:])).sum()
        lse = _lse(b.scores(tiles, tile))[:real]
        scale = np.where(np.isfinite(lse), lse * LOG2E, 0.0)[:, None]
        weights = p[:real, :written] * np.exp2(maxima[:, :written] - _MAX_LOG2P - scale)
        want = np.exp2(b.scores(tiles, tile)[:real, :written] - scale)
        runs = -(-written // (_TILE_KEYS * b.run_tiles)) * _SEQUENCES
        run_max, run_sum = (arrays[n][:, own] for n in ("run_max", "run_sum"))
        stray += (~np.isnan(run_sum[runs:])).sum() + (~np.isnan(run_max[runs:])).sum()
        total = (run_sum * np.exp2(run_max - _MAX_LOG2P))[:runs].sum(axis=0)
        with np.errstate(divide="ignore"):
            return (weights, np.log(total)), (want, lse), int(stray)


@dataclass(frozen=True)
class GqaPv:
    """Probabilities times V. Of a `strange` problem only the marks for the repair are judged."""

    block: Block

    def place(self, memory: GlobalMemory, shape: Shape) -> Placed:
        b = self.block
        data = inputs(b.problem)
        tiles = Tiles(b.problem, data)
        placement = Placement(b.problem, data, memory)
        given = [_probabilities(b, tiles, tile) for tile in range(tiles.count)]
        arrays = {n: np.concatenate([g[n] for g in given], axis=-1) for n in _BY_ROW}
        addresses = {n: memory.add(n, x, readable=~np.isnan(x)).address for n, x in arrays.items()}
        p = np.stack([g["p"] for g in given])
        addresses["p"] = memory.add("p", p, readable=~np.isnan(p)).address
        before = [b.before(tiles, tile) for tile in range(tiles.count)]
        state = [np.concatenate([x[i] for x in before]) for i in range(2)]
        state.append(np.stack([_to_threads(x[2]) for x in before]))
        if not b.first:
            state = [np.full_like(x, np.nan) for x in state]
        for name, array in zip(_STATE, state, strict=True):
            addresses[name] = memory.add(name, array, writable=True).address
        marks = memory.add("repair", np.zeros(tiles.count, np.int32), writable=True)
        addresses["repair"] = marks.address

        def verdict() -> Accuracy:
            flags = marks.array(np.int32, (tiles.count,))
            if b.problem.strange:
                return Accuracy(0.0, 0.0, 0.0, int((flags != 1).sum()), flags.size)
            now = [
                memory.tensors[n].array(x.dtype, x.shape)
                for n, x in zip(_STATE, state, strict=True)
            ]
            pairs = [self._tile(tiles, tile, memory, now) for tile in range(tiles.count)]
            accuracy = judge([x for x, _ in pairs], [x for _, x in pairs])
            return also(accuracy, (flags != 0).sum())

        parameters = b.parameters(tiles, placement, addresses)
        outputs = ("out", "lse", *_STATE, "repair")
        return Placed(parameters, (tiles.count, 1, 1), outputs, verdict)

    def _tile(
        self, tiles: Tiles, tile: int, memory: GlobalMemory, state: list[Array]
    ) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """What it left and what it must leave: the state, or in the last block the output."""
        b, real, end = self.block, tiles.real(tile), tiles.end(tile)
        position, head = (x[:real] for x in tiles.places(tile))
        shape = (*tiles.q.shape[:2], 256)
        o = memory.tensors["out"].array(np.float16, shape)[position, head]
        lse = memory.tensors["lse"].array(np.float32, shape[1::-1])[head, position]
        if b.first and end <= b.first:
            return (o, lse), (np.full_like(o, np.nan), np.full_like(lse, np.nan))
        want = tuple(x[:real] for x in tiles.attended(tile, slice(0, b.first + b.size)))
        if end > b.first + b.size:
            if not (np.isnan(o).all() and np.isnan(lse).all()):
                return (np.full_like(o, np.nan), lse), (want[0], want[1])
            own = slice(tile * ROWS, tile * ROWS + real)
            peak, total = (x[own].astype(np.float64) for x in state[:2])
            o = _from_threads(state[2][tile].astype(np.float64))[:real] / total[:, None]
            lse = np.log(total) + (peak - _MAX_LOG2P) / LOG2E
        return (o, lse), (want[0], want[1])


_BY_ROW = ("p_max", "run_max", "run_sum")
_STATE = ("max", "sum", "o")


def _lse(scores: Array) -> Array:
    """Of the last axis, from base 2, natural."""
    peak = scores.max(axis=-1, keepdims=True)
    total = np.exp2(scores - np.where(np.isfinite(peak), peak, 0.0)).sum(axis=-1)
    with np.errstate(divide="ignore"):
        return np.where(total > 0, np.log(total) + peak[..., 0] / LOG2E, -np.inf)


def _state(tiles: Tiles, tile: int, keys: slice) -> tuple[Array, Array, Array]:
    """Maximum, sum and O as the PV kernel leaves them after these keys."""
    scores = tiles.scores(tile)[:, keys]
    peak = scores.max(axis=1, initial=float(NO_MAX)).astype(np.float32)
    p = np.exp2(scores - peak[:, None] + _MAX_LOG2P)
    o = p @ np.nan_to_num(tiles.v[keys, tiles.kv_head(tile)], posinf=0.0, neginf=0.0)
    return peak, p.sum(axis=1).astype(np.float32), o.astype(np.float32)


def _probabilities(block: Block, tiles: Tiles, tile: int) -> dict[str, Array]:
    """What the QK kernel leaves; the probabilities are scaled by a running maximum."""
    scores, written = block.scores(tiles, tile), block.written(tiles, tile)
    scores = np.where(np.isnan(scores), 0.0, scores)  # only V is strange here
    start = block.before(tiles, tile)[0] if block.first else np.full(ROWS, NO_MAX)
    maxima = np.full((block.size // _MAX_KEYS, ROWS), np.nan, np.float32)
    shape = (block.runs * _SEQUENCES, ROWS)
    run_max, run_sum = (np.full(shape, np.nan, np.float32) for _ in range(2))
    p = np.full((ROWS, block.size), np.nan, np.float16)
    for i in range(written // _MAX_KEYS):
        key_tile, half = divmod(i, 2)
        run, of_run = divmod(key_tile, block.run_tiles)
        for sequence in range(run * _SEQUENCES, (run + 1) * _SEQUENCES):
            if of_run == 0 and half == 0:  # where none of the keys is the sequence's, too
                run_max[sequence], run_sum[sequence] = start, 0.0
        sequence = run * _SEQUENCES + of_run % 2 * 2 + half
        keys = slice(i * _MAX_KEYS, (i + 1) * _MAX_KEYS)
        peak = np.maximum(run_max[sequence], scores[:, keys].max(axis=1)).astype(np.float32)
        new = np.exp2(scores[:, keys] - peak[:, None] + _MAX_LOG2P)
        old = run_sum[sequence] * np.exp2(run_max[sequence].astype(np.float64) - peak)
        run_max[sequence], run_sum[sequence] = peak, old + new.sum(axis=1)
        maxima[i], p[:, keys] = peak, new
    return {"p": _by_group(p), "p_max": maxima, "run_max": run_max, "run_sum": run_sum}


def _by_group(p: Array) -> Array:
    """[row, key] to [64 keys, group, row, 8]."""
    return p.reshape(ROWS, -1, _MAX_KEYS)[:, :, _KEY_OF].transpose(1, 2, 0, 3)


def _by_key(p: Array) -> Array:
    """[64 keys, group, row, 8] to [row, key]."""
    out = np.empty((ROWS, len(p), _MAX_KEYS))
    out[:, :, _KEY_OF] = p.transpose(2, 0, 1, 3)
    return out.reshape(ROWS, -1)


def _owned() -> tuple[Array, Array]:
    """Row and column of [register group of 4, thread, register]: gqa_wide_fragment.h."""
    group, thread, register = np.meshgrid(
        np.arange(32), np.arange(256), np.arange(4), indexing="ij"
    )
    warp, lane = thread // 32, thread % 32
    m, n, i = group // 8, group // 2 % 4, group % 2 * 4 + register
    row_pair, column_pair = lane >> 2 & 1, lane >> 3 & 1
    row = 16 * m + (lane & 1) + (i & 2) + 4 * row_pair + 8 * (lane >> 4)
    local = (i & 1) + 2 * (lane >> 1 & 1) + 4 * (i >> 2)  # c_coord().col
    column = 32 * (n >> 1) + 16 * column_pair + local // 4 * 8 + 4 * (n & 1) + local % 4
    return warp % 2 * 64 + row, warp // 2 * 64 + column


def _to_threads(o: Array) -> Array:
    return o[_owned()]


def _from_threads(o: Array) -> Array:
    out = np.empty((ROWS, 256))
    out[_owned()] = o
    return out
