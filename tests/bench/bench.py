# SPDX-License-Identifier: Apache-2.0
"""Measure what `docs/benchmarks.md` shows, and write its tables.

    .venv/bin/python tests/bench/bench.py [--check-from-nothing] [--no-write]

Works on a copy of the project's inputs in a scratch folder: the project's own output is not
touched. Whole processes are timed from outside, as a user sees them. Needs the provisioned
toolchain (`patchctl toolchain install`).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import sm70sim

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"
PATCHCTL = [sys.executable, "-m", "patchctl"]
KERNELS = "csrc/flash_attn/src/sm70"
EDITED = ("flash_fwd.cu.jinja", "mainloop.h", "flash_api.cpp")
VARIANTS = ("contiguous", "paged", "general")  # in the order of variant.h
INFINITIES = "0x7c007c00"  # two halves, in machine code


@dataclass(frozen=True)
class Row:
    """One line of a table: `ok` is None where there is no bound."""

    what: str
    measured: str
    bound: str
    ok: bool | None

    def line(self) -> str:
        verdict = {True: "yes", False: "**no**", None: ""}[self.ok]
        return f"| {self.what} | {self.measured} | {self.bound} | {verdict} |"


def patchctl(project: Path, *words: str) -> tuple[float, dict[str, object]]:
    """Run a command with ``--json``; wall seconds and what it printed."""
    start = time.perf_counter()
    done = subprocess.run(
        [*PATCHCTL, "-C", str(project), "--json", *words],
        capture_output=True,
        text=True,
    )
    seconds = time.perf_counter() - start
    if done.returncode != 0:
        sys.exit(f"patchctl {' '.join(words)} failed ({done.returncode}):\n{done.stderr}")
    return seconds, json.loads(done.stdout)


def median_seconds(project: Path, word: str, runs: int) -> float:
    return statistics.median(patchctl(project, word)[0] for _ in range(runs))


def copy_inputs(folder: Path) -> Path:
    """The committed inputs of the project, without its output."""
    project = folder / "project"
    for name in ("patches", "vendor"):
        shutil.copytree(ROOT / name, project / name)
    shutil.copytree(ROOT / "build", project / "build", ignore=shutil.ignore_patterns("out"))
    return project


def ninja(folder: Path, *words: str) -> str:
    import ninja as package

    program = Path(package.BIN_DIR) / "ninja"
    done = subprocess.run([program, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


def units(folder: Path) -> list[str]:
    """Every object of the build, by its ninja target."""
    listed = ninja(folder, "-t", "targets", "all").splitlines()
    return sorted({name.split(":")[0] for name in listed if re.match(r"obj/.*\.o:", name)})


def includes(folder: Path, name: str) -> set[str]:
    """The objects whose recorded dependencies hold the file `name`."""
    users, current = set(), ""
    for line in ninja(folder, "-t", "deps").splitlines():
        if line and not line.startswith(" "):
            current = line.split(":")[0]
        elif line.strip().endswith(f"/{name}") and current.endswith(".o"):
            users.add(current)
    return users


def made_from(folder: Path, name: str) -> set[str]:
    """The objects of the units that the template `name` generates."""
    if not name.endswith(".cu.jinja"):
        return set()
    start = f"obj/generated/{name.removesuffix('.cu.jinja')}_"
    return {unit for unit in units(folder) if unit.startswith(start)}


def compile_alone(folder: Path, unit: str) -> tuple[float, float]:
    """Compile one unit by itself: wall seconds, and peak MiB of its largest process."""
    command = ninja(folder, "-t", "commands", "-s", unit).strip()
    code = (
        "import resource, subprocess, sys, time\n"
        "t = time.perf_counter()\n"
        "subprocess.run(sys.argv[1], shell=True, check=True, capture_output=True)\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss\n"
        "print(time.perf_counter() - t, used / 1024)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, command],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, mib = done.stdout.split()
    return float(seconds), float(mib)


def pipeline_rows(project: Path) -> list[Row]:
    first_replay, _ = patchctl(project, "replay")
    replay = median_seconds(project, "replay", 11)
    full, _ = patchctl(project, "build")
    warm = median_seconds(project, "build", 7)
    _, idle = patchctl(project, "build")
    folder = project / "build" / "out" / "sm70"
    # in a copy beside it: ninja compiles again what others have written
    copied = shutil.copytree(folder, folder.with_name("alone"))
    alone = {unit: compile_alone(copied, unit) for unit in units(folder)}
    slowest = max(alone, key=lambda unit: alone[unit][0])
    largest = max(alone, key=lambda unit: alone[unit][1])
    seconds, mib = alone[slowest][0], alone[largest][1]
    status = median_seconds(project, "status", 7)
    return [
        Row("`patchctl replay`, first", f"{first_replay:.2f} s", "", None),
        Row("`patchctl replay`, nothing to do", f"{replay:.2f} s", "0.6 s", replay <= 0.6),
        Row("`patchctl status`", f"{status:.2f} s", "", None),
        Row(f"`patchctl build`, first ({len(alone)} objects)", f"{full:.1f} s", "", None),
        Row(
            "`patchctl build`, nothing to do",
            f"{warm:.2f} s, {idle['compiled']} compiled",
            "1.0 s, 0 compiled",
            warm <= 1.0 and idle["compiled"] == 0,
        ),
        Row(f"slowest unit ({name_of(slowest)})", f"{seconds:.1f} s", "60 s", seconds <= 60),
        Row(f"largest unit ({name_of(largest)})", f"{mib:.0f} MiB", "2048 MiB", mib <= 2048),
    ]


def name_of(unit: str) -> str:
    return "`" + Path(unit).name.removesuffix(".o") + "`"


def edit_rows(project: Path) -> list[Row]:
    """Edit each kernel file in turn; the objects compiled must be those that are made of it."""
    folder = project / "build" / "out" / "sm70"
    source = project / "build" / "out" / "src" / KERNELS
    rows = []
    for name in EDITED:
        path = source / name
        users = made_from(folder, name) or includes(folder, f"{KERNELS}/{name}")
        path.write_bytes(path.read_bytes() + b"// edited\n")
        _, built = patchctl(project, "build", "--edited")
        patchctl(project, "replay", "--discard")
        patchctl(project, "build")
        rows.append(
            Row(
                f"edit `{name}`, build",
                f"{built['compiled']} compiled",
                f"the {len(users)} made of it",
                built["compiled"] == len(users) > 0,
            )
        )
    return rows


def kernel_rows(project: Path) -> list[str]:
    """Resources from `verify`, cycles and tensor-active share from the loop model."""
    _, verified = patchctl(project, "verify", "--force")
    _, shown = patchctl(project, "toolchain", "show")
    cuobjdump = Path(str(shown["chosen"])) / "bin" / "cuobjdump"
    rows = []
    for resources in verified["resources"]:  # type: ignore[attr-defined]
        if resources["threads"] is None:
            continue  # a device function, not a kernel
        read = model(project, cuobjdump, resources["name"], resources["dynamic_shared"])
        cycles, tensor = (f"{read[0]:.0f}", f"{read[1]:.1f} %") if read else ("", "")
        shared = resources["static_shared"] + resources["dynamic_shared"]
        rows.append(
            f"| `{short(resources['name'])}` | {resources['registers']} "
            f"| {resources['spill_stores']} / {resources['spill_loads']} | {resources['stack']} "
            f"| {shared} | {cycles} | {tensor} |"
        )
    return rows


def short(name: str) -> str:
    """A kernel without namespaces and arguments, its variant by name."""
    name = re.sub(r"^void |flash::sm70::|\(int\)", "", name)
    name = re.sub(r"\(Variant\)(\d)", lambda match: VARIANTS[int(match[1])], name)
    return re.sub(r"\(.*", "", name)


def loop_filter(name: str) -> str | None:
    """A regex for the mangled name of a prefill kernel; None for what the loop model does not fit.

    Its limits rule the others out: decoding waits for memory, merging and appending have no loop
    with matrix instructions, and the kernels with a workspace and of QSA have nested loops.
    """
    tile = re.fullmatch(r"flash_fwd_kernel<Flash_fwd_kernel_traits<(\d+), (\w+)>\s*>", short(name))
    if tile:
        return rf"16flash_fwd_kernelI.*ILi{tile[1]}E.*VariantE{VARIANTS.index(tile[2])}E"
    return "16gqa_fused_kernel" if short(name) == "gqa_fused_kernel" else None


def main_loop(function: Any) -> tuple[tuple[int, int], list[int]]:
    """The loop over the keys, and the branches in it that a run without NaN takes.

    It is the loop with most HMMA that has none with HMMA in it. Around it stands the loop that runs
    a CTA again when its threads vote that O is not finite (BAR.RED); only then the blocks that make
    V finite are executed (compares with the exponent of infinity, no HMMA).
    """
    hmma: dict[tuple[int, int], int] = {}
    for loop in sm70sim.find_loops(function):  # smaller ones first
        body = sm70sim.loop_body(function, loop)
        around = any(loop[0] <= other[0] and other[1] <= loop[1] for other in hmma)
        count = sm70sim.count_base(function, loop, "HMMA")
        if count and not around and not any(step.opcode[:2] == ("BAR", "RED") for step in body):
            hmma[loop] = count
    best = max(hmma, key=lambda loop: hmma[loop])
    taken = []
    for branch in sm70sim.loop_body(function, best):
        target = branch.branch_target
        if branch.guard is None or target is None or not branch.address < target <= best[1]:
            continue
        skipped = sm70sim.loop_body(function, (branch.address, target))[1:-1]
        repairs = sum(INFINITIES in step.text for step in skipped) >= 4
        if repairs and not any(step.base == "HMMA" for step in skipped):
            taken.append(branch.address)
    return best, taken


def model(project: Path, cuobjdump: Path, name: str, shared: int) -> tuple[float, float] | None:
    """The loop model's cycles an iteration and tensor-active percent; None where it does not fit.

    Mask and rescale are executed in every iteration, the repair of V in none.
    """
    wanted = loop_filter(name)
    if wanted is None:
        return None
    for cubin in sorted((project / "build" / "out" / "sm70" / "obj").rglob("*.cu.o")):
        for function in functions_of(cubin, cuobjdump):
            if re.search(wanted, function.name):
                return reading(function, shared)
    sys.exit(f"the loop model found no kernel for {name}")


@cache
def functions_of(cubin: Path, cuobjdump: Path) -> list[Any]:
    return sm70sim.load_functions(cubin, str(cuobjdump))


def reading(function: Any, shared: int) -> tuple[float, float]:
    (start, end), taken = main_loop(function)
    words = ["-", "--smem", str(shared), "--loop", f"{start:x}-{end:x}"]
    options = sm70sim.build_parser().parse_args(
        words + [word for address in taken for word in ("--taken", f"{address:x}")]
    )
    sm70sim.normalise_options(options)
    result = sm70sim.estimate(function, options, sm70sim.Machine({}))
    return result["cycles_per_iteration"], 100 * result["utilisation"]["tensor"]


def check_row() -> Row:
    """`make check` in a fresh clone with an empty user cache."""
    with tempfile.TemporaryDirectory(prefix="patchctl-bench-") as scratch:
        clone = Path(scratch) / "clone"
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        environment = {**os.environ, "PATCHCTL_CACHE_DIR": str(Path(scratch) / "cache")}
        start = time.perf_counter()
        subprocess.run(
            ["make", "--silent", "check"], cwd=clone, env=environment, check=True, stdout=sys.stderr
        )
        minutes = (time.perf_counter() - start) / 60
    return Row("`make check` from nothing", f"{minutes:.1f} min", "15 min", minutes <= 15)


def machine() -> str:
    """What the numbers were measured on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}"


def fill(page: str, name: str, body: str) -> str:
    """Replace what stands between the two markers `name`."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    head, rest = page.split(begin)
    return f"{head}{begin}{body}\n{end}{rest.split(end, 1)[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check-from-nothing", action="store_true", help="also time `make check`")
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="patchctl-bench-") as scratch:
        project = copy_inputs(Path(scratch))
        rows = pipeline_rows(project) + edit_rows(project)
        kernels = kernel_rows(project)
    table = "\n".join(
        [f"{time.strftime('%Y-%m-%d')}, {machine()}.", ""]
        + ["| what | measured | bound | holds |", "|---|---|---|---|"]
        + [row.line() for row in rows]
    )
    kernel_table = "\n".join(
        [
            "| kernel | registers | spill stores / loads | stack | shared bytes | model: cycles "
            "an iteration | model: tensor-active |",
            "|---|---|---|---|---|---|---|",
            *kernels,
        ]
    )
    blocks = {"pipeline": table, "kernels": kernel_table}
    if options.check_from_nothing:
        row = check_row()
        rows.append(row)
        blocks["check"] = "\n".join(
            [
                f"{time.strftime('%Y-%m-%d')}, {machine()}.",
                "",
                "| what | measured | bound | holds |",
                "|---|---|---|---|",
                row.line(),
            ]
        )
    page = PAGE.read_text()
    for name, body in blocks.items():
        print(body, end="\n\n")
        page = fill(page, name, body)
    if not options.no_write:
        PAGE.write_text(page)
    sys.exit(any(row.ok is False for row in rows))


if __name__ == "__main__":
    main()
