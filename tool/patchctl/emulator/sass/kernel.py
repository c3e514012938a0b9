# SPDX-License-Identifier: Apache-2.0
"""From a kernel's machine code to a program."""

from __future__ import annotations

from patchctl.emulator.findings import Site
from patchctl.emulator.machine import Cta, EmulatorError
from patchctl.emulator.program import Program, Step
from patchctl.emulator.sass import (
    access,
    atomic,
    compare,
    convert,
    flow,
    half,
    hmma,
    integer,
    logic,
    real,
    warp,
)
from patchctl.emulator.sass.build import read
from patchctl.emulator.sass.operands import PT
from patchctl.formats.sasscode import Function, Instruction

OPCODES = (access, atomic, compare, convert, flow, half, hmma, integer, logic, real, warp)
"""The modules whose import fills the tables of `build`."""

_REGISTERS = 256
_PREDICATES = 8


def program(function: Function, *, local_bytes: int = 0) -> Program:
    """Decode all of a kernel. `local_bytes` is its stack frame.

    Raises:
        EmulatorError: an instruction that is not modelled.
    """
    last = max((i for i, inst in enumerate(function.instructions) if inst.base != "NOP"), default=0)
    steps = [step(function.name, inst) for inst in function.instructions[: last + 1]]
    for index, done in enumerate(steps):
        if done.site.address != 16 * index:
            raise EmulatorError(f"{function.name}: a gap before 0x{done.site.address:x}")
    return Program(function.name, steps, _REGISTERS, _PREDICATES, local_bytes, setup=_setup)


def step(kernel: str, inst: Instruction) -> Step:
    run, control = read(inst)
    guard, negated = None, False
    if inst.guard is not None and inst.guard != "PT":
        negated = inst.guard.startswith("!")
        name = inst.guard.lstrip("!")
        guard = PT if name == "PT" else int(name[1:])
    site = Site(kernel, inst.address, inst.text)
    return Step(site, ".".join(inst.opcode), guard, negated, run, control)


def _setup(cta: Cta) -> None:
    """PT holds."""
    cta.preds[PT] = True
    cta.pred_valid[PT] = True
    cta.pred_all_valid[PT] = True
