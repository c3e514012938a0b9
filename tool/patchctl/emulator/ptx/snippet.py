# SPDX-License-Identifier: Apache-2.0
"""A few instructions as a kernel of one warp: for vectors, by hand and from a GPU.

The kernel reads ``%i0``, ``%i1``, ... from one array of 64-bit words and writes ``%o0``, ... to
another: word ``32 * i + lane``. So the same text runs here and on a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from patchctl.emulator.engine import launch
from patchctl.emulator.findings import Findings
from patchctl.emulator.machine import Launch
from patchctl.emulator.memory import GlobalMemory
from patchctl.emulator.mma import Accumulation
from patchctl.emulator.ptx.lower import lower
from patchctl.emulator.ptx.parse import parse_module

Words = npt.NDArray[np.uint64]

LANES = 32
_HEADER = ".version 8.4\n.target sm_70\n.address_size 64\n"


@dataclass(frozen=True)
class Snippet:
    """`body`: PTX statements. `inputs`, `outputs`: types of the registers (``b32``, ``pred``)."""

    name: str
    body: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shared_bytes: int = 0

    @property
    def text(self) -> str:
        """The entry."""
        lines = [
            f".visible .entry {self.name}(.param .u64 source, .param .u64 target)",
            "{",
            *(f".reg .{kind} %i{n};" for n, kind in enumerate(self.inputs)),
            *(f".reg .{kind} %o{n};" for n, kind in enumerate(self.outputs)),
            ".reg .b64 %from, %to, %wide; .reg .b32 %lane, %word;",
        ]
        if self.shared_bytes:
            lines.append(f".shared .align 16 .b8 room[{self.shared_bytes}];")
        lines += [
            "ld.param.u64 %from, [source]; ld.param.u64 %to, [target];",
            "mov.u32 %lane, %tid.x;",
            "mul.wide.u32 %wide, %lane, 8;",
            "add.s64 %from, %from, %wide; add.s64 %to, %to, %wide;",
        ]
        for n, kind in enumerate(self.inputs):
            lines.append(f"ld.global.u64 %wide, [%from+{8 * LANES * n}];")
            lines.append(_from_word(f"%i{n}", kind))
        lines.append(self.body)
        for n, kind in enumerate(self.outputs):
            lines.append(_to_word(f"%o{n}", kind))
            lines.append(f"st.global.u64 [%to+{8 * LANES * n}], %wide;")
        return "\n".join([*lines, "ret;", "}", ""])


def _from_word(register: str, kind: str) -> str:
    width = kind[1:]
    if kind == "pred":
        return f"setp.ne.u64 {register}, %wide, 0;"
    if width == "64":
        return f"mov.b64 {register}, %wide;"
    if width == "16":
        return f"cvt.u16.u64 {register}, %wide;"
    return f"cvt.u32.u64 %word, %wide; mov.b32 {register}, %word;"


def _to_word(register: str, kind: str) -> str:
    width = kind[1:]
    if kind == "pred":
        return f"selp.u64 %wide, 1, 0, {register};"
    if width == "64":
        return f"mov.b64 %wide, {register};"
    if width == "16":
        return f"cvt.u64.u16 %wide, {register};"
    return f"mov.b32 %word, {register}; cvt.u64.u32 %wide, %word;"


def module_text(snippets: Sequence[Snippet]) -> str:
    """A module with all of them."""
    return _HEADER + "\n".join(snippet.text for snippet in snippets)


def execute(
    snippet: Snippet,
    values: npt.NDArray[Any],
    *,
    model: Accumulation = Accumulation.VOLTA,
) -> tuple[Words, Findings]:
    """Run it on one warp. `values`: [inputs, lanes]; the result is [outputs, lanes].

    Raises:
        EmulatorError: an instruction that is not modelled.
    """
    module = parse_module(_HEADER + snippet.text)
    kernel = lower(module, module.entries[snippet.name], model=model)
    memory, findings = GlobalMemory(), Findings()
    source = np.zeros((max(1, len(snippet.inputs)), LANES), np.uint64)
    source[: len(snippet.inputs)] = values
    target = np.zeros((len(snippet.outputs), LANES), np.uint64)
    addresses = [
        memory.add("source", source).address,
        memory.add("target", target, writable=True).address,
    ]
    start = Launch(
        grid=(1, 1, 1),
        block=(LANES, 1, 1),
        shared_bytes=kernel.static_shared,
        parameters=np.array(addresses, np.uint64).tobytes(),
    )
    launch(kernel.program, start, memory, findings, intra_warp=True)
    return memory.tensors["target"].data.view(np.uint64).reshape(target.shape), findings
