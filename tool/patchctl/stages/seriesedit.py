# SPDX-License-Identifier: Apache-2.0
"""Rewriting the series: patch files, `series` and lock in one step, after a strict replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from patchctl.errors import PatchctlError
from patchctl.formats.series import SeriesEntry, parse_series
from patchctl.formats.serieslock import LockedBaseline, SeriesLock, write_series_lock
from patchctl.formats.seriesrewrite import Listed, rewrite_series
from patchctl.stages.applied import Applied, apply_series
from patchctl.system.files import sha256_bytes
from patchctl.system.prefixes import Prefix, save_prefixes
from patchctl.system.project import DEFAULT_BASELINE, LOCK_SUFFIX, Project
from patchctl.system.report import Reporter
from patchctl.system.seriesfiles import PatchSource, read_series
from patchctl.system.seriesjournal import replace_files

if TYPE_CHECKING:
    from patchctl.system.gitstore import Store


@dataclass(frozen=True)
class NewPatch:
    """A patch as the series shall have it.

    `was` is the name under which the old series has it; its line, and the comments above that,
    are kept. None for a patch that is new. `tree` is what the patch must make, where the caller
    knows: a last check that nothing was lost between a commit and its patch file.
    """

    name: str
    data: bytes = field(repr=False)
    strip: int = 1
    was: str | None = None
    tree: str | None = None

    @property
    def source(self) -> PatchSource:
        """It as the series would give it."""
        entry = SeriesEntry(self.name, self.strip, 0)
        return PatchSource(entry, self.data, sha256_bytes(self.data))


@dataclass(frozen=True)
class SeriesPlan:
    """A new series that replays: everything is computed and in the store, nothing is written.

    `prefixes` says what each patch makes; `contents` are the files of the project to write.
    """

    project: Project
    applied: Applied
    contents: Mapping[Path, bytes | None]

    @property
    def prefixes(self) -> tuple[Prefix, ...]:
        """What the patches make, one item each."""
        return self.applied.prefixes

    def carry_out(self, also: Mapping[Path, bytes | None] | None = None) -> SeriesLock:
        """Write it, and `also`, as one step. The caller holds the project's lock."""
        replace_files(self.project, {**self.contents, **(also or {})})
        save_prefixes(self.project, self.prefixes)
        return self.applied.lock


def plan_series(
    project: Project,
    report: Reporter,
    patches: Sequence[NewPatch],
    *,
    store: Store,
    baseline: LockedBaseline,
    applied: Applied | None = None,
) -> SeriesPlan:
    """Replay `patches` on `baseline`, strictly, and plan to make them the series.

    `applied` is the result, where the caller has just done the same.

    Raises:
        PatchDoesNotApply: a patch is malformed or does not fit exactly.
        UsageError: a name is there twice or leaves the folder.
    """
    old = read_series(project)
    where = project.relative(project.series)
    listed = [Listed(patch.name, patch.strip, patch.was) for patch in patches]
    text = rewrite_series(project.series.read_bytes(), listed, where=where)
    parse_series(text, where=where)
    if applied is None:
        sources = [patch.source for patch in patches]
        applied = apply_series(project, report, store, baseline, sources)
    for patch, made in zip(patches, applied.lock.patches, strict=True):
        if patch.tree is not None and patch.tree != made.tree:
            raise PatchctlError(
                f"`{patch.name}` as written makes tree {made.tree}, expected {patch.tree}",
                hint="nothing was changed; please report it with the two trees",
            )
    store.write_objects(applied.history.objects)
    contents: dict[Path, bytes | None] = {project.patches / p.name: None for p in old.patches}
    contents |= {project.patches / p.name: p.data for p in patches}
    contents[project.series] = text
    contents[project.series_lock] = write_series_lock(applied.lock).encode()
    return SeriesPlan(project, applied, contents)


def other_locks(project: Project) -> list[str]:
    """The other baselines for which the series is locked: what it makes of them changes too."""
    names = []
    for path in sorted(project.patches.glob(f"series*{LOCK_SUFFIX}")):
        if path != project.series_lock:
            middle = path.name.removeprefix("series").removesuffix(LOCK_SUFFIX)
            names.append(middle.removeprefix(".") or DEFAULT_BASELINE)
    return names


def replace_series(
    project: Project,
    report: Reporter,
    patches: Sequence[NewPatch],
    *,
    store: Store,
    baseline: LockedBaseline,
    also: Mapping[Path, bytes | None] | None = None,
    applied: Applied | None = None,
) -> SeriesLock:
    """Make `patches` on `baseline` the series: all files of it change together, or none.

    They are replayed strictly first, so that a series that does not replay is never written;
    the lock becomes the result. `also` are further files of the project to write in the same
    step (a baseline's lock, a session), None to remove one. `applied` is the replay's result,
    where the caller has it. The caller holds the project's lock.

    Returns the lock that was written.

    Raises:
        PatchDoesNotApply: a patch is malformed or does not fit exactly; nothing was changed.
        UsageError: a name is there twice or leaves the folder; nothing was changed.
    """
    plan = plan_series(project, report, patches, store=store, baseline=baseline, applied=applied)
    return plan.carry_out(also)
