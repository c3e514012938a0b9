# SPDX-License-Identifier: Apache-2.0
"""What lanes do together, memory in all spaces, and control flow, in PTX."""

from __future__ import annotations

import numpy as np
import pytest

from patchctl.emulator.findings import Kind
from patchctl.emulator.machine import EmulatorError
from patchctl.emulator.ptx.snippet import LANES, Snippet, execute

LANE = np.arange(LANES)


def run(
    body: str,
    *values: object,
    inputs: str = "",
    outputs: str = "b32",
    shared_bytes: int = 0,
    faults: set[Kind] | None = None,
) -> np.ndarray:
    """[outputs, lanes]; fails on findings other than `faults`."""
    snippet = Snippet("k", body, tuple(inputs.split()), tuple(outputs.split()), shared_bytes)
    table = np.array([np.broadcast_to(np.asarray(v, np.uint64), LANES) for v in values])
    got, findings = execute(snippet, table.reshape(len(values), LANES))
    assert {f.kind for f in findings.faults()} == (faults or set()), findings.faults()
    return got


@pytest.mark.parametrize(
    "operation,expected,valid",
    [
        ("bfly.b32 %o0|%o1, %lane, 3, 31", LANE ^ 3, LANE >= 0),
        ("idx.b32 %o0|%o1, %lane, 5, 31", LANE * 0 + 5, LANE >= 0),
        ("up.b32 %o0|%o1, %lane, 2, 0", np.where(LANE < 2, LANE, LANE - 2), LANE >= 2),
        ("down.b32 %o0|%o1, %lane, 2, 31", np.where(LANE > 29, LANE, LANE + 2), LANE <= 29),
        # 0x181f: segments of 8 lanes
        (
            "down.b32 %o0|%o1, %lane, 2, 0x181f",
            np.where(LANE % 8 > 5, LANE, LANE + 2),
            LANE % 8 < 6,
        ),
        ("idx.b32 %o0|%o1, %lane, 1, 0x181f", LANE // 8 * 8 + 1, LANE >= 0),
        ("up.b32 %o0|%o1, %lane, 1, 0x1800", np.where(LANE % 8, LANE - 1, LANE), LANE % 8 > 0),
        # a clamp below the source: the lane keeps its own value
        ("idx.b32 %o0|%o1, %lane, 9, 7", np.where(LANE < 0, 9, LANE), LANE < 0),
    ],
)
def test_shuffle_takes_values_of_the_lanes_that_the_isa_names(
    operation: str, expected: np.ndarray, valid: np.ndarray
) -> None:
    got = run(f"shfl.sync.{operation}, 0xffffffff;", outputs="b32 pred")
    assert got[0].tolist() == expected.tolist()
    assert got[1].tolist() == valid.tolist()


def test_votes_and_matches_see_the_lanes_of_the_mask() -> None:
    got = run(
        "setp.lt.u32 %o0, %lane, 5;"
        "vote.sync.ballot.b32 %o1, %o0, -1; vote.sync.any.pred %o2, %o0, -1;"
        "vote.sync.all.pred %o3, %o0, -1; vote.sync.uni.pred %o4, %o0, -1;"
        "and.b32 %word, %lane, 1; match.any.sync.b32 %o5, %word, -1;"
        "match.all.sync.b32 %o6|%o7, %word, -1; mov.u32 %word, 3;"
        "match.all.sync.b32 %o8|%o9, %word, -1; activemask.b32 %o10;",
        outputs="pred b32 pred pred pred b32 b32 pred b32 pred b32",
    )
    everyone = 0xFFFFFFFF
    assert set(got[1]) == {0x1F}
    assert [set(got[i]) for i in (2, 3, 4)] == [{1}, {0}, {0}]
    assert got[5].tolist() == [0x55555555, 0xAAAAAAAA] * 16
    assert [set(got[i]) for i in (6, 7, 8, 9, 10)] == [{0}, {0}, {everyone}, {1}, {everyone}]


def test_diverged_lanes_come_together_for_a_shuffle() -> None:
    got = run(
        "setp.lt.u32 %i0, %lane, 16; mov.u32 %o0, %lane; @%i0 bra LOW;"
        "add.u32 %o0, %o0, 100; bra JOIN; LOW: add.u32 %o0, %o0, 200; JOIN:"
        "shfl.sync.bfly.b32 %o0, %o0, 16, 31, 0xffffffff;",
        0,
        inputs="pred",
    )
    assert got[0].tolist() == np.where(LANE < 16, LANE + 116, LANE + 184).tolist()


def test_shuffle_in_a_branch_reads_only_lanes_that_are_there() -> None:
    run(
        "mov.u32 %o0, 0; setp.lt.u32 %i0, %lane, 16; @!%i0 bra END;"
        "shfl.sync.bfly.b32 %o0, %lane, 16, 31, 0xffff; END:",
        0,
        inputs="pred",
        faults={Kind.DIVERGENT_SHUFFLE},
    )


def test_shuffle_that_not_all_of_its_lanes_reach_is_an_error() -> None:
    with pytest.raises(EmulatorError, match="wait"):
        run(
            "mov.u32 %o0, 0; setp.lt.u32 %i0, %lane, 16; @!%i0 bra END;"
            "shfl.sync.bfly.b32 %o0, %lane, 1, 31, -1; bar.sync 0; END: bar.sync 0;",
            0,
            inputs="pred",
        )


def test_loop_runs_as_often_as_each_lane_says() -> None:
    got = run(
        "mov.u32 %o0, 0; mov.u32 %word, 0;"
        "TOP: setp.ge.u32 %i0, %word, %lane; @%i0 bra DONE;"
        "add.u32 %o0, %o0, %word; add.u32 %word, %word, 1; bra.uni TOP; DONE:",
        0,
        inputs="pred",
    )
    assert got[0].tolist() == (LANE * (LANE - 1) // 2).tolist()


def test_indexed_branch_goes_where_its_index_says() -> None:
    got = run(
        "and.b32 %word, %lane, 1; TABLE: .branchtargets ZERO, ONE; brx.idx %word, TABLE;"
        "ZERO: mov.u32 %o0, 10; bra END; ONE: mov.u32 %o0, 11; END:"
    )
    assert got[0].tolist() == [10, 11] * 16


WIDTHS = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "f32": 4, "s8": 1}


@pytest.mark.parametrize(
    "kind,width,vector", [(k, w, v) for k, w in WIDTHS.items() for v in (1, 2, 4) if w * v <= 16]
)
def test_shared_memory_holds_every_width(kind: str, width: int, vector: int) -> None:
    size = width * vector
    register = {1: "b16", 2: "b16", 4: kind if kind == "f32" else "b32", 8: "b64"}[width]
    names = [f"%x{i}" for i in range(vector)]
    suffix = f".v{vector}" if vector > 1 else ""
    group = "{" + ", ".join(names) + "}" if vector > 1 else names[0]
    ins = ", ".join(f"%i{i + 1}" for i in range(vector))
    group_in = "{" + ins + "}" if vector > 1 else ins
    copies = " ".join(f"mov.b{max(16, 8 * width)} %o{i}, {n};" for i, n in enumerate(names))
    values = [np.uint64(0x40 + i) + LANE.astype(np.uint64) for i in range(vector)]
    got = run(
        f"{{ .reg .{register} {', '.join(names)}; .reg .b32 %at; mov.u32 %at, room;"
        f"mad.lo.u32 %at, %lane, {size}, %at; st.shared{suffix}.{kind} [%at], {group_in};"
        f"ld.shared{suffix}.{kind} {group}, [%at]; {copies} }}",
        0,
        *values,
        inputs=" ".join(["b32", *[register] * vector]),
        outputs=" ".join([register] * vector),
        shared_bytes=size * LANES,
    )
    for i, value in enumerate(values):
        assert got[i].tolist() == value.tolist()


def test_narrow_loads_extend_as_their_type_says() -> None:
    got = run(
        "mov.u32 %word, room; mad.lo.u32 %word, %lane, 4, %word; st.shared.u32 [%word], %i0;"
        "ld.shared.s8 %o0, [%word]; ld.shared.u8 %o1, [%word]; ld.shared.s16 %o2, [%word];"
        "ld.shared.u16 %o3, [%word]; ld.shared.s32 %o4, [%word];",
        0xFFFF8080,
        inputs="b32",
        outputs="b32 b32 b32 b32 b64",
        shared_bytes=128,
    )
    assert [int(row[0]) for row in got] == [
        0xFFFFFF80,
        0x80,
        0xFFFF8080,
        0x8080,
        0xFFFFFFFFFFFF8080,
    ]


def test_generic_addresses_find_shared_and_local_memory() -> None:
    got = run(
        "{ .local .align 8 .b8 depot[16]; .reg .b64 %p, %q; mov.u64 %p, depot;"
        "cvta.local.u64 %q, %p; st.u32 [%q+4], %lane; ld.local.u32 %o0, [%p+4];"
        "mov.u64 %p, room; cvta.shared.u64 %q, %p; mul.wide.u32 %p, %lane, 4; add.s64 %q, %q, %p;"
        "st.u32 [%q], %lane; ld.u32 %o1, [%q]; cvta.to.shared.u64 %p, %q;"
        "ld.shared.u32 %o2, [%p]; }",
        outputs="b32 b32 b32",
        shared_bytes=128,
    )
    assert [row.tolist() for row in got] == [LANE.tolist()] * 3


def test_atomics_take_turns_in_lane_order() -> None:
    got = run(
        "setp.eq.u32 %i0, %lane, 0; mov.u32 %word, 0; "
        "@%i0 st.shared.v4.u32 [room], {%word, %word, %word, %word};"
        "bar.sync 0; atom.shared.add.u32 %o0, [room], 2; atom.shared.inc.u32 %o1, [room+4], 9;"
        "red.shared.max.u32 [room+8], %lane; atom.shared.cas.b32 %o2, [room+12], %lane, 7;"
        "bar.sync 0; ld.shared.v4.u32 {%o3, %o4, %o5, %o6}, [room];",
        0,
        inputs="pred",
        outputs="b32 b32 b32 b32 b32 b32 b32",
        shared_bytes=16,
    )
    assert got[0].tolist() == (2 * LANE).tolist()
    assert got[1].tolist() == (LANE % 10).tolist()
    assert got[2].tolist() == [0] + [7] * 6 + [7] * 25
    assert [int(x) for x in got[3:, 0]] == [64, 2, 31, 7]


def test_atomics_on_global_memory_add_floats() -> None:
    got = run(
        "{ .reg .f32 %a, %b; .reg .b64 %p; ld.param.u64 %p, [target];"
        "mov.f32 %a, 0f3F800000; atom.global.add.f32 %b, [%p], %a; mov.f32 %o0, %b;"
        "red.global.add.u64 [%p+248], 0; }",
        outputs="f32",
    )
    assert got[0].astype(np.uint32).view(np.float32).tolist() == LANE.tolist()


def test_reduction_at_a_barrier_counts_all_threads() -> None:
    got = run(
        "setp.lt.u32 %i0, %lane, 3; bar.red.popc.u32 %o0, 0, %i0;"
        "bar.red.or.pred %o1, 0, %i0; bar.red.and.pred %o2, 0, !%i0;",
        0,
        inputs="pred",
        outputs="b32 pred pred",
    )
    assert [set(row) for row in got] == [{3}, {1}, {0}]
