# SPDX-License-Identifier: Apache-2.0
"""Small launches of the kernels of the GQA and QSA prefill, for the short list."""

from __future__ import annotations

from dataclasses import replace

from patchctl.emulator.findings import Kind
from patchctl.emulator.gqatasks import GqaFused, GqaMerge, GqaRepair
from patchctl.emulator.gqawide import Block, GqaPv, GqaQk
from patchctl.emulator.problem import Problem
from patchctl.emulator.qsaproblem import QsaProblem
from patchctl.emulator.qsatasks import QsaForward, QsaRank, QsaTable
from patchctl.emulator.tasks import Task
from patchctl.formats.emulation import Work

Named = list[tuple[str, Task, frozenset[Kind]]]

_NO_KINDS: frozenset[Kind] = frozenset()
_STRANGE = frozenset({Kind.NAN_BORN})

# two tiles of 128 rows: 6 heads share K and V
_GQA = Problem(256, (40,), (300,), heads=6, causal=True, spread=2.0)
# queries before the first key, two KV heads, an odd length
_EARLY = Problem(256, (21,), (17,), heads=4, kv_heads=2, causal=True)


def trials(work: Work) -> Named:
    """For these kinds of work; none for the others."""
    return _MAKERS[work]() if work in _MAKERS else []


def _fused() -> Named:
    one = replace(_GQA, strange=True, spread=1.0, q_lengths=(20,))
    return [
        ("a tile in parts", GqaFused(replace(_GQA, q_lengths=(60,)), 2), _NO_KINDS),
        ("queries before the first key", GqaFused(_EARLY, 3), _NO_KINDS),
        ("NaN and infinities", GqaFused(one, 1), _STRANGE),
    ]


def _merge() -> Named:
    return [
        ("three tiles on two SMs", GqaMerge(replace(_GQA, q_lengths=(60,)), 2), _NO_KINDS),
        ("two KV heads on seven SMs", GqaMerge(_EARLY, 7), _NO_KINDS),
    ]


def _repair() -> Named:
    strange = replace(_GQA, strange=True, spread=1.0)
    return [("NaN and infinities, one of two tiles", GqaRepair(strange, (1,)), _STRANGE)]


def _qk() -> Named:
    return [
        ("the first block, two runs", GqaQk(Block(_GQA, run_tiles=1)), _NO_KINDS),
        ("the last block", GqaQk(Block(_GQA, first=256)), _NO_KINDS),
        ("queries before the first key", GqaQk(Block(_EARLY, size=128)), _NO_KINDS),
    ]


def _pv() -> Named:
    # of the two tiles one ends with the first block and one goes on
    ends = Problem(256, (100,), (290,), heads=2, causal=True)
    strange = replace(_GQA, strange=True, q_lengths=(20,), k_lengths=(40,))
    return [
        ("the first block, the last of some", GqaPv(Block(ends)), _NO_KINDS),
        ("the last block", GqaPv(Block(_GQA, first=256)), _NO_KINDS),
        ("queries before the first key", GqaPv(Block(_EARLY, size=128)), _NO_KINDS),
        ("NaN and infinities", GqaPv(Block(strange, size=128)), _STRANGE),
    ]


# rows of nobody, stale and negative positions, a boundary of requests inside a group
_MIXED = QsaProblem(
    lengths=(100, 37),
    requests=(0, 0, 1, 0, 1, -1, 7, 1, 0),
    positions=(99, 98, 36, 1000, -5, 3, 3, 35, 50),
)
_LARGE_PAGES = QsaProblem(
    lengths=(1601, 803),
    requests=(0, 0, 0, 0, 1, 1),
    positions=(1597, 1598, 1599, 1600, 801, 802),
    page_size=784,
    pages=6,
)
_SCATTERED = QsaProblem(
    lengths=(90, 0),
    requests=(0, 0, 1, 0, 0),
    positions=(89, 88, 3, 60, 2),
    selected=61,
    scattered=True,
    outside=True,
    page_size=12,
)


def _rank() -> Named:
    return [
        ("pages of 16", QsaRank(replace(_MIXED, lengths=(1100, 37), pages=90)), _NO_KINDS),
        ("a page outside, one twice", QsaRank(_SCATTERED), _NO_KINDS),
    ]


def _table() -> Named:
    return [
        ("pages of 16, positions past the end", QsaTable(_MIXED), _NO_KINDS),
        ("pages of 784", QsaTable(_LARGE_PAGES), _NO_KINDS),
        ("scattered tokens", QsaTable(_SCATTERED), _NO_KINDS),
    ]


def _forward() -> Named:
    strange = replace(_MIXED, selected=32, strange=True)
    return [
        ("pages of 16, positions past the end", QsaForward(_MIXED), _NO_KINDS),
        ("pages of 784", QsaForward(replace(_LARGE_PAGES, spread=4.0)), _NO_KINDS),
        ("scattered tokens", QsaForward(_SCATTERED), _NO_KINDS),
        ("NaN and infinities", QsaForward(strange), _STRANGE),
    ]


_MAKERS = {
    Work.GQA_FUSED: _fused,
    Work.GQA_MERGE: _merge,
    Work.GQA_REPAIR: _repair,
    Work.GQA_QK: _qk,
    Work.GQA_PV: _pv,
    Work.QSA_RANK: _rank,
    Work.QSA_TABLE: _table,
    Work.QSA_FWD: _forward,
}
