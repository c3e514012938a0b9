# SPDX-License-Identifier: Apache-2.0
"""replay: baseline and series, to one commit a patch and the source tree.

All of it is computed and compared with the lock in memory; then objects are written, the source
folder is updated, and the ref and the record move last.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from patchctl.errors import LocalChanges, LockMismatch, PatchDoesNotApply, UsageError
from patchctl.formats.gitobjects import display
from patchctl.formats.serieslock import (
    RELOCK,
    LockedBaseline,
    SeriesLock,
    changes,
    verify,
    write_series_lock,
)
from patchctl.formats.wording import counted
from patchctl.stages.applied import Applied, apply_series
from patchctl.stages.fetch import STAGE as FETCH
from patchctl.stages.fetch import fetch
from patchctl.stages.localchanges import diff_lines
from patchctl.stages.promises import promises_of, require_in_tree
from patchctl.system.files import sha256_bytes, write_if_changed
from patchctl.system.prefixes import Prefix, known_part, load_prefixes
from patchctl.system.project import Project
from patchctl.system.records import Record, drop_record, load_record, save_record
from patchctl.system.report import Reporter
from patchctl.system.seriesfiles import (
    PatchSource,
    SeriesFiles,
    add_lock_state,
    add_series_line,
    read_lock,
    read_series,
)
from patchctl.system.storefiles import names_stored_commit
from patchctl.system.worktree import LocalEdit, Survey, Worktree

if TYPE_CHECKING:
    from patchctl.formats.history import History
    from patchctl.system.gitstore import Store

STAGE = "replay"
HEAD_REF = "refs/patchctl/head"
_SHOWN_UNTRACKED = 5


@dataclass(frozen=True)
class ReplayedPatch:
    """One patch and what it made."""

    name: str
    subject: str
    tree: str
    commit: str


@dataclass(frozen=True)
class ReplayResult:
    """What replay did.

    `written` and `removed` count files of the source tree; `fresh` is False when nothing had to
    be done; `reused` how many patches at the start were as before and not applied again;
    `relocked` says what ``--lock`` changed; `untracked` are files in the source tree that are
    not ours; `discarded` is where edited files were saved.
    """

    head: str
    tree: str
    patches: tuple[ReplayedPatch, ...]
    written: int = 0
    removed: int = 0
    fresh: bool = True
    reused: int = 0
    relocked: tuple[str, ...] = ()
    untracked: tuple[str, ...] = ()
    discarded: Path | None = None


def replay_inputs(project: Project, through: str | None = None) -> dict[str, str]:
    """What the source tree depends on: baseline, series, each patch, the lock.

    Raises:
        UsageError: the series is wrong or a patch file is missing.
    """
    return _inputs(project, read_series(project), through)


def _inputs(project: Project, files: SeriesFiles, through: str | None) -> dict[str, str]:
    fetched = load_record(project, FETCH)
    lock = project.series_lock
    return {
        "baseline": fetched.outputs["tree"] if fetched else "not fetched",
        "series": files.sha256,
        "lock": sha256_bytes(lock.read_bytes()) if lock.exists() else "missing",
        "last patch": through or "the last of the series",
        **{f"patch {patch.name}": patch.sha256 for patch in files.patches},
    }


def replayed_tree(project: Project) -> str:
    """The id of the tree in the source folder, "" if there is none."""
    record = load_record(project, STAGE)
    return record.outputs.get("tree", "") if record else ""


def applied_patches(project: Project) -> tuple[str, ...] | None:
    """The patches in the replayed tree when they are only a part of the series, else None."""
    record = load_record(project, STAGE)
    if record is None:
        return None
    names = [k.removeprefix("patch ") for k in record.inputs if k.startswith("patch ")]
    last = record.inputs.get("last patch", "")
    return tuple(names[: names.index(last) + 1]) if last in names else None


def replay(
    project: Project,
    report: Reporter,
    *,
    lock: bool = False,
    through: str | None = None,
    offline: bool = False,
    discard: bool = False,
) -> ReplayResult:
    """Apply the series to the baseline and bring the source folder to the result.

    `lock` writes the lock instead of comparing with it; `through` stops after that patch;
    `discard` moves edited files of the source folder elsewhere and goes on.

    Raises:
        UsageError: the series is wrong, or `through` is not in it.
        PatchDoesNotApply: a patch is malformed or does not fit exactly.
        LockMismatch: the result is not the locked one, or there is no lock.
        LocalChanges: a file in the source folder was changed by hand.
        GateFailed: a file breaks a promise of a patch (`Asserts:`).
    """
    if lock and through:
        raise UsageError("--lock records the whole series; it does not go with --through")
    files = read_series(project)
    sources = files.up_to(through, where=project.relative(project.series))
    baseline = fetch(project, report, offline=offline)
    worktree = Worktree(project.source, project.records)
    base = LockedBaseline(tree=baseline.tree, commit=baseline.commit)
    inputs = _inputs(project, files, through)
    unchanged = _nothing_to_do(project, report, worktree, base, sources, inputs)
    if unchanged is not None:
        return unchanged
    from patchctl.system.gitstore import Store

    with Store(project.store) as store:
        locked = read_lock(project)
        applied = _apply(project, report, store, base, files, sources, None if lock else locked)
        history = applied.history
        if not lock:
            _compare(project, locked, history.lock, whole=through is None)
        survey, discarded = _survey(project, report, worktree, history, discard=discard)
        applied.keep(project, store)
        require_in_tree(promises_of(sources), history.files, store.read_blob)
        relocked: list[str] = []
        if lock:
            relocked = changes(locked, history.lock)
            write_if_changed(project.series_lock, write_series_lock(history.lock))
        drop_record(project, STAGE)
        with report.task(f"updating {project.relative(project.source)}", 0):
            there = survey.current
            new = {e.id for name, e in history.files.items() if there.get(name) != e}
            store.read_ahead(new)
            update = worktree.update(survey, history.files, history.tree, store.read_blob)
        store.set_ref(project.head_ref, history.lock.head)
    outputs = {"tree": history.tree, "head": history.lock.head}
    inputs = _inputs(project, files, through)
    save_record(project, Record(stage=STAGE, inputs=inputs, outputs=outputs))
    return ReplayResult(
        head=history.lock.head,
        tree=history.tree,
        patches=_patches(sources, applied.prefixes),
        reused=applied.reused,
        written=update.written,
        removed=update.removed,
        relocked=tuple(relocked),
        untracked=_untracked(project, report, survey),
        discarded=discarded,
    )


def _nothing_to_do(
    project: Project,
    report: Reporter,
    worktree: Worktree,
    base: LockedBaseline,
    sources: tuple[PatchSource, ...],
    inputs: dict[str, str],
) -> ReplayResult | None:
    """The recorded result, if inputs and source folder are as they were; no git is started."""
    record = load_record(project, STAGE)
    tree = worktree.manifest.tree
    if record is None or record.stale_because(inputs) or record.outputs["tree"] != tree:
        return None
    head = record.outputs["head"]
    prefixes = known_part(load_prefixes(project), base, sources)
    if len(prefixes) < len(sources) or not names_stored_commit(
        project.store, project.head_ref, head
    ):
        return None
    target = {name: state.entry for name, state in worktree.manifest.files.items()}
    survey = worktree.survey(target)
    if survey.edits or survey.differs:
        return None
    worktree.settle(survey, target, tree)
    untracked = _untracked(project, report, survey)
    patches = _patches(sources, prefixes)
    return ReplayResult(head, tree, patches, fresh=False, untracked=untracked)


def _patches(
    sources: tuple[PatchSource, ...], prefixes: tuple[Prefix, ...]
) -> tuple[ReplayedPatch, ...]:
    return tuple(
        ReplayedPatch(source.name, made.subject, made.tree, made.commit)
        for source, made in zip(sources, prefixes, strict=True)
    )


def _apply(
    project: Project,
    report: Reporter,
    store: Store,
    base: LockedBaseline,
    files: SeriesFiles,
    sources: tuple[PatchSource, ...],
    locked: SeriesLock | None,
) -> Applied:
    if locked is not None:
        unpatched = SeriesLock(head=base.commit, baseline=base)
        verify(locked.prefix(0), unpatched, where=project.relative(project.series_lock))
    try:
        return apply_series(project, report, store, base, sources)
    except PatchDoesNotApply as error:
        add_series_line(error, project, files)
        add_lock_state(error, files, locked)
        raise


def _compare(project: Project, locked: SeriesLock | None, got: SeriesLock, *, whole: bool) -> None:
    where = project.relative(project.series_lock)
    if locked is None:
        raise LockMismatch(
            f"`{where}` is missing: nothing says what the series must produce",
            hint=RELOCK,
            data={"file": where},
        )
    verify(locked if whole else locked.prefix(len(got.patches)), got, where=where)


def _survey(
    project: Project, report: Reporter, worktree: Worktree, history: History, *, discard: bool
) -> tuple[Survey, Path | None]:
    """The source folder, without edits in it; and where they were moved to."""
    survey = worktree.survey(history.files)
    if not survey.edits:
        return survey, None
    if not discard:
        raise _local_changes(project, worktree, survey.edits)
    folder = project.out / "discarded" / f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
    worktree.discard(survey.edits, folder)
    report.info(f"edited files are saved in `{project.relative(folder)}`")
    return worktree.survey(history.files), folder


def _local_changes(
    project: Project, worktree: Worktree, edits: tuple[LocalEdit, ...]
) -> LocalChanges:
    count = counted(len(edits), "file")
    lines = [f"{edit.kind}: {display(edit.path)}" for edit in edits]
    if worktree.manifest.tree:
        lines += diff_lines(project, worktree.manifest.tree)
    return LocalChanges(
        f"{count} in `{project.relative(project.source)}` changed by hand; nothing was touched",
        details=tuple(lines),
        hint="patchctl replay --discard (moves the files to build/out/discarded, then replays)",
        data={"files": [{"path": display(e.path), "kind": str(e.kind)} for e in edits]},
    )


def _untracked(project: Project, report: Reporter, survey: Survey) -> tuple[str, ...]:
    names = tuple(display(path) for path in survey.untracked)
    if names:
        shown = ", ".join(f"`{name}`" for name in names[:_SHOWN_UNTRACKED])
        more = len(names) - _SHOWN_UNTRACKED
        rest = f" and {more} more" if more > 0 else ""
        where = project.relative(project.source)
        report.warn(f"files in `{where}` that are not of the series, left alone: {shown}{rest}")
    return names
