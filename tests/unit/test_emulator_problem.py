# SPDX-License-Identifier: Apache-2.0
"""Attention problems: reference, tensors, parameters, judgement; shapes as people type them."""

from __future__ import annotations

import math
import struct
from dataclasses import replace

import numpy as np
import pytest

from patchctl.emulator import params
from patchctl.emulator.memory import GlobalMemory
from patchctl.emulator.placement import Placement
from patchctl.emulator.problem import Problem, inputs
from patchctl.emulator.reference import attention, judge, merged, results
from patchctl.emulator.shapes import parse_shape
from patchctl.emulator.suite import long_list, short_list
from patchctl.emulator.tasks import Shape
from patchctl.errors import UsageError
from patchctl.formats.emulation import Ability, read_rules, rule_for

RULES = """
[[kernels]]
match = 'fwd<(?P<head_dim>\\d+)>'
work = "attention"
rows = 64
can = [{can}]
"""


def slowly(p: Problem, sequence: int, head: int, row: int) -> tuple[np.ndarray, float]:
    """One row of attention, key by key: FA2's definition."""
    data = inputs(p)
    q = data.q[sequence][row, head].astype(float)
    keys = data.k[sequence][:, head // p.ratio].astype(float)
    values = data.v[sequence][:, head // p.ratio].astype(float)
    shift = len(keys) - len(data.q[sequence])
    scores, seen = [], []
    for j, key in enumerate(keys):
        left, right = p.window
        if p.causal:
            right = 0
        if (left is not None and j < row + shift - left) or (
            right is not None and j > row + shift + right
        ):
            continue
        score = float(q @ key) * p.softmax_scale
        if p.softcap:
            score = p.softcap * math.tanh(score / p.softcap)
        if data.slopes is not None:
            score -= float(data.slopes[head]) * abs(row + shift - j)
        scores.append(score)
        seen.append(values[j])
    if not scores:
        return np.zeros(p.head_dim), -math.inf
    lse = math.log(sum(math.exp(s) for s in scores))
    return sum(math.exp(s - lse) * v for s, v in zip(scores, seen, strict=True)), lse


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"causal": True},
        {"window": (3, None)},
        {"window": (None, 1)},
        {"window": (2, 4)},
        {"softcap": 0.7},
        {"alibi": True, "causal": True},
        {"alibi": True, "softcap": 2.0, "window": (5, 5), "scale": 0.3},
    ],
)
def test_reference_is_attention(changes: dict[str, object]) -> None:
    p = replace(Problem(8, (5, 9), (11, 4), heads=4, kv_heads=2), **changes)
    found = attention(p, inputs(p))
    for sequence, head, row in ((0, 0, 0), (0, 3, 4), (1, 1, 0), (1, 2, 8), (1, 0, 5)):
        out, lse = slowly(p, sequence, head, row)
        assert np.allclose(found[sequence][0][row, head], out, atol=1e-12)
        assert found[sequence][1][head, row] == pytest.approx(lse, abs=1e-12)


def test_parameters_lie_where_the_compiler_puts_them() -> None:
    """Offsets printed by a program around flash.h (tests/build asks a compiler again)."""
    assert params.SIZE == 440
    known = {"o_ptr": 112, "softmax_lse_ptr": 160, "b": 176, "total_q": 212, "is_causal": 409}
    known |= {"scale_softmax_log2": 220, "seqused_k": 248, "unpadded_lse": 432, "num_splits": 412}
    assert {name: params.FIELDS[name].offset for name in known} == known
    packed = params.pack({"b": 3, "is_causal": True})
    assert packed[176] == 3 and packed[409] == 1 and sum(packed) == 4
    for size in (16, 48, 784, 1056):
        multiplier, shift = struct.unpack("<Ii", params.page_size(size))
        assert all(
            (k * multiplier >> 30 + shift) == k // size for k in (0, size - 1, size, 2**30 - 1)
        )
    assert params.page_size(None) == bytes([0, 0, 0, 0, 2, 0, 0, 0])
    with pytest.raises(UsageError, match="no member `blocks`"):
        params.pack({"blocks": 1})


def _filled(p: Problem, memory: GlobalMemory) -> list[tuple[np.ndarray, np.ndarray]]:
    """Put the reference into the outputs, in the kernels' layout."""
    want = attention(p, inputs(p))
    tensors = memory.tensors
    rows = [lse for _, lse in want]
    lse = np.concatenate(rows, axis=1) if p.packed else np.stack(rows)
    tensors["lse"].data[:] = lse.astype(np.float32).reshape(-1).view(np.uint8)
    out = np.concatenate([o for o, _ in want]).astype(np.float16)
    tensors["out"].data[:] = out.reshape(-1).view(np.uint8)
    return want


def test_nan_reaches_the_rows_that_see_it_and_no_other() -> None:
    p = Problem(8, (10,), (10,), causal=True, strange=True, window=(2, None))
    ((out, lse),) = attention(p, inputs(p))
    # key 9 is NaN, the value of key 8 NaN in column 5, in column 1 key 7 is inf and key 4 -inf
    assert np.isnan(lse[0]).tolist() == [i == 9 for i in range(10)]
    assert np.isnan(out[:, 0, 5]).tolist() == [i >= 8 for i in range(10)]
    assert out[4:9, 0, 1].tolist() == [-math.inf] * 3 + [math.inf] * 2  # a window of three keys
    assert np.isfinite(out[:9, 0, [0, 2, 3, 4, 6, 7]]).all() and np.isfinite(out[:4]).all()
    assert judge([(out, lse)], [(out, lse)]).good
    leaked = out.copy()
    leaked[0, 0, 5] = np.nan
    assert judge([(leaked, lse)], [(out, lse)]).missing == 1


@pytest.mark.parametrize("packed", [True, False])
def test_judge_accepts_the_reference_and_nothing_else(packed: bool) -> None:
    p = Problem(16, (4, 4), (6, 2), heads=2, packed=packed, causal=True)
    memory = GlobalMemory()
    Placement(p, inputs(p), memory)
    assert not judge(results(p, memory), attention(p, inputs(p))).good  # nothing is written yet
    want = _filled(p, memory)
    assert judge(results(p, memory), want).good
    out = memory.tensors["out"].array(np.float16, (8, 2, 16))
    out[3, 1] = -out[3, 1]
    assert not judge(results(p, memory), want).good
    out[3, 1] = np.nan
    assert judge(results(p, memory), want).missing == 16


def test_parts_merge_to_the_whole() -> None:
    p = Problem(8, (3,), (10,), heads=2, splits=2)
    memory = GlobalMemory()
    Placement(p, inputs(p), memory)
    data = inputs(p)
    for split, keys in enumerate((slice(0, 7), slice(7, 10))):
        part = replace(p, k_lengths=(keys.stop - keys.start,), splits=1)
        cut = replace(data, k=(data.k[0][keys],), v=(data.v[0][keys],))
        ((out, lse),) = attention(part, cut)
        memory.tensors["lse_parts"].array(np.float32, (2, 6))[split] = lse.reshape(-1)
        rows = out.transpose(1, 0, 2).reshape(6, 8)
        memory.tensors["out_parts"].array(np.float32, (2, 6, 8))[split] = rows
    assert judge(merged(p, memory), attention(p, data)).relative < 1e-6


@pytest.mark.parametrize(
    "text,expected",
    [
        ("", {}),
        ("q=33+1, k=300+20", {"q_lengths": (33, 1), "k_lengths": (300, 20)}),
        ("heads=6/2,causal", {"heads": 6, "kv_heads": 2, "causal": True}),
        ("heads=3", {"heads": 3, "kv_heads": 3}),
        ("window=5:", {"window": (5, None)}),
        ("window=:0,d=40", {"window": (None, 0), "head_dim": 40}),
        ("page=48,softcap=20,alibi", {"page_size": 48, "softcap": 20.0, "alibi": True}),
        (
            "batched,used,leftpad=3,splits=2",
            {"packed": False, "used": True, "leftpad": 3, "splits": 2},
        ),
    ],
)
def test_shape_is_read(text: str, expected: dict[str, object]) -> None:
    assert parse_shape(text, 64) == replace(Problem(64, (37,), (131,)), **expected)


@pytest.mark.parametrize(
    "text,message,hint",
    [
        ("casual", "no `casual`", "causal"),
        ("window=5", "`5` does not fit `window`", "LEFT"),
        ("q=a", "`a` does not fit `q`", "LENGTH"),
        ("q=1+2", "2 query lengths and 1 key", ""),
        ("heads=3/2", "no multiple", ""),
        ("batched,q=1+2,k=1+2", "one query length", ""),
    ],
)
def test_shape_that_makes_no_sense_is_refused(text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        parse_shape(text, 64)
    assert hint in error.value.hint


@pytest.mark.parametrize(
    "abilities",
    [
        ["plain", "contiguous"],
        ["causal", "contiguous"],
        ["plain", "paged", "right"],
        [a.value for a in Ability if a is not Ability.CAUSAL],
    ],
)
def test_lists_hold_only_what_the_kernel_can(abilities: list[str]) -> None:
    can = ", ".join(f'"{a}"' for a in abilities)
    rules = read_rules(RULES.format(can=can), where="rules")
    kernel = rule_for("void fwd<64>(params)", rules)
    assert kernel is not None and kernel.head_dim == 64
    short, long = short_list(kernel), long_list(kernel)
    assert [t.name for t in long[: len(short)]] == [t.name for t in short]
    assert len({t.name for t in long}) == len(long)
    for trial in long:
        p = trial.task.problem
        used = {
            Ability.ALIBI: p.alibi,
            Ability.SOFTCAP: p.softcap > 0,
            Ability.PAGED: p.page_size is not None,
            Ability.SPLITS: p.splits > 1,
            Ability.LEFT: p.window[0] is not None,
            Ability.NARROW: p.head_dim < 64,
            Ability.LEFTPAD: p.leftpad > 0,
            Ability.STRANGE: p.strange,
        }
        assert {a for a, yes in used.items() if yes} <= set(abilities), trial.name
        memory = GlobalMemory()
        placed = trial.task.place(memory, Shape(64, 128, 0))
        assert placed.grid[0] * 64 >= max(p.q_lengths) * p.ratio


def test_rules_name_what_is_wrong() -> None:
    with pytest.raises(UsageError, match=r"kernels\[0\].match"):
        read_rules('[[kernels]]\nmatch = "("\nwork = "combine"\n', where="rules")
    with pytest.raises(UsageError, match="work"):
        read_rules('[[kernels]]\nmatch = "a"\nwork = "nothing"\n', where="rules")
    assert rule_for("other", read_rules(RULES.format(can=""), where="rules")) is None
