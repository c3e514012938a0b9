# SPDX-License-Identifier: Apache-2.0
"""The CI job: every stage, clean, in a scratch folder."""

from __future__ import annotations

import shutil
import sys
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path

from patchctl.errors import PatchctlError, Unavailable
from patchctl.formats.findings import Finding, has_errors, totals
from patchctl.formats.matrix import Cell, Fit, blame_patch
from patchctl.formats.wording import counted
from patchctl.system.files import write_file
from patchctl.system.process import run
from patchctl.system.project import Project
from patchctl.system.report import Reporter


class Verdict(StrEnum):
    """How a step ended."""

    OK = "ok"
    FAILED = "failed"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Step:
    """One line of the table at the end: `seconds` is wall time."""

    name: str
    verdict: Verdict
    seconds: float
    summary: str


@dataclass
class CheckResult:
    """All steps, in order; `error` is the first failure, `findings` what the gates said, `cells`
    how each patch fared."""

    steps: list[Step] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    error: PatchctlError | None = None
    scratch: Path | None = None
    cells: list[Cell] = field(default_factory=list)


def check(
    project: Project,
    target_name: str,
    report: Reporter,
    *,
    offline: bool = False,
    cuda_home: Path | None = None,
    jobs: int | None = None,
    each_prefix: bool = False,
    keep: bool = False,
    scratch: Path | None = None,
) -> CheckResult:
    """Fetch, replay, build, verify, execute and install the series from nothing.

    Everything goes to ``build/out/check``, which is empty at the start; the project's own
    output is not touched. Only downloads and the toolchain come from the user's cache, after
    their digests were checked. The first failure ends the run; its folder is kept.

    Args:
        each_prefix: also build and verify what the first 1, 2, ... patches give.
        keep: keep the scratch folder of a run that passed.
        scratch: the scratch folder, if it is another one.
    """
    folder = scratch or project.out / "check"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    job = _Job(replace(project, out=folder), target_name, report, offline, cuda_home, jobs)
    result = CheckResult(scratch=folder, cells=job.cells)
    steps: list[tuple[str, Callable[[], str]]] = [
        ("toolchain", job.toolchain),
        ("fetch", job.fetch),
    ]
    if each_prefix:
        steps += [(f"prefix {name}", partial(job.prefix, name)) for name in job.patch_names()[:-1]]
    steps += [
        ("replay", job.replay),
        ("build", job.build),
        ("verify", job.verify),
        ("emulate", job.emulate),
        ("install", job.install),
    ]
    for name, action in steps:
        if result.error is not None:
            result.steps.append(Step(name, Verdict.NOT_RUN, 0.0, ""))
            continue
        report.info(f"check: {name}")
        start = time.monotonic()
        try:
            verdict, summary = Verdict.OK, action()
        except PatchctlError as error:
            verdict, summary, result.error = Verdict.FAILED, error.message, error
        except OSError as raw:  # a full disk, say: the table is shown all the same
            where = f" (`{raw.filename}`)" if raw.filename else ""
            result.error = Unavailable(f"{raw.strerror or raw}{where}")
            verdict, summary = Verdict.FAILED, result.error.message
        result.steps.append(Step(name, verdict, time.monotonic() - start, summary))
    result.findings = job.findings
    if result.error is None and not keep:
        shutil.rmtree(folder, ignore_errors=True)
        result.scratch = None
    return result


class _Job:
    """The steps of one check; each returns its line for the table."""

    def __init__(
        self,
        project: Project,
        target_name: str,
        report: Reporter,
        offline: bool,
        cuda_home: Path | None,
        jobs: int | None,
    ) -> None:
        from patchctl.stages.build import load_target

        self.project = project
        self.report = report
        self.offline = offline
        self.cuda_home = cuda_home
        self.jobs = jobs
        self.target = load_target(project, target_name)
        self.findings: list[Finding] = []
        from patchctl.system.seriesfiles import read_series

        self.cells = [Cell(patch.name) for patch in read_series(project).patches]
        self._last = Cell("the baseline")  # the last patch in the tree

    def patch_names(self) -> list[str]:
        """The names in the series, in order."""
        return [cell.patch for cell in self.cells]

    def toolchain(self) -> str:
        """Find the compiler first: a minute of work before 'no compiler' would be wasted."""
        from patchctl.stages.toolchain import find_toolchain

        self.tools = find_toolchain(self.target.arch, self.report, cuda_home=self.cuda_home)
        return f"CUDA {self.tools.version} ({self.tools.origin})"

    def fetch(self) -> str:
        from patchctl.stages.fetch import fetch

        baseline = fetch(self.project, self.report, offline=self.offline)
        return f"{baseline.source}, tree {baseline.tree[:12]}"

    def replay(self) -> str:
        return self._replay(None)

    def _replay(self, through: str | None) -> str:
        from patchctl.stages.replay import replay

        try:
            done = replay(self.project, self.report, through=through, offline=self.offline)
        except PatchctlError as error:
            blame_patch(self.cells, error)
            raise
        for cell in self.cells[: len(done.patches)]:
            cell.fit = Fit.EXACT
            self._last = cell
        patches = counted(len(done.patches), "patch")
        return f"{patches}, tree {done.tree[:12]}, head {done.head[:12]}"

    def build(self) -> str:
        from patchctl.stages.build import build

        self._last.builds = False
        done = build(self.project, self.target, self.tools, self.report, jobs=self.jobs)
        self._last.builds = True
        return f"{counted(done.compiled, 'object')} compiled, sha256 {done.sha256[:12]}"

    def verify(self) -> str:
        from patchctl.stages.verify import gate_error, verify

        self._last.verifies = False
        done = verify(self.project, self.target, self.tools, self.report)
        self._last.verifies = not has_errors(done.findings)
        self.findings += done.findings
        if has_errors(done.findings):
            raise gate_error(done)
        kernels = sum(row.measured.is_kernel for row in done.resources)
        return f"{counted(kernels, 'kernel')}, {totals(done.findings)}"

    def emulate(self) -> str:
        """Execute every kernel, as PTX and as machine code."""
        from patchctl.stages.emulategate import gate, gate_error, has_rules

        if not has_rules(self.project, self.target):
            return "not set up: no file says how the kernels are launched"
        done = gate(self.project, self.target, self.tools, self.report, jobs=self.jobs)
        self.findings += done.findings()
        if done.failed:
            raise gate_error(done)
        return f"{counted(len(done.examinations), 'launch')}, PTX and machine code agree"

    def prefix(self, name: str) -> str:
        """What the series gives up to and including patch `name`."""
        self._replay(name)
        built = self.build()
        before = len(self.findings)
        try:
            return f"{built}; {self.verify()}"
        finally:
            self.findings[before:] = [
                replace(f, subject=f"{name}: {f.subject}") for f in self.findings[before:]
            ]

    def install(self) -> str:
        """Into a fresh environment that sees this one's torch; then out of it again."""
        from patchctl.stages.install import install, uninstall

        python = self._environment(self.project.out / "venv")
        done = install(self.project, self.target, self.report, python=python)
        uninstall(self.project, self.target, self.report, python=python)
        cause = done.reason.partition(";")[0]
        here = f"here: {cause}" if cause else "usable here"
        return f"{done.wheel.name}, and out again; {here}"

    def _environment(self, folder: Path) -> Path:
        run([sys.executable, "-m", "venv", "--without-pip", folder])
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = folder / "lib" / version / "site-packages"
        write_file(packages / "torch-of-the-tool.pth", sysconfig.get_path("purelib") + "\n")
        return folder / "bin" / "python"
