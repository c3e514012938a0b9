# SPDX-License-Identifier: Apache-2.0
"""The matrix instruction in PTX, whole entries, and what is found in them."""

from __future__ import annotations

import numpy as np
import pytest

from patchctl.emulator.engine import launch
from patchctl.emulator.findings import Findings, Kind
from patchctl.emulator.machine import Launch
from patchctl.emulator.memory import GlobalMemory
from patchctl.emulator.mma import Accumulation
from patchctl.emulator.ptx.lower import lower
from patchctl.emulator.ptx.parse import parse_module
from patchctl.emulator.ptx.snippet import LANES, Snippet, execute

LANE = np.arange(LANES)


# -- the matrix instruction


def _matrices(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    a, b = (rng.integers(-8, 9, (4, 8, 4)).astype(np.float16) for _ in range(2))
    return a, b, rng.integers(-50, 51, (4, 8, 8)).astype(np.float32)


@pytest.mark.parametrize("a_layout", ["row", "col"])
@pytest.mark.parametrize("b_layout", ["row", "col"])
@pytest.mark.parametrize("kind", ["f16", "f32"])
@pytest.mark.parametrize("model", list(Accumulation))
def test_matrix_instruction_multiplies_in_every_layout(
    a_layout: str, b_layout: str, kind: str, model: Accumulation
) -> None:
    """Placed element by element as the figures of the PTX ISA say; small integers are exact."""
    a, b, c = _matrices(np.random.default_rng(1))  # b as [pair, column, k]
    halves = np.zeros((4, LANES), np.uint64)
    wide = np.zeros((8, LANES), np.uint64)
    expected = np.zeros_like(wide)
    d = c + np.einsum("pmk,pnk->pmn", a.astype(np.float32), b.astype(np.float32))
    for lane in range(LANES):
        pair, low, high = (lane >> 2) & 3, lane & 3, 4 * (lane >> 4)
        for i in range(4):
            row, k = (low + high, i) if a_layout == "row" else (i + high, low)
            half = int(a[pair, row, k].view(np.uint16))
            halves[i // 2, lane] |= np.uint64(half << 16 * (i % 2))
            column, k = (low + high, i) if b_layout == "col" else (i + high, low)
            half = int(b[pair, column, k].view(np.uint16))
            halves[2 + i // 2, lane] |= np.uint64(half << 16 * (i % 2))
        for i in range(8):
            if kind == "f32":
                row = (lane & 1) + (i & 2) + high
                column = (i & 4) + (lane & 2) + (i & 1)
                wide[i, lane] = int(c[pair, row, column].view(np.uint32))
                expected[i, lane] = int(d[pair, row, column].view(np.uint32))
            else:
                row, column, shift = low + high, i, 16 * (i % 2)
                for table, source in ((wide, c), (expected, d)):
                    half = int(source[pair, row, column].astype(np.float16).view(np.uint16))
                    table[i // 2, lane] |= np.uint64(half << shift)
    count = 8 if kind == "f32" else 4
    name = "f32" if kind == "f32" else "b32"
    registers = [
        ", ".join(f"%{x}{i + s}" for i in range(n))
        for x, s, n in (("o", 0, count), ("i", 0, 2), ("i", 2, 2), ("i", 4, count))
    ]
    operands = ", ".join("{" + r + "}" for r in registers)
    snippet = Snippet(
        "k",
        f"mma.sync.aligned.m8n8k4.{a_layout}.{b_layout}.{kind}.f16.f16.{kind} {operands};",
        ("b32",) * 4 + (name,) * count,
        (name,) * count,
    )
    got, findings = execute(snippet, np.concatenate([halves, wide[:count]]), model=model)
    assert got.tolist() == expected[:count].tolist()
    assert findings.faults() == []


# -- whole entries


def _entry(
    text: str, threads: int, memory: GlobalMemory, parameters: bytes = b"", grid: int = 1
) -> Findings:
    module = parse_module(f".version 8.4\n.target sm_70\n.address_size 64\n{text}")
    (entry,) = module.entries.values()
    kernel = lower(module, entry)
    kernel.add_variables(memory)
    findings = Findings()
    start = Launch((grid, 1, 1), (threads, 1, 1), kernel.static_shared, parameters=parameters)
    launch(kernel.program, start, memory, findings, intra_warp=True)
    return findings


def test_variables_of_a_module_have_their_values() -> None:
    memory = GlobalMemory()
    out = memory.add("out", np.zeros(3, np.uint32), writable=True)
    _entry(
        ".const .align 4 .b8 table[8] = {1, 0, 0, 0, 2, 0, 0, 0};\n.global .u32 count = 5;\n"
        ".visible .entry k(.param .u64 .ptr .global .align 4 p, .param .align 8 .b8 s[12]) {\n"
        ".reg .b64 %rd<4>; .reg .b32 %r<4>; ld.param.u64 %rd1, [p]; ld.const.u32 %r1, [table+4];\n"
        "ld.global.u32 %r2, [count]; mov.b64 %rd2, s; ld.param.u32 %r3, [%rd2+8];\n"
        "st.global.u32 [%rd1], %r1; st.global.u32 [%rd1+4], %r2;\n"
        "st.global.u32 [%rd1+8], %r3; ret; }",
        1,
        memory,
        out.address.to_bytes(8, "little") + b"\1" * 8 + (77).to_bytes(4, "little"),
    )
    assert out.array(np.uint32, (3,)).tolist() == [2, 5, 77]


EXCHANGE = (
    ".visible .entry k(.param .u64 p) {{ .reg .b64 %rd<3>; .reg .b32 %r<5>;\n"
    ".shared .align 4 .b8 room[256]; ld.param.u64 %rd1, [p]; mov.u32 %r1, %tid.x;\n"
    "shl.b32 %r2, %r1, 2; st.shared.u32 [%r2], %r1; {sync} xor.b32 %r3, %r2, {mask};\n"
    "ld.shared.u32 %r4, [%r3]; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd1, %rd1, %rd2;\n"
    "st.global.u32 [%rd1], %r4; ret; }}"
)


@pytest.mark.parametrize(
    "sync,mask,kinds",
    [
        ("bar.sync 0;", 128, set()),
        ("barrier.sync 0;", 128, set()),
        ("", 128, {Kind.SHARED_RACE}),
        ("bar.warp.sync -1;", 4, set()),
        ("", 4, {Kind.SHARED_RACE}),
        ("shfl.sync.bfly.b32 %r3, %r1, 1, 31, -1;", 4, {Kind.SHARED_RACE}),  # orders no memory
    ],
)
def test_exchange_through_shared_memory_needs_its_barrier(
    sync: str, mask: int, kinds: set[Kind]
) -> None:
    memory = GlobalMemory()
    out = memory.add("out", np.zeros(64, np.uint32), writable=True)
    text = EXCHANGE.format(sync=sync, mask=mask)
    found = _entry(text, 64, memory, out.address.to_bytes(8, "little"))
    assert {f.kind for f in found.faults()} == kinds
    if not kinds:
        assert out.array(np.uint32, (64,)).tolist() == (np.arange(64) ^ mask // 4).tolist()


@pytest.mark.parametrize(
    "body,kind,tensor",
    [
        ("st.global.u32 [%rd1+512], %r1;", Kind.OUT_OF_BOUNDS, "out"),
        ("st.global.u32 [%rd1+2], %r1;", Kind.MISALIGNED, "out"),
        ("st.global.u32 [%rd1], %r9;", Kind.UNINITIALISED_REGISTER, ""),
        (
            "add.u32 %r2, %r9, 1; cvt.u64.u32 %rd2, %r2; st.global.u32 [%rd2], %r1;",
            Kind.UNINITIALISED_REGISTER,
            "",
        ),
        ("ld.shared.u32 %r2, [room];", Kind.UNINITIALISED_SHARED, "shared"),
        ("mov.f32 %f1, 0f7F800000; sub.f32 %f2, %f1, %f1;", Kind.NAN_BORN, ""),
        ("setp.lt.u32 %p1, %r1, 7; @%p1 bar.sync 0; @!%p1 bar.sync 0;", Kind.DIVERGENT_BARRIER, ""),
        ("st.global.u32 [%rd0], %r1;", Kind.DOUBLE_STORE, "out"),
        ("mov.u32 %r2, 0; st.shared.u32 [room], %r1;", Kind.SHARED_RACE, "shared"),
    ],
)
def test_fault_is_found(body: str, kind: Kind, tensor: str) -> None:
    memory = GlobalMemory()
    out = memory.add("out", np.zeros(64, np.uint32), writable=True)
    found = _entry(
        ".visible .entry k(.param .u64 p) { .reg .b64 %rd<5>; .reg .b32 %r<10>; .reg .f32 %f<5>;\n"
        ".reg .pred %p<3>; .shared .align 4 .b8 room[256]; ld.param.u64 %rd0, [p];\n"
        "mov.u32 %r1, %tid.x; mul.wide.u32 %rd1, %r1, 4; add.s64 %rd1, %rd1, %rd0;\n"
        f"{body} ret; }}",
        32,
        memory,
        out.address.to_bytes(8, "little"),
        grid=2 if kind is Kind.DOUBLE_STORE else 1,
    )
    assert kind in {f.kind for f in found.faults()}
    assert {f.tensor for f in found.faults() if f.kind is kind} == {tensor}
