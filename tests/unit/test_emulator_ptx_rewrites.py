# SPDX-License-Identifier: Apache-2.0
"""PTX rewritten before it runs: fused as ptxas does it, or pinned; and odd spellings that parse."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from patchctl.emulator.machine import EmulatorError
from patchctl.emulator.ptx.contract import contract
from patchctl.emulator.ptx.parse import parse_module, parse_modules
from patchctl.emulator.ptx.pin import pin
from patchctl.emulator.ptx.snippet import LANES, Snippet, execute

HEAD = ".version 8.4\n.target sm_70\n.address_size 64\n"


def fused(body: str) -> list[str]:
    """The float instructions after contraction."""
    registers = ".reg .f32 %a, %b, %c, %m, %n, %s, %t; .reg .pred %p;"
    module = parse_module(f"{HEAD}.visible .entry k() {{ {registers} {body} ret; }}")
    entry = contract(module.entries["k"])
    return [
        f"{i.name} {' '.join(getattr(o, 'name', hex(getattr(o, 'value', 0))) for o in i.operands)}"
        for i in entry.instructions
        if i.opcode[-1] == "f32" and i.opcode[0] != "mov"
    ]


@pytest.mark.parametrize(
    "body,expected",
    [
        ("mul.f32 %m, %a, %b; add.f32 %s, %m, %c;", ["fma.rn.f32 %s %a %b %c"]),
        ("mul.f32 %m, %a, %b; add.f32 %s, %c, %m;", ["fma.rn.f32 %s %a %b %c"]),
        (
            "mul.f32 %m, %a, %b; sub.f32 %s, %m, %c;",
            ["neg.f32 %negated8 %c", "fma.rn.f32 %s %a %b %negated8"],
        ),
        (
            "mul.f32 %m, %a, %b; sub.f32 %s, %c, %m;",
            ["neg.f32 %negated8 %a", "fma.rn.f32 %s %negated8 %b %c"],
        ),
        (
            "mul.f32 %m, %a, 0f3F800000; sub.f32 %s, %m, 0f40000000;",
            ["fma.rn.f32 %s %a 0x3f800000 0xc0000000"],
        ),
        # a rounding modifier forbids it
        ("mul.rn.f32 %m, %a, %b; add.f32 %s, %m, %c;", ["add.f32 %s %m %c"]),
        ("mul.f32 %m, %a, %b; add.rn.f32 %s, %m, %c;", ["add.rn.f32 %s %m %c"]),
        # two definitions: which product it is depends on the way
        ("mul.f32 %m, %a, %b; @%p mul.f32 %m, %a, %c; add.f32 %s, %m, %c;", ["add.f32 %s %m %c"]),
        # an operand changes in between
        (
            "mov.f32 %a, %b; mul.f32 %m, %a, %b; mov.f32 %a, %c; add.f32 %s, %m, %c;",
            ["add.f32 %s %m %c"],
        ),
        # the sum overwrites an operand of its product: at that moment it still holds
        (
            "mov.f32 %a, %t; mul.f32 %m, %a, %b; sub.f32 %a, %m, %c;",
            ["neg.f32 %negated8 %c", "fma.rn.f32 %a %a %b %negated8"],
        ),
    ],
)
def test_contraction_fuses_what_ptxas_fuses(body: str, expected: list[str]) -> None:
    assert [line for line in fused(body) if not line.startswith("mul")] == expected


def test_contraction_moves_labels() -> None:
    module = parse_module(
        f"{HEAD}.visible .entry k() {{ .reg .f32 %a, %m, %s; mul.f32 %m, %a, %a;"
        "sub.f32 %s, %m, %a; END: ret; }"
    )
    entry = contract(module.entries["k"])
    assert entry.instructions[entry.labels["END"]].name == "ret"


def test_pinned_text_leaves_nothing_open() -> None:
    text = pin(
        "mul.f32 %a, %b, %c; add.ftz.f32 %a, %b, %c; sub.f32 %a, %b, %c; fma.rn.f32 %a, %b, %c, %d;"
        "rcp.approx.ftz.f32 %a, %b; div.full.f32 %a, %b, %c; sqrt.approx.f32 %a, %b;"
        "mul.lo.s32 %r, 1, 2;"
    )
    assert text == (
        "mul.rn.f32 %a, %b, %c; add.rn.ftz.f32 %a, %b, %c; sub.rn.f32 %a, %b, %c;"
        " fma.rn.f32 %a, %b, %c, %d;"
        "rcp.rn.ftz.f32 %a, %b; div.rn.f32 %a, %b, %c; sqrt.rn.f32 %a, %b;"
        "mul.lo.s32 %r, 1, 2;"
    )
    with pytest.raises(EmulatorError, match=r"lg2\.approx\.f32"):
        pin("lg2.approx.f32 %a, %b;")


def test_pinned_power_is_as_good_as_the_instruction() -> None:
    rng = np.random.default_rng(0)
    for x in (rng.uniform(-126, 20, LANES), rng.uniform(-1, 1, LANES), np.arange(LANES) - 20.0):
        values = x.astype(np.float32)
        body = pin("ex2.approx.ftz.f32 %o0, %i0;")
        got, _ = execute(Snippet("k", body, ("f32",), ("f32",)), values.view(np.uint32)[None])
        power = got[0].astype(np.uint32).view(np.float32).astype(float)
        assert np.abs(power / np.exp2(values.astype(float)) - 1).max() < 2.0**-22
    special = np.array([-np.inf, -1e30, np.nan, 200.0] * 8, np.float32)
    got, _ = execute(Snippet("k", body, ("f32",), ("f32",)), special.view(np.uint32)[None])
    power = got[0].astype(np.uint32).view(np.float32)
    assert power[:2].tolist() == [0, 0] and np.isnan(power[2]) and np.isinf(power[3])


def test_output_of_cuobjdump_holds_several_modules() -> None:
    one = (
        "\nFatbin ptx code:\n================\narch = sm_70\ncode version = [8,4]\nhost = linux\n"
        "compile_size = 64bit\ncompressed\nptxasOptions = -v  \n\n//\n//\n\n" + HEAD
    )
    entry = (
        ".visible .entry {name}(\n.param .u32 {name}_0,\n.param .align 8 .b8 {name}_1[12]\n)\n"
        ".maxntid 128, 2, 1\n.minnctapersm 1\n{{\n.reg .b32 %r<3>;\n.loc 1 5 3\n\n"
        "ld.param.u32 %r1, [{name}_0]; // a comment; with ; in it\n$L__BB0_1:\n"
        '.pragma "nounroll";\nret;\n\n}}\n'
    )
    text = one + entry.format(name="a") + one + entry.format(name="b")
    first, second = parse_modules(text)
    assert list(first.entries) == ["a"] and list(second.entries) == ["b"]
    entry_b = second.entries["b"]
    assert [(p.offset, p.size) for p in entry_b.params] == [(0, 4), (8, 12)]
    assert entry_b.max_threads == 256 and entry_b.labels == {"$L__BB0_1": 1}
    assert [i.text for i in entry_b.instructions] == ["ld.param.u32 %r1, [b_0]", "ret"]
    assert first.version == "8.4" and first.target == "sm_70"


def test_functions_beside_entries_are_passed_over() -> None:
    text = (
        f"{HEAD}.func (.param .b32 r) helper(.param .b32 x)\n{{ .reg .b32 %r<2>; {{ ret; }} }}\n"
        ".extern .func vprintf(.param .b64 a);\n.visible .entry k() { ret; }"
    )
    assert list(parse_module(text).entries) == ["k"]


def test_float_constants_keep_their_bits() -> None:
    body = "mov.f32 %o0, 0f7FC01234; mov.f64 %o1, 0dBFF0000000000001; mov.f64 %o2, 0.5;"
    got, _ = execute(Snippet("k", body, (), ("f32", "f64", "f64")), np.zeros((0, LANES)))
    half = struct.unpack("<Q", struct.pack("<d", 0.5))[0]
    assert [int(row[0]) for row in got] == [0x7FC01234, 0xBFF0000000000001, half]


def test_lines_are_those_of_the_text() -> None:
    text = f"\n\n{HEAD}\n// a\n\n/* b\n */\n.visible .entry k()\n{{\n\n\t.loc 1 2 3\n\tret;\n}}\n"
    (instruction,) = parse_module(text).entries["k"].instructions
    assert text.splitlines()[instruction.line - 1].strip() == "ret;"
