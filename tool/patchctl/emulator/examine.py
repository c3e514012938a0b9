# SPDX-License-Identifier: Apache-2.0
"""One kernel on one task, as PTX and as machine code: right, clean, and the same bits?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from patchctl.emulator.findings import Finding, Kind
from patchctl.emulator.machine import EmulatorError, Launch
from patchctl.emulator.memory import GlobalMemory
from patchctl.emulator.mma import Accumulation
from patchctl.emulator.ptx.contract import contract
from patchctl.emulator.ptx.lower import lower
from patchctl.emulator.ptx.module import Entry, Module
from patchctl.emulator.reference import Accuracy
from patchctl.emulator.run import Outcome, run
from patchctl.emulator.sass.constants import prepare
from patchctl.emulator.sass.kernel import program
from patchctl.emulator.suite import Trial
from patchctl.emulator.tasks import Shape
from patchctl.formats.emulation import Launchable
from patchctl.formats.sasscode import Function


class Form(StrEnum):
    """What is executed."""

    PTX = "ptx"
    SASS = "sass"


@dataclass(frozen=True)
class Code:
    """A kernel's code, and what its launch needs. Sizes in threads and bytes."""

    kernel: Launchable
    module: Module
    entry: Entry
    function: Function
    threads: int
    shared_bytes: int
    """Dynamic shared memory and static."""
    local_bytes: int = 0
    banks: dict[int, bytes] = field(default_factory=dict)
    """Constant banks besides the parameters, as the cubin holds them."""


@dataclass(frozen=True)
class Trace:
    """What one execution showed."""

    form: Form
    accuracy: Accuracy
    findings: tuple[Finding, ...]
    """All but the counts."""
    conflicts: int
    """Wavefronts of shared memory beyond the fewest."""
    steps: int
    seconds: float
    executed: frozenset[str]
    """Opcodes, with their modifiers."""


@dataclass(frozen=True)
class Examination:
    """`difference`: how the results of PTX and machine code differ, "" when they are equal.

    `error`: why there is no result; then `traces` may be incomplete.
    """

    kernel: str
    trial: str
    traces: tuple[Trace, ...] = ()
    difference: str = ""
    error: str = ""

    @property
    def good(self) -> bool:
        clean = all(t.accuracy.good and not t.findings for t in self.traces)
        return clean and not self.difference and not self.error


def examine(code: Code, trial: Trial, forms: Sequence[Form] = tuple(Form)) -> Examination:
    """Run the trial in each form and compare.

    PTX is executed with the fusions that ptxas makes (`ptx/contract.py`), so that the results of
    both must be equal to the bit: a difference is a fault of the compiler or of the emulator.
    """
    traces: list[Trace] = []
    written: list[dict[str, bytes]] = []
    name = code.kernel.name
    try:
        for form in forms:
            start = time.monotonic()
            outcome, executed = _execute(code, trial, form)
            traces.append(_trace(form, outcome, trial, executed, time.monotonic() - start))
            written.append(outcome.written)
    except EmulatorError as error:
        return Examination(name, trial.name, tuple(traces), error=str(error))
    difference = _difference(*written) if len(written) == 2 else ""
    return Examination(name, trial.name, tuple(traces), difference)


def _execute(code: Code, trial: Trial, form: Form) -> tuple[Outcome, frozenset[str]]:
    rule = code.kernel.rule
    shape = Shape(rule.rows, code.threads, code.shared_bytes, rule.splits_on, rule.page_size)
    if form is Form.SASS:
        machine = program(code.function, local_bytes=code.local_bytes)
        outcome = run(machine, shape, trial.task, prepare=prepare(code.local_bytes, code.banks))
        return outcome, machine.executed_opcodes()
    kernel = lower(code.module, contract(code.entry), model=Accumulation.VOLTA)

    def with_variables(launch: Launch, memory: GlobalMemory) -> Launch:
        kernel.add_variables(memory)
        return launch

    outcome = run(kernel.program, shape, trial.task, prepare=with_variables, intra_warp=True)
    return outcome, kernel.program.executed_opcodes()


def _trace(
    form: Form, outcome: Outcome, trial: Trial, executed: frozenset[str], seconds: float
) -> Trace:
    return Trace(
        form,
        outcome.accuracy,
        tuple(f for f in outcome.findings.faults() if f.kind not in trial.allowed),
        outcome.findings.count(Kind.CONFLICTS),
        outcome.steps,
        seconds,
        executed,
    )


def _difference(left: dict[str, bytes], right: dict[str, bytes]) -> str:
    parts = []
    for name, data in left.items():
        a, b = (np.frombuffer(x, np.uint16) for x in (data, right[name]))
        if count := int((a != b).sum()):
            parts.append(f"`{name}`: {count} of {a.size} half words differ")
    return "; ".join(parts)
