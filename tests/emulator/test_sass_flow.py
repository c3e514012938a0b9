# SPDX-License-Identifier: Apache-2.0
"""Branches, convergence, calls, barriers, and what passes between lanes."""

from __future__ import annotations

import numpy as np
import pytest
from sassrig import Rig, execute

from patchctl.emulator.findings import Kind
from patchctl.emulator.machine import EmulatorError

LANES = np.arange(32)


def test_branch_splits_a_warp_and_both_sides_run() -> None:
    rig = Rig("@P0 BRA 0x30", "MOV R1, 0x11111", "BRA 0x40", "MOV R1, 0x22222")
    rig.set(P0=LANES < 5).run()
    assert rig.words(1) == [0x22222] * 5 + [0x11111] * 27


def test_branch_with_a_condition_besides_the_guard() -> None:
    rig = Rig("@P0 BRA !P1, 0x20", "MOV R1, 0x11111").set(P0=LANES < 8, P1=LANES < 4, R1=0).run()
    assert rig.words(1) == [0x11111] * 4 + [0] * 4 + [0x11111] * 24


@pytest.mark.parametrize("apart", [True, False])
def test_branch_of_a_diverged_warp_leads_to_where_the_lanes_meet(apart: bool) -> None:
    lines = [
        "@P0 BRA 0x10",  # to the next instruction, but no longer together
        "BRA.DIV 0x40",
        "SHFL.IDX PT, R2, R1, 0x3, 0x1f",
        "EXIT",
        "WARPSYNC 0xffffffff",
        "SHFL.IDX PT, R2, R1, 0x4, 0x1f",
    ]
    rig = Rig(*lines).set(R1=LANES, P0=(LANES < 9) if apart else True).run()
    assert rig.words(2) == [4 if apart else 3] * 32 and rig.kinds == set()


@pytest.mark.parametrize("apart", [True, False])
def test_branch_of_a_converged_warp_leaves_the_waiting_out(apart: bool) -> None:
    lines = [
        "@P0 BRA 0x10",
        "BRA.CONV 0x40",
        "WARPSYNC 0xffffffff",
        "MOV R3, 0x55555",
        "VOTE.ANY R2, PT, PT",
    ]
    rig = Rig(*lines).set(R3=0, P0=(LANES < 9) if apart else True).run()
    assert (rig.words(2), rig.word(3)) == ([0xFFFFFFFF] * 32, 0x55555 if apart else 0)


def test_uniform_branch_whose_lanes_disagree_is_found() -> None:
    assert Rig("@P0 BRA.U 0x10").set(P0=True).run().kinds == set()
    both = [t < 32 for t in range(64)]  # whole warps may differ
    assert Rig("@P0 BRA.U 0x10", threads=64).set(P0=both).run().kinds == set()
    assert Rig("@P0 BRA.U 0x10").set(P0=LANES < 9).run().kinds == {Kind.DIVERGENT_BRANCH}


def test_trap_is_an_error_only_where_a_thread_reaches_it() -> None:
    Rig("@P0 BPT.TRAP 0x1").set(P0=False).run()
    with pytest.raises(EmulatorError, match="trap at 0x0"):
        Rig("@P0 BPT.TRAP 0x1").set(P0=LANES == 3).run()


def test_loop_with_a_different_count_in_each_thread() -> None:
    lines = [
        "IADD3 R0, R0, R1, RZ",
        "IADD3 R1, R1, -0x1, RZ",
        "ISETP.GT.AND P0, PT, R1, RZ, PT",
        "@P0 BRA 0x0",
    ]
    rig = Rig(*lines).set(R0=0, R1=LANES + 1).run()
    assert rig.words(0) == [(t + 1) * (t + 2) // 2 for t in range(32)]


def test_convergence_brings_the_lanes_together_for_a_shuffle() -> None:
    lines = [
        "BSSY B0, 0x50",
        "@P0 BRA 0x40",
        "MOV R1, 0x11111",
        "BRA 0x50",
        "MOV R1, 0x22222",
        "BSYNC B0",
        "SHFL.BFLY PT, R2, R1, 0x1, 0x1f",
    ]
    rig = Rig(*lines).set(P0=LANES % 2 == 0).run()
    assert rig.words(2) == [0x11111 if t % 2 == 0 else 0x22222 for t in range(32)]
    assert rig.kinds == set()


def test_shuffle_of_diverged_lanes_is_found() -> None:
    lines = [
        "@P0 BRA 0x30",
        "SHFL.BFLY PT, R2, R1, 0x1, 0x1f",
        "BRA 0x40",
        "SHFL.BFLY PT, R2, R1, 0x1, 0x1f",
    ]
    rig = Rig(*lines).set(R1=LANES, P0=LANES % 2 == 0).run()
    assert rig.kinds == {Kind.DIVERGENT_SHUFFLE}


def test_warpsync_waits_for_the_lanes_in_its_mask() -> None:
    lines = [
        "@P0 BRA 0x30",
        "MOV R1, 0x11111",
        "BRA 0x40",
        "MOV R1, 0x22222",
        "WARPSYNC 0xffffffff",
        "SHFL.IDX PT, R2, R1, 0x1f, 0x1f",
    ]
    rig = Rig(*lines).set(P0=LANES == 31).run()
    assert rig.words(2) == [0x22222] * 32 and rig.kinds == set()


def test_lanes_that_ended_are_not_waited_for() -> None:
    lines = ["BSSY B0, 0x30", "@P0 EXIT", "@P1 BRA 0x30", "BSYNC B0", "MOV R1, 0x77777"]
    rig = Rig(*lines).set(P0=LANES < 3, P1=LANES < 9, R1=0).run()
    assert rig.words(1) == [0] * 3 + [0x77777] * 29


def test_break_takes_lanes_out_of_a_convergence_barrier() -> None:
    lines = [
        "BSSY B0, 0x40",
        "@!P0 BRA 0x40",
        "BREAK B0",
        "BRA 0x60",
        "BSYNC B0",
        "VOTE.ANY R2, PT, PT",
        "MOV R3, 0x55555",
    ]
    rig = Rig(*lines).set(P0=LANES < 4, R2=0).run()
    assert rig.words(2) == [0] * 4 + [0xFFFFFFF0] * 28


def test_saved_convergence_barrier_can_be_restored() -> None:
    lines = [
        "BSSY B0, 0x40",
        "BMOV.32.CLEAR R4, B0",
        "BMOV.32 B0, R4",
        "@P0 BRA 0x40",
        "BSYNC B0",
        "VOTE.ANY R2, PT, PT",
    ]
    rig = Rig(*lines).set(P0=LANES < 4).run()
    assert rig.words(2) == [0xFFFFFFFF] * 32 and rig.word(4) == 0xFFFFFFFF


def test_call_returns_behind_itself() -> None:
    lines = [
        "MOV R2, 0x30",
        "MOV R3, RZ",
        "CALL.REL.NOINC 0x50",
        "IADD3 R1, R1, 0x1, RZ",
        "EXIT",
        "MOV R1, 0x6",
        "RET.REL.NODEC R2 0x0",
    ]
    assert Rig(*lines).run().word(1) == 7


def test_jump_table_sends_each_thread_to_its_case() -> None:
    # the target is R4 plus the address behind BRX plus the offset: here R4 itself
    lines = ["BRX R4 -0x10", "MOV R1, 0x11111", "EXIT", "MOV R1, 0x33333"]
    rig = Rig(*lines).set(R4=[0x10 if t % 3 else 0x30 for t in range(32)], R5=0).run()
    assert rig.words(1) == [0x11111 if t % 3 else 0x33333 for t in range(32)]


def test_jump_to_no_instruction_is_refused() -> None:
    with pytest.raises(EmulatorError, match="goes to 0x18, which is no instruction"):
        Rig("BRX R4 -0x10", "MOV R1, 0x1").set(R4=0x18, R5=0).run()


@pytest.mark.parametrize(
    "line",
    [
        "NOP",
        "YIELD",
        "MEMBAR.SC.GPU",
        "ERRBAR",
        "CCTL.IVALL",
        "DEPBAR.LE SB0, 0x1",
        "NANOSLEEP 0x20",
    ],
)
def test_instruction_that_only_concerns_time_does_nothing(line: str) -> None:
    assert Rig(line, "MOV R1, 0x12345").run().word(1) == 0x12345


# -- barriers


def test_barrier_reached_by_part_of_a_warp_is_found() -> None:
    rig = Rig("@P0 BRA 0x20", "BAR.SYNC 0x0", "BAR.SYNC 0x0", threads=64).set(P0=np.arange(64) < 5)
    assert Kind.DIVERGENT_BARRIER in rig.run().kinds


def test_barrier_after_some_warps_ended_is_found() -> None:
    rig = Rig("@P0 EXIT", "BAR.SYNC 0x0", threads=64).set(P0=np.arange(64) < 32).run()
    assert rig.kinds == {Kind.DIVERGENT_BARRIER}
    assert "had ended" in rig.findings.faults()[0].detail


def test_barrier_that_never_completes_is_an_error() -> None:
    rig = Rig("@P0 BAR.SYNC 0x1, 0x40", "@!P0 BAR.SYNC 0x2, 0x40", threads=64)
    with pytest.raises(EmulatorError, match="barrier 1: 32 of 64 threads arrived"):
        rig.set(P0=np.arange(64) < 32).run()


@pytest.mark.parametrize(
    ("how", "ones", "expected"),
    [("OR", 0, 0), ("OR", 1, 1), ("AND", 63, 0), ("AND", 64, 1), ("POPC", 37, 37)],
)
def test_barrier_that_reduces_a_predicate(how: str, ones: int, expected: int) -> None:
    rig = Rig(f"BAR.RED.{how} 0x0, P0", "B2R.RESULT R1, P1", threads=64)
    rig.set(P0=np.arange(64) < ones).run()
    assert (rig.word(1, 50), rig.pred(1, 50)) == (expected, expected != 0)


def test_thread_that_waits_for_another_warp_does_not_starve_it() -> None:
    lines = [
        "@!P0 BRA 0x40",  # warp 1 goes on to set the flag, warp 0 spins
        "LDS R1, [RZ]",
        "ISETP.EQ.AND P1, PT, R1, RZ, PT",
        "@P1 BRA 0x10",
        "MOV R2, 0x1",
        "@!P0 ATOMS.ADD RZ, [RZ], R2",
    ]
    rig = Rig(
        "@P2 STS [RZ], RZ",
        "BAR.SYNC 0x0",
        *(line.replace("0x40", "0x60").replace("0x10", "0x30") for line in lines),
        threads=64,
        shared=16,
    )
    lanes = np.arange(64)
    rig.set(P0=lanes < 32, P2=lanes == 0, R1=0)
    rig.run()
    assert rig.word(1) > 0


# -- lanes


@pytest.mark.parametrize(
    ("text", "expected", "inside"),
    [
        ("SHFL.IDX P0, R2, R1, 0x3, 0x1f", [3] * 32, [True] * 32),
        ("SHFL.BFLY P0, R2, R1, 0x10, 0x1f", [t ^ 16 for t in range(32)], [True] * 32),
        (
            "SHFL.UP P0, R2, R1, 0x1, RZ",
            [max(t - 1, 0) for t in range(32)],
            [t > 0 for t in range(32)],
        ),
        (
            "SHFL.DOWN P0, R2, R1, 0x2, 0x1f",
            [t + 2 if t < 30 else t for t in range(32)],
            [t < 30 for t in range(32)],
        ),
        # segments of 16 lanes: the mask 0x10 stands in bits 8..12
        (
            "SHFL.DOWN P0, R2, R1, 0x2, 0x101f",
            [t + 2 if t % 16 < 14 else t for t in range(32)],
            [t % 16 < 14 for t in range(32)],
        ),
        ("SHFL.IDX P0, R2, R1, 0x3, 0x181f", [t // 8 * 8 + 3 for t in range(32)], [True] * 32),
    ],
)
def test_shuffle(text: str, expected: list[int], inside: list[bool]) -> None:
    rig = execute(text, R1=LANES)
    assert rig.words(2) == expected
    assert [rig.pred(0, t) for t in range(32)] == inside


def test_shuffle_by_a_lane_number_in_a_register() -> None:
    assert execute("SHFL.IDX PT, R2, R1, R3, 0x1f", R1=LANES, R3=31 - LANES).words(2) == list(
        range(31, -1, -1)
    )


@pytest.mark.parametrize(
    ("mode", "ones", "holds"),
    [
        ("ANY", 0, False),
        ("ANY", 1, True),
        ("ALL", 31, False),
        ("ALL", 32, True),
        ("EQ", 0, True),
        ("EQ", 5, False),
    ],
)
def test_vote(mode: str, ones: int, holds: bool) -> None:
    rig = execute(f"VOTE.{mode} R2, P1, P0", P0=ones > LANES)
    assert (rig.word(2), rig.pred(1)) == ((1 << ones) - 1, holds)
    assert execute(f"VOTE.{mode} P1, P0", P0=ones > LANES).pred(1) is holds


def test_vote_of_part_of_a_warp_counts_only_that_part() -> None:
    rig = Rig("@P1 VOTE.ALL R2, P2, P0").set(P0=LANES < 9, P1=LANES < 4, R2=0, P2=False).run()
    assert rig.words(2) == [0xF] * 4 + [0] * 28 and rig.pred(2)


def test_match_finds_the_lanes_with_the_same_word() -> None:
    rig = execute("MATCH.ANY R2, R1", R1=LANES % 4)
    assert rig.words(2) == [0x11111111 << (t % 4) for t in range(32)]


def test_special_registers() -> None:
    rig = Rig(
        "S2R R1, SR_TID.X",
        "S2R R2, SR_LANEID",
        "S2R R3, SR_CTAID.X",
        "S2R R4, SR_CTAID.Y",
        "S2R R5, SR_CTAID.Z",
        "S2R R6, SR_LTMASK",
        "S2R R7, SR_TID.Y",
        threads=64,
        index=(3, 4, 5),
    ).run()
    assert [rig.word(r, 40) for r in range(1, 8)] == [40, 8, 3, 4, 5, 0xFF, 0]


def test_special_register_that_is_not_modelled_is_named() -> None:
    with pytest.raises(EmulatorError, match="SR_CLOCKLO is not modelled"):
        Rig("S2R R1, SR_CLOCKLO").run()


def test_branch_on_an_unwritten_predicate_is_found() -> None:
    assert Rig("@P3 BRA 0x10").run().kinds == {Kind.UNINITIALISED_REGISTER}
