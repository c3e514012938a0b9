# SPDX-License-Identifier: Apache-2.0
"""The GQA prefill's fused kernel, and those that merge and repair what it leaves."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from patchctl.emulator.gqatiles import ROWS, Schedule, Tiles, also
from patchctl.emulator.memory import GlobalMemory
from patchctl.emulator.placement import Placement
from patchctl.emulator.problem import Problem, inputs
from patchctl.emulator.reference import Accuracy, attention, judge, results
from patchctl.emulator.tasks import Placed, Shape

Array = npt.NDArray[Any]

MERGE_ROWS = 4
"""Rows of a CTA of the merge kernel."""


@dataclass(frozen=True)
class GqaFused:
    """Attention on `sms` SMs: whole tiles, and parts of the others.

    Of a `strange` problem only the marks for the repair are judged.
    """

    problem: Problem
    sms: int

    def place(self, memory: GlobalMemory, shape: Shape) -> Placed:
        data = inputs(self.problem)
        tiles = Tiles(self.problem, data)
        schedule = Schedule.of(tiles.count, self.sms)
        placement = Placement(self.problem, data, memory)
        parts = _add_parts(memory, schedule, tiles, writable=True)
        repair = np.zeros(tiles.count, np.int32)
        marks = memory.add("repair", repair, writable=True)

        def verdict() -> Accuracy:
            wrong = (marks.array(np.int32, repair.shape) != self.problem.strange).sum()
            if self.problem.strange:
                return Accuracy(0.0, 0.0, 0.0, int(wrong), repair.size)
            got = _whole_and_parts(tiles, schedule, memory)
            expected = [tiles.attended(tile) for tile in range(tiles.count)]
            real = [tiles.real(tile) for tile in range(tiles.count)]
            return also(judge(_cut(got, real), _cut(expected, real)), wrong)

        return Placed(
            placement.parameters + parts + struct.pack("<Q", marks.address),
            (schedule.ctas, 1, 1),
            ("out", "lse", "part_o", "part_lse", "repair"),
            verdict,
        )


@dataclass(frozen=True)
class GqaMerge:
    """The parts become O; some saw no key, and some rows have no other part."""

    problem: Problem
    sms: int

    def place(self, memory: GlobalMemory, shape: Shape) -> Placed:
        data = inputs(self.problem)
        tiles = Tiles(self.problem, data)
        schedule = Schedule.of(tiles.count, self.sms)
        placement = Placement(self.problem, data, memory)
        rng = np.random.default_rng(self.problem.seed)
        lse = (3 * rng.standard_normal((schedule.parts, ROWS))).astype(np.float32)
        lse[rng.random(lse.shape) < 0.2] = -np.inf
        lse[:, 1] = -np.inf
        o = rng.standard_normal((schedule.parts, ROWS, 256)).astype(np.float32)
        exists = np.ones(lse.shape, bool)
        for tile in range(schedule.whole, tiles.count):
            exists[schedule.parts_of(tile), tiles.real(tile) :] = False
        seen = exists & (lse != -np.inf)
        o[~seen] = np.nan
        parts = _add_parts(memory, schedule, tiles, given=(o, lse, exists, seen))
        expected = []
        for tile in range(tiles.count):
            if tile < schedule.whole:
                expected.append((np.full((ROWS, 256), np.nan), np.full(ROWS, np.nan)))
            else:
                own = schedule.parts_of(tile)
                expected.append(_merge(o[own], lse[own]))
        real = [tiles.real(tile) for tile in range(tiles.count)]
        return Placed(
            placement.parameters + parts + struct.pack("<Q", 0),
            (schedule.tail * ROWS // MERGE_ROWS, 1, 1),
            ("out", "lse"),
            lambda: judge(_cut(_outputs(tiles, memory), real), _cut(expected, real)),
        )


@dataclass(frozen=True)
class GqaRepair:
    """The marked tiles once more: all but those of `skipped`."""

    problem: Problem
    skipped: tuple[int, ...] = ()

    def place(self, memory: GlobalMemory, shape: Shape) -> Placed:
        data = inputs(self.problem)
        tiles = Tiles(self.problem, data)
        placement = Placement(self.problem, data, memory)
        marks = np.ones(tiles.count, np.int32)
        marks[list(self.skipped)] = 0
        repair = memory.add("repair", marks)
        ((o, lse),) = attention(self.problem, data)
        for tile in self.skipped:
            position, head = tiles.places(tile)
            o[position, head], lse[head, position] = np.nan, np.nan
        return Placed(
            placement.parameters + struct.pack("<Q", repair.address),
            (tiles.per_head, self.problem.kv_heads, 1),
            ("out", "lse"),
            lambda: judge(results(self.problem, memory), [(o, lse)]),
        )


def _add_parts(
    memory: GlobalMemory,
    schedule: Schedule,
    tiles: Tiles,
    *,
    writable: bool = False,
    given: tuple[Array, Array, Array, Array] | None = None,
) -> bytes:
    """The buffers of the parts, and all parameters up to them."""
    count = max(1, schedule.parts)
    o, lse = np.full((count, ROWS, 256), np.nan), np.full((count, ROWS), np.nan)
    exists = seen = None
    if given is not None:
        o, lse, exists, seen = given
        seen = np.repeat(seen[..., None], 256, axis=2)
    part_o = memory.add("part_o", o.astype(np.float32), writable=writable, readable=seen)
    part_lse = memory.add("part_lse", lse.astype(np.float32), writable=writable, readable=exists)
    numbers = (schedule.whole, schedule.tail, schedule.runs, tiles.per_head)
    return struct.pack("<4i2Q", *numbers, part_o.address, part_lse.address)


def _outputs(tiles: Tiles, memory: GlobalMemory) -> list[tuple[Array, Array]]:
    """By tile, as they are in memory."""
    ((o, lse),) = results(tiles.problem, memory)
    places = [tiles.places(tile) for tile in range(tiles.count)]
    return [(o[position, head], lse[head, position]) for position, head in places]


def _whole_and_parts(
    tiles: Tiles, schedule: Schedule, memory: GlobalMemory
) -> list[tuple[Array, Array]]:
    """By tile; those of the tail out of their parts, if nothing else was written of them."""
    found = _outputs(tiles, memory)
    parts = (max(1, schedule.parts), ROWS)
    o = memory.tensors["part_o"].array(np.float32, (*parts, 256))
    lse = memory.tensors["part_lse"].array(np.float32, parts)
    for tile in range(schedule.whole, tiles.count):
        if all(np.isnan(x).all() for x in found[tile]):
            own = schedule.parts_of(tile)
            found[tile] = _merge(o[own], lse[own])
    return found


def _merge(o: Array, lse: Array) -> tuple[Array, Array]:
    """Of [part, row, column] and [part, row]."""
    o, lse = o.astype(np.float64), lse.astype(np.float64)
    peak = lse.max(axis=0)
    weights = np.exp(lse - np.where(peak == -np.inf, 0.0, peak))
    total = weights.sum(axis=0)
    with np.errstate(divide="ignore"):
        whole = np.where(total == 0, -np.inf, np.log(total) + peak)
    weights /= np.where(total == 0, 1.0, total)
    return (np.where(lse[..., None] == -np.inf, 0.0, o) * weights[..., None]).sum(axis=0), whole


def _cut(tiles: list[tuple[Array, Array]], rows: list[int]) -> list[tuple[Array, Array]]:
    """Without the rows that do not exist."""
    return [(o[:n], lse[:n]) for (o, lse), n in zip(tiles, rows, strict=True)]
