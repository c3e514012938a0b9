# SPDX-License-Identifier: Apache-2.0
"""Integer and logic instructions of sm_70 against values worked out by hand."""

from __future__ import annotations

import pytest
from sassrig import Lanes, Rig, assemble, execute

from patchctl.emulator.machine import EmulatorError
from patchctl.emulator.sass.build import read

VECTORS: list[tuple[str, dict[str, Lanes], dict[str, int]]] = [
    # addition: wrap, negation, carries
    ("IADD3 R0, R1, R2, R3", {"R1": 1, "R2": 2, "R3": 4}, {"R0": 7}),
    ("IADD3 R0, R1, 0x5, RZ", {"R1": 0xFFFFFFFE}, {"R0": 3}),
    ("IADD3 R0, -R1, R2, RZ", {"R1": 5, "R2": 3}, {"R0": 0xFFFFFFFE}),
    ("IADD3 R0, R1, -0x1, RZ", {"R1": 0}, {"R0": 0xFFFFFFFF}),
    ("IADD3 R0, P1, R1, R2, RZ", {"R1": 0xFFFFFFFF, "R2": 1}, {"R0": 0, "P1": 1}),
    ("IADD3 R0, P1, R1, R2, RZ", {"R1": 0xFFFFFFFE, "R2": 1}, {"R0": 0xFFFFFFFF, "P1": 0}),
    # a - b carries when nothing is borrowed, so also for b = 0
    ("IADD3 R0, P1, R1, -R2, RZ", {"R1": 7, "R2": 7}, {"R0": 0, "P1": 1}),
    ("IADD3 R0, P1, R1, -R2, RZ", {"R1": 7, "R2": 8}, {"R0": 0xFFFFFFFF, "P1": 0}),
    ("IADD3 R0, P1, R1, -R2, RZ", {"R1": 7, "R2": 0}, {"R0": 7, "P1": 1}),
    (
        "IADD3 R0, P1, P2, R1, R2, R3",
        {"R1": 0xFFFFFFFF, "R2": 0xFFFFFFFF, "R3": 2},
        {"R0": 0, "P1": 1, "P2": 1},
    ),
    ("IADD3.X R0, R1, R2, RZ, P0, !PT", {"R1": 3, "R2": 4, "P0": True}, {"R0": 8}),
    ("IADD3.X R0, R1, R2, RZ, P0, !PT", {"R1": 3, "R2": 4, "P0": False}, {"R0": 7}),
    ("IADD3.X R0, R1, ~R2, RZ, P0, !PT", {"R1": 3, "R2": 1, "P0": True}, {"R0": 2}),
    ("IADD3.X R0, P1, R1, RZ, RZ, P0, !PT", {"R1": 0xFFFFFFFF, "P0": True}, {"R0": 0, "P1": 1}),
    # products
    ("IMAD R0, R1, R2, R3", {"R1": 0x10001, "R2": 0x10001, "R3": 5}, {"R0": 0x20006}),
    ("IMAD R0, R1, -0x3, RZ", {"R1": 4}, {"R0": 0xFFFFFFF4}),
    ("IMAD.U32 R0, R1, -0x8, RZ", {"R1": 3}, {"R0": 0xFFFFFFE8}),
    ("IMAD.U32 R0, R1, R2, R3", {"R1": 0xFFFFFFFF, "R2": 2, "R3": 5}, {"R0": 3}),
    ("IMAD.MOV R0, RZ, RZ, -R1", {"R1": 2}, {"R0": 0xFFFFFFFE}),
    ("IMAD.MOV.U32 R0, RZ, RZ, 0x12345678", {}, {"R0": 0x12345678}),
    ("IMAD.IADD R0, R1, 0x1, -R2", {"R1": 9, "R2": 11}, {"R0": 0xFFFFFFFE}),
    ("IMAD.SHL.U32 R0, R1, 0x80, RZ", {"R1": 0x02000001}, {"R0": 0x80}),
    ("IMAD.X R0, R1, 0x1, R2, P0", {"R1": 1, "R2": 2, "P0": True}, {"R0": 4}),
    ("IMAD.WIDE R4, R1, R2, RZ", {"R1": -3, "R2": 5}, {"R4": 0xFFFFFFF1, "R5": 0xFFFFFFFF}),
    ("IMAD.WIDE.U32 R4, R1, R2, RZ", {"R1": -3, "R2": 5}, {"R4": 0xFFFFFFF1, "R5": 4}),
    (
        "IMAD.WIDE.U32 R4, P1, R1, R2, R6",
        {"R1": 0xFFFFFFFF, "R2": 0xFFFFFFFF, "R6": 0xFFFFFFFF, "R7": 0x1},
        {"R4": 0, "R5": 0, "P1": 1},
    ),
    (
        "IMAD.WIDE.U32.X R4, R1, R2, R6, P0",
        {"R1": 2, "R2": 3, "R6": 1, "R7": 0, "P0": True},
        {"R4": 8, "R5": 0},
    ),
    ("IMAD.HI.U32 R0, R1, R2, R6", {"R1": 1 << 31, "R2": 6, "R6": 0, "R7": 1}, {"R0": 4}),
    ("IMAD.HI R0, R1, R2, RZ", {"R1": -1, "R2": 1}, {"R0": 0xFFFFFFFF}),
    ("IDP.4A.S8.S8 R0, R1, R2, R3", {"R1": 0xFF020304, "R2": 0x01010101, "R3": 10}, {"R0": 18}),
    ("IDP.4A.U8.S8 R0, R1, R2, R3", {"R1": 0xFF000000, "R2": 0x01000000, "R3": 0}, {"R0": 255}),
    # shifted addition
    ("LEA R0, R1, R2, 0x3", {"R1": 5, "R2": 100}, {"R0": 140}),
    ("LEA R0, P1, R1, R2, 0x1", {"R1": 0x7FFFFFFF, "R2": 2}, {"R0": 0, "P1": 1}),
    ("LEA.HI R0, R1, R2, RZ, 0x5", {"R1": 0xF8000000, "R2": 1}, {"R0": 32}),
    ("LEA.HI R0, R1, 0x1, RZ, 0x18", {"R1": 0x12345678}, {"R0": 0x123457}),
    (
        "LEA.HI.X R0, R1, R2, R3, 0x1, P0",
        {"R1": 0x80000000, "R2": 10, "R3": 4, "P0": True},
        {"R0": 20},
    ),
    ("LEA.HI.X.SX32 R0, R1, R2, 0x1, P0", {"R1": -1, "R2": 10, "P0": True}, {"R0": 10}),
    ("LEA.HI.SX32 R0, R1, R2, 0x1b", {"R1": -64, "R2": 5}, {"R0": 3}),
    # shifts
    ("SHF.L.U32 R0, R1, 0x4, RZ", {"R1": 0xF0000001}, {"R0": 0x10}),
    ("SHF.L.U32 R0, R1, R2, RZ", {"R1": 1, "R2": 32}, {"R0": 0}),
    ("SHF.L.U32 R0, R1, R2, RZ", {"R1": 1, "R2": 0xFFFFFFFF}, {"R0": 0}),
    ("SHF.R.U32.HI R0, RZ, 0x4, R1", {"R1": 0xF0000001}, {"R0": 0x0F000000}),
    ("SHF.R.U32.HI R0, RZ, R2, R1", {"R1": 0xF0000001, "R2": 40}, {"R0": 0}),
    ("SHF.R.S32.HI R0, RZ, 0x1f, R1", {"R1": -5}, {"R0": 0xFFFFFFFF}),
    ("SHF.R.W.U32 R0, R1, 0x24, R2", {"R1": 0x12345678, "R2": 0xABCDEF0F}, {"R0": 0xF1234567}),
    ("SHF.L.W.U32.HI R0, R1, 0x8, R2", {"R1": 0x12345678, "R2": 0xAB}, {"R0": 0xAB12}),
    ("SHF.L.U64.HI R0, R1, 0x24, R2", {"R1": 0x12345678, "R2": 1}, {"R0": 0x23456780}),
    ("SHF.R.U64 R0, R1, 0x24, R2", {"R1": 5, "R2": 0x123}, {"R0": 0x12}),
    ("SHF.R.S64 R0, R1, 0x24, R2", {"R1": 5, "R2": 0x80000000}, {"R0": 0xF8000000}),
    # comparisons
    ("ISETP.LT.AND P1, P2, R1, R2, PT", {"R1": -1, "R2": 1}, {"P1": 1, "P2": 0}),
    ("ISETP.LT.U32.AND P1, P2, R1, R2, PT", {"R1": -1, "R2": 1}, {"P1": 0, "P2": 1}),
    ("ISETP.GE.AND P1, PT, R1, 0x7, P0", {"R1": 7, "P0": False}, {"P1": 0}),
    ("ISETP.GE.OR P1, PT, R1, 0x7, P0", {"R1": 6, "P0": True}, {"P1": 1}),
    ("ISETP.EQ.XOR P1, PT, R1, RZ, P0", {"R1": 0, "P0": True}, {"P1": 0}),
    ("ISETP.NE.AND.EX P1, PT, R1, RZ, PT, P0", {"R1": 0, "P0": True}, {"P1": 1}),
    ("ISETP.NE.AND.EX P1, PT, R1, RZ, PT, P0", {"R1": 0, "P0": False}, {"P1": 0}),
    ("ISETP.LT.AND.EX P1, PT, R1, R2, PT, P0", {"R1": 3, "R2": 3, "P0": True}, {"P1": 1}),
    ("ISETP.GE.U32.AND.EX P1, PT, R1, R2, PT, P0", {"R1": 4, "R2": 3, "P0": False}, {"P1": 1}),
    ("ISETP.GE.AND.EX P1, PT, R1, R2, PT, P0", {"R1": 3, "R2": 3, "P0": False}, {"P1": 0}),
    ("ISETP.EQ.AND.EX P1, PT, R1, R2, PT, P0", {"R1": 3, "R2": 3, "P0": False}, {"P1": 0}),
    ("ISETP.GT.AND P1, PT, R1, R2, PT", {"R1": 3, "R2": 3}, {"P1": 0}),
    ("ISETP.LE.AND P1, PT, R1, R2, PT", {"R1": 3, "R2": 3}, {"P1": 1}),
    ("ISETP.GE.U32.AND P1, P2, R1, R2, PT", {"R1": -1, "R2": 1}, {"P1": 1, "P2": 0}),
    ("ISETP.GT.U32.AND P1, P2, R1, R2, PT", {"R1": 1, "R2": -1}, {"P1": 0, "P2": 1}),
    ("ISETP.NE.AND P1, P2, R1, R2, PT", {"R1": 1, "R2": -1}, {"P1": 1, "P2": 0}),
    ("ISETP.NE.U32.AND P1, P2, RZ, c[0x0][0x0], PT", {}, {"P1": 1, "P2": 0}),
    ("ISETP.LE.U32.OR P1, PT, R1, 0x5, !PT", {"R1": 5}, {"P1": 1}),
    ("ISETP.EQ.U32.AND P1, P2, R1, R2, PT", {"R1": -1, "R2": 0xFFFFFFFF}, {"P1": 1, "P2": 0}),
    ("ISETP.EQ.OR P1, PT, R1, R2, P0", {"R1": 1, "R2": 2, "P0": False}, {"P1": 0}),
    ("ISETP.EQ.OR P1, PT, R1, R2, P0", {"R1": 1, "R2": 2, "P0": True}, {"P1": 1}),
    ("ISETP.EQ.OR P1, PT, R1, R2, !P0", {"R1": 2, "R2": 2, "P0": True}, {"P1": 1}),
    ("ISETP.NE.OR P1, PT, R1, R2, P0", {"R1": 2, "R2": 2, "P0": False}, {"P1": 0}),
    ("ISETP.NE.OR P1, PT, R1, R2, P0", {"R1": -1, "R2": 1, "P0": False}, {"P1": 1}),
    ("ISETP.GT.OR P1, PT, R1, R2, P0", {"R1": 1, "R2": -1, "P0": False}, {"P1": 1}),
    ("ISETP.GT.OR P1, PT, R1, R2, P0", {"R1": -1, "R2": -1, "P0": False}, {"P1": 0}),
    ("ISETP.LT.OR P1, PT, R1, R2, P0", {"R1": -2, "R2": 1, "P0": False}, {"P1": 1}),
    ("ISETP.LT.OR P1, PT, R1, R2, P0", {"R1": 1, "R2": 1, "P0": False}, {"P1": 0}),
    # upper halves: the last predicate is the comparison of the lower ones
    ("ISETP.GT.AND.EX P1, PT, R1, R2, PT, P0", {"R1": 3, "R2": 3, "P0": True}, {"P1": 1}),
    ("ISETP.GT.AND.EX P1, PT, R1, R2, PT, P0", {"R1": -1, "R2": 3, "P0": True}, {"P1": 0}),
    (
        "ISETP.LT.OR.EX P1, PT, R1, R2, P3, P0",
        {"R1": 3, "R2": 3, "P0": False, "P3": False},
        {"P1": 0},
    ),
    (
        "ISETP.LT.OR.EX P1, PT, R1, R2, P3, P0",
        {"R1": 4, "R2": 3, "P0": False, "P3": True},
        {"P1": 1},
    ),
    (
        "ISETP.LT.OR.EX P1, PT, R1, R2, P3, P0",
        {"R1": -1, "R2": 3, "P0": False, "P3": False},
        {"P1": 1},
    ),
    (
        "ISETP.EQ.OR.EX P1, PT, R1, R2, !P3, P0",
        {"R1": 3, "R2": 3, "P0": True, "P3": True},
        {"P1": 1},
    ),
    (
        "ISETP.EQ.OR.EX P1, PT, R1, R2, !P3, P0",
        {"R1": 3, "R2": 3, "P0": False, "P3": True},
        {"P1": 0},
    ),
    # choices
    ("SEL R0, R1, 0x14, P0", {"R1": 9, "P0": True}, {"R0": 9}),
    ("SEL R0, R1, 0x14, !P0", {"R1": 9, "P0": True}, {"R0": 20}),
    ("IMNMX R0, R1, R2, PT", {"R1": -4, "R2": 3}, {"R0": 0xFFFFFFFC}),
    ("IMNMX R0, R1, R2, !PT", {"R1": -4, "R2": 3}, {"R0": 3}),
    ("IMNMX.U32 R0, R1, R2, PT", {"R1": -4, "R2": 3}, {"R0": 3}),
    ("IABS R0, R1", {"R1": -7}, {"R0": 7}),
    ("IABS R0, R1", {"R1": 0x80000000}, {"R0": 0x80000000}),
    # bits
    ("MOV R0, 0x7f800000", {}, {"R0": 0x7F800000}),
    ("LOP3.LUT R0, R1, R2, RZ, 0xc0, !PT", {"R1": 0xFF00, "R2": 0x0FF0}, {"R0": 0x0F00}),
    ("LOP3.LUT R0, R1, R2, R3, 0x96, !PT", {"R1": 0xF0, "R2": 0xCC, "R3": 0xAA}, {"R0": 0x96}),
    ("LOP3.LUT R0, R1, R2, R3, 0xca, !PT", {"R1": 0xF0, "R2": 0xCC, "R3": 0xAA}, {"R0": 0xCA}),
    ("LOP3.LUT R0, RZ, R2, RZ, 0x33, !PT", {"R2": 0xFFFF}, {"R0": 0xFFFF0000}),
    ("LOP3.LUT R0, R1, R2, RZ, 0xfc, !PT", {"R1": 0x3, "R2": 0x5}, {"R0": 0x7}),
    ("LOP3.LUT R0, R1, R2, R3, 0xf8, !PT", {"R1": 0x1, "R2": 0x6, "R3": 0x3}, {"R0": 0x3}),
    ("LOP3.LUT P1, RZ, R1, 0x3, RZ, 0xc0, !PT", {"R1": 4}, {"P1": 0}),
    ("LOP3.LUT P1, R0, R1, 0x3, RZ, 0xc0, !PT", {"R1": 6}, {"P1": 1, "R0": 2}),
    ("PRMT R0, R1, 0x5410, R2", {"R1": 0x11223344, "R2": 0x55667788}, {"R0": 0x77883344}),
    ("PRMT R0, R1, 0x7632, R2", {"R1": 0x11223344, "R2": 0x55667788}, {"R0": 0x55661122}),
    ("PRMT R0, R1, 0x8, R2", {"R1": 0x80, "R2": 0}, {"R0": 0x808080FF}),
    ("POPC R0, R1", {"R1": 0xF0F0F001}, {"R0": 13}),
    ("BREV R0, R1", {"R1": 0x1}, {"R0": 0x80000000}),
    ("FLO.U32 R0, R1", {"R1": 0x00010000}, {"R0": 16}),
    ("FLO.U32.SH R0, R1", {"R1": 0x00010000}, {"R0": 15}),
    ("FLO.U32 R0, R1", {"R1": 0}, {"R0": 0xFFFFFFFF}),
    ("PLOP3.LUT P1, PT, P0, P2, P3, 0xe0, 0x0", {"P0": 1, "P2": 0, "P3": 1}, {"P1": 1}),
    ("PLOP3.LUT P1, P4, P0, P2, P3, 0xe0, 0x1", {"P0": 0, "P2": 0, "P3": 0}, {"P1": 0, "P4": 1}),
    ("R2P PR, R1, 0x5", {"R1": 0x6, "P0": 1, "P1": 0, "P2": 0}, {"P0": 0, "P1": 0, "P2": 1}),
    ("P2R R0, PR, RZ, 0x3", {"P0": 1, "P1": 1, "P2": 1}, {"R0": 3}),
    ("CS2R R2, SRZ", {"R2": 1, "R3": 2}, {"R2": 0, "R3": 0}),
    ("CS2R.32 R2, SRZ", {"R2": 1, "R3": 2}, {"R2": 0, "R3": 2}),
]


@pytest.mark.parametrize(("text", "given", "expected"), VECTORS, ids=lambda v: str(v)[:60])
def test_instruction_gives_the_hand_computed_result(
    text: str, given: dict[str, Lanes], expected: dict[str, int]
) -> None:
    values = {k: v if k[0] == "R" else bool(v) for k, v in given.items()}
    rig = execute(text, constants={0: (7).to_bytes(4, "little")}, **values)
    for name, value in expected.items():
        row = int(name[1:])
        got = rig.word(row) if name[0] == "R" else int(rig.pred(row))
        assert (name, got) == (name, value)
    assert rig.kinds == set()


def test_guard_keeps_the_other_threads_values() -> None:
    rig = Rig("@!P0 MOV R0, R1").set(R0=7, R1=list(range(32)), P0=[i % 2 == 1 for i in range(32)])
    assert rig.run().words(0) == [i if i % 2 == 0 else 7 for i in range(32)]


@pytest.mark.parametrize(
    "text",
    [
        "FROB R0, R1",
        "IADD3.SAT R0, R1, R2, R3",
        "IADD3 R0, R1, R2, R3, R4",
        "IMAD.WIDE.X R4, R1, R2, R6, P0",
        "LOP3.LUT R0, |R1|, R2, RZ, 0xc0, !PT",
        "SHF.L.W.U64 R0, R1, R2, R3",
        "MUFU.TANH R0, R1",
        "LDG.E.256 R0, [R2]",
        "HMMA.1688.F32 R0, R4, R8, R0",
        "BRA.INC 0x40",
        "BAR.SYNC R3",
        "S2R R0, R1, R2",
    ],
)
def test_unknown_form_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(EmulatorError) as caught:
        read(assemble(0x40, text))
    assert f"`{text}` at 0x40" in str(caught.value)


def test_text_that_contradicts_the_encoding_is_refused() -> None:
    good = assemble(0, "MOV R0, 0x12345678")
    assert read(good)
    bad = type(good)(0, good.text, None, good.opcode, good.operands, 0x12345679 << 32)
    with pytest.raises(EmulatorError, match="disagree"):
        read(bad)
