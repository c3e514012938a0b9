# SPDX-License-Identifier: Apache-2.0
"""Which stages are current, and why the others are not. Looks only; changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from patchctl.errors import PatchctlError
from patchctl.formats.gitobjects import display
from patchctl.stages import build, fetch, replay, verify
from patchctl.stages.toolchain import find_toolchain
from patchctl.system.files import sha256_of
from patchctl.system.project import Project
from patchctl.system.records import Record, load_record
from patchctl.system.report import QuietReporter
from patchctl.system.worktree import Worktree


@dataclass(frozen=True)
class StageState:
    """One stage: `why` it is not current, one line a reason; `result` is what it made."""

    stage: str
    current: bool
    why: tuple[str, ...]
    result: str
    command: str


def pipeline_state(
    project: Project, target_name: str, *, cuda_home: Path | None = None
) -> list[StageState]:
    """The state of every stage, in order.

    Raises:
        UsageError: the series, a lock or the target file is wrong.
    """
    target = build.load_target(project, target_name)

    def build_inputs() -> dict[str, str]:
        toolchain = find_toolchain(target.arch, QuietReporter(), cuda_home=cuda_home)
        return build.build_inputs(project, target, toolchain)

    library = build.built_library(project, target)
    states: list[StageState] = []

    def add(
        stage: str,
        record_name: str,
        inputs: Callable[[], dict[str, str]],
        output: str,
        more: Callable[[Record], list[str]] = lambda record: [],
    ) -> None:
        record = load_record(project, record_name)
        why = _why(record, inputs) + (more(record) if record else [])
        before = states[-1] if states else None
        if before is not None and not before.current:
            # what it would say of itself is about inputs that will change
            why = [f"waits for {before.stage}"]
        result = record.outputs.get(output, "") if record else ""
        states.append(StageState(stage, not why, tuple(why), result, f"patchctl {stage}"))

    add("fetch", fetch.STAGE, lambda: fetch.fetch_inputs(project), "tree")
    # of the whole series: a replayed prefix is not current
    add(
        "replay",
        replay.STAGE,
        lambda: replay.replay_inputs(project),
        "tree",
        lambda _: _edits(project),
    )
    add(
        "build",
        build.record_name(target),
        build_inputs,
        "library",
        lambda record: _library(project, library, record.outputs.get("library", "")),
    )
    add(
        "verify",
        verify.record_name(target),
        lambda: verify.verify_inputs(project, target),
        "library",
    )
    return states


def _why(record: Record | None, inputs: Callable[[], dict[str, str]]) -> list[str]:
    if record is None:
        return ["never done"]
    try:
        return record.stale_because(inputs())
    except PatchctlError as error:
        return [error.message]


def _edits(project: Project) -> list[str]:
    worktree = Worktree(project.source, project.records)
    target = {name: state.entry for name, state in worktree.manifest.files.items()}
    edits = worktree.survey(target).edits
    return [
        f"{edit.kind}: {project.relative(project.source)}/{display(edit.path)}" for edit in edits
    ]


def _library(project: Project, library: Path, recorded: str) -> list[str]:
    if not library.is_file():
        return [f"`{project.relative(library)}` is gone"]
    found = sha256_of(library)
    if found != recorded:
        return [f"`{project.relative(library)}` was changed ({recorded[:12]} -> {found[:12]})"]
    return []
