# SPDX-License-Identifier: Apache-2.0
"""Faults put into PTX, one instruction each: what an author or a compiler gets wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from patchctl.emulator.ptx.module import (
    Address,
    Entry,
    Guard,
    Imm,
    Instruction,
    Operand,
    Reg,
    Vector,
)

_OPPOSITE = {"ge": "gt", "gt": "ge", "lt": "le", "le": "lt", "ne": "eq", "eq": "ne"}
_OTHER = {"max": "min", "min": "max", "add": "sub", "sub": "add", "shl": "shr", "shr": "shl"}
Change = Callable[[Instruction], Instruction | None]


@dataclass(frozen=True)
class Mutation:
    """One changed instruction: its position, and what stands there now (None: nothing)."""

    kind: str
    index: int
    before: Instruction
    after: Instruction

    def __str__(self) -> str:
        return f"{self.kind} at line {self.before.line}: {self.before.text}"

    def apply(self, entry: Entry) -> Entry:
        """The entry with this fault."""
        instructions = list(entry.instructions)
        instructions[self.index] = self.after
        return replace(entry, instructions=instructions)


def _nothing(i: Instruction) -> Instruction:
    """In its place something without effect, so that labels stay where they are."""
    return replace(i, opcode=("membar", "cta"), operands=(), guard=None)


def _drop(*opcodes: tuple[str, ...]) -> Change:
    def change(i: Instruction) -> Instruction | None:
        return _nothing(i) if any(i.opcode[: len(o)] == o for o in opcodes) else None

    return change


def _with(i: Instruction, place: int, operand: Operand) -> Instruction:
    operands = list(i.operands)
    operands[place] = operand
    return replace(i, operands=tuple(operands))


def _swap(place: int) -> Change:
    """The two registers of a fragment."""

    def change(i: Instruction) -> Instruction | None:
        if i.opcode[0] != "mma":
            return None
        pair = i.operands[place]
        if not isinstance(pair, Vector) or pair.items[0] == pair.items[1]:
            return None
        return _with(i, place, Vector(pair.items[::-1]))

    return change


def _shift(opcode: tuple[str, ...], by: int) -> Change:
    def change(i: Instruction) -> Instruction | None:
        if i.opcode[: len(opcode)] != opcode:
            return None
        for place, operand in enumerate(i.operands):
            if isinstance(operand, Address):
                return _with(i, place, replace(operand, offset=operand.offset + by))
        return None

    return change


def _comparison(i: Instruction) -> Instruction | None:
    if i.opcode[0] != "setp" or i.opcode[1] not in _OPPOSITE:
        return None
    return replace(i, opcode=("setp", _OPPOSITE[i.opcode[1]], *i.opcode[2:]))


def _operation(i: Instruction) -> Instruction | None:
    if i.opcode[0] not in _OTHER or i.opcode[-1] == "pred":
        return None
    last = i.opcode[-1].replace("b", "u") if i.opcode[0] == "shl" else i.opcode[-1]
    return replace(i, opcode=(_OTHER[i.opcode[0]], *i.opcode[1:-1], last))


def _number(i: Instruction) -> Instruction | None:
    """An integer constant that is one too large."""
    if i.opcode[0] in ("bar", "shfl", "vote", "bra", "ld", "st", "cvta") or "f32" in i.opcode:
        return None
    for place, operand in enumerate(i.operands[1:], 1):
        if isinstance(operand, Imm) and not operand.float_bits:
            return _with(i, place, replace(operand, value=operand.value + 1))
    return None


def _lane(i: Instruction) -> Instruction | None:
    """A shuffle with another lane."""
    if i.opcode[0] != "shfl":
        return None
    lane = i.operands[2]
    return _with(i, 2, Imm(lane.value ^ 1 if isinstance(lane, Imm) else 7))


def _choice(i: Instruction) -> Instruction | None:
    if i.opcode[0] != "selp":
        return None
    target, a, b, p = i.operands
    return replace(i, operands=(target, b, a, p))


def _guard(i: Instruction) -> Instruction | None:
    if i.guard is None:
        return None
    return replace(i, guard=Guard(i.guard.reg, not i.guard.negated))


def _accumulator(i: Instruction) -> Instruction | None:
    """The matrix instruction starts from nothing."""
    if i.opcode[0] != "mma":
        return None
    c = i.operands[3]
    assert isinstance(c, Vector)
    if not all(isinstance(item, Reg) for item in c.items):
        return None
    zero = Imm(0, 32) if i.opcode[-1] == "f32" else Imm(0)
    return _with(i, 3, Vector((zero,) * len(c.items)))


KINDS: dict[str, Change] = {
    "a barrier dropped": _drop(("bar", "sync"), ("bar", "red")),
    "a warp barrier dropped": _drop(("bar", "warp")),
    "a store to shared memory dropped": _drop(("st", "shared")),
    "a store of the result dropped": _drop(("st", "global")),
    "the registers of an A fragment swapped": _swap(1),
    "the registers of a B fragment swapped": _swap(2),
    "an accumulator lost": _accumulator,
    "a load from shared memory 16 bytes off": _shift(("ld", "shared"), 16),
    "a store to shared memory 16 bytes off": _shift(("st", "shared"), 16),
    "a load of Q, K or V one row of 16 bytes off": _shift(("ld", "global"), 16),
    "a store of the result 16 bytes off": _shift(("st", "global"), 16),
    "a comparison off by one": _comparison,
    "another operation": _operation,
    "an integer one too large": _number,
    "a shuffle from the wrong lane": _lane,
    "a choice turned round": _choice,
    "a guard turned round": _guard,
}


def mutations(entry: Entry, kind: str) -> Iterator[Mutation]:
    """Every fault of a kind that the entry can have."""
    for index, instruction in enumerate(entry.instructions):
        after = KINDS[kind](instruction)
        if after is not None:
            yield Mutation(kind, index, instruction, after)
