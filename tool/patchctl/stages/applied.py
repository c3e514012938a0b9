# SPDX-License-Identifier: Apache-2.0
"""A series applied to a baseline in memory, strictly; an unchanged prefix is taken from before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from patchctl.formats.serieslock import LockedBaseline, SeriesLock
from patchctl.system.prefixes import (
    Prefix,
    as_locked,
    keys,
    known_part,
    load_prefixes,
    save_prefixes,
)
from patchctl.system.project import Project
from patchctl.system.report import QuietReporter, Reporter
from patchctl.system.seriesfiles import PatchSource

if TYPE_CHECKING:
    from patchctl.formats.history import History
    from patchctl.system.gitstore import Store


@dataclass(frozen=True)
class Applied:
    """What a series makes of a baseline.

    `prefixes` has one item a patch; the objects in `history` are of the patches that had to be
    applied, which are all but the first `reused`.
    """

    history: History
    prefixes: tuple[Prefix, ...]
    reused: int

    @classmethod
    def of(
        cls, history: History, patches: Sequence[PatchSource], subjects: Sequence[str], reused: int
    ) -> Applied:
        """What `history` says about `patches`, whose subjects are given."""
        made = zip(
            keys(history.lock.baseline, patches), history.lock.patches, subjects, strict=True
        )
        prefixes = tuple(Prefix(key, p.tree, p.commit, subject) for key, p, subject in made)
        return cls(history, prefixes, reused)

    @property
    def lock(self) -> SeriesLock:
        """The results as the lock holds them."""
        return self.history.lock

    def keep(self, project: Project, store: Store) -> None:
        """Write the objects, then remember the prefixes."""
        store.write_objects(self.history.objects)
        save_prefixes(project, self.prefixes)


def apply_series(
    project: Project,
    report: Reporter,
    store: Store,
    base: LockedBaseline,
    patches: Sequence[PatchSource],
) -> Applied:
    """Apply `patches` to `base`. Nothing is written; all are parsed before the first is applied.

    Raises:
        PatchDoesNotApply: a patch is malformed, or promises what cannot be read, or does not
            fit exactly.
    """
    from patchctl.formats.asserts import read_promises
    from patchctl.formats.history import HistoryBuilder
    from patchctl.formats.patch import parse_patch

    done = known_part(load_prefixes(project), base, patches)
    if done and not store.has(done[-1].commit):
        done = ()
    rest = patches[len(done) :]
    for source in rest:
        read_promises(source.name, source.data)
    parsed = [parse_patch(s.name, s.data, s.entry.strip) for s in rest]
    tree = store.read_tree(done[-1].tree if done else base.tree)
    builder = HistoryBuilder(base, tree, store.read_blob, done=as_locked(done, patches))
    task_of = report.task if parsed else QuietReporter().task
    with task_of("replaying", len(parsed), unit="patch") as task:
        for source, patch in zip(rest, parsed, strict=True):
            task.note(patch.name)
            builder.push(patch, source.sha256)
            task.advance()
    subjects = [prefix.subject for prefix in done] + [p.header.subject for p in parsed]
    return Applied.of(builder.result(), patches, subjects, len(done))
