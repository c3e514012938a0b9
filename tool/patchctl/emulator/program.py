# SPDX-License-Identifier: Apache-2.0
"""A decoded kernel, as both front ends (SASS and PTX) hand it to the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from patchctl.emulator.findings import Site
from patchctl.emulator.machine import Active, Cta

if TYPE_CHECKING:
    from patchctl.emulator.engine import Engine, Group

Operation = Callable[[Cta, Active], None]
"""Computes: reads and writes the active threads' registers and memory."""

Control = Callable[["Engine", "Group", Active], None]
"""Decides where the threads of a group go on: `active` are those whose guard holds. It must
move the whole group (`Engine.go`, `jump`, `leave`, ...)."""


@dataclass(frozen=True)
class Step:
    """One instruction. Exactly one of `run` and `control` is set."""

    site: Site
    opcode: str
    """Name with all modifiers; coverage is counted by it."""
    guard: int | None = None
    """Row of the predicate that guards it."""
    guard_negated: bool = False
    run: Operation | None = None
    control: Control | None = None


@dataclass
class Program:
    """A kernel. Rows of registers and predicates are the front end's business."""

    kernel: str
    steps: list[Step]
    registers: int
    predicates: int
    local_bytes: int = 0
    join_within_warp: bool = False
    """Diverged threads of a warp that meet again run together (PTX names no convergence)."""
    setup: Callable[[Cta], None] | None = None
    """Fills registers that have a value at the start (RZ, PT)."""
    executed: set[int] = field(default_factory=set)
    """Indexes of the steps that ran at least once."""

    def executed_opcodes(self) -> frozenset[str]:
        """Names of the instructions that ran at least once."""
        return frozenset(self.steps[index].opcode for index in self.executed)
