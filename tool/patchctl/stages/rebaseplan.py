# SPDX-License-Identifier: Apache-2.0
"""How each patch of a series fits another base, found out without touching anything.

Every patch is merged as the rebase will merge it. Behind a conflict the plan goes on as if it
had been resolved in the patch's favour.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from patchctl.formats.apply import Content
from patchctl.formats.gitobjects import Entry, display
from patchctl.formats.grade import grade_patch
from patchctl.formats.grademodel import Grade, PatchGrade
from patchctl.formats.patchmodel import Patch
from patchctl.formats.rebasesession import Fit, Step
from patchctl.formats.serieslock import SeriesLock
from patchctl.system.mergetree import Merge, favour_theirs, merge_trees
from patchctl.system.report import Reporter

if TYPE_CHECKING:
    from patchctl.system.gitstore import Store

_BY_GRADE = {
    Grade.OFFSET: Fit.OFFSET,
    Grade.WHITESPACE: Fit.WHITESPACE,
    Grade.FUZZ: Fit.FUZZ,
}
_ASSUMED = "if the conflict before it goes the patch's way"


def plan(
    store: Store, old: SeriesLock, patches: Sequence[Patch], tree: str, report: Reporter
) -> tuple[Step, ...]:
    """Classify `patches`, whose results on the old base are `old`, against the new base's `tree`.

    Objects go into the store, which changes nothing for anybody.
    """
    steps: list[Step] = []
    base, conflicted = old.baseline.tree, False
    with report.task("classifying", len(patches), unit="patch") as task:
        for patch, locked in zip(patches, old.patches, strict=True):
            task.note(patch.name)
            merge = merge_trees(store, base, tree, locked.tree)
            graded = grade_patch(patch, _Files(store, tree))
            fit, note = _fit(merge, graded, tree)
            if conflicted and not fit.needs_people:
                note = "; ".join(filter(None, (note, _ASSUMED)))
            step = Step(
                patch=patch.name,
                subject=patch.header.subject,
                old=locked.commit,
                fit=fit,
                note=note,
                conflicts=tuple(display(path) for path in merge.conflicts),
            )
            steps.append(step)
            conflicted = conflicted or fit.needs_people
            tree = merge.tree if merge.clean else favour_theirs(store, merge)
            base = locked.tree
            task.advance()
    return tuple(steps)


class _Files:
    """The files of a tree; the listing is made when the first one is asked for."""

    def __init__(self, store: Store, tree: str) -> None:
        self._store, self._tree = store, tree
        self._files: dict[bytes, Entry] | None = None

    def __call__(self, path: bytes) -> Content | None:
        if self._files is None:
            self._files = self._store.read_tree(self._tree)
        entry = self._files.get(path)
        if entry is None:
            return None
        return Content(entry.mode, self._store.read_blob(entry.id))


def _fit(merge: Merge, graded: PatchGrade, tree: str) -> tuple[Fit, str]:
    if not merge.clean:
        seems_there = graded.grade is Grade.PRESENT
        note = "all that it does seems to be there" if seems_there else _conflicts(merge)
        gone = graded.grade is Grade.GONE or any(2 not in v for v in merge.conflicts.values())
        return (Fit.GONE if gone else Fit.CONFLICT), note
    if merge.tree == tree:
        return Fit.UPSTREAM, "nothing is left of it"
    if graded.is_exact:
        return Fit.CLEAN, ""
    note = "part of it is there already" if graded.partly_present else ""
    fit = _BY_GRADE.get(graded.grade, Fit.THREE_WAY)
    return fit, note or _worst_hunk(graded)


def _conflicts(merge: Merge) -> str:
    shown = [display(path) for path in merge.conflicts] or ["folders that were renamed"]
    return shown[0] + (f" and {len(shown) - 1} more" if len(shown) > 1 else "")


def _worst_hunk(graded: PatchGrade) -> str:
    """The first hunk that has the patch's grade."""
    for file in graded.files:
        for hunk in file.hunks:
            if hunk.grade is graded.grade:
                text = f" ({hunk.text})" if hunk.offset or hunk.fuzz else ""
                return f"{display(file.path)}, hunk {hunk.number}{text}"
    return ""
