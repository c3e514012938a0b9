# SPDX-License-Identifier: Apache-2.0
"""fetch: from the lock to one parentless commit in the project's store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from patchctl.errors import LockMismatch, Unavailable, UsageError
from patchctl.formats.baseline import (
    RELOCK_HINT,
    GitCommit,
    LockedSubmodule,
    Sdist,
    lock_inputs,
    read_lock,
    relock,
    require_locked,
)
from patchctl.formats.edittree import tree_id
from patchctl.formats.gitobjects import Entry, Identity, blob_id
from patchctl.stages.gitbaseline import take_commit
from patchctl.system.files import write_file
from patchctl.system.project import Project
from patchctl.system.records import Record, load_record, save_record
from patchctl.system.report import Reporter
from patchctl.system.storefiles import clear_leftovers, names_stored_commit

if TYPE_CHECKING:
    from patchctl.system.gitstore import Store
    from patchctl.system.packageindex import DigestMismatch

STAGE = "fetch"
BASELINE_REF = "refs/patchctl/baseline"
BASELINE_MESSAGE = b"pristine baseline\n"
BASELINE_AUTHOR = Identity("patchctl", "patchctl@localhost", 0)
"""Fixed, and the message with it: the commit's id depends on nothing but the tree."""


@dataclass(frozen=True)
class Baseline:
    """The pristine source in the store: a commit without parent and its tree.

    `source` says where it comes from, `digest` is the archive's sha256 or the git commit's id,
    `files` how many are kept, `fetched` is False when it was there already. `relocked` holds
    (key, old, new) for each value that ``--lock`` changed in the lock.
    """

    tree: str
    commit: str
    source: str
    digest: str
    files: int
    fetched: bool = True
    relocked: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True)
class _Taken:
    """What a source gave: the files that are kept; the digests and submodules for the lock."""

    tree: Mapping[bytes, Entry]
    digests: dict[str, str]
    submodules: tuple[LockedSubmodule, ...] = ()


def fetch_inputs(project: Project) -> dict[str, str]:
    """What the baseline depends on: the lock's values, not its comments.

    Raises:
        UsageError: the lock is missing or wrong.
    """
    return lock_inputs(_read(project))


def fetch(
    project: Project,
    report: Reporter,
    *,
    offline: bool = False,
    lock: bool = False,
    archive: Path | None = None,
) -> Baseline:
    """Bring the locked baseline into the store, unless it is there.

    `offline` asks no other machine; `lock` takes what the source has now and writes its digests
    into the lock; with `archive` what that file has, instead of what an index has.

    Raises:
        UsageError: a wrong lock, an incomplete or unsafe archive, an empty submodule.
        LockMismatch: the archive or the tree is not the locked one; nothing of it is kept.
        Unavailable: no source has it, or none can be reached.
    """
    source = _read(project)
    clear_leftovers(project.store)
    if not lock:
        require_locked(source, where=_where(project))
        there = _already_there(project, source)
        if there is not None:
            return there
    from patchctl.system.gitstore import Store

    with Store(project.store) as store:
        taken = _take(project, store, source, report, offline=offline, lock=lock, archive=archive)
        tree = store.write_tree(taken.tree)
        commit = store.write_commit(tree, (), BASELINE_AUTHOR, BASELINE_AUTHOR, BASELINE_MESSAGE)
        values = {**taken.digests, "tree": tree}
        relocked = _relock(project, source, values, taken.submodules) if lock else ()
        store.set_ref(project.baseline_ref, commit)
    locked = _read(project)
    outputs = {"tree": tree, "commit": commit, "files": str(len(taken.tree))}
    save_record(project, Record(stage=STAGE, inputs=lock_inputs(locked), outputs=outputs))
    return replace(_baseline(locked, outputs), fetched=True, relocked=relocked)


def _where(project: Project) -> str:
    return project.relative(project.baseline_lock)


def _read(project: Project) -> Sdist | GitCommit:
    try:
        text = project.baseline_lock.read_bytes()
    except FileNotFoundError:
        raise UsageError(
            f"`{_where(project)}` is missing: nothing says where the baseline comes from",
            hint="restore it from version control",
        ) from None
    return read_lock(text, where=_where(project))


def _baseline(source: Sdist | GitCommit, outputs: Mapping[str, str]) -> Baseline:
    return Baseline(
        tree=outputs["tree"],
        commit=outputs["commit"],
        source=str(source),
        digest=source.sha256 if isinstance(source, Sdist) else source.commit,
        files=int(outputs["files"]),
        fetched=False,
    )


def _already_there(project: Project, source: Sdist | GitCommit) -> Baseline | None:
    """The recorded baseline, if the store still has it; no git is started to find out."""
    record = load_record(project, STAGE)
    if record is None or record.inputs != lock_inputs(source):
        return None
    if not names_stored_commit(project.store, project.baseline_ref, record.outputs["commit"]):
        return None
    return _baseline(source, record.outputs)


def _take(
    project: Project,
    store: Store,
    source: Sdist | GitCommit,
    report: Reporter,
    *,
    offline: bool,
    lock: bool,
    archive: Path | None,
) -> _Taken:
    if isinstance(source, Sdist):
        taken = _take_sdist(store, source, report, offline=offline, lock=lock, file=archive)
    else:
        commit = take_commit(project, store, source, report, offline=offline, lock=lock)
        taken = _Taken(commit.tree, {}, tuple(commit.submodules))
    unused = source.kept.unused(taken.tree)
    if unused:
        raise UsageError(
            f"`{_where(project)}` at `baseline.include`: `{unused[0]}` matches no file of {source}",
            details=tuple(f"`{glob}` matches no file" for glob in unused[1:]),
        )
    tree = tree_id(taken.tree)
    if not lock and tree != source.tree:
        raise LockMismatch(
            f"the kept files of {source} are not the locked ones: got tree {tree}, "
            f"expected {source.tree} (`{_where(project)}`)",
            hint=f"if `include` was changed on purpose: {RELOCK_HINT}",
            data={"got": tree, "expected": source.tree},
        )
    return taken


def _take_sdist(
    store: Store,
    source: Sdist,
    report: Reporter,
    *,
    offline: bool,
    lock: bool,
    file: Path | None,
) -> _Taken:
    from patchctl.system.packageindex import DigestMismatch, Wanted, adopt, obtain
    from patchctl.system.tarballs import SUFFIXES, read_archive

    locked = Wanted(source.name, source.version, SUFFIXES, source.sha256)
    wanted = replace(locked, sha256="") if lock else locked
    try:
        archive = adopt(file) if file else obtain(wanted, report, offline=offline)
    except DigestMismatch as error:
        raise _explained(error, source, report) from error
    except Unavailable:
        if not (lock and offline and source.sha256):
            raise
        archive = obtain(locked, report, offline=True)
    contents = read_archive(archive.path, source.kept, store.write_blob, report)
    for notice in contents.notices:
        report.warn(notice)
    report.detail(f"{archive.path.name} is from {archive.origin}")
    return _Taken(contents.tree, {"sha256": archive.sha256})


def _explained(error: DigestMismatch, source: Sdist, report: Reporter) -> LockMismatch:
    """Say whether only the container differs; the archive is read, nothing of it is kept."""
    from patchctl.system.tarballs import read_archive

    try:
        found = tree_id(read_archive(error.found.path, source.kept, blob_id, report).tree)
    except UsageError as unreadable:
        verdict = unreadable.message
    else:
        if found == source.tree:
            verdict = f"content is identical, container differs: both make tree {found}"
        else:
            verdict = f"content differs: got tree {found}, expected {source.tree}"
    return LockMismatch(
        error.message,
        details=(verdict,),
        hint=f"find out why it changed; to accept the new archive: {RELOCK_HINT}",
        data={**error.data, "verdict": verdict},
    )


def _relock(
    project: Project,
    source: Sdist | GitCommit,
    values: dict[str, str],
    submodules: tuple[LockedSubmodule, ...],
) -> tuple[tuple[str, str, str], ...]:
    """Write what differs into the lock; comments and the order of keys stay."""
    changed = [(k, getattr(source, k), v) for k, v in values.items() if getattr(source, k) != v]
    moved = []
    if isinstance(source, GitCommit) and source.submodules != submodules:
        old, new = ({m.path: m for m in side} for side in (source.submodules, submodules))
        for name in dict.fromkeys((*old, *new)):
            if old.get(name) != new.get(name):
                was, now = (side[name].commit if name in side else "" for side in (old, new))
                moved.append((f"submodule {name}", was, now))
    if changed or moved:
        path = project.baseline_lock
        new_text = relock(
            path.read_bytes().decode(),
            {key: value for key, _, value in changed},
            where=_where(project),
            submodules=submodules if moved else None,
        )
        write_file(path, new_text)
    return (*changed, *moved)
