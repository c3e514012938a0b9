# SPDX-License-Identifier: Apache-2.0
"""Races, bank conflicts and atomics of sm_70."""

from __future__ import annotations

import numpy as np
import pytest
from sassrig import Rig, at, bits, execute

from patchctl.emulator.findings import Kind
from patchctl.emulator.machine import EmulatorError
from patchctl.emulator.memory import GlobalMemory

WRITE = "STS [R0], R1"
READ = "LDS R2, [R3]"
SYNC = "BAR.SYNC 0x0"


@pytest.mark.parametrize(
    ("lines", "races"),
    [
        ([WRITE, SYNC, READ], False),
        ([WRITE, READ], True),  # write, then read by another warp
        ([WRITE, SYNC, READ, WRITE], True),  # read, then write by another warp
        ([WRITE, SYNC, READ, SYNC, WRITE], False),
        ([WRITE, "@P0 BAR.SYNC 0x1, 0x40", "@!P0 BAR.SYNC 0x2, 0x40", READ], True),
        ([WRITE, "BAR.SYNC 0x1, 0x80", READ], False),
    ],
)
def test_race_is_found_where_no_barrier_orders_two_warps(lines: list[str], races: bool) -> None:
    lanes = np.arange(128)
    rig = Rig(*lines, threads=128, shared=512)
    rig.set(R0=4 * lanes, R1=lanes, R3=4 * ((lanes + 64) % 128), P0=lanes < 64).run()
    assert (Kind.SHARED_RACE in rig.kinds) is races
    if not races:
        assert rig.words(2) == ((lanes + 64) % 128).tolist()


def test_barrier_of_some_warps_orders_only_them() -> None:
    lanes = np.arange(128)
    lines = [WRITE, "@P0 BAR.SYNC 0x1, 0x40", "@!P0 BAR.SYNC 0x2, 0x40", READ]
    rig = Rig(*lines, threads=128, shared=512)
    partner = lanes ^ 32
    rig.set(R0=4 * lanes, R1=lanes, R3=4 * partner, P0=lanes < 64).run()
    assert rig.kinds == set() and rig.words(2) == partner.tolist()


def test_arrival_does_not_order_the_one_that_does_not_wait() -> None:
    lanes = np.arange(64)
    lines = [
        "@P0 STS [R0], R1",
        "@P0 BAR.ARV 0x1, 0x40",
        "@!P0 BAR.SYNC 0x1, 0x40",
        "@!P0 LDS R2, [R3]",
    ]
    rig = Rig(*lines, threads=64, shared=256)
    rig.set(R0=4 * lanes, R1=lanes, R3=4 * (lanes ^ 32), P0=lanes < 32).run()
    assert rig.kinds == set() and rig.words(2)[32:] == list(range(32))
    late = Rig(
        "@P0 BAR.ARV 0x1, 0x40",
        "@!P0 BAR.SYNC 0x1, 0x40",
        "@P0 STS [R0], R1",
        "@!P0 LDS R2, [R3]",
        threads=64,
        shared=256,
    )
    late.set(R0=4 * lanes, R1=lanes, R3=4 * (lanes ^ 32), P0=lanes < 32).run()
    assert Kind.SHARED_RACE in late.kinds


def test_two_warps_that_store_the_same_place_at_once_race() -> None:
    lanes = np.arange(64)
    rig = Rig(WRITE, threads=64, shared=128).set(R0=4 * (lanes % 32), R1=7).run()
    assert rig.kinds == {Kind.SHARED_RACE}


def test_lanes_that_store_different_values_at_one_place_race() -> None:
    assert Rig(WRITE, shared=128).set(R0=0, R1=list(range(32))).run().kinds == {Kind.SHARED_RACE}


def test_neighbouring_halves_of_a_word_do_not_race() -> None:
    lanes = np.arange(64)
    rig = Rig("STS.U16 [R0], R1", threads=64, shared=128).set(R0=2 * lanes, R1=lanes).run()
    assert rig.kinds == set()


@pytest.mark.parametrize(
    ("text", "stride", "extra"),
    [
        ("LDS R4, [R0]", 4, 0),
        ("LDS R4, [R0]", 8, 1),
        ("LDS R4, [R0]", 128, 31),
        ("LDS R4, [R0]", 0, 0),
        ("LDS.U.64 R4, [R0]", 8, 0),
        ("LDS.U.64 R4, [R0]", 16, 2),
        ("LDS.U.128 R4, [R0]", 16, 0),
        ("LDS.U.128 R4, [R0]", 128, 28),
    ],
)
def test_bank_conflicts_are_counted_in_wavefronts(text: str, stride: int, extra: int) -> None:
    rig = Rig(text, shared=8192).set(R0=stride * np.arange(32)).run()
    assert rig.findings.count(Kind.CONFLICTS) == extra


# -- local and constant memory


def test_local_memory_is_private_to_each_thread() -> None:
    lines = ["STL.64 [R1+0x8], R4", "LDL.LU R6, [R1+0x8]", "LDL.U8 R7, [R1+0xc]"]
    rig = Rig(*lines, local=64).set(R1=16, R4=np.arange(32), R5=0x1FF).run()
    assert rig.words(6) == list(range(32)) and rig.word(7) == 0xFF
    assert rig.kinds == set()


def test_unwritten_local_memory_and_its_end_are_found() -> None:
    assert Rig("LDL R6, [R1]", local=64).set(R1=0).run().kinds == {Kind.UNINITIALISED_LOCAL}
    assert Rig("LDL R6, [R1]", local=64).set(R1=64).run().kinds == {Kind.OUT_OF_BOUNDS}


def test_constants_of_each_width_and_by_register() -> None:
    bank = bytes(range(64))
    rig = Rig(
        "LDC.U8 R4, c[0x3][0x5]",
        "LDC R5, c[0x3][R1+0x4]",
        "LDC.64 R6, c[0x3][0x8]",
        "MOV R8, c[0x3][0x10]",
        "@!PT LDC RZ, c[0x0][RZ]",
        "LDC R9, c[0x3][RZ+0x4]",
        constants={3: bank},
    )
    rig.set(R1=[4 * (t % 2) for t in range(32)]).run()
    assert (rig.word(4), rig.word(5), rig.word(5, 1)) == (5, 0x07060504, 0x0B0A0908)
    assert (rig.pair(6), rig.word(8)) == (0x0F0E0D0C0B0A0908, 0x13121110)
    assert rig.word(9) == 0x07060504


def test_constant_outside_of_its_bank_is_refused() -> None:
    with pytest.raises(EmulatorError, match=r"bank 3 has 4 bytes"):
        Rig("MOV R8, c[0x3][0x4]", constants={3: bytes(4)}).run()
    with pytest.raises(EmulatorError, match=r"bank 4 is not there"):
        Rig("MOV R8, c[0x4][0x0]").run()


# -- atomics


@pytest.mark.parametrize(
    ("operation", "start", "operand", "end"),
    [
        ("ADD", 5, 2, 69),
        ("MIN.S32", 5, -1, 0xFFFFFFFF),
        ("MAX.S32", 5, -1, 5),
        ("MAX", 5, -1, 0xFFFFFFFF),
        ("AND", 0xFF, 0x0F, 0x0F),
        ("OR", 0xF0, 0x0F, 0xFF),
        ("XOR", 5, 1, 5),
        ("EXCH", 5, 9, 9),
        ("INC", 0, 9, 2),
        ("DEC", 3, 9, 1),
    ],
)
def test_atomics_of_a_warp_on_one_word(operation: str, start: int, operand: int, end: int) -> None:
    memory = GlobalMemory()
    x = memory.add("x", np.array([start], np.uint32), writable=True)
    rig = Rig(f"RED.E.{operation}.STRONG.GPU [R2], R4", memory=memory)
    rig.set(**at(x), R4=operand).run()
    assert x.data.view(np.uint32)[0] == end & 0xFFFFFFFF
    inside = Rig("STS [RZ], R1", f"ATOMS.{operation} R5, [R0], R4", "LDS R6, [R0]", shared=16)
    inside.set(R0=0, R1=start, R4=operand).run()
    assert (inside.word(5), inside.word(6)) == (start, end & 0xFFFFFFFF)


def test_float_atomic_returns_the_old_values_in_turn() -> None:
    memory = GlobalMemory()
    x = memory.add("x", np.array([0.5], np.float32), writable=True)
    rig = Rig("ATOMG.E.ADD.F32.FTZ.RN.STRONG.GPU PT, R5, [R2], R4", memory=memory)
    rig.set(**at(x), R4=1.0).run()
    assert x.data.view(np.float32)[0] == 32.5
    assert [rig.single(5, t) for t in (0, 31)] == [0.5, 31.5]


def test_atomics_of_two_warps_do_not_race_but_a_plain_read_does() -> None:
    lines = ["@P0 STS [RZ], R1", "BAR.SYNC 0x0", "ATOMS.ADD RZ, [R0], R4"]
    values = {"R0": 0, "R1": 0, "R4": 1, "P0": [t == 0 for t in range(64)]}
    assert Rig(*lines, threads=64, shared=16).set(**values).run().kinds == set()
    rig = Rig(*lines, "LDS R5, [R0]", threads=64, shared=16).set(**values).run()
    assert rig.kinds == {Kind.SHARED_RACE}


def test_memory_words_hold_floats() -> None:
    memory = GlobalMemory()
    x = memory.add("x", np.array([1.5], np.float32))
    assert execute("MOV R0, R1", R1=1.5).word(0) == bits(1.5)
    assert Rig("LDG.E.SYS R4, [R2]", memory=memory).set(**at(x)).run().single(4) == 1.5
