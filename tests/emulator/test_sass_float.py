# SPDX-License-Identifier: Apache-2.0
"""float32, float16 and conversion instructions of sm_70 against values worked out by hand."""

from __future__ import annotations

import math

import pytest
from sassrig import Lanes, bits, execute, halves

from patchctl.emulator.findings import Kind
from patchctl.emulator.machine import EmulatorError

NAN = 0x7FFFFFFF
INF = 0x7F800000
MINUS_INF = 0xFF800000
MINUS_ZERO = 0x80000000
TINY = 2.0**-130  # subnormal
ULP = 2.0**-23

VECTORS: list[tuple[str, dict[str, Lanes], dict[str, int]]] = [
    # one rounding: the product is not rounded first
    ("FFMA R0, R1, R1, -1", {"R1": 1 + 2.0**-12}, {"R0": bits(2.0**-11 + 2.0**-24)}),
    # float64 would round this sum to a tie, and the tie the wrong way
    (
        "FFMA R0, R1, R2, R3",
        {"R1": (1 + ULP) * 2.0**-24, "R2": 1 - ULP, "R3": 1 + ULP},
        {"R0": bits(1 + ULP)},
    ),
    ("FFMA.RM R0, R1, R1, 1", {"R1": 2.0**-15}, {"R0": bits(1.0)}),
    ("FFMA.RP R0, R1, R1, 1", {"R1": 2.0**-15}, {"R0": bits(1 + ULP)}),
    ("FFMA.RZ R0, -R1, R1, -1", {"R1": 2.0**-15}, {"R0": bits(-1.0)}),
    ("FFMA.RM R0, -R1, R1, -1", {"R1": 2.0**-15}, {"R0": bits(-1 - ULP)}),
    ("FFMA R0, R1, R2, +INF", {"R1": 1.0, "R2": 2.0}, {"R0": INF}),
    ("FFMA R0, R1, 1.84467440737095516160e+19, RZ", {"R1": 2.0**-140}, {"R0": bits(2.0**-76)}),
    ("FFMA R0, R1, R2, c[0x0][0x8]", {"R1": 2.0, "R2": 3.0}, {"R0": bits(7.5)}),
    ("FADD R0, R1, -R2", {"R1": 1.0, "R2": 2.0**-25}, {"R0": bits(1.0)}),
    ("FADD.RZ R0, R1, -R2", {"R1": 1.0, "R2": 2.0**-30}, {"R0": bits(1 - 2.0**-24)}),
    ("FADD R0, |R1|, -RZ", {"R1": -3.0}, {"R0": bits(3.0)}),
    ("FADD R0, -R1, -RZ", {"R1": 0.0}, {"R0": MINUS_ZERO}),
    ("FADD R0, R1, R2", {"R1": TINY, "R2": TINY}, {"R0": bits(2 * TINY)}),
    ("FADD.FTZ R0, R1, R2", {"R1": TINY, "R2": -0.0}, {"R0": 0}),
    ("FADD.FTZ R0, R1, -R2", {"R1": 2.0**-126, "R2": 1.5 * 2.0**-126}, {"R0": MINUS_ZERO}),
    ("FADD.SAT R0, R1, R2", {"R1": 1.0, "R2": 1.0}, {"R0": bits(1.0)}),
    ("FADD.SAT R0, R1, R2", {"R1": 1.0, "R2": -3.0}, {"R0": 0}),
    ("FADD R0, R1, R2", {"R1": 0xFFC00001, "R2": 1.0}, {"R0": NAN}),
    ("FMUL R0, R1, R2", {"R1": 2.0**-100, "R2": 2.0**-30}, {"R0": bits(TINY)}),
    ("FMUL.FTZ R0, R1, -R2", {"R1": 2.0**-100, "R2": 2.0**-30}, {"R0": MINUS_ZERO}),
    ("FMUL R0, R1, R2", {"R1": 1 + ULP, "R2": 1 + ULP}, {"R0": bits(1 + 2 * ULP)}),
    ("FMUL.RP R0, R1, R2", {"R1": 1 + ULP, "R2": 1 + ULP}, {"R0": bits(1 + 3 * ULP)}),
    ("FMUL.RZ R0, R1, 0.15915493667125701904", {"R1": 0.0}, {"R0": 0}),
    ("FMUL R0, R1, R2", {"R1": 2.0**100, "R2": 2.0**100}, {"R0": INF}),
    ("FMUL.RZ R0, R1, R2", {"R1": 2.0**100, "R2": 2.0**100}, {"R0": 0x7F7FFFFF}),
    # minimum and maximum: a NaN loses, -0 is below +0
    ("FMNMX R0, R1, R2, PT", {"R1": 1.0, "R2": -2.0}, {"R0": bits(-2.0)}),
    ("FMNMX R0, R1, R2, !PT", {"R1": 1.0, "R2": -2.0}, {"R0": bits(1.0)}),
    ("FMNMX R0, R1, R2, !PT", {"R1": NAN, "R2": -2.0}, {"R0": bits(-2.0)}),
    ("FMNMX R0, R1, R2, PT", {"R1": NAN, "R2": NAN}, {"R0": NAN}),
    ("FMNMX R0, R1, R2, !PT", {"R1": -0.0, "R2": 0.0}, {"R0": 0}),
    ("FSEL R0, R1, -INF , P0", {"R1": 1.0, "P0": False}, {"R0": MINUS_INF}),
    ("FSEL R0, -R1, R2, P0", {"R1": 1.0, "R2": 2.0, "P0": True}, {"R0": bits(-1.0)}),
    # comparisons
    ("FSETP.GT.AND P1, P2, R1, 15, PT", {"R1": 16.0}, {"P1": 1, "P2": 0}),
    ("FSETP.GT.AND P1, P2, R1, 15, PT", {"R1": NAN}, {"P1": 0, "P2": 1}),
    ("FSETP.GTU.AND P1, PT, R1, 15, PT", {"R1": NAN}, {"P1": 1}),
    ("FSETP.NEU.AND P1, PT, R1, RZ, PT", {"R1": -0.0}, {"P1": 0}),
    ("FSETP.NEU.AND P1, PT, R1, R1, PT", {"R1": NAN}, {"P1": 1}),
    ("FSETP.NE.AND P1, PT, R1, R1, PT", {"R1": NAN}, {"P1": 0}),
    ("FSETP.GEU.AND P1, PT, |R1|, 1.5, PT", {"R1": -1.5}, {"P1": 1}),
    ("FSETP.GT.OR P1, PT, R1, 15, P0", {"R1": 1.0, "P0": True}, {"P1": 1}),
    ("FSETP.GT.FTZ.AND P1, PT, R1, RZ, PT", {"R1": TINY}, {"P1": 0}),
    ("FSETP.NEU.FTZ.AND P1, PT, R1, R2, PT", {"R1": TINY, "R2": 0.0}, {"P1": 0}),
    ("FSETP.NAN.AND P1, PT, R1, R2, PT", {"R1": NAN, "R2": 1.0}, {"P1": 1}),
    ("FSETP.NUM.AND P1, PT, R1, R2, PT", {"R1": NAN, "R2": 1.0}, {"P1": 0}),
    ("FSETP.LT.AND P1, P2, R1, R2, PT", {"R1": -1.0, "R2": 1.0}, {"P1": 1, "P2": 0}),
    ("FSETP.LT.AND P1, P2, R1, R2, PT", {"R1": -0.0, "R2": 0.0}, {"P1": 0, "P2": 1}),
    ("FSETP.LT.AND P1, PT, R1, R2, PT", {"R1": NAN, "R2": 1.0}, {"P1": 0}),
    ("FSETP.NAN.OR P1, PT, R1, R1, P0", {"R1": NAN, "P0": False}, {"P1": 1}),
    ("FSETP.NAN.OR P1, PT, R1, R1, P0", {"R1": INF, "P0": False}, {"P1": 0}),
    ("FSETP.NAN.OR P1, PT, R1, R1, P0", {"R1": 1.0, "P0": True}, {"P1": 1}),
    ("FSETP.NEU.OR P1, PT, R1, RZ, P0", {"R1": NAN, "P0": False}, {"P1": 1}),
    ("FSETP.NEU.OR P1, PT, R1, RZ, P0", {"R1": -0.0, "P0": False}, {"P1": 0}),
    ("FSETP.NEU.OR P1, PT, R1, RZ, P0", {"R1": 0.0, "P0": True}, {"P1": 1}),
    ("FSETP.EQ.AND P1, P2, R1, R2, PT", {"R1": -0.0, "R2": 0.0}, {"P1": 1, "P2": 0}),
    ("FSETP.EQ.AND P1, P2, R1, R1, PT", {"R1": NAN}, {"P1": 0, "P2": 1}),
    ("FSETP.GEU.OR P1, PT, R1, R2, P0", {"R1": NAN, "R2": 1.0, "P0": False}, {"P1": 1}),
    ("FSETP.GEU.OR P1, PT, R1, R2, P0", {"R1": 0.5, "R2": 1.0, "P0": False}, {"P1": 0}),
    ("FSETP.GEU.OR P1, PT, R1, R2, !P0", {"R1": 0.5, "R2": 1.0, "P0": False}, {"P1": 1}),
    ("FADD.RP R0, R1, R2", {"R1": 1.0, "R2": 2.0**-40}, {"R0": bits(1 + ULP)}),
    ("FADD.RP R0, -R1, R2", {"R1": 1.0, "R2": 2.0**-40}, {"R0": bits(-1 + ULP / 2)}),
    ("FADD.RP R0, R1, -R2", {"R1": -1.0, "R2": 2.0**-40}, {"R0": bits(-1.0)}),
    # the result is held between 0 and 1; a NaN becomes 0
    ("FFMA.SAT R0, R1, R2, 0.5", {"R1": 0.5, "R2": 0.5}, {"R0": bits(0.75)}),
    ("FFMA.SAT R0, R1, R2, 0.5", {"R1": 2.0, "R2": 1.0}, {"R0": bits(1.0)}),
    ("FFMA.SAT R0, R1, R2, 0.5", {"R1": -2.0, "R2": 1.0}, {"R0": 0}),
    ("FFMA.SAT R0, R1, R2, 0.5", {"R1": NAN, "R2": 1.0}, {"R0": 0}),
    # approximations; subnormal operands and results count as zero
    ("MUFU.EX2 R0, R1", {"R1": 3.0}, {"R0": bits(8.0)}),
    ("MUFU.EX2 R0, R1", {"R1": MINUS_INF}, {"R0": 0}),
    ("MUFU.EX2 R0, R1", {"R1": -130.0}, {"R0": 0}),
    ("MUFU.EX2 R0, R1", {"R1": 130.0}, {"R0": INF}),
    ("MUFU.RCP R0, R1", {"R1": 4.0}, {"R0": bits(0.25)}),
    ("MUFU.RCP R0, R1", {"R1": -0.0}, {"R0": MINUS_INF}),
    ("MUFU.RCP R0, R1", {"R1": TINY}, {"R0": INF}),
    ("MUFU.RCP R0, R1", {"R1": 2.0**127}, {"R0": 0}),
    ("MUFU.RSQ R0, R1", {"R1": 16.0}, {"R0": bits(0.25)}),
    ("MUFU.RSQ R0, -QNAN ", {}, {"R0": NAN}),
    ("MUFU.SQRT R0, R1", {"R1": 9.0}, {"R0": bits(3.0)}),
    ("MUFU.LG2 R0, R1", {"R1": 8.0}, {"R0": bits(3.0)}),
    ("MUFU.LG2 R0, R1", {"R1": 0.0}, {"R0": MINUS_INF}),
    ("MUFU.SIN R0, R1", {"R1": 0.25}, {"R0": bits(1.0)}),
    ("MUFU.COS R0, R1", {"R1": 0.5}, {"R0": bits(-1.0)}),
    ("FCHK P1, R1, R2", {"R1": 1.0, "R2": 3.0}, {"P1": 0}),
    ("FCHK P1, R1, R2", {"R1": 1.0, "R2": 0.0}, {"P1": 1}),
    ("FCHK P1, R1, R2", {"R1": 2.0**120, "R2": 2.0**-100}, {"P1": 1}),
    # packed halves
    ("HADD2 R0, R1, R2", {"R1": halves(1, 2), "R2": halves(0.5, -2)}, {"R0": halves(1.5, 0)}),
    ("HADD2 R0, R1, 0.5, 0.5", {"R1": halves(1, 2)}, {"R0": halves(1.5, 2.5)}),
    (
        "HADD2 R0, R1.H0_H0, -R2.H1_H1",
        {"R1": halves(1, 2), "R2": halves(3, 4)},
        {"R0": halves(-3, -3)},
    ),
    ("HADD2.F32 R0, -RZ.H0_H0, R1.H1_H1", {"R1": halves(1, 2.5)}, {"R0": bits(2.5)}),
    ("HADD2.F32 R0, R1.H0_H0, -RZ.H0_H0", {"R1": halves(-0.0, 1)}, {"R0": MINUS_ZERO}),
    ("HMUL2 R0, R1, R2", {"R1": halves(3, 256), "R2": halves(2, 256)}, {"R0": halves(6, math.inf)}),
    ("HMUL2 R0, |R1|, -R2", {"R1": halves(-3, 1), "R2": halves(2, 2)}, {"R0": halves(-6, -2)}),
    # (1 + 3 * 2^-10)^2 - 1 = 6 * 2^-10 + 9 * 2^-20: the second term would be lost in a product
    (
        "HFMA2 R0, R1, R1, -1, -1",
        {"R1": halves(1 + 3 * 2.0**-10, 2)},
        {"R0": halves(6 * 2.0**-10 + 2.0**-17, 3)},
    ),
    (
        "HSETP2.GT.AND P1, P2, R1, R2, PT",
        {"R1": halves(1, 5), "R2": halves(2, 4)},
        {"P1": 0, "P2": 1},
    ),
    # float to half
    ("F2F.F16.F32 R0, R1", {"R1": 65504.0}, {"R0": 0x7BFF}),
    ("F2F.F16.F32 R0, R1", {"R1": 65520.0}, {"R0": 0x7C00}),
    ("F2F.F16.F32 R0, R1", {"R1": -65519.0}, {"R0": 0xFBFF}),
    ("F2F.F16.F32 R0, R1", {"R1": 2.0**-24}, {"R0": 1}),
    ("F2F.F16.F32 R0, R1", {"R1": 2.0**-25}, {"R0": 0}),
    ("F2F.F16.F32 R0, R1", {"R1": 1.5 * 2.0**-25}, {"R0": 1}),
    ("F2F.F16.F32 R0, R1", {"R1": 1 + 2.0**-11}, {"R0": 0x3C00}),
    ("F2F.F16.F32 R0, R1", {"R1": 1 + 3 * 2.0**-11}, {"R0": 0x3C02}),
    ("F2F.F16.F32.RZ R0, R1", {"R1": 1 + 3 * 2.0**-11}, {"R0": 0x3C01}),
    ("F2F.F16.F32 R0, R1", {"R1": NAN}, {"R0": 0x7FFF}),
    ("F2F.F32.F16 R0, R1.H1_H1", {"R1": halves(1, 2.0**-24)}, {"R0": bits(2.0**-24)}),
    # to integers
    ("F2I.TRUNC.NTZ R0, R1", {"R1": -1.7}, {"R0": 0xFFFFFFFF}),
    ("F2I.TRUNC.NTZ R0, R1", {"R1": 3e9}, {"R0": 0x7FFFFFFF}),
    ("F2I.TRUNC.NTZ R0, R1", {"R1": NAN}, {"R0": 0}),
    ("F2I.FLOOR.NTZ R0, R1", {"R1": -1.2}, {"R0": 0xFFFFFFFE}),
    ("F2I.CEIL.NTZ R0, R1", {"R1": 1.2}, {"R0": 2}),
    ("F2I.NTZ R0, R1", {"R1": 2.5}, {"R0": 2}),
    ("F2I.FTZ.U32.TRUNC.NTZ R0, R1", {"R1": -1.0}, {"R0": 0}),
    ("F2I.FTZ.U32.TRUNC.NTZ R0, R1", {"R1": 4294967040.0}, {"R0": 0xFFFFFF00}),
    ("F2I.U64.TRUNC R0, R1", {"R1": 2.0**40}, {"R0": 0, "R1": 256}),
    # from integers
    ("I2F R0, R1", {"R1": -3}, {"R0": bits(-3.0)}),
    ("I2F R0, R1", {"R1": (1 << 24) + 1}, {"R0": bits(2.0**24)}),
    ("I2F.RP R0, R1", {"R1": (1 << 24) + 1}, {"R0": bits(2.0**24 + 2)}),
    ("I2F.U32.RP R0, R1", {"R1": 0xFFFFFFFF}, {"R0": bits(2.0**32)}),
    ("I2F.U16 R0, R1", {"R1": 0x5FFFF}, {"R0": bits(65535.0)}),
    ("I2F.S16 R0, R1", {"R1": 0x5FFFE}, {"R0": bits(-2.0)}),
    ("I2F.U64 R0, R2", {"R2": 0, "R3": 0x80000000}, {"R0": bits(2.0**63)}),
    ("I2F.S64 R0, R2", {"R2": 0, "R3": 0x80000000}, {"R0": bits(-(2.0**63))}),
    ("FRND.FLOOR R0, R1", {"R1": -1.5}, {"R0": bits(-2.0)}),
    ("FRND.CEIL R0, R1", {"R1": -1.5}, {"R0": bits(-1.0)}),
    ("FRND.TRUNC R0, R1", {"R1": -1.5}, {"R0": bits(-1.0)}),
    ("FRND R0, R1", {"R1": 2.5}, {"R0": bits(2.0)}),
]


@pytest.mark.parametrize(("text", "given", "expected"), VECTORS, ids=lambda v: str(v)[:60])
def test_instruction_gives_the_hand_computed_result(
    text: str, given: dict[str, Lanes], expected: dict[str, int]
) -> None:
    values = {k: v if k[0] == "R" else bool(v) for k, v in given.items()}
    rig = execute(text, constants={0: bytes(8) + bits(1.5).to_bytes(4, "little")}, **values)
    for name, value in expected.items():
        row = int(name[1:])
        got = rig.word(row) if name[0] == "R" else int(rig.pred(row))
        assert (name, hex(got)) == (name, hex(value))


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("FADD R0, R1, -R1", {"R1": INF}),
        ("FMUL R0, R1, RZ", {"R1": INF}),
        ("FFMA R0, R1, RZ, RZ", {"R1": INF}),
        ("MUFU.LG2 R0, R1", {"R1": -1.0}),
        ("MUFU.RSQ R0, R1", {"R1": -1.0}),
        ("HADD2 R0, R1, -R1", {"R1": halves(math.inf, 1)}),
    ],
)
def test_birth_of_a_nan_is_found(text: str, given: dict[str, Lanes]) -> None:
    assert execute(text, **given).kinds == {Kind.NAN_BORN}


def test_nan_that_was_there_is_no_finding() -> None:
    assert execute("FADD R0, R1, R2", R1=NAN, R2=INF).kinds == set()


def test_conversion_of_nan_without_ntz_is_refused() -> None:
    with pytest.raises(EmulatorError, match="NaN without"):
        execute("F2I.TRUNC R0, R1", R1=NAN)
