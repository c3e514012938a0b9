# SPDX-License-Identifier: Apache-2.0
"""Runs a kernel on a problem, whatever it is written in, and judges the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from patchctl.emulator.engine import launch
from patchctl.emulator.findings import Findings
from patchctl.emulator.machine import Launch
from patchctl.emulator.memory import GlobalMemory
from patchctl.emulator.problem import Inputs, Placement, Problem, inputs
from patchctl.emulator.program import Program
from patchctl.emulator.reference import Accuracy, attention, judge, results


@dataclass(frozen=True)
class Shape:
    """How the host launches a kernel: rows of a CTA, threads, bytes of shared memory in all."""

    tile_rows: int
    threads: int
    shared_bytes: int


@dataclass(frozen=True)
class Outcome:
    """What a run showed. `out` and `lse` (or their parts) are the bytes that it wrote."""

    accuracy: Accuracy
    findings: Findings
    steps: int
    out: bytes
    lse: bytes

    @property
    def good(self) -> bool:
        return self.accuracy.good and not self.findings.faults()


Prepare = Callable[[Launch, GlobalMemory], Launch]
"""What a front end adds to a launch: constant banks, the module's variables."""


def run(
    program: Program,
    shape: Shape,
    problem: Problem,
    *,
    prepare: Prepare = lambda launch, memory: launch,
    intra_warp: bool = False,
    data: Inputs | None = None,
    progress: Callable[[], None] | None = None,
) -> Outcome:
    """Run the whole grid. `data`: other numbers than the problem's own.

    Raises:
        EmulatorError: the program does what is not modelled, or never ends.
    """
    data = inputs(problem) if data is None else data
    memory, findings = GlobalMemory(), Findings()
    placement = Placement(problem, data, memory)
    start = Launch(
        grid=problem.grid(shape.tile_rows),
        block=(shape.threads, 1, 1),
        shared_bytes=shape.shared_bytes,
        parameters=placement.parameters,
    )
    steps = launch(
        program,
        prepare(start, memory),
        memory,
        findings,
        intra_warp=intra_warp,
        progress=progress,
    )
    accuracy = judge(results(placement), attention(problem, data))
    written = ("out", "lse") if problem.splits == 1 else ("out_parts", "lse_parts")
    out, lse = (memory.tensors[name].data.tobytes() for name in written)
    return Outcome(accuracy, findings, steps, out, lse)
