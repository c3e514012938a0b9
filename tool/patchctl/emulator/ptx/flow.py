# SPDX-License-Identifier: Apache-2.0
"""Where threads go: branches, ends, barriers, and lanes that come together."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from patchctl.emulator.engine import Engine, Group
from patchctl.emulator.findings import Kind
from patchctl.emulator.machine import WARP, Active, Cta, EmulatorError
from patchctl.emulator.program import Control, Operation
from patchctl.emulator.ptx.module import Imm, Instruction, Operand, Reg
from patchctl.emulator.ptx.operands import (
    TYPES,
    Layout,
    Source,
    UnknownInstruction,
    full,
    known_of,
)

Labels = Callable[[str], int]
"""The step that a label stands for; asked when the kernel runs."""

_U32 = TYPES["u32"]
_EVERYBODY = np.uint32(0xFFFFFFFF)


def _label(instruction: Instruction, layout: Layout, operand: Operand) -> str:
    if not isinstance(operand, Reg) or operand.name not in layout.entry.labels:
        raise UnknownInstruction(instruction, f"{operand} is no label")
    return operand.name


def branch(instruction: Instruction, layout: Layout, step_of: Labels) -> Control:
    """bra."""
    label = _label(instruction, layout, instruction.operands[0])

    def go(engine: Engine, group: Group, active: Active) -> None:
        engine.split(group, active, step_of(label))

    return go


def indexed_branch(instruction: Instruction, layout: Layout, step_of: Labels) -> Control:
    """brx.idx."""
    operand, table = instruction.operands
    names = layout.entry.targets.get(table.name) if isinstance(table, Reg) else None
    if not names:
        raise UnknownInstruction(instruction, f"{table} is no list of branch targets")
    for name in names:
        _label(instruction, layout, Reg(name))
    index = layout.source(operand, _U32, instruction)

    def go(engine: Engine, group: Group, active: Active) -> None:
        cta = engine.cta
        cta.need(known_of(cta, (index,)), active, "the index of a branch")
        mask = group.mask if active is None else active
        chosen = full(cta, index.read(cta))
        if (chosen[mask] >= len(names)).any():
            raise EmulatorError(
                f"{cta.site.text}: index {int(chosen[mask].max())} of {len(names)} targets"
            )
        for i in np.unique(chosen[mask]).tolist():
            engine.go(group, step_of(names[i]), mask & (chosen == i))
        engine.go(group, group.pc + 1, group.mask & ~mask)

    return go


def leave(engine: Engine, group: Group, active: Active) -> None:
    """ret and exit."""
    engine.leave(group, active)


def trap(engine: Engine, group: Group, active: Active) -> None:
    """trap."""
    raise EmulatorError(
        f"{engine.cta.site.text}: the kernel stopped itself, CTA {engine.cta.index}"
    )


def barrier(
    instruction: Instruction, operands: tuple[Operand, ...], *, wait: bool = True
) -> Control:
    """bar.sync and bar.arrive. `operands`: the barrier, and how many threads take part."""
    numbers = []
    for operand in operands:
        if not isinstance(operand, Imm):
            raise UnknownInstruction(instruction, "the barrier is no constant")
        numbers.append(operand.value)
    name, count = numbers[0], numbers[1] if len(numbers) > 1 else None

    def arrive(engine: Engine, group: Group, active: Active) -> None:
        engine.barriers.arrive(group, active, name, count, wait=wait)

    return arrive


def converge(members: Source) -> Control:
    """The lanes of a ``.sync`` instruction wait for each other."""

    def meet(engine: Engine, group: Group, active: Active) -> None:
        cta = engine.cta
        mask = cta.mask(active) if active is not None else group.mask
        named = members.read(cta)
        if (named != _EVERYBODY).any():
            outside = mask & (named >> cta.lane & np.uint32(1) == 0)
            if outside.any():
                cta.note(Kind.DIVERGENT_SHUFFLE, outside, "not in its own set of lanes")
        lanes, alive = mask.reshape(-1, WARP), cta.alive.reshape(-1, WARP)
        if not (lanes.any(axis=1, keepdims=True) & alive & ~lanes).any():
            # nobody of these warps is elsewhere
            engine.go(group, group.pc + 1, group.mask)
            return
        cta.need(known_of(cta, (members,)), active, "the set of lanes")
        engine.waiting.converge(group, active, full(cta, members.read(cta)))

    return meet


def reduction(instruction: Instruction, layout: Layout) -> tuple[Operation, Control, Operation]:
    """bar.red: before, at and after the barrier."""
    operation = next((o for o in instruction.opcode if o in ("popc", "and", "or")), "")
    if not operation:
        raise UnknownInstruction(instruction, "not modelled")
    destination, *numbers, condition = instruction.operands
    target = layout.target(destination, instruction)
    source = layout.source(condition, TYPES["pred"], instruction)
    row = layout.new_predicate()

    def before(cta: Cta, active: Active) -> None:
        cta.need(known_of(cta, (source,)), active, "the condition at a barrier")
        cta.put_pred(row, np.broadcast_to(source.read(cta), (cta.threads,)).copy(), active)

    def after(cta: Cta, active: Active) -> None:
        # whoever arrived is alive; who ended before does not count
        votes = cta.preds[row][cta.alive]
        if operation == "popc":
            target.write(cta, np.array([votes.sum()], np.uint32), active)
        else:
            target.write(
                cta, np.array([votes.all() if operation == "and" else votes.any()]), active
            )

    return before, barrier(instruction, tuple(numbers)), after
