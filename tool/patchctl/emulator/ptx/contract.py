# SPDX-License-Identifier: Apache-2.0
"""What ptxas may make of PTX: a multiplication and an addition in one rounding.

``mul.f32`` and ``add.f32`` without a rounding modifier may be fused (PTX ISA, "add": "an add
instruction with no rounding modifier defaults to round-to-nearest-even and may be optimized
aggressively"). ptxas does so wherever the product is added at once; with the same fusions PTX and
machine code can be compared bit for bit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import replace

from patchctl.emulator.ptx.module import Entry, Imm, Instruction, Operand, Pair, Reg, Vector

_PRODUCT = ("mul", "f32")
_SUMS = (("add", "f32"), ("sub", "f32"))
_SIGN = 0x80000000


def contract(entry: Entry) -> Entry:
    """The entry with ``fma.rn.f32`` for every sum of a product that nothing else computes."""
    entry = replace(entry, registers=dict(entry.registers))
    writers: dict[str, list[int]] = defaultdict(list)
    for index, instruction in enumerate(entry.instructions):
        for name in _written(instruction):
            writers[name].append(index)

    entered = sorted(set(entry.labels.values()))

    def steady(operand: Operand, start: int, end: int) -> bool:
        """Whether it has the same value at both instructions."""
        if not isinstance(operand, Reg) or len(writers[operand.name]) == 1:
            return True
        # within a block, nothing may write it in between
        return bisect_right(entered, start) == bisect_right(entered, end) and not any(
            start <= writer < end for writer in writers[operand.name]
        )

    def product(operand: Operand, end: int) -> Instruction | None:
        if not isinstance(operand, Reg) or len(writers[operand.name]) != 1:
            return None
        start = writers[operand.name][0]
        found = entry.instructions[start]
        if found.opcode != _PRODUCT or found.guard is not None:
            return None
        return found if all(steady(o, start, end) for o in found.operands[1:]) else None

    starts: list[int] = []
    flat: list[Instruction] = []
    for index, instruction in enumerate(entry.instructions):
        starts.append(len(flat))
        if instruction.opcode not in _SUMS:
            flat.append(instruction)
            continue
        target, left, right = instruction.operands
        if found := product(left, index):
            # a * b - c: the addend is negated
            operands, negated = [*found.operands[1:], right], 2
        elif found := product(right, index):
            # c - a * b is (-a) * b + c: negating is exact
            operands, negated = [*found.operands[1:], left], 0
        else:
            flat.append(instruction)
            continue
        if instruction.opcode[0] == "sub":
            operand = operands[negated]
            if isinstance(operand, Imm):
                operands[negated] = replace(operand, value=operand.value ^ _SIGN)
            else:
                negative = Reg(f"%negated{len(entry.registers)}")
                entry.registers[negative.name] = "f32"
                flat.append(
                    replace(instruction, opcode=("neg", "f32"), operands=(negative, operand))
                )
                operands[negated] = negative
        flat.append(replace(instruction, opcode=("fma", "rn", "f32"), operands=(target, *operands)))
    starts.append(len(flat))
    labels = {name: starts[index] for name, index in entry.labels.items()}
    return replace(entry, instructions=flat, labels=labels)


def _written(instruction: Instruction) -> list[str]:
    if not instruction.operands or instruction.opcode[0] in ("st", "red", "bra", "bar"):
        return []
    first = instruction.operands[0]
    items: tuple[Operand, ...] = (first,)
    if isinstance(first, Vector):
        items = first.items
    elif isinstance(first, Pair):
        items = (first.first, first.second)
    return [item.name for item in items if isinstance(item, Reg)]
