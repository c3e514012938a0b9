# SPDX-License-Identifier: Apache-2.0
"""Patches put on top of something else than before: strictly, else by a three-way merge.

Works on objects in memory and in the store. Nothing of the project changes here, so a conflict
leaves everything as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from patchctl.errors import MergeConflict, PatchDoesNotApply
from patchctl.formats.gitobjects import display
from patchctl.stages.current import Current
from patchctl.stages.export import export_patch
from patchctl.stages.seriesedit import NewPatch
from patchctl.system.report import Reporter

if TYPE_CHECKING:
    from patchctl.formats.edittree import EditTree
    from patchctl.formats.patchmodel import Patch
    from patchctl.system.gitstore import Store


class Fate(StrEnum):
    """What became of a patch."""

    KEPT = "kept"
    """Applied strictly as it is: not a byte of its file changed."""
    MERGED = "merged"
    """By a three-way merge."""
    EDITED = "edited"
    """Written anew from a commit."""
    NEW = "new"


@dataclass(frozen=True)
class Wanted:
    """A patch that the new series shall have.

    `was` is its place in the current series (from 0), None for a new one. With `commit` it
    becomes exactly that commit, whose parent's tree is what the patches before make; without,
    it is put on top of them.
    """

    name: str
    was: int | None = None
    commit: str | None = None


@dataclass(frozen=True)
class Stacked:
    """One result: the patch file, what became of it, and what it makes.

    `commit` is empty where the patch was only applied.
    """

    patch: NewPatch
    fate: Fate
    commit: str
    tree: str


def restack(
    report: Reporter, store: Store, current: Current, wanted: Sequence[Wanted]
) -> list[Stacked]:
    """The patch files of the series `wanted`.

    Raises:
        MergeConflict: a patch does not go on top of those before it, or nothing of it is left.
        PatchDoesNotApply: a commit cannot be written as a patch.
        UsageError: a commit's message cannot be written into a patch file.
    """
    stack = _Stack(store, current)
    with report.task("re-applying", len(wanted), unit="patches") as task:
        for item in wanted:
            task.note(item.name)
            stack.push(item)
            task.advance()
    return stack.done


class _Stack:
    def __init__(self, store: Store, current: Current) -> None:
        self._store, self._current = store, current
        self.done: list[Stacked] = []
        self._tree, self._commit = current.base.tree, current.base.commit
        self._working: EditTree | None = None  # of `_tree`; made when a patch is applied to it
        self._blobs: dict[str, bytes] = {}  # that are not in the store yet
        self._objects: list[tuple[str, bytes]] = []

    def push(self, item: Wanted) -> None:
        at, count = item.was, len(self.done)
        unchanged = at == count and self._tree == self._current.tree(count)
        if item.commit is not None:
            self._take(item, item.commit)
        elif unchanged and self._commit == self._current.commit(count):
            # the same on the same: nothing to find out
            made = self._current.prefixes[count]
            self._add(item, self._source(item), Fate.KEPT, made.tree, made.commit)
        else:
            self._put(item)

    def _source(self, item: Wanted) -> bytes:
        assert item.was is not None
        return self._current.patches[item.was].data

    def _add(
        self,
        item: Wanted,
        data: bytes,
        fate: Fate,
        tree: str,
        commit: str,
        working: EditTree | None = None,
    ) -> None:
        at = item.was
        strip = 1 if at is None else self._current.patches[at].entry.strip
        was = None if at is None else self._current.patches[at].name
        patch = NewPatch(item.name, data, strip, was, tree)
        self.done.append(Stacked(patch, fate, commit, tree))
        self._tree, self._commit, self._working = tree, commit, working

    # -- from a commit

    def _take(self, item: Wanted, commit: str) -> None:
        tree = self._store.tree_of(commit)
        if tree == self._tree:
            raise _nothing_left(item.name)
        old = None if item.was is None else self._source(item)
        strip = 1 if item.was is None else self._current.patches[item.was].entry.strip
        same = item.was is not None and commit == self._current.commit(item.was + 1)
        data = old if same else None
        if data is None:
            data = export_patch(self._store, commit, old, name=item.name, strip=strip)
        fate = Fate.NEW if old is None else Fate.KEPT if data == old else Fate.EDITED
        self._add(item, data, fate, tree, commit)

    # -- on top of what is there

    def _put(self, item: Wanted) -> None:
        from patchctl.formats.apply import apply_patch
        from patchctl.formats.patch import parse_patch

        assert item.was is not None
        source = self._current.patches[item.was]
        patch = parse_patch(source.name, source.data, source.entry.strip)
        working = self._working or self._tree_of(self._tree)
        try:
            effects = apply_patch(patch, working, self._read)
        except PatchDoesNotApply as error:
            self._merge(item, patch, error)
            return
        for content in effects.values():
            if content is not None:
                self._blobs[content.entry.id] = content.data
                self._objects.append(("blob", content.data))
        self._objects += [("tree", data) for _, data in working.new_objects()]
        self._add(item, source.data, Fate.KEPT, working.id, "", working)

    def _merge(self, item: Wanted, patch: Patch, why: PatchDoesNotApply) -> None:
        from patchctl.system.mergetree import merge_trees

        assert item.was is not None
        self._flush()
        before, after = self._current.tree(item.was), self._current.tree(item.was + 1)
        merge = merge_trees(self._store, before, self._tree, after)
        if not merge.clean:
            files = [display(path) for path in merge.conflicts]
            raise MergeConflict(
                f"patch `{item.name}` conflicts with the change, in "
                + ", ".join(f"`{file}`" for file in files)
                + "; nothing was changed",
                details=(*_told(merge.messages), f"strictly: {why.message}", *why.details),
                data={"patch": item.name, "files": files, "place": len(self.done)},
            )
        if merge.tree == self._tree:
            raise _nothing_left(item.name)
        commit = self._write(merge.tree, patch)
        source = self._current.patches[item.was]
        data = export_patch(
            self._store, commit, source.data, name=item.name, strip=source.entry.strip
        )
        self._add(item, data, Fate.MERGED, merge.tree, commit)

    def _write(self, tree: str, patch: Patch) -> str:
        """A commit of `tree` on the one before, with the patch's own header."""
        from patchctl.formats.history import COMMITTER

        author = patch.header.author
        committer = replace(COMMITTER, when=author.when, zone=author.zone)
        parent = self._commit or self._store.write_commit(
            self._tree, (), COMMITTER, COMMITTER, b"the patches before\n"
        )
        return self._store.write_commit(tree, (parent,), author, committer, patch.header.message)

    def _tree_of(self, tree: str) -> EditTree:
        from patchctl.formats.edittree import EditTree

        working = EditTree(self._store.read_tree(tree))
        for _ in working.new_objects():
            pass  # they are in the store
        return working

    def _read(self, hex_id: str) -> bytes:
        return self._blobs[hex_id] if hex_id in self._blobs else self._store.read_blob(hex_id)

    def _flush(self) -> None:
        """Let the store have what was made so far."""
        self._store.write_objects(self._objects)
        self._objects.clear()
        self._blobs.clear()


def _told(messages: Sequence[tuple[str, str]]) -> list[str]:
    return [text for kind, text in messages if kind.startswith("CONFLICT")]


def _nothing_left(name: str) -> MergeConflict:
    return MergeConflict(
        f"nothing is left of patch `{name}`: all that it does is in the patches before it; "
        "nothing was changed",
        hint=f"patchctl drop {name}",
        data={"patch": name},
    )
