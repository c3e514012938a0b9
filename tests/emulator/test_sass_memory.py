# SPDX-License-Identifier: Apache-2.0
"""Loads, stores and atomics of sm_70, and what the memories find wrong with them."""

from __future__ import annotations

import numpy as np
import pytest
from sassrig import Rig, at, tensor

from patchctl.emulator.findings import Kind
from patchctl.emulator.memory import GlobalMemory


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
