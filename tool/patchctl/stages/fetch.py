# SPDX-License-Identifier: Apache-2.0
"""fetch: from the lock to one parentless commit in the project's store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from patchctl.errors import LockMismatch, Unavailable, UsageError
from patchctl.formats.archive import check_links, check_paths, submodule_missing
from patchctl.formats.baseline import (
    RELOCK_HINT,
    GitCommit,
    Sdist,
    lock_inputs,
    read_lock,
    relock,
    require_locked,
)
from patchctl.formats.edittree import tree_id
from patchctl.formats.gitobjects import Entry, Identity, Mode, blob_id
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
    """What a source gave: the files that are kept, and the digests for the lock."""

    tree: Mapping[bytes, Entry]
    digests: dict[str, str]


def fetch_inputs(project: Project) -> dict[str, str]:
    """What the baseline depends on: the lock's values, not its comments.

    Raises:
        UsageError: the lock is missing or wrong.
    """
    return lock_inputs(_read(project))


def fetch(
    project: Project, report: Reporter, *, offline: bool = False, lock: bool = False
) -> Baseline:
    """Bring the locked baseline into the store, unless it is there.

    `offline` asks no other machine; `lock` takes what the source has now and writes its digests
    into the lock.

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
        taken = _take(project, store, source, report, offline=offline, lock=lock)
        tree = store.write_tree(taken.tree)
        commit = store.write_commit(tree, (), BASELINE_AUTHOR, BASELINE_AUTHOR, BASELINE_MESSAGE)
        relocked = _relock(project, source, {**taken.digests, "tree": tree}) if lock else ()
        store.set_ref(BASELINE_REF, commit)
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
    if not names_stored_commit(project.store, BASELINE_REF, record.outputs["commit"]):
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
) -> _Taken:
    if isinstance(source, Sdist):
        taken = _take_sdist(store, source, report, offline=offline, lock=lock)
    else:
        taken = _take_commit(project, store, source, report, offline=offline)
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
    store: Store, source: Sdist, report: Reporter, *, offline: bool, lock: bool
) -> _Taken:
    from patchctl.system.packageindex import DigestMismatch, Wanted, obtain
    from patchctl.system.tarballs import SUFFIXES, read_archive

    locked = Wanted(source.name, source.version, SUFFIXES, source.sha256)
    wanted = replace(locked, sha256="") if lock else locked
    try:
        archive = obtain(wanted, report, offline=offline)
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


def _take_commit(
    project: Project, store: Store, source: GitCommit, report: Reporter, *, offline: bool
) -> _Taken:
    place = _place(project, source.url)
    if offline and isinstance(place, str) and not store.has(source.commit):
        raise Unavailable(
            f"commit {source.commit} of `{source.url}` is not on this machine, "
            "and --offline forbids to fetch it",
            hint="run once without --offline, or let `baseline.url` be a local clone",
        )
    with report.task(f"fetching {source}", 0):
        store.fetch_commit(place, source.commit)
    where = f"commit {source.commit}"
    for folder in store.submodules(source.commit):
        if source.kept.reaches_into(folder):
            raise submodule_missing(folder, what="commit")
    everything = store.read_tree(source.commit, skip_submodules=True)
    tree = {path: entry for path, entry in everything.items() if source.kept.matches(path)}
    check_paths(tree, where=where)
    links = {p: store.read_blob(e.id) for p, e in tree.items() if e.mode is Mode.SYMLINK}
    check_links(links, where=where)
    return _Taken(tree, {})


def _place(project: Project, url: str) -> Path | str:
    """A folder on this machine, or a URL as it is."""
    path = project.root / Path(url.removeprefix("file://")).expanduser()
    if path.exists():
        return path.resolve()
    # git's own rule: a colon before the first slash means another machine
    if "://" in url or ":" in url.split("/")[0]:
        return url
    raise UsageError(
        f"`{_where(project)}` at `baseline.url`: no folder `{path}`",
        hint="a path is relative to the project's folder",
    )


def _relock(
    project: Project, source: Sdist | GitCommit, values: dict[str, str]
) -> tuple[tuple[str, str, str], ...]:
    """Write what differs into the lock; comments and the order of keys stay."""
    changes = tuple(
        (k, getattr(source, k), v) for k, v in values.items() if getattr(source, k) != v
    )
    if changes:
        path = project.baseline_lock
        text = path.read_bytes().decode()
        write_file(path, relock(text, {k: new for k, _, new in changes}, where=_where(project)))
    return changes
