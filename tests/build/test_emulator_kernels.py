# SPDX-License-Identifier: Apache-2.0
"""The shipped kernels as machine code: right, in time, and with every fault put in found."""

from __future__ import annotations

import random
import resource
import sys
import time
from pathlib import Path

import pytest

from patchctl.emulator.examine import Code
from patchctl.emulator.machine import EmulatorError
from patchctl.emulator.problem import Problem
from patchctl.emulator.program import Program
from patchctl.emulator.run import Outcome, Shape, run
from patchctl.emulator.sass.constants import prepare
from patchctl.emulator.sass.kernel import program
from patchctl.stages.build import built_library, load_target
from patchctl.stages.emulate import project_code
from patchctl.stages.toolchain import Toolchain
from patchctl.system.project import Project

pytestmark = pytest.mark.nvcc

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "emulator"))
from mutations import KINDS, mutations  # noqa: E402

FOUR_TILES = Problem(256, (40,), (250,), heads=3, causal=True, ramp=20.0)
FULL = Problem(256, (128,), (192,), causal=True, spread=2.0)
"""Every row of a CTA and every key of its tiles is there, and the diagonal crosses all columns."""
TWO = Problem(256, (21, 40), (70, 150), heads=6, kv_heads=2, causal=True)
"""Two sequences, three query heads a KV head: offsets and quotients that are not 0 and 1."""
BARRIER = "drop a barrier"
CERTAIN = [kind for kind in KINDS if not kind.startswith("move a") and kind != BARRIER]
"""Faults that must show; an index comparison may move without any effect."""


@pytest.fixture(scope="module")
def code(cuda: Toolchain) -> Code:
    """The D = 256 kernel of the built library that can be causal."""
    project = Project(ROOT, ROOT / "build" / "out")
    target = load_target(project, "sm70")
    library = built_library(project, target)
    if not library.is_file():
        pytest.skip(f"{project.relative(library)} is not built; patchctl build")
    codes, unruled = project_code(project, target, cuda, library, "256")
    assert unruled == []
    return next(c for c in codes if c.kernel.rule.rows == 128 and _masks(c))


def _masks(code: Code) -> bool:
    return bool({"causal", "right"} & {str(ability) for ability in code.kernel.rule.can})


def execute(code: Code, machine: Program, problem: Problem) -> Outcome:
    rule = code.kernel.rule
    shape = Shape(rule.rows, code.threads, code.shared_bytes, rule.splits_on)
    return run(machine, shape, problem, prepare=prepare(code.local_bytes, code.banks))


def test_cta_over_four_key_tiles_stays_within_its_time_and_memory(code: Code) -> None:
    start = time.process_time()
    done = execute(code, program(code.function, local_bytes=code.local_bytes), FOUR_TILES)
    assert done.good, (done.accuracy, done.findings.faults())
    assert time.process_time() - start <= 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss <= 2 << 20  # KiB


@pytest.fixture(scope="module")
def sound(code: Code) -> tuple[Program, list[Outcome]]:
    """The kernel, and what it gives on both problems."""
    machine = program(code.function, local_bytes=code.local_bytes)
    outcomes = [execute(code, machine, problem) for problem in (FULL, TWO)]
    assert all(outcome.good for outcome in outcomes)
    return machine, outcomes


@pytest.mark.parametrize("kind", CERTAIN)
def test_fault_put_into_the_machine_code_is_found(
    code: Code, sound: tuple[Program, list[Outcome]], kind: str
) -> None:
    machine, outcomes = sound
    alive = [m for m in mutations(code.function, kind) if m.index in machine.executed]
    # what is guarded may wait for lengths or padding that these problems do not give
    alive = [m for m in alive if not m.before.startswith("@")] or alive
    picked = random.Random(kind).sample(alive, min(3, len(alive)))
    missed = [str(m) for m in picked if not _shows(code, m.apply(machine), outcomes)]
    assert picked and missed == []


def test_barriers_are_needed(code: Code, sound: tuple[Program, list[Outcome]]) -> None:
    """All but one of them: nobody reads the slot of the last held-back chunk after the loop's
    last barrier, at this head size. BAR.RED is the vote on O that is not finite, which nothing
    depends on where it is."""
    machine, outcomes = sound
    found = [m for m in mutations(code.function, BARRIER) if m.index in machine.executed]
    found = [m for m in found if not m.before.startswith("BAR.RED")]
    assert len(found) > 3
    idle = [str(m) for m in found if not _shows(code, m.apply(machine), outcomes)]
    assert len(idle) <= 1, idle


def _shows(code: Code, faulty: Program, outcomes: list[Outcome]) -> bool:
    for problem, expected in zip((FULL, TWO), outcomes, strict=True):
        try:
            done = execute(code, faulty, problem)
        except EmulatorError:
            return True
        if not done.good or done.written != expected.written:
            return True
    return False
