# SPDX-License-Identifier: Apache-2.0
"""Dropping and moving patches: the others are put on top again, and all files change at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from patchctl.errors import MergeConflict, UsageError
from patchctl.stages.current import Current, current_series
from patchctl.stages.editsession import release
from patchctl.stages.restack import Fate, Wanted, restack
from patchctl.stages.seriesedit import replace_series
from patchctl.system.files import write_file
from patchctl.system.project import Project
from patchctl.system.report import Reporter


@dataclass(frozen=True)
class Reordered:
    """The patch that was dropped or moved, and what became of each patch, bottom first.

    `kept` is the copy of a patch file that was dropped.
    """

    patch: str
    patches: tuple[tuple[str, Fate], ...]
    kept: Path | None = None


def drop(project: Project, report: Reporter, typed: str, *, offline: bool = False) -> Reordered:
    """Take a patch out of the series and remove its file; a copy goes to ``discarded/``.

    Raises:
        UsageError: there is no such patch.
        MergeConflict: a later patch needs it; nothing was changed.
        LocalChanges: an edit that covers it is open.
    """

    def without(current: Current, at: int) -> list[int]:
        return [n for n in range(len(current.names)) if n != at]

    done = _reorder(project, report, typed, without, "drop", offline=offline)
    return replace(done, kept=project.out / "discarded" / done.patch)


def move(
    project: Project,
    report: Reporter,
    typed: str,
    *,
    before: str | None = None,
    after: str | None = None,
    offline: bool = False,
) -> Reordered:
    """Move a patch directly before or after another; exactly one of the two is given.

    Raises:
        UsageError: there is no such patch, or the two are the same.
        MergeConflict: a patch needs the order as it is; nothing was changed.
        LocalChanges: an edit that covers one of them is open.
    """
    other = before or after
    if other is None or (before and after):
        raise UsageError("say where to: --before PATCH or --after PATCH")

    def moved(current: Current, at: int) -> list[int]:
        mark = current.index(project, other)
        if mark == at:
            raise UsageError(f"`{current.names[at]}` cannot be moved relative to itself")
        order = [n for n in range(len(current.names)) if n != at]
        order.insert(order.index(mark) + (after is not None), at)
        return order

    return _reorder(project, report, typed, moved, "move", offline=offline)


def _reorder(
    project: Project,
    report: Reporter,
    typed: str,
    order_of: Callable[[Current, int], list[int]],
    verb: str,
    *,
    offline: bool,
) -> Reordered:
    from patchctl.system.gitstore import Store

    with Store(project.store) as store:
        current = current_series(project, report, store, offline=offline)
        at = current.index(project, typed)
        order = order_of(current, at)
        same = next((n for n, was in enumerate(order) if n != was), len(order))
        release(project, current.names[same:])
        wanted = [Wanted(current.names[n], n) for n in order]
        try:
            result = restack(report, store, current, wanted)
        except MergeConflict as error:
            error.hint = error.hint or (
                f"`{error.data['patch']}` depends on the order: change it first (patchctl edit "
                f"{error.data['patch']}), or {verb} it too"
            )
            raise
        if at not in order:
            # perhaps no version control has it yet
            gone = project.patches / current.names[at]
            write_file(project.out / "discarded" / gone.name, gone.read_bytes())
        replace_series(
            project,
            report,
            result.patches,
            store=store,
            baseline=current.base,
            applied=result.applied,
        )
    return Reordered(current.names[at], result.fates)
