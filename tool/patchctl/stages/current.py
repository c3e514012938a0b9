# SPDX-License-Identifier: Apache-2.0
"""The series as it is, replayed and equal to its lock: what every change of it starts from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from patchctl.errors import LockMismatch, PatchDoesNotApply
from patchctl.formats.patchnames import find_patch
from patchctl.formats.serieslock import RELOCK, LockedBaseline, SeriesLock, verify
from patchctl.stages.applied import apply_series
from patchctl.stages.fetch import fetch
from patchctl.system.prefixes import Prefix
from patchctl.system.project import Project
from patchctl.system.report import Reporter
from patchctl.system.seriesfiles import PatchSource, add_series_line, read_lock, read_series

if TYPE_CHECKING:
    from patchctl.system.gitstore import Store


@dataclass(frozen=True)
class Current:
    """The series: its baseline, its patches, and what each prefix makes (in the store)."""

    base: LockedBaseline
    patches: tuple[PatchSource, ...]
    prefixes: tuple[Prefix, ...]

    @property
    def names(self) -> list[str]:
        """The patches' names, in order."""
        return [patch.name for patch in self.patches]

    def tree(self, count: int) -> str:
        """The tree of the first `count` patches."""
        return self.prefixes[count - 1].tree if count else self.base.tree

    def commit(self, count: int) -> str:
        """The commit of the first `count` patches."""
        return self.prefixes[count - 1].commit if count else self.base.commit

    def key(self, count: int) -> str:
        """What identifies the content of the first `count` patches."""
        return self.prefixes[count - 1].key if count else self.base.commit

    def index(self, project: Project, typed: str) -> int:
        """The position, from 0, of the patch that `typed` means.

        Raises:
            UsageError: there is none, or more than one.
        """
        where = project.relative(project.series)
        return self.names.index(find_patch(self.names, typed, where=where))


def current_series(project: Project, report: Reporter, store: Store, *, offline: bool) -> Current:
    """Replay the series in memory; its objects are in the store then.

    Raises:
        PatchDoesNotApply: it does not replay.
        LockMismatch: it is not what was locked, so a change would bury that.
        UsageError: the series, a patch file or a lock is wrong.
    """
    files = read_series(project)
    baseline = fetch(project, report, offline=offline)
    base = LockedBaseline(tree=baseline.tree, commit=baseline.commit)
    try:
        applied = apply_series(project, report, store, base, files.patches)
    except PatchDoesNotApply as error:
        add_series_line(error, project, files)
        raise
    _require_locked(project, applied.lock)
    applied.keep(project, store)
    return Current(base, files.patches, applied.prefixes)


def _require_locked(project: Project, got: SeriesLock) -> None:
    where = project.relative(project.series_lock)
    locked = read_lock(project)
    if locked is None:
        raise LockMismatch(
            f"`{where}` is missing: the series was never locked",
            hint=RELOCK,
            data={"file": where},
        )
    verify(locked, got, where=where)
