# SPDX-License-Identifier: Apache-2.0
"""A folder that is made equal to a git tree: only what differs is written, no edit is lost.

An update is staged outside the folder first (a full disk stops it there), then announced in a
journal, then done by renames and removals. Every file is therefore old or new at any moment;
a run after a killed one knows both from manifest and journal, and finishes or goes elsewhere.

Files that replay did not write are left alone unless they are where something must go.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from patchctl.formats.gitobjects import Entry, Mode, Tree
from patchctl.system.files import write_new
from patchctl.system.sourcestate import FileState, Journal, Manifest, state_of


class EditKind(StrEnum):
    """How a file was changed by somebody else."""

    EDITED = "edited"
    REMOVED = "removed"
    IN_THE_WAY = "in the way"


@dataclass(frozen=True)
class LocalEdit:
    """A file that somebody else changed, and that an update would overwrite."""

    path: bytes
    kind: EditKind


@dataclass(frozen=True)
class Survey:
    """The folder as it is, against what it must become.

    `known` are the paths that replay wrote, was writing when it was killed, or wants to write;
    `current` and `stats` are of those that are there, `untracked` the paths of all other files.
    `needs_settling` is true when the manifest must be saved anew.
    """

    known: frozenset[bytes]
    current: dict[bytes, Entry]
    stats: dict[bytes, os.stat_result]
    folders: frozenset[bytes]
    edits: tuple[LocalEdit, ...]
    untracked: tuple[bytes, ...]
    needs_settling: bool
    differs: bool


@dataclass(frozen=True)
class Update:
    """How many files an update wrote (or changed the mode of) and removed."""

    written: int
    removed: int


class Worktree:
    """The folder `root`; `state` is where the manifest, the journal and staged files are."""

    def __init__(self, root: Path, state: Path) -> None:
        self._root = root
        self._manifest_path = state / "source.json"
        self._staging = state / "staging"
        self._journal = Journal(state / "source.journal.json")
        self.manifest = Manifest.load(self._manifest_path)

    def _path(self, name: bytes) -> Path:
        return self._root / os.fsdecode(name)

    def survey(self, target: Tree) -> Survey:
        """Compare the folder with `target`; changes nothing."""
        files: dict[bytes, os.stat_result] = {}
        folders: set[bytes] = set()
        for name, found in _walk(os.fsencode(self._root), b""):
            if found is None:
                folders.add(name)
            else:
                files[name] = found
        journal = self._journal.load()
        manifest = self.manifest.files
        known = {*manifest, *(journal or ()), *target}
        current: dict[bytes, Entry] = {}
        edits: list[LocalEdit] = []
        for name in known:
            found = files.get(name)
            now = found and self.manifest.identify(name, self._path(name), found)
            if now is not None:
                current[name] = now
            recorded = manifest.get(name)
            allowed = [target.get(name), recorded and recorded.entry]
            if journal is not None and name in journal:
                allowed.append(journal[name])
            if (found is not None and now is None) or now not in allowed:
                edits.append(LocalEdit(name, _kind(recorded, found)))
        untracked = files.keys() - known
        edits += self._in_the_way(untracked, target)
        stats = {name: files[name] for name in current}
        stale = any(
            name not in manifest
            or manifest[name].mtime_ns >= self.manifest.written_ns
            or manifest[name] != state_of(entry, stats[name])
            for name, entry in current.items()
        )
        return Survey(
            frozenset(known),
            current,
            stats,
            frozenset(folders),
            tuple(sorted(edits, key=lambda edit: edit.path)),
            tuple(sorted(untracked)),
            journal is not None or stale or manifest.keys() != current.keys(),
            current != dict(target),
        )

    def _in_the_way(self, untracked: Iterable[bytes], target: Tree) -> Iterator[LocalEdit]:
        """Files of others in a folder where a file must go, or the other way round."""
        needed = _parents(target)
        for name in untracked:
            if name in needed or any(parent in target for parent in _parents([name])):
                yield LocalEdit(name, EditKind.IN_THE_WAY)

    def discard(self, edits: Iterable[LocalEdit], to: Path) -> None:
        """Move edited files to the folder `to`, each under its path."""
        for edit in edits:
            if edit.kind is not EditKind.REMOVED:
                kept = to / os.fsdecode(edit.path)
                kept.parent.mkdir(parents=True, exist_ok=True)
                self._path(edit.path).rename(kept)

    def update(
        self, survey: Survey, target: Tree, tree: str, read: Callable[[str], bytes]
    ) -> Update:
        """Make the folder equal to `target`, whose id is `tree`; `survey` must have no edits.

        `read` gives the content of a blob by its id.
        """
        current = survey.current
        self.settle(survey, target, "" if survey.differs else tree)
        if not survey.differs:
            return Update(0, 0)
        kept = {name: state_of(entry, survey.stats[name]) for name, entry in current.items()}
        changed = {
            name: target.get(name)
            for name in {*current, *target}
            if current.get(name) != target.get(name)
        }
        try:
            staged = self._stage(changed, current, read)
            self._journal.begin(changed)
            for name, entry in changed.items():
                kept.pop(name, None)
                if entry is None:
                    self._path(name).unlink()
            self._prune(survey, target)
            for name, entry in changed.items():
                if entry is not None:
                    kept[name] = self._place(name, entry, staged.get(name))
            self._save(tree, kept)
        finally:
            shutil.rmtree(self._staging, ignore_errors=True)
        removed = sum(entry is None for entry in changed.values())
        return Update(len(changed) - removed, removed)

    def settle(self, survey: Survey, target: Tree, tree: str) -> None:
        """Record what is there, which makes `tree` (or none): an interrupted update is over.

        A later run must find one journal at most, so this comes before the next update.
        """
        shutil.rmtree(self._staging, ignore_errors=True)
        self._prune(survey, target)
        if survey.needs_settling or self.manifest.tree != tree:
            files = {n: state_of(e, survey.stats[n]) for n, e in survey.current.items()}
            self._save(tree, files)

    def _save(self, tree: str, files: dict[bytes, FileState]) -> None:
        Manifest(tree, files).save(self._manifest_path)
        self._journal.end()
        self.manifest = Manifest.load(self._manifest_path)

    def _stage(
        self,
        changed: dict[bytes, Entry | None],
        current: dict[bytes, Entry],
        read: Callable[[str], bytes],
    ) -> dict[bytes, Path]:
        """Write new content beside the folder; a change of mode alone needs none."""
        staged: dict[bytes, Path] = {}
        for number, (name, entry) in enumerate(changed.items()):
            if entry is None or _only_mode_differs(current.get(name), entry):
                continue
            path = self._staging / str(number)
            data = read(entry.id)
            if entry.mode is Mode.SYMLINK:
                self._staging.mkdir(parents=True, exist_ok=True)
                path.symlink_to(os.fsdecode(data))
            else:
                # unsynced: after a power cut a lost file shows as edited, and --discard repairs
                write_new(path, data, mode=_permissions(entry.mode))
            staged[name] = path
        return staged

    def _place(self, name: bytes, entry: Entry, staged: Path | None) -> FileState:
        path = self._path(name)
        if staged is None:
            path.chmod(_permissions(entry.mode))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            staged.replace(path)
        return state_of(entry, path.lstat())

    def _prune(self, survey: Survey, target: Tree) -> None:
        """Remove empty folders that are ours, or where a file must go."""
        ours = _parents(survey.known) | target.keys()
        for folder in sorted((ours & survey.folders) - _parents(target), reverse=True):
            try:
                self._path(folder).rmdir()
            except OSError:
                continue  # somebody else's file is in it


def _walk(folder: bytes, prefix: bytes) -> Iterator[tuple[bytes, os.stat_result | None]]:
    """Every path below `folder`: files and links with their stat, folders with None.

    A git directory is somebody else's whole, and no tree can name it.
    """
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return
    for entry in entries:
        name = prefix + entry.name
        if not entry.is_dir(follow_symlinks=False):
            yield name, entry.stat(follow_symlinks=False)
        elif entry.name != b".git":
            yield name, None
            yield from _walk(entry.path, name + b"/")


def _parents(names: Iterable[bytes]) -> set[bytes]:
    """Every folder above the files `names`."""
    found: set[bytes] = set()
    for name in names:
        while b"/" in name:
            name = name.rpartition(b"/")[0]
            if name in found:
                break
            found.add(name)
    return found


def _kind(recorded: FileState | None, found: os.stat_result | None) -> EditKind:
    if found is None:
        return EditKind.REMOVED
    return EditKind.IN_THE_WAY if recorded is None else EditKind.EDITED


def _only_mode_differs(now: Entry | None, entry: Entry) -> bool:
    links = now is not None and Mode.SYMLINK in (now.mode, entry.mode)
    return now is not None and now.id == entry.id and not links


def _permissions(mode: Mode) -> int:
    return 0o755 if mode is Mode.EXECUTABLE else 0o644
