# SPDX-License-Identifier: Apache-2.0
"""The end of a rebase: patch files, series and both locks become the session's, in one step."""

from __future__ import annotations

from dataclasses import dataclass

from patchctl.errors import LocalChanges, UsageError
from patchctl.formats.rebasesession import Session
from patchctl.formats.serieslock import LockedBaseline, SeriesLock
from patchctl.stages.export import export_patch
from patchctl.stages.rebase import (
    at_work,
    candidate_of,
    clear,
    require_session,
    require_unchanged,
    session_file,
)
from patchctl.stages.rebasework import CONTINUE, conflict_tree
from patchctl.stages.seriesedit import NewPatch, replace_series
from patchctl.system.project import Project
from patchctl.system.records import load_record, save_record
from patchctl.system.report import Reporter
from patchctl.system.seriesfiles import read_series


@dataclass(frozen=True)
class Accepted:
    """What was written: the new lock, and the patches whose file changed, stayed or went."""

    session: Session
    lock: SeriesLock
    rewritten: tuple[str, ...]
    unchanged: tuple[str, ...]
    dropped: tuple[str, ...]


def accept(project: Project, report: Reporter) -> Accepted:
    """Write what the session made, if every patch is through.

    The patches are replayed strictly on the new base first. Killed at any moment, either nothing
    or all of it is written.

    Raises:
        UsageError: no rebase is under way, or patches are left.
        LocalChanges: the series, or the session's work tree, was changed by somebody.
        PatchDoesNotApply: a patch as written does not replay; nothing was changed.
    """
    session = require_session(project)
    require_unchanged(project, session)
    left = len(session.steps) - session.position
    if left:
        raise UsageError(
            f"{left} patch{'es' * (left != 1)} of the rebase are not through yet",
            hint=f"{CONTINUE} (patchctl rebase --status shows where it is)",
        )
    if not session.shown:  # killed right before the end
        with at_work(project, report) as work:
            work.run()
            session = work.session
    _require_as_left(project, session)
    from patchctl.system.gitstore import Store

    old = {patch.name: patch for patch in read_series(project).patches}
    with Store(project.store) as store:
        patches = []
        for step in session.steps:
            if step.outcome.has_commit:
                was = old[step.patch]
                strip = was.entry.strip
                data = export_patch(store, step.new, was.data, name=was.name, strip=strip)
                tree = store.tree_of(step.new)
                patches.append(NewPatch(was.name, data, strip, was=was.name, tree=tree))
        base = LockedBaseline(tree=store.tree_of(session.new_base), commit=session.new_base)
        conflict_tree(project).remove()  # all of it is in the commits
        fetched = load_record(candidate_of(project), "fetch")
        also = {project.baseline_lock: session.lock.encode(), session_file(project): None}
        lock = replace_series(project, report, patches, store=store, baseline=base, also=also)
        store.set_ref(project.baseline_ref, session.new_base)
    if fetched is not None:
        save_record(project, fetched)  # else the next command fetches it anew
    clear(project)
    written = {patch.name for patch in patches if patch.data != old[patch.name].data}
    return Accepted(
        session,
        lock,
        rewritten=tuple(p.name for p in patches if p.name in written),
        unchanged=tuple(p.name for p in patches if p.name not in written),
        dropped=tuple(step.patch for step in session.steps if not step.outcome.has_commit),
    )


def _require_as_left(project: Project, session: Session) -> None:
    """Refuse while the work tree holds what would be lost: it is no part of the session."""
    tree = conflict_tree(project)
    if tree.exists and (tree.head != session.head or tree.differs_from("HEAD")):
        where = project.relative(tree.folder)
        raise LocalChanges(
            f"`{where}` was changed after the last patch was through; that is not in the session",
            hint=f"git -C {where} reset --hard {session.head[:12]}, and accept; "
            "change patches afterwards",
            data={"head": tree.head, "expected": session.head},
        )
