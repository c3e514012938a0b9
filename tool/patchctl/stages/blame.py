# SPDX-License-Identifier: Apache-2.0
"""Building and judging what the first 1, 2, ... patches give, and remembering the verdicts.

All prefixes share one build folder below ``build/out/blame``: going from one to the next writes
only the files that differ, and ninja compiles only the objects that read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from patchctl.errors import BuildFailed, GateFailed, LockMismatch, UsageError
from patchctl.formats.blame import complaints, first_failing, first_in_order
from patchctl.formats.findings import Finding, Severity
from patchctl.formats.measured import Measured
from patchctl.formats.resources import Resources, Row, read_resources, rows
from patchctl.formats.serieslock import RELOCK, LockedPatch
from patchctl.formats.target import Target
from patchctl.stages.build import NothingToCompile, build, build_inputs
from patchctl.stages.replay import replay
from patchctl.stages.toolchain import Toolchain
from patchctl.stages.verify import verify, verify_inputs
from patchctl.system.files import sha256_bytes, write_file, write_if_changed
from patchctl.system.project import Project
from patchctl.system.report import Reporter
from patchctl.system.seriesfiles import read_lock, read_series

BUILD_GATE = "build"
GATES = ("resources", "schemas", "architectures", "symbols", "asserts", BUILD_GATE)


class Judged(msgspec.Struct, frozen=True):
    """What a prefix gave: its functions, what the gates said of them, why it does not build.

    `gates` stands for what the findings depend on beyond the library.
    """

    measured: tuple[Measured, ...] = ()
    findings: tuple[Finding, ...] = ()
    gates: str = ""


class Prefixes:
    """The prefixes of the locked series; each is built and judged when it is asked for."""

    def __init__(
        self,
        project: Project,
        target: Target,
        toolchain: Toolchain,
        report: Reporter,
        *,
        offline: bool = False,
        jobs: int | None = None,
    ) -> None:
        """Read the series and its lock.

        Raises:
            LockMismatch: there is no lock, or it is of another series.
            ToolMissing: no usable C++ compiler, headers, torch or ninja.
        """
        self._project, self._lender = replace(project, out=project.out / "blame"), project.store
        self._target, self._toolchain, self._report = target, toolchain, report
        self._offline, self._jobs = offline, jobs
        self.patches = _locked_patches(project)
        self._inputs = build_inputs(project, target, toolchain)
        path = project.resources_file(target.name)
        self.budgets = (
            read_resources(path.read_bytes(), where=project.relative(path))
            if path.is_file()
            else Resources()
        )
        self.built: list[str] = []
        """The patches whose prefixes were built just now."""

    def rows(self, number: int) -> list[Row]:
        """The kernels after the first `number` patches; none after 0.

        Raises:
            BuildFailed: the prefix does not build.
        """
        if number == 0:
            return []
        judged = self._remembered(number) or self._judge(number)
        return rows(judged.measured, self.budgets, self._target.arch)

    def findings(self, number: int) -> tuple[Finding, ...]:
        """What the gates say of the first `number` patches, or only that they do not build."""
        judged = self._remembered(number)
        if judged is None or judged.gates != self._gates(number):
            try:
                judged = self._judge(number)
            except BuildFailed as error:
                what = str(error.data.get("unit", self._target.filename))
                message = "; ".join((error.message, *error.details[:3]))
                return (Finding(BUILD_GATE, what, message),)
            except GateFailed as error:  # a promise about files, broken by the replayed tree
                told = error.data.get("findings")
                return tuple(msgspec.convert(told or [], list[Finding]))
        return judged.findings

    def _judge(self, number: int) -> Judged:
        name = self.patches[number - 1].name
        self._report.info(f"patch {number} of {len(self.patches)}: {name}")
        through = name if number < len(self.patches) else None
        self._borrow_objects()
        replay(self._project, self._report, through=through, offline=self._offline)
        try:
            build(self._project, self._target, self._toolchain, self._report, jobs=self._jobs)
        except NothingToCompile:
            judged = Judged(gates=self._gates(number))
        except BuildFailed as error:
            error.message = f"with the patches up to `{name}`: {error.message}"
            raise
        else:
            done = verify(self._project, self._target, self._toolchain, self._report, force=True)
            measured = tuple(row.measured for row in done.resources)
            judged = Judged(measured, tuple(done.findings), self._gates(number))
        self.built.append(name)
        write_file(self._memory(number), msgspec.json.encode(judged), sync=False)
        return judged

    def _borrow_objects(self) -> None:
        """Let git read the project's store too: what was fetched there is not fetched again."""
        from patchctl.system.gitstore import Store

        store = self._project.store
        if not self._lender.exists():
            return
        if not store.exists():
            Store(store).close()
        objects = (self._lender / "objects").resolve()
        write_if_changed(store / "objects" / "info" / "alternates", f"{objects}\n")

    def _remembered(self, number: int) -> Judged | None:
        try:
            return msgspec.json.decode(self._memory(number).read_bytes(), type=Judged)
        except (OSError, msgspec.DecodeError):
            return None

    def _memory(self, number: int) -> Path:
        """By what decides the library: the tree, the toolchain, the target, the headers."""
        inputs = {**self._inputs, "source": self.patches[number - 1].tree}
        return self._project.place / "judged" / f"{_digest(inputs)}.json"

    def _gates(self, number: int) -> str:
        inputs = verify_inputs(self._project, self._target)
        for made_by_build in ("library", "ptxas logs", "patches"):
            inputs.pop(made_by_build, None)
        return _digest(
            {
                **inputs,
                "commit": self.patches[number - 1].commit,
                "whole": str(number == len(self.patches)),
            }
        )


def _digest(inputs: dict[str, str]) -> str:
    return sha256_bytes(msgspec.json.encode(sorted(inputs.items())))


def _locked_patches(project: Project) -> tuple[LockedPatch, ...]:
    files, locked = read_series(project), read_lock(project)
    now = [(patch.name, patch.sha256) for patch in files.patches]
    if locked is None or [(patch.name, patch.sha256) for patch in locked.patches] != now:
        where = project.relative(project.series_lock)
        raise LockMismatch(f"`{where}` is not of the series as it is now", hint=RELOCK)
    if not now:
        raise UsageError(f"`{project.relative(project.series)}` names no patch")
    return locked.patches


class Culprit(msgspec.Struct, frozen=True):
    """The answer of a bisection: the first patch whose prefix fails, and what is held against it.

    `patch` is empty where no prefix fails. `asked` are the patches whose prefixes were looked
    at, in that order; `assumed` says that not all before the culprit were.
    """

    gate: str
    patch: str = ""
    number: int = 0
    findings: tuple[Finding, ...] = ()
    asked: tuple[str, ...] = ()
    assumed: bool = False


def bisect(prefixes: Prefixes, gate: str, *, in_order: bool = False) -> Culprit:
    """Find the first patch at which `gate` fails.

    `in_order` asks every prefix from the first on, which needs no assumption.

    Raises:
        BuildFailed: a prefix does not build, and so cannot be asked about another gate.
    """
    count = len(prefixes.patches)
    asked: list[str] = []
    said: dict[int, list[Finding]] = {}
    head: list[Finding] = []

    def fails(number: int) -> bool:
        name = prefixes.patches[number - 1].name
        if number in said:
            return bool(said[number])
        asked.append(name)
        findings = prefixes.findings(number)
        broken = [f for f in findings if f.gate == BUILD_GATE]
        if broken and gate != BUILD_GATE:
            raise _not_built(name, broken)
        measured = prefixes.rows(number) if gate == "resources" else ()
        said[number] = complaints(gate, findings, measured, prefixes.budgets.kernels, head)
        return bool(said[number])

    if fails(count):
        head += [f for f in said[count] if f.severity is Severity.ERROR]
    if in_order:
        found, assumed = first_in_order(count, fails), False
    else:
        found, assumed = first_failing(count, fails)
    if found is None:
        return Culprit(gate, asked=tuple(asked))
    assumed = assumed and any(number not in said for number in range(1, found))
    patch = prefixes.patches[found - 1].name
    return Culprit(gate, patch, found, tuple(said[found]), tuple(asked), assumed)


def _not_built(name: str, broken: Sequence[Finding]) -> BuildFailed:
    return BuildFailed(
        f"the patches up to `{name}` do not build, so no other gate can be asked there",
        details=tuple(f"{finding.subject}: {finding.message}" for finding in broken),
        hint=f"patchctl bisect {BUILD_GATE}",
        data={"patch": name},
    )
