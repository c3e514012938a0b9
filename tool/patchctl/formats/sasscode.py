# SPDX-License-Identifier: Apache-2.0
"""Machine code of sm_70 as instructions: the decoder of the emulator and of the loop model.

The operation and its operands come from the text that ``cuobjdump -sass`` prints; immediate
floats and scheduling fields come from the 128-bit encoding beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

_INSTRUCTION = re.compile(
    r"/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;\s*/\* 0x([0-9a-f]{16}) \*/\s*/\* 0x([0-9a-f]{16}) \*/"
)
_FUNCTION = re.compile(r"^\s*Function : (\S+)", re.M)
_GUARD = re.compile(r"@(!?U?P[T0-9])\s+(.*)")
_REGISTER = re.compile(r"\bR(\d+)\b")
_TARGET = re.compile(r"0x([0-9a-f]+)")
_BRANCHES = frozenset({"BRA", "JMP", "BRX"})


@dataclass(frozen=True)
class Instruction:
    """One instruction. `guard` is like ``!P0`` or None; `opcode` is split at its dots."""

    address: int
    text: str
    guard: str | None
    opcode: tuple[str, ...]
    operands: tuple[str, ...]
    encoding: int

    @property
    def base(self) -> str:
        return self.opcode[0]

    @property
    def immediate(self) -> int:
        """The 32-bit immediate field; its meaning only where the text shows an immediate."""
        return self.encoding >> 32 & 0xFFFFFFFF

    @property
    def stall(self) -> int:
        """Cycles before the next instruction of the warp may issue."""
        return self.encoding >> 105 & 0xF

    @property
    def yield_flag(self) -> int:
        return self.encoding >> 109 & 1

    @property
    def write_barrier(self) -> int:
        """Scoreboard that is released when the result is there; 7 for none."""
        return self.encoding >> 110 & 7

    @property
    def read_barrier(self) -> int:
        """Scoreboard that is released when the operands were read; 7 for none."""
        return self.encoding >> 113 & 7

    @property
    def wait_mask(self) -> int:
        """Scoreboards that must be free before it issues."""
        return self.encoding >> 116 & 0x3F

    @property
    def reuse(self) -> int:
        return self.encoding >> 122 & 0xF

    @cached_property
    def branch_target(self) -> int | None:
        """The address that a branch names, if it does."""
        if self.base not in _BRANCHES or not self.operands:
            return None
        match = _TARGET.search(self.operands[-1])
        return int(match[1], 16) if match else None

    @cached_property
    def access_bytes(self) -> int:
        """Bytes per thread of a memory instruction."""
        for modifier in self.opcode[1:]:
            if modifier in ("64", "128"):
                return int(modifier) // 8
            if modifier in ("U8", "S8", "U16", "S16"):
                return int(modifier[1:]) // 8
        return 4


@dataclass
class Function:
    """A kernel's instructions, plus the launch facts that are known (`parse_functions` knows
    none of them)."""

    name: str
    instructions: list[Instruction]
    registers: int | None = None
    static_shared: int = 0
    max_threads: int | None = None

    @cached_property
    def index_of(self) -> dict[int, int]:
        """Position of the instruction at each address."""
        return {inst.address: i for i, inst in enumerate(self.instructions)}

    def highest_register(self) -> int:
        """How many registers the text names, at least 16 if none."""
        numbers = [int(n) for inst in self.instructions for n in _REGISTER.findall(inst.text)]
        return max(numbers) + 1 if numbers else 16


def parse_instruction(address: int, text: str, low: int, high: int) -> Instruction:
    """Take one line of a listing apart."""
    body = text
    guard = None
    if match := _GUARD.match(body):
        guard, body = match.groups()
    name, _, rest = body.partition(" ")
    operands = tuple(part.strip() for part in rest.split(",")) if rest.strip() else ()
    return Instruction(address, text, guard, tuple(name.split(".")), operands, low | high << 64)


def parse_functions(text: str, wanted: Callable[[str], bool] = lambda _: True) -> list[Function]:
    """The functions of a ``cuobjdump -sass`` listing whose mangled name is `wanted`.

    A listing without any function header is one function, ``(listing)``.
    """
    starts = [(m.end(), m[1]) for m in _FUNCTION.finditer(text)] or [(0, "(listing)")]
    ends = [*[m.start() for m in _FUNCTION.finditer(text)][1:], len(text)]
    functions = []
    for (start, name), end in zip(starts, ends, strict=True):
        if not wanted(name):
            continue
        instructions = [
            parse_instruction(int(m[1], 16), m[2], int(m[3], 16), int(m[4], 16))
            for m in _INSTRUCTION.finditer(text, start, end)
        ]
        if instructions:
            functions.append(Function(name, instructions))
    return functions
