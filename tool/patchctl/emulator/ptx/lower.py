# SPDX-License-Identifier: Apache-2.0
"""A PTX entry as a program for the engine.

To add an instruction: a function ``(instruction, layout) -> Operation`` in the module of its
family, a line in `_OPERATIONS`, and vectors in tests/unit/test_emulator_ptx_*.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from patchctl.emulator.findings import Site
from patchctl.emulator.machine import Active, Cta
from patchctl.emulator.memory import GlobalMemory
from patchctl.emulator.mma import Accumulation
from patchctl.emulator.program import Control, Operation, Program, Step
from patchctl.emulator.ptx import access, arithmetic, convert, flow, logic, warp
from patchctl.emulator.ptx.module import Entry, Instruction, Module, Space
from patchctl.emulator.ptx.operands import TYPES, Layout, UnknownInstruction

Family = Callable[[Instruction, Layout], Operation]


def _logic(instruction: Instruction, layout: Layout) -> Operation:
    is_predicate = instruction.opcode[-1] == "pred"
    return (logic.predicates if is_predicate else arithmetic.simple)(instruction, layout)


def _nothing(cta: Cta, active: Active) -> None:
    """Fences: one CTA's accesses are in program order anyway, and barriers order the rest."""


_OPERATIONS: dict[str, Family] = {
    **dict.fromkeys(
        (
            *("add", "sub", "mul", "mad", "fma", "div", "rem", "min", "max", "sad", "cnot"),
            *("rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh", "copysign"),
        ),
        arithmetic.simple,
    ),
    **dict.fromkeys(("abs", "neg"), arithmetic.sign_bit),
    **dict.fromkeys(("and", "or", "xor", "not"), _logic),
    "setp": logic.setp,
    "set": logic.set_value,
    "selp": logic.selp,
    "testp": logic.testp,
    **dict.fromkeys(("shl", "shr"), logic.shift),
    "shf": logic.funnel,
    "prmt": logic.permute,
    "lop3": logic.lop3,
    **dict.fromkeys(("bfe", "bfi"), logic.fields),
    **dict.fromkeys(("popc", "clz", "brev", "bfind"), logic.count),
    "mov": convert.mov,
    "cvt": convert.cvt,
    "cvta": convert.cvta,
    **dict.fromkeys(("ld", "ldu"), access.load),
    "st": access.store,
    **dict.fromkeys(("atom", "red"), access.atomic),
    "activemask": warp.active_mask,
    **dict.fromkeys(("membar", "fence"), lambda instruction, layout: _nothing),
}
_GATHERING: dict[str, Family] = {
    "shfl": warp.shuffle,
    "vote": warp.vote,
    "match": warp.match,
}


@dataclass(frozen=True)
class Kernel:
    """An entry that can be launched."""

    program: Program
    entry: Entry
    module: Module
    static_shared: int
    """Bytes of shared memory that it has whatever the launch says."""

    def add_variables(self, memory: GlobalMemory) -> None:
        """Put the module's ``.global`` and ``.const`` variables into memory."""
        for variable in [*self.module.variables.values(), *self.entry.variables]:
            if (
                variable.space in (Space.GLOBAL, Space.CONST)
                and variable.name not in memory.tensors
            ):
                data = np.zeros(variable.size or len(variable.data), np.uint8)
                data[: len(variable.data)] = np.frombuffer(variable.data, np.uint8)
                memory.add(variable.name, data, writable=variable.space is Space.GLOBAL)


def lower(module: Module, entry: Entry, *, model: Accumulation = Accumulation.VOLTA) -> Kernel:
    """Make an entry executable. `model`: how the matrix instruction adds.

    Raises:
        UnknownInstruction: there is an instruction that is not modelled.
    """
    layout = Layout(module, entry)
    steps: list[Step] = []
    first: list[int] = []

    def step_of(label: str) -> int:
        return first[entry.labels[label]]

    for instruction in entry.instructions:
        first.append(len(steps))
        guard, negated = None, False
        if instruction.guard is not None:
            if instruction.guard.reg not in layout.rows:
                raise UnknownInstruction(instruction, f"`{instruction.guard.reg}` is not declared")
            guard, negated = layout.rows[instruction.guard.reg][0], instruction.guard.negated
        site = Site(entry.name, instruction.line, instruction.text)
        try:
            pieces = _pieces(instruction, layout, step_of, model)
        except (ValueError, KeyError, StopIteration) as error:
            raise UnknownInstruction(instruction, f"not understood ({error})") from error
        for run, control in pieces:
            steps.append(Step(site, instruction.name, guard, negated, run, control))
    first.append(len(steps))
    program = Program(
        kernel=entry.name,
        steps=steps,
        registers=layout.registers,
        predicates=layout.predicates,
        local_bytes=layout.local_bytes,
        join_within_warp=True,
    )
    return Kernel(program, entry, module, layout.static_shared)


def _pieces(
    instruction: Instruction, layout: Layout, step_of: flow.Labels, model: Accumulation
) -> list[tuple[Operation | None, Control | None]]:
    """What an instruction does, as one step or as several that follow each other."""
    name, opcode = instruction.opcode[0], instruction.opcode
    if name in _OPERATIONS:
        return [(_OPERATIONS[name](instruction, layout), None)]
    if name == "mma":
        return [(warp.matrix(instruction, layout, model), None)]
    if name in _GATHERING and "sync" in opcode:
        members = layout.source(instruction.operands[-1], TYPES["u32"], instruction)
        return [(None, flow.converge(members)), (_GATHERING[name](instruction, layout), None)]
    if opcode[:3] == ("bar", "warp", "sync"):
        members = layout.source(instruction.operands[0], TYPES["u32"], instruction)
        return [(None, flow.converge(members)), (warp.warp_barrier(instruction, layout), None)]
    if name in ("bar", "barrier"):
        kind = opcode[2] if opcode[1] == "cta" else opcode[1]
        if kind == "red":
            before, at, after = flow.reduction(instruction, layout)
            return [(before, None), (None, at), (after, None)]
        if kind in ("sync", "arrive"):
            return [(None, flow.barrier(instruction, instruction.operands, wait=kind == "sync"))]
    if name == "bra":
        return [(None, flow.branch(instruction, layout, step_of))]
    if opcode[:2] == ("brx", "idx"):
        return [(None, flow.indexed_branch(instruction, layout, step_of))]
    if name in ("ret", "exit"):
        return [(None, flow.leave)]
    if name == "trap":
        return [(None, flow.trap)]
    raise UnknownInstruction(instruction, "an instruction that is not modelled")
