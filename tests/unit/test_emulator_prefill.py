# SPDX-License-Identifier: Apache-2.0
"""The emulator's tasks for the GQA and QSA prefill: their layouts, and that they judge at all."""

from __future__ import annotations

import numpy as np
import pytest

from patchctl.emulator.gqatiles import ROWS, Schedule, Tiles
from patchctl.emulator.gqawide import Block, _by_group, _by_key, _from_threads, _owned, _to_threads
from patchctl.emulator.memory import GlobalMemory
from patchctl.emulator.params import SIZE
from patchctl.emulator.prefilltrials import trials
from patchctl.emulator.problem import Problem, inputs
from patchctl.emulator.qsaproblem import QsaData, QsaProblem
from patchctl.emulator.reference import attention
from patchctl.emulator.tasks import Shape
from patchctl.formats.emulation import Work

PREFILL = [work for work in Work if work.startswith(("gqa_", "qsa_"))]


@pytest.mark.parametrize("work", PREFILL)
def test_each_kernel_has_trials_that_nothing_written_does_not_pass(work: Work) -> None:
    found = trials(work)
    assert len({name for name, _, _ in found}) == len(found) > 0
    for _, task, _ in found:
        memory = GlobalMemory()
        placed = task.place(memory, Shape(ROWS, 128, 0))
        assert all(n > 0 for n in placed.grid)
        assert all(memory.tensors[name].writable for name in placed.outputs)
        assert not placed.judge().good


def test_other_kernels_have_none() -> None:
    assert trials(Work.ATTENTION) == []


def test_parts_of_the_tail_by_hand() -> None:
    # 5 runs of 3/5 of a tile: 0 | 0 1 | 1 | 1 2 | 2; a part's number is run + tile
    s = Schedule.of(8, 5)
    assert (s.whole, s.tail, s.ctas, s.parts) == (5, 3, 10, 7)
    assert [s.parts_of(tile) for tile in (5, 6, 7)] == [slice(0, 2), slice(2, 5), slice(5, 7)]
    # 4 runs of half a tile: the runs end where tiles do, so a number is left out
    s = Schedule.of(6, 4)
    assert [s.parts_of(tile) for tile in (4, 5)] == [slice(0, 2), slice(3, 5)]
    assert Schedule.of(6, 3).parts == 0 and Schedule.of(6, 3).ctas == 6


def test_tiles_together_are_the_attention() -> None:
    problem = Problem(256, (70,), (90,), heads=8, kv_heads=2, causal=True)
    data = inputs(problem)
    tiles = Tiles(problem, data)
    ((o, lse),) = attention(problem, data)
    got, got_lse = np.full_like(o, np.nan), np.full_like(lse, np.nan)
    for tile in range(tiles.count):
        position, head = tiles.places(tile)
        got[position, head], got_lse[head, position] = tiles.attended(tile)
    assert np.allclose(got, o) and np.allclose(got_lse, lse)


def test_layouts_lose_nothing() -> None:
    rng = np.random.default_rng(0)
    p, o = rng.standard_normal((ROWS, 192)), rng.standard_normal((ROWS, 256))
    assert (_by_key(_by_group(p)) == p).all()
    assert (_from_threads(_to_threads(o)) == o).all()
    assert len(set(zip(*(x.ravel().tolist() for x in _owned()), strict=True))) == ROWS * 256


def test_groups_of_probabilities_have_the_keys_of_the_kernel() -> None:
    p = np.broadcast_to(np.arange(64.0), (ROWS, 64))
    groups = _by_group(p)[0, :, 0]
    assert groups[0].tolist() == [0, 1, 4, 5, 16, 17, 20, 21]
    assert groups[1].tolist() == [2, 3, 6, 7, 18, 19, 22, 23]
    assert groups[6, 0] == 40 and groups[4, 0] == 32


def test_block_parameters_end_with_the_pointers() -> None:
    problem = Problem(256, (9,), (20,), causal=True)
    (_, task, _), *_ = trials(Work.GQA_PV)
    placed = task.place(GlobalMemory(), Shape(ROWS, 256, 0))
    assert len(placed.parameters) == SIZE + 8 * 4 + 8 * 8 == 536
    assert Block(problem, size=256, run_tiles=1).runs == 2


def test_lists_of_a_group_by_hand() -> None:
    problem = QsaProblem(
        lengths=(20,),
        requests=(0, 0),
        positions=(19, 5),
        page_size=8,
        pages=4,
        selected=8,
    )
    data = QsaData(problem)
    data.table[0, :3] = 2, 0, 3
    data.indices[:] = [[16, 17, 18, 19, 0, 1, 2, 3], [4, 5, 6, 7, -1, -1, 1, 1]]
    rank, ranked = data.ranks()
    assert rank[0, :3].tolist() == [1, 0, 2] and ranked[0, :3].tolist() == [0, 2, 3]
    lists, lengths = data.lists()
    # page 2: tokens 0..3 by row 0 and 1 by row 1; 4 and 5 by row 1; page 3: 16..19 by row 0
    assert lengths.tolist() == [3]
    assert lists[0, :3].tolist() == [[2, 0x2F], [2, 1 << 16 | 0x30], [3, 0xF]]
    assert len(data.parameters(data.place(GlobalMemory()))) == 224
