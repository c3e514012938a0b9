# SPDX-License-Identifier: Apache-2.0
"""Runs a kernel on a task, whatever it is written in, and judges the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from patchctl.emulator.engine import launch
from patchctl.emulator.findings import Findings
from patchctl.emulator.machine import Launch
from patchctl.emulator.memory import GlobalMemory
from patchctl.emulator.problem import Problem
from patchctl.emulator.program import Program
from patchctl.emulator.reference import Accuracy
from patchctl.emulator.tasks import Attention, Shape, Task


@dataclass(frozen=True)
class Outcome:
    """What a run showed. `written`: the tensors that the kernel wrote, as bytes."""

    accuracy: Accuracy
    findings: Findings
    steps: int
    written: dict[str, bytes]

    @property
    def good(self) -> bool:
        return self.accuracy.good and not self.findings.faults()


Prepare = Callable[[Launch, GlobalMemory], Launch]
"""What a front end adds to a launch: constant banks, the module's variables."""


def run(
    program: Program,
    shape: Shape,
    task: Task | Problem,
    *,
    prepare: Prepare = lambda launch, memory: launch,
    intra_warp: bool = False,
    progress: Callable[[], None] | None = None,
) -> Outcome:
    """Run the whole grid. A problem stands for forward attention on its own numbers.

    Raises:
        EmulatorError: the program does what is not modelled, or never ends.
    """
    memory, findings = GlobalMemory(), Findings()
    task = Attention(task) if isinstance(task, Problem) else task
    placed = task.place(memory, shape)
    start = Launch(
        grid=placed.grid,
        block=(shape.threads, 1, 1),
        shared_bytes=shape.shared_bytes,
        parameters=placed.parameters,
    )
    steps = launch(
        program,
        prepare(start, memory),
        memory,
        findings,
        intra_warp=intra_warp,
        progress=progress,
    )
    written = {name: memory.tensors[name].data.tobytes() for name in placed.outputs}
    return Outcome(placed.judge(), findings, steps, written)
