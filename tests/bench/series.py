# SPDX-License-Identifier: Apache-2.0
"""Measure patchctl on a series of 300 generated patches over the real baseline.

    .venv/bin/python tests/bench/series.py [--patches N] [--no-write]

The same series is applied by `quilt push -a` and by `git am` in the same run. Writes its table
into `docs/benchmarks.md`. Works in a scratch folder; needs git, quilt and the baseline (fetched
before, or a network).
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench import PAGE, ROOT, Row, copy_inputs, fill, machine, patchctl

IDENTITY = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "A U Thor"), ("EMAIL", "author@example.org"))
}
RUNS = 3


def run(folder: Path, *words: str, env: dict[str, str] | None = None) -> str:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "QUILT_"))}
    hermetic = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "LC_ALL": "C"}
    done = subprocess.run(
        words, cwd=folder, env=inherited | hermetic | (env or {}), capture_output=True, text=True
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)[:200]} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def seconds_of(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def generate(project: Path, scratch: Path, count: int) -> None:
    """Replace the project's patches by `count` generated ones, made and written by git.

    Each edits one to three places of headers and sources, as people do: some files again and
    again, so that patches build on each other; every seventh adds a file.
    """
    rng = random.Random(20261129)
    work = scratch / "upstream"
    store = project / "build" / "out" / "store.git"
    run(scratch, "git", "clone", "--quiet", "--no-checkout", str(store), str(work))
    run(work, "git", "fetch", "--quiet", "origin", "refs/patchctl/baseline")
    run(work, "git", "checkout", "--quiet", "--detach", "FETCH_HEAD")
    start = run(work, "git", "rev-parse", "HEAD").strip()
    files = [work / name for name in sorted(run(work, "git", "ls-files").split("\n")) if name]
    files = [path for path in files if path.suffix in (".h", ".hpp", ".cu", ".cpp")]
    often = rng.sample(files, 12)
    for number in range(1, count + 1):
        if number % 7 == 0:
            new = work / "csrc" / "flash_attn" / "src" / "sm70" / f"part{number}.h"
            new.parent.mkdir(parents=True, exist_ok=True)
            new.write_text("".join(f"constexpr int k{number}_{n} = {n};\n" for n in range(60)))
        for path in rng.sample(often, 1) + rng.sample(files, rng.randrange(2)):
            edit(rng, path, number)
        run(work, "git", "add", "--all")
        date = {"GIT_AUTHOR_DATE": f"{1790000000 + number * 60} +0000"}
        date["GIT_COMMITTER_DATE"] = date["GIT_AUTHOR_DATE"]
        subject = f"sm70: change number {number}"
        body = "Why, and what was measured.\n\nUpstream-Status: Pending\n"
        body += "Signed-off-by: A U Thor <author@example.org>"
        run(work, "git", "commit", "--quiet", "-m", subject, "-m", body, env=IDENTITY | date)
    shutil.rmtree(project / "patches")
    options = ("--zero-commit", "--no-signature", "--full-index", "-N", "--keep-subject")
    run(work, "git", "format-patch", "--quiet", *options, "-o", str(project / "patches"), start)
    names = sorted(path.name for path in (project / "patches").iterdir())
    (project / "patches" / "series").write_text("".join(f"{name}\n" for name in names))


def edit(rng: random.Random, path: Path, number: int) -> None:
    lines = path.read_bytes().split(b"\n")
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(lines))
        lines[at : at + rng.randrange(2)] = [b"// %d: changed" % number]
    path.write_bytes(b"\n".join(lines))


class Series:
    """A project in a scratch folder, and its state right after `fetch` to go back to."""

    def __init__(self, scratch: Path, count: int) -> None:
        self.scratch, self.count = scratch, count
        self.project = copy_inputs(scratch)
        shutil.rmtree(self.project / "build" / "out", ignore_errors=True)
        patchctl(self.project, "fetch")
        self.out = self.project / "build" / "out"
        self.fetched = scratch / "fetched"
        shutil.copytree(self.out, self.fetched, symlinks=True)
        generate(self.project, scratch, count)
        patchctl(self.project, "replay", "--lock")
        self.names = (self.project / "patches" / "series").read_text().split()

    def back_to_fetched(self) -> None:
        shutil.rmtree(self.out)
        shutil.copytree(self.fetched, self.out, symlinks=True)

    def replay(self) -> float:
        self.back_to_fetched()
        return patchctl(self.project, "replay")[0]

    def clone(self, name: str) -> Path:
        """A repository with the baseline's objects, and nothing checked out."""
        folder = self.scratch / name
        shutil.rmtree(folder, ignore_errors=True)
        store = str(self.fetched / "store.git")
        run(self.scratch, "git", "clone", "--quiet", "--no-checkout", store, str(folder))
        run(folder, "git", "fetch", "--quiet", "origin", "refs/patchctl/baseline")
        return folder

    def checked_out(self, folder: Path, *words: str, env: dict[str, str]) -> float:
        """Check the baseline out and run the tool that patches it, as replay does both."""

        def work() -> None:
            run(folder, "git", "checkout", "--quiet", "--detach", "FETCH_HEAD")
            run(folder, *words, env=env)

        return seconds_of(work)

    def quilt(self) -> float:
        env = {"QUILT_PATCHES": str(self.project / "patches"), "QUILTRC": os.devnull}
        return self.checked_out(self.clone("quilt"), "quilt", "push", "-a", "-q", env=env)

    def git_am(self) -> float:
        patches = [str(self.project / "patches" / name) for name in self.names]
        words = ("git", "am", "--quiet", "--keep-cr", *patches)
        return self.checked_out(self.clone("am"), *words, env=IDENTITY)

    def change(self, number: int) -> None:
        """Another date in the header of one patch: its result, and all after it, change."""
        path = self.project / "patches" / self.names[number - 1]
        text = path.read_text()
        path.write_text(text.replace("Why, and what", "Why and what", 1))

    def refresh(self, number: int) -> float:
        """Edit a file of one patch in the edit tree; only the refresh is timed."""
        patchctl(self.project, "edit", str(number))
        folder = self.out / "edit"
        shown = run(folder, "git", "show", "--name-only", "--format=", "HEAD").split()
        path = folder / shown[0]
        path.write_bytes(path.read_bytes() + b"// refreshed\n")
        spent, done = patchctl(self.project, "refresh")
        if not done["changed"]:
            sys.exit("the refresh changed nothing")
        return spent


def rows(series: Series) -> list[Row]:
    count = series.count
    full = statistics.median(series.replay() for _ in range(RUNS))
    quilt = statistics.median(series.quilt() for _ in range(RUNS))
    am = statistics.median(series.git_am() for _ in range(RUNS))
    faster = min(quilt, am)
    series.replay()
    status = statistics.median(patchctl(series.project, "status")[0] for _ in range(5))
    idle = statistics.median(patchctl(series.project, "replay")[0] for _ in range(5))
    listed = statistics.median(patchctl(series.project, "series")[0] for _ in range(3))
    at = count * 5 // 6
    series.change(at)
    again, result = patchctl(series.project, "replay", "--lock")
    reused = result["reused"]
    spent = {number: series.refresh(number) for number in (at, count // 2, 7)}
    name = f"{count} patches"
    return [
        Row(f"`patchctl replay`, {name}, from the baseline", f"{full:.2f} s", "6 s", full <= 6),
        Row(f"checkout and `git am`, {name}", f"{am:.2f} s", "", None),
        Row(f"checkout and `quilt push -a`, {name}", f"{quilt:.2f} s", "", None),
        Row(
            "replay against the faster of the two",
            f"{faster / full:.1f}x (git am {am / full:.1f}x, quilt {quilt / full:.1f}x)",
            "2x",
            faster >= 2 * full,
        ),
        Row("`patchctl status`, warm", f"{status:.2f} s", "1 s", status <= 1),
        Row("`patchctl replay`, nothing to do", f"{idle:.2f} s", "", None),
        Row("`patchctl series`", f"{listed:.2f} s", "", None),
        Row(
            f"`patchctl replay --lock` after a change of patch {at}",
            f"{again:.2f} s, {count - int(str(reused))} applied",
            f"{count - at + 1} applied",
            reused == at - 1,
        ),
        *(
            Row(f"`patchctl refresh` of patch {number}", f"{took:.2f} s", "2 s", took <= 2)
            for number, took in spent.items()
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--patches", type=int, default=300, help="how many to generate")
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args()
    for program in ("git", "quilt"):
        if shutil.which(program) is None:
            sys.exit(f"{program} is missing: apt install {program}")
    with tempfile.TemporaryDirectory(prefix="patchctl-bench-") as scratch:
        measured = rows(Series(Path(scratch), options.patches))
    quilt, git = run(ROOT, "quilt", "--version").strip(), run(ROOT, "git", "--version").split()[-1]
    body = "\n".join(
        [f"{time.strftime('%Y-%m-%d')}, {machine()}, git {git}, quilt {quilt}.", ""]
        + ["| what | measured | bound | holds |", "|---|---|---|---|"]
        + [row.line() for row in measured]
    )
    print(body)
    if not options.no_write:
        PAGE.write_text(fill(PAGE.read_text(), "series", body))
    sys.exit(any(row.ok is False for row in measured))


if __name__ == "__main__":
    main()
