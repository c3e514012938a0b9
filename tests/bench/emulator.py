#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write docs/emulator-tables.md: which machine instructions are executed, which faults are caught.

usage: emulator.py [--each N] [--jobs N]   (a built library: `patchctl build`; minutes)

The gate's list is run for the opcodes. Then faults are put into one kernel, one at a time, N of
each kind drawn with a fixed seed, and the kernel runs on the problems below until one of them
shows the fault: by a finding, by the error against float64, by bits that differ from the sound
kernel's, or by a refusal of the emulator.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tool"), str(ROOT / "tests" / "emulator")]

from mutations import KINDS, Mutation, mutations  # noqa: E402

from patchctl.emulator.examine import Code  # noqa: E402
from patchctl.emulator.machine import EmulatorError  # noqa: E402
from patchctl.emulator.problem import Problem  # noqa: E402
from patchctl.emulator.run import Outcome, Shape, run  # noqa: E402
from patchctl.emulator.sass.constants import prepare  # noqa: E402
from patchctl.emulator.sass.kernel import program  # noqa: E402
from patchctl.emulator.suite import short_list  # noqa: E402
from patchctl.stages.build import built_library, load_target  # noqa: E402
from patchctl.stages.emulate import emulate, project_code  # noqa: E402
from patchctl.stages.toolchain import find_toolchain  # noqa: E402
from patchctl.system.project import Project  # noqa: E402
from patchctl.system.report import QuietReporter  # noqa: E402
from patchctl.system.workers import spread  # noqa: E402

TABLES = ROOT / "docs" / "emulator-tables.md"
HEAD_DIM = 256
PROBLEMS = (
    Problem(HEAD_DIM, (64,), (192,), heads=2, causal=True, spread=2.0),
    Problem(HEAD_DIM, (100,), (150,), causal=True, ramp=40.0),
    Problem(HEAD_DIM, (70, 30), (192, 11), heads=4, kv_heads=2, causal=True, spread=2.0),
    Problem(HEAD_DIM, (9, 9), (64, 130), heads=5, packed=False, used=True, causal=True),
)


def execute(code: Code, problem: Problem, mutation: Mutation | None = None) -> Outcome:
    machine = program(code.function, local_bytes=code.local_bytes)
    if mutation is not None:
        machine = mutation.apply(machine)
    shape = Shape(
        code.kernel.rule.rows, code.threads, code.shared_bytes, code.kernel.rule.splits_on
    )
    return run(machine, shape, problem, prepare=prepare(code.local_bytes, code.banks))


def verdict(code: Code, mutation: Mutation, sound: list[dict[str, bytes]]) -> str:
    """What shows the fault first; "" if nothing does."""
    for problem, expected in zip(PROBLEMS, sound, strict=True):
        try:
            done = execute(code, problem, mutation)
        except EmulatorError:
            return "refused"
        if done.findings.faults():
            return str(done.findings.faults()[0].kind)
        if not done.accuracy.good:
            return "wrong result"
        if done.written != expected:
            return "other bits"
    return ""


def mutation_rows(code: Code, each: int, jobs: int | None) -> Iterator[str]:
    executed: set[int] = set()
    sound = []
    for problem in PROBLEMS:
        machine = program(code.function, local_bytes=code.local_bytes)
        shape = Shape(
            code.kernel.rule.rows, code.threads, code.shared_bytes, code.kernel.rule.splits_on
        )
        done = run(machine, shape, problem, prepare=prepare(code.local_bytes, code.banks))
        assert done.good, done.findings.faults()
        sound.append(done.written)
        executed |= machine.executed
    chance = random.Random(6)
    chosen = {}
    for kind in KINDS:
        alive = [m for m in mutations(code.function, kind) if m.index in executed]
        chosen[kind] = (len(alive), chance.sample(alive, min(each, len(alive))))
    calls = [(code, m, sound) for _, picked in chosen.values() for m in picked]
    verdicts = [""] * len(calls)
    for number, found in spread(verdict, calls, jobs=jobs):
        verdicts[number] = found
    position = 0
    survivors: list[str] = []
    yield "| fault | places | tried | caught | by |"
    yield "|---|---:|---:|---:|---|"
    for kind, (places, picked) in chosen.items():
        found = verdicts[position : position + len(picked)]
        position += len(picked)
        how = ", ".join(f"{name} {n}" for name, n in Counter(filter(None, found)).most_common())
        yield f"| {kind} | {places} | {len(picked)} | {sum(map(bool, found))} | {how} |"
        survivors += [f"- {m}" for m, f in zip(picked, found, strict=True) if not f]
    yield ""
    if survivors:
        yield "Not caught on these problems: the results are the same to the bit. Most compare in"
        yield "divisions (a quotient may be one too small) and clamps (the smaller of two numbers),"
        yield "where `<` and `<=` rarely differ in effect; nobody has shown that for each."
        yield ""
        yield from survivors
        yield ""


def vector_opcodes() -> set[str]:
    """What the tests with hand-computed values execute."""
    report = ROOT / "build" / "out" / "vector-opcodes.txt"
    command = [sys.executable, "-m", "pytest", "-q", "tests/emulator"]
    command += ["--ignore=tests/emulator/test_tables.py", f"--executed-opcodes={report}"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr)
    return set(report.read_text().split())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=12)
    parser.add_argument("--jobs", type=int)
    options = parser.parse_args()
    project = Project(ROOT, ROOT / "build" / "out")
    target = load_target(project, "sm70")
    toolchain = find_toolchain(target.arch, QuietReporter())
    library = built_library(project, target)
    codes, _ = project_code(project, target, toolchain, library)
    done = emulate(library, codes, short_list, QuietReporter(), jobs=options.jobs)
    assert not done.failed, done.findings()
    vectors = vector_opcodes()
    lines = [
        "<!-- SPDX-License-Identifier: Apache-2.0 -->",
        "# Emulator: opcodes and mutations",
        "",
        "Written by `tests/bench/emulator.py`; do not edit.",
        "",
        f"## Opcodes of the library ({len(codes)} kernels)",
        "",
        "*launches*: runs of the gate's list that executed it; *vectors*: executed by the tests",
        "with hand-computed values (`tests/emulator`).",
        "",
        "| opcode | instructions | launches | vectors |",
        "|---|---:|---:|---|",
    ]
    ran = done.executed()
    for opcode, launches in ran.items():
        mark = "yes" if opcode in vectors else "**no**"
        lines.append(f"| `{opcode}` | {done.opcodes[opcode]} | {launches} | {mark} |")
    tested = sum(n > 0 or o in vectors for o, n in ran.items())
    lines += [
        "",
        f"{tested} of {len(ran)} opcodes are executed by a test; "
        f"{sum(o in vectors for o in ran)} by vectors.",
        "",
    ]
    code = next(
        c
        for c in codes
        if (c.kernel.head_dim == HEAD_DIM and c.kernel.can("causal")) or c.kernel.can("right")
    )  # type: ignore[arg-type]
    lines += ["## Mutations", "", f"Kernel: `{code.kernel.name}`", ""]
    lines += mutation_rows(code, options.each, options.jobs)
    TABLES.write_text("\n".join(lines).rstrip() + "\n")
    print(TABLES.relative_to(ROOT))


if __name__ == "__main__":
    main()
