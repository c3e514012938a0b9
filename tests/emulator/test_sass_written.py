# SPDX-License-Identifier: Apache-2.0
"""Which bits of a register count as written, and where it matters."""

from __future__ import annotations

import pytest
from sassrig import Rig

from patchctl.emulator.findings import Kind


@pytest.mark.parametrize(
    ("lines", "sound"),
    [
        # the lower half of R0 is 0, the upper one stays as nobody left it
        (["PRMT R0, RZ, 0x7610, R0", "LOP3.LUT P0, RZ, R0, 0xff, RZ, 0xc0, !PT"], True),
        (["PRMT R0, RZ, 0x7610, R0", "LOP3.LUT P0, RZ, R0, 0xff0000, RZ, 0xc0, !PT"], False),
        (["PRMT R0, RZ, 0x7610, R0", "ISETP.NE.AND P0, PT, R0, RZ, PT"], False),
        (
            ["PRMT R0, RZ, 0x7610, R0", "MOV R0, R0", "LOP3.LUT P0, RZ, R0, 0x1, RZ, 0xc0, !PT"],
            True,
        ),
        (["PRMT R0, R1, 0x5410, R1", "ISETP.NE.AND P0, PT, R0, RZ, PT"], True),
        # a bit that is known to be set settles "not zero"
        (["LOP3.LUT R0, R0, 0x4, RZ, 0xfc, !PT", "LOP3.LUT P0, RZ, R0, 0xff, RZ, 0xc0, !PT"], True),
        (["LOP3.LUT R0, R0, 0x4, RZ, 0xc0, !PT", "LOP3.LUT P0, RZ, R0, 0x3, RZ, 0xc0, !PT"], True),
        (["LOP3.LUT R0, R0, RZ, RZ, 0x3c, !PT", "LOP3.LUT P0, RZ, R0, 0x3, RZ, 0xc0, !PT"], False),
        (["SEL R0, R0, R1, P1", "ISETP.NE.AND P0, PT, R0, RZ, PT"], True),
        (["SEL R0, R0, R1, !P1", "ISETP.NE.AND P0, PT, R0, RZ, PT"], False),
        (["PRMT R0, R1, 0x7610, R0", "HADD2.F32 R0, -RZ.H0_H0, R0.H0_H0"], True),
        (["PRMT R0, R1, 0x7610, R0", "HADD2.F32 R0, -RZ.H0_H0, R0.H1_H1"], False),
        (["@P1 MOV R0, R1", "ISETP.NE.AND P0, PT, R0, RZ, PT"], False),
        (["@P1 MOV R0, R1", "@!P1 MOV R0, RZ", "ISETP.NE.AND P0, PT, R0, RZ, PT"], True),
    ],
)
def test_condition_is_a_finding_only_where_it_depends_on_what_nobody_wrote(
    lines: list[str], sound: bool
) -> None:
    if "P0" not in lines[-1]:
        lines = [*lines, "FSETP.GT.AND P0, PT, R0, RZ, PT"]
    rig = Rig(*lines, "@P0 EXIT").set(R1=1, P1=False).run()
    assert rig.kinds == (set() if sound else {Kind.UNINITIALISED_REGISTER})


def test_narrow_store_needs_only_its_bits() -> None:
    lines = ["PRMT R0, R1, 0x7610, R0", "STS.U16 [R2], R0", "LDS.U16 R3, [R2]"]
    assert Rig(*lines, shared=64).set(R1=5, R2=[2 * t for t in range(32)]).run().kinds == set()
    lines = ["PRMT R0, R1, 0x7610, R0", "STS [R2], R0", "LDS R3, [R2]"]
    rig = Rig(*lines, shared=128).set(R1=5, R2=[4 * t for t in range(32)]).run()
    assert rig.kinds == {Kind.UNINITIALISED_SHARED}
