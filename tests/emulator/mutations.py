# SPDX-License-Identifier: Apache-2.0
"""Faults put into machine code, one instruction each: what a compiler or an author gets wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from patchctl.emulator.program import Program
from patchctl.emulator.sass.kernel import step
from patchctl.formats.sasscode import Function, Instruction, parse_instruction

_OFFSET = re.compile(r"\[(R\d+|RZ)(?:\+(-?0x[0-9a-f]+))?\]")
_HMMA = re.compile(r"(HMMA\S+ R\d+, )(R\d+)(\S*), (R\d+)(\S*), (R\d+|RZ)")
_OPPOSITE = {"GE": "GT", "GT": "GE", "LT": "LE", "LE": "LT", "NE": "EQ", "EQ": "NE"}


@dataclass(frozen=True)
class Mutation:
    """One changed instruction: its position and what stands there now."""

    kind: str
    index: int
    before: str
    after: Instruction

    def __str__(self) -> str:
        return f"{self.kind} at 0x{self.after.address:04x}: {self.before} -> {self.after.text}"

    def apply(self, program: Program) -> Program:
        """The program with this fault."""
        steps = list(program.steps)
        steps[self.index] = step(program.kernel, self.after)
        return replace(program, steps=steps, executed=set())


def _with_text(inst: Instruction, text: str) -> Instruction:
    """Another text over the same encoding; whoever changes an immediate changes that, too."""
    return parse_instruction(inst.address, text, inst.encoding & (1 << 64) - 1, inst.encoding >> 64)


def _nop(inst: Instruction) -> Instruction:
    return _with_text(inst, "NOP")


def _drop_barrier(inst: Instruction) -> Instruction | None:
    return _nop(inst) if inst.base == "BAR" else None


def _swap_fragments(inst: Instruction) -> Instruction | None:
    """A for B. (The same register twice would be no fault.)"""
    match = _HMMA.fullmatch(inst.text)
    if not match or match[2] == match[4]:
        return None
    head, a, a_how, b, b_how, c = match.groups()
    return _with_text(inst, f"{head}{b}{a_how}, {a}{b_how}, {c}")


def _wrong_accumulator(inst: Instruction) -> Instruction | None:
    """The sum starts from nothing."""
    match = _HMMA.fullmatch(inst.text)
    if not match or match[6] == "RZ":
        return None
    return _with_text(inst, inst.text[: -len(match[6])] + "RZ")


def _shift(by: int, *bases: str) -> Callable[[Instruction], Instruction | None]:
    def change(inst: Instruction) -> Instruction | None:
        match = _OFFSET.search(inst.text)
        if inst.base not in bases or not match:
            return None
        offset = int(match[2] or "0", 16) + by
        shown = f"-0x{-offset:x}" if offset < 0 else f"0x{offset:x}"
        text = inst.text[: match.start()] + f"[{match[1]}+{shown}]" + inst.text[match.end() :]
        return _with_text(inst, text)

    return change


def _move_comparison(*, unsigned: bool) -> Callable[[Instruction], Instruction | None]:
    """`<` for `<=` and so on. Masks compare signed positions; divisions unsigned remainders."""

    def change(inst: Instruction) -> Instruction | None:
        if inst.base != "ISETP" or "EX" in inst.opcode or ("U32" in inst.opcode) is not unsigned:
            return None
        name = inst.opcode[1]
        return _with_text(inst, inst.text.replace(f".{name}.", f".{_OPPOSITE[name]}.", 1))

    return change


def _turn_condition(inst: Instruction) -> Instruction | None:
    """The other of two values is chosen."""
    if inst.base not in ("SEL", "FSEL"):
        return None
    head, _, condition = inst.text.rpartition(", ")
    turned = condition[1:] if condition.startswith("!") else "!" + condition
    return _with_text(inst, f"{head}, {turned}")


def _wrong_lane(inst: Instruction) -> Instruction | None:
    match = re.fullmatch(r"(SHFL.BFLY \S+ \S+ \S+ )0x([0-9a-f]+)(, 0x1f)", inst.text)
    if not match:
        return None
    return _with_text(inst, f"{match[1]}0x{int(match[2], 16) ^ 1:x}{match[3]}")


def _drop(*bases: str) -> Callable[[Instruction], Instruction | None]:
    return lambda inst: _nop(inst) if inst.base in bases and inst.guard != "!PT" else None


def _drop_exponential(inst: Instruction) -> Instruction | None:
    return _nop(inst) if inst.opcode == ("MUFU", "EX2") else None


_BY_MASK = {"break a mask": True, "move a signed comparison": False}
"""Kinds that concern the comparisons of masks, or all but those."""

KINDS: dict[str, Callable[[Instruction], Instruction | None]] = {
    "drop a barrier": _drop_barrier,
    "swap two fragments": _swap_fragments,
    "forget an accumulator": _wrong_accumulator,
    "shift a shared load": _shift(16, "LDS"),
    "shift a shared store": _shift(-16, "STS"),
    "shift a global load": _shift(16, "LDG"),
    "shift a global store": _shift(16, "STG"),
    "break a mask": _move_comparison(unsigned=False),
    "move a signed comparison": _move_comparison(unsigned=False),
    "move an unsigned comparison": _move_comparison(unsigned=True),
    "turn a choice": _turn_condition,
    "read another lane": _wrong_lane,
    "drop a shared load": _drop("LDS"),
    "drop a shared store": _drop("STS"),
    "drop a global load": _drop("LDG"),
    "drop a conversion": _drop("F2F"),
    "drop an exponential": _drop_exponential,
    "drop a shuffle": _drop("SHFL"),
    "drop a matrix step": _drop("HMMA"),
}


_MINUS_INFINITY = re.compile(
    r"(?:IMAD\.MOV\.U32 (R\d+), RZ, RZ|MOV (R\d+)), (?:-0x800000|0xff800000)"
)
_MOVE = re.compile(r"@!?(P\d) (?:IMAD\.MOV\.U32 (R\d+), RZ, RZ|MOV (R\d+)), R\d+.*")
_WINDOW = 200
"""Instructions between -infinity, a mask's comparison and the move that it guards, at most."""


def mask_comparisons(function: Function) -> set[int]:
    """Positions of the comparisons of a mask: their predicate chooses a score or -infinity."""
    found: set[int] = set()
    written: dict[str, int] = {}  # predicate -> position of the comparison that set it
    infinite: dict[str, int] = {}  # register -> position where it became -infinity
    for index, inst in enumerate(function.instructions):
        if match := _MINUS_INFINITY.fullmatch(inst.text):
            infinite[match[1] or match[2]] = index
        elif match := _MOVE.fullmatch(inst.text):
            target = match[2] or match[3]
            near = index - infinite.get(target, -_WINDOW - 1) <= _WINDOW
            if near and match[1] in written:
                found.add(written[match[1]])
        elif (inst.base == "FSEL" and "-INF" in inst.text) or (
            inst.base == "SEL" and "0xff800000" in inst.text
        ):
            name = inst.operands[-1].lstrip("!")
            if name in written:
                found.add(written[name])
        for operand in inst.operands[:2]:
            written.pop(operand, None)
        if inst.base == "ISETP":
            written[inst.operands[0]] = index
    return found


def mutations(function: Function, kind: str) -> Iterator[Mutation]:
    """Every place of a kernel where that fault can be put."""
    masks = mask_comparisons(function) if kind in _BY_MASK else set()
    for index, inst in enumerate(function.instructions):
        changed = KINDS[kind](inst)
        if kind in _BY_MASK and (index in masks) is not _BY_MASK[kind]:
            continue
        if changed is not None:
            yield Mutation(kind, index, inst.text, changed)
