# SPDX-License-Identifier: Apache-2.0
"""Which stages are current, and why the others are not. Looks only; changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from patchctl.errors import PatchctlError
from patchctl.formats.gitobjects import display
from patchctl.formats.wording import counted
from patchctl.stages import build, fetch, replay, verify
from patchctl.stages.editsession import edit_repo, rebase_is_open
from patchctl.stages.editsession import load_session as load_edit
from patchctl.stages.freshness import source_files
from patchctl.stages.localchanges import stray_files
from patchctl.stages.toolchain import find_toolchain
from patchctl.system.files import sha256_of
from patchctl.system.project import Project
from patchctl.system.records import Record, load_record
from patchctl.system.report import QuietReporter
from patchctl.system.worktree import Worktree

if TYPE_CHECKING:
    from patchctl.formats.rebasesession import Session


@dataclass(frozen=True)
class StageState:
    """One stage: `why` it is not current, one line a reason; `result` is what it made."""

    stage: str
    current: bool
    why: tuple[str, ...]
    result: str
    command: str


@dataclass(frozen=True)
class OpenWork:
    """Something that somebody began: `what` it is, and the `command` that goes on with it."""

    what: str
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


def open_work(project: Project, target_name: str) -> list[OpenWork]:
    """What is begun and not finished, or lies where a build would stumble over it.

    Raises:
        UsageError: the target file is wrong.
    """
    found = []
    if rebase_is_open(project):
        from patchctl.stages.rebase import load_session as load_rebase

        try:
            session = load_rebase(project)
            what = "" if session is None else f" onto {session.onto}: {_progress(session)}"
            found.append(OpenWork(f"a rebase is open{what}", "patchctl rebase --status"))
        except PatchctlError as error:  # damaged, or of another baseline
            found.append(OpenWork(error.message, error.hint or "patchctl rebase --status"))
    edit = load_edit(project)
    if edit is not None:
        name = f"`{edit.new or edit.patch}`" + (
            "" if edit.baseline == project.baseline else f" (baseline `{edit.baseline}`)"
        )
        folder = project.relative(edit_repo(project).folder)
        what = f"{name} is open for editing in `{folder}`"
        found.append(OpenWork(what, "patchctl diff, then patchctl refresh"))
    target = build.load_target(project, target_name)
    for stray in stray_files(project, target, source_files(project.source)):
        what = (
            f"`{project.relative(project.source)}/{stray}` is not of the series: build refuses it"
        )
        found.append(OpenWork(what, "make it a patch, or remove it"))
    return found


def _progress(session: Session) -> str:
    done = f"{session.position} of {counted(len(session.steps), 'patch')} done"
    return f"{done}, next `{session.current.patch}`" if session.current else done


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
