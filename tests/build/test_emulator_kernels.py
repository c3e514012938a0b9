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
from mutations import KINDS, Mutation, mutations  # noqa: E402

FOUR_TILES = Problem(256, (40,), (250,), heads=3, causal=True, ramp=20.0)
FULL = Problem(256, (64,), (192,), heads=2, causal=True, spread=2.0)
"""Every row of a CTA and every key of its tiles is there, and the diagonal crosses all columns."""
CERTAIN = [kind for kind in KINDS if not kind.startswith("move a")]
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


@pytest.mark.parametrize("kind", CERTAIN)
def test_fault_put_into_the_machine_code_is_found(code: Code, kind: str) -> None:
    machine = program(code.function, local_bytes=code.local_bytes)
    sound = execute(code, machine, FULL)
    assert sound.good, sound.findings.faults()
    alive = [m for m in mutations(code.function, kind) if m.index in machine.executed]
    picked = random.Random(kind).sample(alive, min(3, len(alive)))
    assert picked and all(_shows(code, machine, mutation, sound) for mutation in picked)


def test_every_barrier_is_needed(code: Code) -> None:
    machine = program(code.function, local_bytes=code.local_bytes)
    sound = execute(code, machine, FOUR_TILES)
    found = [m for m in mutations(code.function, "drop a barrier") if m.index in machine.executed]
    assert found and all(_shows(code, machine, m, sound, FOUR_TILES) for m in found)


def _shows(
    code: Code, machine: Program, mutation: Mutation, sound: Outcome, problem: Problem = FULL
) -> bool:
    try:
        done = execute(code, mutation.apply(machine), problem)
    except EmulatorError:
        return True
    return not done.good or done.written != sound.written
