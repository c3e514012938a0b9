# SPDX-License-Identifier: Apache-2.0
"""Grading a patch against a tree of the store, with a three-way merge where that is possible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from patchctl.formats.apply import Content
from patchctl.formats.gitobjects import Tree
from patchctl.formats.grade import ReadFile, grade_patch
from patchctl.formats.grademodel import FileGrade, Grade, PatchGrade
from patchctl.formats.patchmodel import Action, Change, Patch, lines_of
from patchctl.formats.placement import place_hunks
from patchctl.formats.repairs import repaired_hunks
from patchctl.formats.wording import counted
from patchctl.system.files import write_file
from patchctl.system.gitrun import GitRepo
from patchctl.system.gitstore import Store
from patchctl.system.process import ProcessFailed

BaseOf = Callable[[Change], bytes | None]
"""Gives the content that a change was made for, or None where nobody has it."""


def reader(store: Store, tree: Tree) -> ReadFile:
    """Reads the files of a tree."""

    def read(path: bytes) -> Content | None:
        entry = tree.get(path)
        return None if entry is None else Content(entry.mode, store.read_blob(entry.id))

    return read


def grade(store: Store, patch: Patch, read: ReadFile, base_of: BaseOf | None = None) -> PatchGrade:
    """Grade `patch` against the tree that `read` reads.

    Where a file's hunks are not exact and the content that they were made for is known (by
    default: the store has the blob that the patch's ``index`` line names), a three-way merge
    has the last word: it confirms their places, replaces them, or is a conflict.
    """
    base_of = base_of or (lambda change: stored_base(store, change))
    first = grade_patch(patch, read)
    files = [
        _merged(store, change, file, read, base_of)
        for change, file in zip(patch.changes, first.files, strict=True)
    ]
    return replace(first, files=tuple(files))


def stored_base(store: Store, change: Change) -> bytes | None:
    """The blob that the change's ``index`` line names as the old one, if the store has it."""
    if change.ids is None:
        return None
    asked = f"{change.ids[0]}^{{blob}}"
    done = GitRepo(store.path).git("rev-parse", "--verify", "--quiet", asked, check=False)
    return store.read_blob(done.out.strip()) if done.code == 0 else None


def _merged(
    store: Store, change: Change, file: FileGrade, read: ReadFile, base_of: BaseOf
) -> FileGrade:
    mergeable = change.action in (Action.EDIT, Action.RENAME, Action.COPY) and change.hunks
    if not mergeable or file.own is not Grade.EXACT or file.is_exact:
        return file
    if file.grade is Grade.PRESENT:
        return file
    there, base = read(change.old), base_of(change)
    if there is None or base is None:
        return file
    theirs = patched(change, base)
    if theirs is None:
        return file
    merge = merge_files(store, there.data, base, theirs)
    if merge.conflicts:
        if file.grade.fits:
            return file
        why = f"three-way merge: {counted(merge.conflicts, 'conflict')}"
        return replace(file, own=Grade.CONFLICT, why=why)
    if merge.content == there.data:
        return replace(file, own=Grade.PRESENT, why="the three-way merge leaves nothing to do")
    if file.grade.fits:
        hunks, _ = repaired_hunks(change.hunks, file.hunks, lines_of(there.data))
        if patched(replace(change, hunks=hunks), there.data) == merge.content:
            return file
    return replace(file, own=Grade.THREE_WAY, why="", merged=merge.content)


def patched(change: Change, data: bytes) -> bytes | None:
    """What the hunks of `change` make of `data`; None where one does not fit exactly."""
    lines = lines_of(data)
    grades = place_hunks(change.hunks, lines)
    if any(g.grade is not Grade.EXACT for g in grades):
        return None
    result: list[bytes] = []
    position = 0
    for hunk in change.hunks:
        start = hunk.old_start - bool(hunk.old)
        result += lines[position:start]
        result += hunk.new
        position = start + len(hunk.old)
    return b"".join(result + lines[position:])


@dataclass(frozen=True)
class Merge:
    """What a three-way merge gave: the content (with markers), and how many conflicts."""

    content: bytes
    conflicts: int


def merge_files(store: Store, ours: bytes, base: bytes, theirs: bytes) -> Merge:
    """Merge two changes of `base` with git's own merge.

    Raises:
        ProcessFailed: git could not merge (binary files).
    """
    names = {"tree": ours, "base": base, "patch": theirs}
    with TemporaryDirectory(prefix="patchctl-merge-") as folder:
        for name, data in names.items():
            write_file(Path(folder) / name, data, sync=False)
        places = [str(Path(folder) / name) for name in names]
        labels = [word for name in names for word in ("-L", name)]
        arguments = ("merge-file", "--stdout", "--diff3", *labels, *places)
        done = GitRepo(store.path).git(*arguments, check=False)
    # the exit code counts conflicts, up to 127; errors are negative
    if not 0 <= done.code <= 127:
        raise ProcessFailed(done)
    return Merge(done.stdout, done.code)
