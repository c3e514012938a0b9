# SPDX-License-Identifier: Apache-2.0
"""PTX instructions against results worked out by hand (tests/data/emulator)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from patchctl.emulator.findings import Kind
from patchctl.emulator.machine import EmulatorError
from patchctl.emulator.ptx.cases import Case, parse_cases
from patchctl.emulator.ptx.snippet import LANES, Snippet, execute
from patchctl.errors import UsageError

TABLE = Path(__file__).parents[1] / "data" / "emulator" / "ptx-instructions.txt"
CASES = parse_cases(TABLE.read_text())


@pytest.mark.parametrize("case", CASES, ids=[f"{c.line}:{c.snippet.body[:40]}" for c in CASES])
def test_instruction_computes_what_the_isa_says(case: Case) -> None:
    got, findings = execute(case.snippet, case.values())
    for lane, (row, expected) in enumerate(zip(got.T, case.expected().T, strict=True)):
        assert [hex(x) for x in row] == [hex(x) for x in expected], f"lane {lane}"
    assert findings.kinds() <= {Kind.NAN_BORN}


def test_table_has_all_its_cases() -> None:
    assert len(CASES) > 140
    assert sum(len(case.rows) for case in CASES) >= 278


@pytest.mark.parametrize(
    "body,named",
    [
        ("add.cc.u32 %o0, %i0, %i0;", "add.cc.u32"),
        ("dp4a.u32.u32 %o0, %i0, %i0, %i0;", "dp4a"),
        ("mul.wide.f32 %o0, %i0, %i0;", "wide"),
        ("wmma.load.a.sync.aligned.row.m16n16k16.f16 %o0, [%i0];", "wmma"),
        ("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 %o0, %i0, %i0, %i0;", "m16n8k8"),
        ("add.bf16 %o0, %i0, %i0;", "bf16"),
        ("mov.u32 %o0, %clock;", "%clock"),
        ("mov.u32 %o0, %nobody;", "%nobody"),
        ("cvt.rn.relu.f16.f32 %o0, %i0;", "relu"),
        ("ld.global.b128 %o0, [%from];", "b128"),
        ("call.uni nothing;", "call"),
        ("call.uni (), nothing, ();", "()"),
        ("bra nowhere;", "nowhere"),
        ("mov.b64 %o0, %i0;", "b64"),
        ("mov.b32 %o0, %i0", "not understood"),
    ],
)
def test_unknown_instruction_is_refused_by_name(body: str, named: str) -> None:
    with pytest.raises((EmulatorError, UsageError), match=r"PTX line \d+") as error:
        execute(Snippet("case", body, ("b32",), ("b32",)), np.zeros((1, LANES)))
    assert named in str(error.value)


@pytest.mark.parametrize(
    "line", ["    1 2", "    b32 -> b32\n    1 2 -> 3", "    b32 ->\n    x ->"]
)
def test_table_line_that_is_not_understood_is_refused(line: str) -> None:
    with pytest.raises(UsageError, match=r"line [23]"):
        parse_cases(f"add.s32 %o0, %i0, 1;\n{line}\n")
