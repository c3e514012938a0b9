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
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"
PATCHCTL = [sys.executable, "-m", "patchctl"]
SIMULATOR = Path(__file__).with_name("sm70sim.py")
KERNELS = "csrc/flash_attn/src/sm70"


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
    """Edit each kernel file in turn; the objects compiled must be those that include it."""
    folder = project / "build" / "out" / "sm70"
    source = project / "build" / "out" / "src" / KERNELS
    rows = []
    for name in ("flash_fwd_hdim256_fp16_sm70.cu", "mainloop.h", "flash_api.cpp"):
        path = source / name
        users = includes(folder, f"{KERNELS}/{name}")
        path.write_bytes(path.read_bytes() + b"// edited\n")
        _, built = patchctl(project, "build", "--edited")
        patchctl(project, "replay", "--discard")
        patchctl(project, "build")
        rows.append(
            Row(
                f"edit `{name}`, build",
                f"{built['compiled']} compiled",
                f"the {len(users)} that include it",
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
        reading = model(project, cuobjdump, resources)
        rows.append(
            f"| `{short(resources['name'])}` | {resources['registers']} "
            f"| {resources['spill_stores']} / {resources['spill_loads']} | {resources['stack']} "
            f"| {resources['dynamic_shared']} | {reading[0]:.0f} | {reading[1]:.1f} % |"
        )
    return rows


def short(name: str) -> str:
    return re.sub(r"flash::sm70::|\(.*\)$", "", name)


def model(project: Path, cuobjdump: Path, resources: dict[str, object]) -> tuple[float, float]:
    """The loop model's cycles an iteration and tensor-active percent of one kernel."""
    causal = "Lb1" if "true" in short(str(resources["name"])) else "Lb0"
    folder = project / "build" / "out" / "sm70" / "obj"
    for cubin in sorted(folder.rglob("*.cu.o")):
        done = subprocess.run(
            [
                sys.executable,
                SIMULATOR,
                cubin,
                "--function",
                f".*{causal}",
                "--smem",
                str(resources["dynamic_shared"]),
            ],
            env={**os.environ, "CUOBJDUMP": str(cuobjdump)},
            capture_output=True,
            text=True,
        )
        cycles = re.search(r"ESTIMATE\s+(\d+) cycles", done.stdout)
        tensor = re.search(r"tensor\s+\d+\s+([\d.]+) %", done.stdout)
        if done.returncode == 0 and cycles and tensor:
            return float(cycles[1]), float(tensor[1])
    sys.exit(f"the loop model found no kernel for {resources['name']}")


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
