# SPDX-License-Identifier: Apache-2.0
"""Faults put into the PTX of a real kernel (decode, head size 64, 8 rows): which are noticed.

    python tests/emulator/test_ptx_mutations.py [FAULTS_PER_KIND]

prints the table of docs/emulator.md.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from ptxmutations import KINDS, Mutation, mutations

from patchctl.emulator.machine import EmulatorError, Launch
from patchctl.emulator.memory import GlobalMemory
from patchctl.emulator.problem import Problem
from patchctl.emulator.ptx.lower import lower
from patchctl.emulator.ptx.module import Entry, Module
from patchctl.emulator.ptx.parse import parse_module
from patchctl.emulator.run import Outcome, run
from patchctl.emulator.tasks import Shape

PTX = Path(__file__).parents[1] / "data" / "emulator" / "decode-hdim64-rows8.ptx"
# several iterations, a window that cuts both ends, rows that see nothing, a diagonal across all
# columns; all that the kernel can
PROBLEMS = (
    Problem(64, (3,), (200,), heads=2, kv_heads=1, causal=True, spread=0.5),
    Problem(64, (2,), (150,), heads=4, kv_heads=1, window=(90, 0), ramp=30.0),
    Problem(56, (3,), (40,), alibi=True, softcap=10.0, page_size=16),
    Problem(64, (2, 5), (3, 70), heads=3, kv_heads=1, splits=2, causal=True),
    Problem(64, (72,), (90,), window=(17, 0)),
)
ALWAYS = (
    "a barrier dropped",
    "a store to shared memory dropped",
    "a store of the result dropped",
    "the registers of an A fragment swapped",
    "the registers of a B fragment swapped",
    "a load from shared memory 16 bytes off",
    "a store to shared memory 16 bytes off",
    "a load of Q, K or V one row of 16 bytes off",
    "a store of the result 16 bytes off",
    "a shuffle from the wrong lane",
)


@dataclass(frozen=True)
class Run:
    """The kernel without a fault on one problem."""

    outcome: Outcome
    lines: frozenset[int]


@cache
def kernel() -> tuple[Module, Entry]:
    module = parse_module(PTX.read_text())
    (entry,) = module.entries.values()
    return module, entry


def execute(entry: Entry, problem: Problem) -> Run:
    lowered = lower(kernel()[0], entry)

    def fill(launch: Launch, memory: GlobalMemory) -> Launch:
        lowered.add_variables(memory)
        return launch

    shape = Shape(8, 128, lowered.static_shared)
    outcome = run(lowered.program, shape, problem, prepare=fill, intra_warp=True)
    steps = lowered.program.steps
    return Run(outcome, frozenset(steps[i].site.address for i in lowered.program.executed))


@cache
def sound(number: int) -> Run:
    return execute(kernel()[1], PROBLEMS[number])


def noticed(mutation: Mutation) -> str:
    """How a fault shows: a finding, an error, a wrong result, other bits; "" if it does not."""
    how = ""
    for number, problem in enumerate(PROBLEMS):
        if mutation.before.line not in sound(number).lines:
            continue
        try:
            outcome = execute(mutation.apply(kernel()[1]), problem).outcome
        except EmulatorError:
            return "error"
        if faults := outcome.findings.faults():
            return str(faults[0].kind)
        if not outcome.accuracy.good:
            return "wrong result"
        if outcome.written != sound(number).outcome.written:
            how = "other bits"
    return how


def candidates(kind: str) -> list[Mutation]:
    """The faults of a kind at instructions that run."""
    lines = frozenset[int]().union(*(sound(n).lines for n in range(len(PROBLEMS))))
    return [m for m in mutations(kernel()[1], kind) if m.before.line in lines]


def test_kernel_without_a_fault_is_good() -> None:
    for number in range(len(PROBLEMS)):
        assert sound(number).outcome.good, sound(number).outcome.accuracy


@pytest.mark.parametrize("kind", ALWAYS)
def test_fault_is_noticed(kind: str) -> None:
    chosen = random.Random(kind).sample(candidates(kind), min(4, len(candidates(kind))))
    assert chosen
    assert [str(m) for m in chosen if noticed(m) in ("", "other bits")] == []


@pytest.mark.parametrize("kind", sorted(set(KINDS) - set(ALWAYS) - {"a warp barrier dropped"}))
def test_most_faults_of_other_kinds_are_noticed(kind: str) -> None:
    """Some change nothing: a comparison whose operands are never equal, say."""
    chosen = random.Random(kind).sample(candidates(kind), min(6, len(candidates(kind))))
    assert sum(bool(noticed(m)) for m in chosen) >= len(chosen) // 2


def table(count: int) -> None:
    for kind in sys.argv[2:] or KINDS:
        every = candidates(kind)
        chosen = random.Random(kind).sample(every, min(count, len(every)))
        shown = Counter(noticed(m) or "not noticed" for m in chosen)
        ways = ", ".join(f"{how} {n}" for how, n in shown.most_common())
        caught = len(chosen) - shown["not noticed"]
        print(f"| {kind} | {len(every)} | {caught} of {len(chosen)} | {ways} |", flush=True)


if __name__ == "__main__":
    table(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
