# SPDX-License-Identifier: Apache-2.0
"""Runs a program, one CTA after the other, all its threads side by side.

A `Group` is a set of threads with one program counter. Threads of different warps join whenever
they meet; threads of one warp that diverged join again only where the program says so (BSYNC,
WARPSYNC), unless `join_within_warp`. The group with the lowest program counter runs first; it
goes on until it meets another one. A group that runs very long lets the others go first once, so
waiting for another warp works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patchctl.emulator.barriers import Barriers, Waiting
from patchctl.emulator.findings import Findings
from patchctl.emulator.localmem import LocalMemory
from patchctl.emulator.machine import WARP, Active, Cta, EmulatorError, Launch, Mask
from patchctl.emulator.memory import GlobalMemory
from patchctl.emulator.program import Program
from patchctl.emulator.shared import SharedMemory

_TURN = 50_000
"""Steps that a group may run while others wait."""
_MOST_STEPS = 20_000_000


@dataclass
class Group:
    """Threads that are at step `pc`."""

    pc: int
    mask: Mask
    full: bool
    """Every thread of the CTA is here: nothing needs masking."""
    turns: int = 0
    """How often it was told to let others go first."""
    used: int = 0
    """Steps since then."""


class Engine:
    """One CTA in execution."""

    def __init__(self, program: Program, cta: Cta) -> None:
        self.program = program
        self.cta = cta
        self.groups: list[Group] = []
        self.barriers = Barriers(self)
        self.waiting = Waiting(self)
        self.steps = 0

    # -- what control steps call

    def go(self, group: Group, pc: int, mask: Mask) -> None:
        """The marked threads go on at `pc`."""
        if mask.any():
            self.groups.append(self.part(group, pc, mask))

    def part(self, group: Group, pc: int, mask: Mask) -> Group:
        """The marked threads as a group at `pc` that does not run yet."""
        return Group(pc, mask, bool(mask.all()), group.turns, group.used)

    def split(self, group: Group, taken: Active, target: int) -> None:
        """The threads of `taken` go to `target`, the others to the next step."""
        if taken is None or taken is group.mask:
            self.go(group, target, group.mask)
            return
        self.go(group, target, taken)
        self.go(group, group.pc + 1, group.mask & ~taken)

    def leave(self, group: Group, active: Active) -> None:
        """The active threads have ended."""
        gone = group.mask if active is None else active
        self.cta.alive = self.cta.alive & ~gone
        self.go(group, group.pc + 1, group.mask & ~gone)
        self.waiting.check()
        self.barriers.check()

    # -- running

    def run(self) -> int:
        """Run to the end; the number of steps."""
        alive = self.cta.alive
        self.groups = [Group(0, alive.copy(), bool(alive.all()))]
        while self.cta.alive.any():
            if not self.groups:
                raise EmulatorError(
                    f"{self.program.kernel}: all threads wait for each other: "
                    + "; ".join([*self.waiting.describe(), *self.barriers.describe()])
                )
            self._join()
            group = min(self.groups, key=lambda g: (g.turns, g.pc))
            self.groups.remove(group)
            self._run_group(group)
        return self.steps

    def _join(self) -> None:
        """Groups at the same step become one, if no warp is in both."""
        if len(self.groups) < 2:
            return
        by_pc: dict[int, list[Group]] = {}
        for group in self.groups:
            together = by_pc.setdefault(group.pc, [])
            for other in together:
                if self.program.join_within_warp or not _share_a_warp(other.mask, group.mask):
                    other.mask = other.mask | group.mask
                    other.full = bool(other.mask.all())
                    other.turns = max(other.turns, group.turns)
                    other.used = max(other.used, group.used)
                    break
            else:
                together.append(group)
        self.groups = [group for together in by_pc.values() for group in together]

    def _run_group(self, group: Group) -> None:
        """Run until control flow changes or another group may be met."""
        cta, steps, executed = self.cta, self.program.steps, self.program.executed
        others = [g.pc for g in self.groups if g.pc > group.pc]
        meet = min(others, default=len(steps))
        before = self.steps
        while True:
            if group.pc >= len(steps):
                raise EmulatorError(f"{self.program.kernel}: runs past its last instruction")
            step = steps[group.pc]
            cta.site = step.site
            executed.add(group.pc)
            self.steps += 1
            active: Active = None if group.full else group.mask
            if step.guard is not None:
                cta.need(cta.pred_known(step.guard), active, "the guard")
                guard = cta.preds[step.guard]
                holds = ~guard if step.guard_negated else guard
                if active is not None or not holds.all():
                    active = holds.copy() if active is None else holds & active
            if step.control is not None:
                self._count(group, self.steps - before)
                if step.guard is not None and active is not None and not active.any():
                    self.go(group, group.pc + 1, group.mask)
                else:
                    step.control(self, group, active)
                break
            if step.run is not None and (active is None or step.guard is None or active.any()):
                step.run(cta, active)
            group.pc += 1
            if group.pc >= meet:
                self._count(group, self.steps - before)
                self.groups.append(group)
                break

    def _count(self, group: Group, steps: int) -> None:
        if self.steps > _MOST_STEPS:
            raise EmulatorError(f"{self.program.kernel}: no end after {_MOST_STEPS} steps")
        group.used += steps
        if group.used > _TURN:
            group.turns += 1
            group.used = 0


def launch(
    program: Program,
    launch: Launch,
    memory: GlobalMemory,
    findings: Findings,
    *,
    ctas: Iterable[tuple[int, int, int]] | None = None,
    intra_warp: bool = False,
    progress: Callable[[], None] | None = None,
) -> int:
    """Run the CTAs (default: the whole grid) in order; returns the number of steps.

    Raises:
        EmulatorError: the program does what is not modelled, or never ends.
    """
    gx, gy, gz = launch.grid
    every = ((x, y, z) for z in range(gz) for y in range(gy) for x in range(gx))
    steps = 0
    with np.errstate(all="ignore"):
        for index in every if ctas is None else ctas:
            x, y, z = index
            memory.cta_number = x + gx * (y + gy * z)
            warps = -(-launch.threads // WARP)
            cta = Cta(
                launch,
                index,
                program.registers,
                program.predicates,
                memory,
                SharedMemory(launch.shared_bytes, warps, intra_warp=intra_warp),
                LocalMemory(program.local_bytes, warps * WARP),
                findings,
            )
            if program.setup is not None:
                program.setup(cta)
            steps += Engine(program, cta).run()
            if progress is not None:
                progress()
    return steps


def ballots(mask: Mask) -> NDArray[np.uint32]:
    """The lanes of each warp as one word."""
    bits = np.packbits(mask.reshape(-1, WARP), axis=1, bitorder="little")
    return bits.view(np.uint32).reshape(-1)


def warps_of(mask: Mask) -> NDArray[np.int64]:
    """Numbers of the warps with a marked thread."""
    return np.flatnonzero(mask.reshape(-1, WARP).any(axis=1))


def _share_a_warp(a: Mask, b: Mask) -> bool:
    return bool((a.reshape(-1, WARP).any(axis=1) & b.reshape(-1, WARP).any(axis=1)).any())
