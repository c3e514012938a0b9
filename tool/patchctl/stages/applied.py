# SPDX-License-Identifier: Apache-2.0
"""A series applied to a baseline in memory, strictly; an unchanged prefix is taken from before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from patchctl.system.report import Reporter, Task
from patchctl.system.seriesfiles import PatchSource

if TYPE_CHECKING:
    from patchctl.formats.history import History
    from patchctl.formats.patchmodel import Patch
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
    from patchctl.formats.history import make_history
    from patchctl.formats.patch import parse_patch

    for source in patches:
        read_promises(source.name, source.data)
    done = known_part(load_prefixes(project), base, patches)
    if done and not store.has(done[-1].commit):
        done = ()
    rest = patches[len(done) :]
    parsed = [(parse_patch(s.name, s.data, s.entry.strip), s.sha256) for s in rest]
    tree = store.read_tree(done[-1].tree if done else base.tree)
    with report.task("replaying", len(parsed), unit="patches") as task:
        history = make_history(
            base,
            tree,
            _watched(parsed, task),
            store.read_blob,
            done=as_locked(done, patches),
        )
    made = zip(
        keys(base, patches)[len(done) :], history.lock.patches[len(done) :], parsed, strict=True
    )
    new = tuple(
        Prefix(key, locked.tree, locked.commit, patch.header.subject)
        for key, locked, (patch, _) in made
    )
    return Applied(history, (*done, *new), len(done))


def _watched(patches: list[tuple[Patch, str]], task: Task) -> Iterator[tuple[Patch, str]]:
    for patch in patches:
        task.note(patch[0].name)
        yield patch
        task.advance()
