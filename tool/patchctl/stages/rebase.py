# SPDX-License-Identifier: Apache-2.0
"""rebase: a series moved to another baseline, as a session that changes nothing until accepted."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from patchctl.errors import LocalChanges, LockMismatch, UsageError
from patchctl.formats.baseline import Sdist, relock
from patchctl.formats.baseline import read_lock as read_lock_file
from patchctl.formats.onto import Onto, Release, lock_for, parse_onto
from patchctl.formats.patch import parse_patch
from patchctl.formats.patchmodel import Patch
from patchctl.formats.rebasesession import Session, read_session
from patchctl.formats.serieslock import RELOCK, LockedBaseline, verify
from patchctl.stages.applied import apply_series
from patchctl.stages.editsession import edit_repo, last_session, pending
from patchctl.stages.editsession import session_path as edit_session_file
from patchctl.stages.fetch import Baseline, fetch
from patchctl.stages.rebaseplan import plan
from patchctl.stages.rebasework import ABORT, RebaseWork, conflict_tree, save_session
from patchctl.system.baselines import baseline_names
from patchctl.system.files import sha256_bytes, sweep, write_file
from patchctl.system.gitrun import GitRepo
from patchctl.system.project import Project
from patchctl.system.report import Reporter
from patchctl.system.seriesfiles import SeriesFiles, read_lock, read_series

if TYPE_CHECKING:
    pass


class CandidateProject(Project):
    """The project as it would be on the new baseline: its lock and records are the session's."""

    @property
    def place(self) -> Path:
        """Where what depends on the new baseline is."""
        return self.out / "session" / "candidate"

    @property
    def baseline_lock(self) -> Path:
        """The new baseline's lock, before it is accepted."""
        return self.place / "baseline.lock.toml"

    def _ref(self, what: str) -> str:
        return f"refs/patchctl/rebase/{what}"


def candidate_of(project: Project) -> CandidateProject:
    """`project` as it would be on the new baseline."""
    return CandidateProject(project.root, project.out, project.baseline)


def session_file(project: Project) -> Path:
    """Where the session is recorded; it is there exactly while a rebase is under way."""
    return project.out / "session" / "rebase.json"


def load_session(project: Project) -> Session | None:
    """The rebase that is under way, or None.

    Raises:
        UsageError: the record is damaged, or the rebase is one of another baseline.
    """
    path = session_file(project)
    try:
        session = read_session(path.read_bytes(), where=project.relative(path))
    except FileNotFoundError:
        return None
    if session.baseline != project.baseline:
        raise UsageError(
            f"the rebase that is under way is one of baseline `{session.baseline}`",
            hint=f"patchctl --baseline {session.baseline} rebase --status",
        )
    return session


def require_session(project: Project) -> Session:
    """The rebase that is under way.

    Raises:
        UsageError: there is none.
    """
    session = load_session(project)
    if session is None:
        raise UsageError("no rebase is under way", hint="patchctl rebase --onto NAME==VERSION")
    return session


def classify(project: Project, onto: str, report: Reporter, *, offline: bool) -> Session:
    """Say how each patch fits the new base, as the session that `begin` would start.

    Nothing is left of it but objects in the store.

    Raises:
        UsageError: `onto` or the series is wrong, or a rebase is under way.
        LockMismatch: the series is not what its lock says.
        Unavailable: the new base cannot be had.
    """
    session = _prepare(project, onto, report, offline=offline)
    _clear_candidate(project)
    return session


def begin(project: Project, onto: str, report: Reporter, *, offline: bool) -> Session:
    """Start a session: classify the patches, and record it.

    Raises:
        LocalChanges: something else is being edited. And as `classify`.
    """
    if load_session(project) is None:
        _require_nothing_edited(project)
    session = _prepare(project, onto, report, offline=offline)
    tree = conflict_tree(project)
    tree.settle(report)
    edit_session_file(project).unlink(missing_ok=True)
    tree.remove()  # what a killed run left of another rebase too, as are these files
    sweep(session_file(project).parent, older_than=0)
    save_session(project, session)
    return session


def _require_nothing_edited(project: Project) -> None:
    """The rebase needs the edit tree for itself."""
    repo = edit_repo(project)
    if not repo.exists and not (repo.folder.is_dir() and any(repo.folder.iterdir())):
        return
    edit = last_session(project) if repo.exists else None
    left = "no edit or rebase of ours made it" if edit is None else pending(edit, repo)
    if left:
        raise LocalChanges(
            f"`{project.relative(repo.folder)}` has changes that are in no patch: {left}",
            hint="patchctl refresh first, or patchctl edit --discard",
        )


def _prepare(project: Project, onto: str, report: Reporter, *, offline: bool) -> Session:
    """Fetch and lock the new base beside the current one, and classify the patches."""
    if load_session(project) is not None:
        raise UsageError(
            "a rebase is under way already",
            hint=f"patchctl rebase --status; {ABORT} ends it",
        )
    wanted = parse_onto(onto)
    files = read_series(project)
    locked = read_lock(project)
    if locked is None:
        where = project.relative(project.series_lock)
        raise LockMismatch(f"`{where}` is missing: nothing says what the series makes", hint=RELOCK)
    base = fetch(project, report, offline=offline)
    candidate = candidate_of(project)
    new = _fetch_candidate(project, candidate, wanted, report, offline=offline)
    from patchctl.system.gitstore import Store

    with Store(project.store) as store:
        on = LockedBaseline(tree=base.tree, commit=base.commit)
        applied = apply_series(project, report, store, on, files.patches)
        verify(locked, applied.lock, where=project.relative(project.series_lock))
        applied.keep(project, store)
        steps = plan(store, applied.lock, tuple(parsed(files).values()), new.tree, report)
    return Session(
        baseline=project.baseline,
        onto=onto,
        source=new.source,
        old_source=base.source,
        old_base=base.commit,
        old_head=applied.lock.head,
        new_base=new.commit,
        lock=candidate.baseline_lock.read_bytes().decode(),
        steps=steps,
        before=digests(project, files),
    )


def _fetch_candidate(
    project: Project, candidate: CandidateProject, wanted: Onto, report: Reporter, *, offline: bool
) -> Baseline:
    """The new base. A release that another lock in `vendor/` names must be what that says."""
    where = project.relative(project.baseline_lock)
    text = lock_for(wanted, project.baseline_lock.read_bytes().decode(), where=where)
    archive = None
    if isinstance(wanted, Release):
        archive = Path(wanted.archive) if wanted.archive else None
        known = _known_lock(project, wanted, read_lock_file(text, where=where).include)
        if known is not None:
            text = relock(text, {"sha256": known.sha256, "tree": known.tree}, where=where)
            write_file(candidate.baseline_lock, text)
            return fetch(candidate, report, offline=offline, archive=archive)
    write_file(candidate.baseline_lock, text)
    return fetch(candidate, report, offline=offline, lock=True, archive=archive)


def _known_lock(project: Project, wanted: Release, include: tuple[str, ...]) -> Sdist | None:
    for name in baseline_names(project):
        path = replace(project, baseline=name).baseline_lock
        source = read_lock_file(path.read_bytes(), where=project.relative(path))
        same = isinstance(source, Sdist) and source.include == include and source.sha256
        if isinstance(source, Sdist) and same and wanted.names(source.name, source.version):
            return source
    return None


def parsed(files: SeriesFiles) -> dict[str, Patch]:
    """Every patch of the series by its name."""
    return {s.name: parse_patch(s.name, s.data, s.entry.strip) for s in files.patches}


def digests(project: Project, files: SeriesFiles) -> dict[str, str]:
    """The sha256 of each file that accepting replaces; empty for one that is not there."""
    patches = (project.patches / patch.name for patch in files.patches)
    paths = (project.series, project.series_lock, project.baseline_lock, *patches)
    return {project.relative(path): digest(path) for path in paths}


def digest(path: Path) -> str:
    """The sha256 of a file's content; empty if it is not there."""
    try:
        return sha256_bytes(path.read_bytes())
    except FileNotFoundError:
        return ""


def require_unchanged(project: Project, session: Session) -> None:
    """Refuse to go on when patches or locks are not those that the session began with.

    Raises:
        LocalChanges: names the files.
    """
    changed = [name for name, old in session.before.items() if digest(project.root / name) != old]
    if changed:
        raise LocalChanges(
            "the series was changed while the rebase was under way",
            details=tuple(changed),
            hint=f"put the files back, or {ABORT} and begin again (resolutions are remembered)",
            data={"files": changed},
        )


@contextmanager
def at_work(project: Project, report: Reporter) -> Iterator[RebaseWork]:
    """The session that is under way, ready to go on.

    Raises:
        UsageError: there is none.
        LocalChanges: the series was changed since it began.
    """
    session = require_session(project)
    require_unchanged(project, session)
    from patchctl.system.gitstore import Store

    with Store(project.store) as store:
        yield RebaseWork(project, report, store, session, parsed(read_series(project)))


def abort(project: Project, report: Reporter) -> None:
    """End the session; everything outside it is as it was. Resolutions stay remembered.

    Raises:
        UsageError: no rebase is under way.
    """
    if not session_file(project).exists():
        require_session(project)
    tree = conflict_tree(project)
    tree.settle(report)
    if tree.exists:
        tree.remember()
    clear(project)


def clear(project: Project) -> None:
    """Remove all of a session."""
    conflict_tree(project).remove()
    session_file(project).unlink(missing_ok=True)
    sweep(session_file(project).parent, older_than=0)
    _clear_candidate(project)


def _clear_candidate(project: Project) -> None:
    candidate = candidate_of(project)
    shutil.rmtree(candidate.place, ignore_errors=True)
    GitRepo(project.store).git("update-ref", "-d", candidate.baseline_ref, check=False)


def range_diff(project: Project, session: Session, *, patches: bool) -> str:
    """What git says of the commits before and after; with `patches` also how each one changed."""
    ranges = (
        f"{session.old_base}..{session.old_head}",
        f"{session.new_base}..{session.head}",
    )
    # a patch that changed much is still the same patch, not one gone and another new
    style = ("--no-color", "--creation-factor=90", *(() if patches else ("--no-patch",)))
    return GitRepo(project.store).git("range-diff", *style, *ranges).out.rstrip("\n")
