# SPDX-License-Identifier: Apache-2.0
"""Loads, stores and atomics of sm_70, and what the memories find wrong with them."""

from __future__ import annotations

import numpy as np
import pytest
from sassrig import Rig, bits, execute

from patchctl.emulator.findings import Kind
from patchctl.emulator.machine import EmulatorError
from patchctl.emulator.memory import GlobalMemory, Tensor


def tensor(size: int = 512, *, writable: bool = True) -> tuple[GlobalMemory, Tensor]:
    """Bytes 0, 1, 2, ... under the name ``x``."""
    memory = GlobalMemory()
    return memory, memory.add("x", np.arange(size).astype(np.uint8), writable=writable)


def at(found: Tensor, offset: int = 0) -> dict[str, int]:
    """R2 and R3 point to a byte of the tensor."""
    address = found.address + offset
    return {"R2": address & 0xFFFFFFFF, "R3": address >> 32}


@pytest.mark.parametrize(
    ("modifiers", "offset", "words"),
    [
        ("E.U8.SYS", 5, [5]),
        ("E.S8.SYS", 0x85, [0xFFFFFF85]),
        ("E.U16.SYS", 4, [0x0504]),
        ("E.S16.SYS", 0x84, [0xFFFF8584]),
        ("E.SYS", 4, [0x07060504]),
        ("E.64.SYS", 8, [0x0B0A0908, 0x0F0E0D0C]),
        ("E.CONSTANT.SYS", 4, [0x07060504]),
        ("E.128.CONSTANT.SYS", 16, [0x13121110, 0x17161514, 0x1B1A1918, 0x1F1E1D1C]),
    ],
)
def test_global_load_of_each_width(modifiers: str, offset: int, words: list[int]) -> None:
    memory, x = tensor()
    rig = Rig(f"LDG.{modifiers} R4, [R2]", memory=memory).set(**at(x, offset)).run()
    assert [rig.word(4 + i) for i in range(len(words))] == words
    assert rig.kinds == set()


def test_global_address_adds_a_signed_offset_across_4_gib() -> None:
    memory, x = tensor()
    assert x.address >> 32 != (x.address + 511) >> 32
    rig = Rig("LDG.E.SYS R4, [R2+-0x100]", memory=memory).set(**at(x, 0x104)).run()
    assert rig.word(4) == 0x07060504


@pytest.mark.parametrize(
    ("modifiers", "size"),
    [("E.U8.SYS", 1), ("E.U16.SYS", 2), ("E.SYS", 4), ("E.64.SYS", 8), ("E.128.SYS", 16)],
)
def test_global_store_of_each_width(modifiers: str, size: int) -> None:
    memory, x = tensor()
    words = {f"R{4 + i}": 0xA3A2A1A0 + 0x04040404 * i for i in range(4)}
    rig = Rig(f"@!P0 STG.{modifiers} [R2+0x20], R4", memory=memory)
    rig.set(**at(x), **words, P0=[t != 3 for t in range(32)]).run()
    assert x.data[0x20 : 0x20 + size].tolist() == list(range(0xA0, 0xA0 + size))
    assert x.data[0x20 + size] == 0x20 + size
    assert rig.kinds == set()


@pytest.mark.parametrize(
    ("text", "offset", "kind", "detail"),
    [
        ("LDG.E.SYS R4, [R2]", 512, Kind.OUT_OF_BOUNDS, "4 bytes 0 bytes past the end"),
        ("LDG.E.128.SYS R4, [R2]", 1024, Kind.OUT_OF_BOUNDS, "16 bytes 512 bytes past the end"),
        ("STG.E.SYS [R2], R4", -8, Kind.OUT_OF_BOUNDS, "4 bytes 8 bytes before the start"),
        ("LDG.E.64.SYS R4, [R2]", 4, Kind.MISALIGNED, "is no multiple of 8"),
    ],
)
def test_global_access_that_misses_names_the_tensor(
    text: str, offset: int, kind: Kind, detail: str
) -> None:
    memory, x = tensor()
    rig = Rig(text, memory=memory).set(**at(x, offset), R4=0).run()
    (found,) = rig.findings.faults()
    assert (found.kind, found.tensor) == (kind, "x")
    assert detail in found.detail
    assert found.site.text == text


def test_address_without_its_upper_half_misses_every_tensor() -> None:
    memory, x = tensor()
    rig = Rig("LDG.E.SYS R4, [R2]", memory=memory).set(**at(x)).set(R3=0).run()
    (found,) = rig.findings.faults()
    assert (found.kind, found.tensor) == (Kind.OUT_OF_BOUNDS, "no tensor")


def test_store_into_an_input_is_found_and_dropped() -> None:
    memory, x = tensor(writable=False)
    rig = Rig("STG.E.SYS [R2], R4", memory=memory).set(**at(x), R4=0).run()
    assert rig.kinds == {Kind.READ_ONLY}
    assert x.data[1] == 1


def test_read_of_what_is_not_part_of_the_problem_is_found() -> None:
    memory = GlobalMemory()
    data = np.zeros(8, np.float16)
    x = memory.add("x", data, readable=np.array([True] * 6 + [False] * 2))
    rig = Rig("LDG.E.SYS R4, [R2+0x8]", "LDG.E.64.SYS R4, [R2+0x8]", memory=memory)
    rig.set(**at(x)).run()
    (found,) = rig.findings.faults()
    assert (found.kind, found.site.address) == (Kind.FORBIDDEN, 16)


def test_store_by_two_ctas_is_found() -> None:
    memory, x = tensor()
    for number in (0, 1):
        memory.cta_number = number
        rig = Rig("STG.E.SYS [R2], R4", memory=memory).set(**at(x, 64 * 0), R4=0).run()
    assert rig.kinds == {Kind.DOUBLE_STORE}


def test_load_of_what_another_cta_stores_is_found() -> None:
    memory, x = tensor()
    Rig("STG.E.SYS [R2], R4", memory=memory).set(**at(x), R4=0).run()
    memory.cta_number = 1
    rig = Rig("LDG.E.SYS R4, [R2]", memory=memory).set(**at(x)).run()
    assert rig.kinds == {Kind.GLOBAL_RACE}


def test_value_that_nobody_wrote_is_found_where_it_leaves() -> None:
    memory, x = tensor()
    rig = Rig("IADD3 R4, R5, R5, RZ", "STG.E.SYS [R2], R4", memory=memory).set(**at(x)).run()
    (found,) = rig.findings.faults()
    assert (found.kind, found.detail) == (
        Kind.UNINITIALISED_REGISTER,
        "the value stored was never written",
    )


def test_choice_that_avoids_the_unwritten_value_is_sound() -> None:
    memory, x = tensor()
    rig = Rig("SEL R4, R5, R6, P0", "STG.E.SYS [R2], R4", memory=memory)
    assert rig.set(**at(x), R6=1, P0=False).run().kinds == set()


def test_generic_access_reaches_global_memory() -> None:
    memory, x = tensor()
    rig = Rig("LD.E.SYS R4, [R2]", "ST.E.SYS [R2+0x8], R4", memory=memory).set(**at(x)).run()
    assert rig.word(4) == 0x03020100 and rig.kinds == set()
    assert x.data[8:12].tolist() == [0, 1, 2, 3]


# -- shared memory


@pytest.mark.parametrize(
    ("stored", "loaded", "size"),
    [
        ("STS.U8", "LDS.U8", 1),
        ("STS.U16", "LDS.U16", 2),
        ("STS.U16", "LDS.U.U16", 2),
        ("STS", "LDS", 4),
        ("STS", "LDS.U", 4),
        ("STS.64", "LDS.U.64", 8),
        ("STS.128", "LDS.U.128", 16),
    ],
)
def test_shared_memory_returns_what_was_stored(stored: str, loaded: str, size: int) -> None:
    rig = Rig(f"{stored} [R0+0x10], R4", f"{loaded} R8, [R0+0x10]", shared=1024)
    lanes = np.arange(32)
    rig.set(R0=lanes * size, R4=lanes, R5=lanes + 100, R6=lanes + 200, R7=lanes + 300).run()
    for i in range(max(1, size // 4)):
        assert rig.words(8 + i) == [t + 100 * i for t in range(32)]
    assert rig.kinds == set()


def test_scaled_shared_address() -> None:
    rig = Rig("STS [R0.X8+0x4], R1", "LDS R2, [R3]", shared=512)
    lanes = np.arange(32)
    assert rig.set(R0=lanes, R1=lanes, R3=8 * lanes + 4).run().words(2) == list(range(32))


def test_read_of_unwritten_shared_memory_is_found() -> None:
    rig = Rig("STS.128 [R0], R4", "LDS R2, [R0+0x200]", shared=1024)
    rig.set(R0=16 * np.arange(32), R4=0, R5=0, R6=0, R7=0).run()
    assert rig.kinds == {Kind.UNINITIALISED_SHARED}
    assert "byte 512" in rig.findings.faults()[0].detail


def test_store_of_an_unwritten_register_leaves_shared_memory_unwritten() -> None:
    rig = Rig("STS [R0], R4", "LDS R2, [R0]", shared=128).set(R0=4 * np.arange(32)).run()
    assert rig.kinds == {Kind.UNINITIALISED_SHARED}


@pytest.mark.parametrize(
    ("address", "kind"),
    [(1024, Kind.OUT_OF_BOUNDS), (-16, Kind.OUT_OF_BOUNDS), (4, Kind.MISALIGNED)],
)
def test_shared_access_that_misses_is_found(address: int, kind: Kind) -> None:
    assert Rig("LDS.U.128 R4, [R0]", shared=1024).set(R0=address).run().kinds == {kind}


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
