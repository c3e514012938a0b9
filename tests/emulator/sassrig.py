# SPDX-License-Identifier: Apache-2.0
"""Executes a few lines of machine code with given registers."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from patchctl.emulator.engine import Engine
from patchctl.emulator.findings import Findings, Kind
from patchctl.emulator.localmem import LocalMemory
from patchctl.emulator.machine import Cta, Launch
from patchctl.emulator.memory import GlobalMemory, Tensor
from patchctl.emulator.sass.kernel import program
from patchctl.emulator.shared import SharedMemory
from patchctl.formats.sasscode import Function, Instruction, parse_instruction

EXECUTED: set[str] = set()
"""Opcodes that ran in any rig."""

Lanes = int | float | Sequence[int | float] | np.ndarray[Any, Any]


def assemble(address: int, text: str) -> Instruction:
    """An instruction whose encoding holds the immediate that its text shows."""
    return parse_instruction(address, text, _immediate(text) << 32, 0)


def _immediate(text: str) -> int:
    operands = [op.strip() for op in text.partition(" ")[2].split(",")]
    name = text.split(" ")[1 if text.startswith("@") else 0]
    floats = [op for op in operands if re.fullmatch(r"[+-]?(\d+\.?\d*(e[+-]?\d+)?|INF|QNAN)", op)]
    if name.startswith("H") and len(floats) == 2:
        return int.from_bytes(struct.pack("<2e", *map(float, floats)), "little")
    if name.startswith(("F", "MUFU")) and floats:
        number = floats[0].replace("QNAN", "nan")
        return int.from_bytes(struct.pack("<f", float(number)), "little")
    for operand in operands:
        if re.fullmatch(r"-?0x[0-9a-f]+", operand):
            return int(operand, 16) & 0xFFFFFFFF
    return 0


class Rig:
    """One CTA. Registers may be set before `run` and read after it."""

    def __init__(
        self,
        *lines: str,
        threads: int = 32,
        shared: int = 0,
        local: int = 0,
        constants: Mapping[int, bytes] | None = None,
        memory: GlobalMemory | None = None,
        index: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        code = [assemble(16 * i, text) for i, text in enumerate([*lines, "EXIT"])]
        self.program = program(Function("rig", code))
        self.findings = Findings()
        self.memory = memory or GlobalMemory()
        launch = Launch((8, 8, 8), (threads, 1, 1), shared, dict(constants or {}))
        warps = -(-threads // 32)
        self.cta = Cta(
            launch,
            index,
            self.program.registers,
            self.program.predicates,
            self.memory,
            SharedMemory(shared, warps),
            LocalMemory(local, warps * 32),
            self.findings,
        )
        assert self.program.setup is not None
        self.program.setup(self.cta)

    def set(self, **values: Lanes) -> Rig:
        """``R3=...`` words or floats, ``P0=...``; one value, or one per thread."""
        for name, value in values.items():
            row = int(name[1:])
            array = np.asarray(value)
            if name[0] == "P":
                self.cta.put_pred(row, np.broadcast_to(array, (self.cta.threads,)), None)
                continue
            if array.dtype.kind == "f":
                words = array.astype(np.float32).view(np.uint32)
            else:
                words = (array.astype(np.int64) & 0xFFFFFFFF).astype(np.uint32)
            self.cta.put(row, np.broadcast_to(words, (self.cta.threads,)), None)
        return self

    def run(self) -> Rig:
        with np.errstate(all="ignore"):
            Engine(self.program, self.cta).run()
        EXECUTED.update(self.program.executed_opcodes())
        return self

    def word(self, row: int, thread: int = 0) -> int:
        return int(self.cta.regs[row, thread])

    def words(self, row: int) -> list[int]:
        return [int(x) for x in self.cta.regs[row]]

    def signed(self, row: int, thread: int = 0) -> int:
        return int(self.cta.regs[row].view(np.int32)[thread])

    def pair(self, row: int, thread: int = 0) -> int:
        return self.word(row, thread) | self.word(row + 1, thread) << 32

    def single(self, row: int, thread: int = 0) -> float:
        return float(self.cta.regs[row].view(np.float32)[thread])

    def pred(self, row: int, thread: int = 0) -> bool:
        return bool(self.cta.preds[row, thread])

    @property
    def kinds(self) -> set[Kind]:
        return {found.kind for found in self.findings.faults()}


def execute(text: str, /, *, constants: Mapping[int, bytes] | None = None, **values: Lanes) -> Rig:
    """One instruction on one warp."""
    return Rig(text, constants=constants).set(**values).run()


def bits(value: float) -> int:
    """A float32 as an integer."""
    return int(np.float32(value).view(np.uint32))


def halves(low: float, high: float) -> int:
    """Two float16 in a word."""
    return int.from_bytes(struct.pack("<2e", low, high), "little")


def tensor(size: int = 512, *, writable: bool = True) -> tuple[GlobalMemory, Tensor]:
    """Bytes 0, 1, 2, ... under the name ``x``."""
    memory = GlobalMemory()
    return memory, memory.add("x", np.arange(size).astype(np.uint8), writable=writable)


def at(found: Tensor, offset: int = 0) -> dict[str, int]:
    """R2 and R3 point to a byte of the tensor."""
    address = found.address + offset
    return {"R2": address & 0xFFFFFFFF, "R3": address >> 32}
