# SPDX-License-Identifier: Apache-2.0
"""Patches put on top of something else than before: strictly, else by a three-way merge.

Works on objects in memory and in the store. Nothing of the project changes here, so a conflict
leaves everything as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from patchctl.errors import MergeConflict, PatchctlError, PatchDoesNotApply
from patchctl.formats.asserts import read_promises
from patchctl.formats.gitobjects import display
from patchctl.formats.history import COMMITTER, HistoryBuilder
from patchctl.formats.patch import parse_patch
from patchctl.stages.applied import Applied
from patchctl.stages.current import Current
from patchctl.stages.export import export_patch
from patchctl.stages.seriesedit import NewPatch
from patchctl.system.files import sha256_bytes
from patchctl.system.prefixes import as_locked
from patchctl.system.report import Reporter

if TYPE_CHECKING:
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
    """One result: the patch file, and what became of it."""

    patch: NewPatch
    fate: Fate


@dataclass(frozen=True)
class Restacked:
    """All results, and the series that they make, strictly replayed."""

    stacked: tuple[Stacked, ...]
    applied: Applied

    @property
    def patches(self) -> list[NewPatch]:
        """The patch files."""
        return [item.patch for item in self.stacked]

    @property
    def fates(self) -> tuple[tuple[str, Fate], ...]:
        """Each patch's name and what became of it."""
        return tuple((item.patch.name, item.fate) for item in self.stacked)


def restack(
    report: Reporter, store: Store, current: Current, wanted: Sequence[Wanted]
) -> Restacked:
    """The patch files of the series `wanted`.

    Raises:
        MergeConflict: a patch does not go on top of those before it, or nothing of it is left.
        PatchDoesNotApply: a commit cannot be written as a patch.
        UsageError: a commit's message cannot be written into a patch file.
    """
    stack = _Stack(store, current, wanted)
    rest = wanted[len(stack.done) :]
    with report.task("re-applying", len(rest), unit="patch") as task:
        for item in rest:
            task.note(item.name)
            stack.push(item)
            task.advance()
    return stack.result()


class _Stack:
    """Begins with the patches that are, at the start, the same as now: their results are known."""

    def __init__(self, store: Store, current: Current, wanted: Sequence[Wanted]) -> None:
        self._store, self._current = store, current
        count = 0
        while count < len(wanted) and self._is_unchanged(wanted[count], count):
            count += 1
        self._reused = count
        self.done = [Stacked(self._patch(item, self._old(item)), Fate.KEPT)
                     for item in wanted[:count]]  # fmt: skip
        self._subjects = [prefix.subject for prefix in current.prefixes[:count]]
        self._flushed = 0
        self._builder = HistoryBuilder(
            current.base,
            store.read_tree(current.tree(count)),
            store.read_blob,
            done=as_locked(current.prefixes[:count], current.patches),
        )

    def _is_unchanged(self, item: Wanted, at: int) -> bool:
        if item.was != at or item.name != self._current.names[at]:
            return False
        return item.commit in (None, self._current.commit(at + 1))

    def _old(self, item: Wanted) -> bytes:
        assert item.was is not None
        return self._current.patches[item.was].data

    def _patch(self, item: Wanted, data: bytes, tree: str | None = None) -> NewPatch:
        if item.was is None:
            return NewPatch(item.name, data, tree=tree)
        old = self._current.patches[item.was]
        return NewPatch(item.name, data, old.entry.strip, old.name, tree)

    def push(self, item: Wanted) -> None:
        """Put the next patch on top."""
        if item.commit is not None:
            self._take(item, item.commit)
        else:
            self._put(item)

    def result(self) -> Restacked:
        """What was made of all of them."""
        sources = [item.patch.source for item in self.done]
        history = self._builder.result()
        applied = Applied.of(history, sources, self._subjects, self._reused)
        return Restacked(tuple(self.done), applied)

    def _apply(self, patch: NewPatch, fate: Fate) -> None:
        """Apply a patch file strictly, as every replay will."""
        read_promises(patch.name, patch.data)
        parsed = parse_patch(patch.name, patch.data, patch.strip)
        made = self._builder.push(parsed, sha256_bytes(patch.data))
        if patch.tree is not None and patch.tree != made.tree:
            raise PatchctlError(
                f"`{patch.name}` as written makes tree {made.tree}, expected {patch.tree}",
                hint="nothing was changed; please report it with the two trees",
            )
        self.done.append(Stacked(patch, fate))
        self._subjects.append(parsed.header.subject)

    def _take(self, item: Wanted, commit: str) -> None:
        """A patch that a commit defines."""
        tree = self._store.tree_of(commit)
        if tree == self._builder.tree:
            raise _nothing_left(item.name)
        old = None if item.was is None else self._old(item)
        strip = self._patch(item, b"").strip
        data = export_patch(self._store, commit, old, name=item.name, strip=strip)
        fate = Fate.NEW if old is None else Fate.KEPT if data == old else Fate.EDITED
        self._apply(self._patch(item, data, tree), fate)

    def _put(self, item: Wanted) -> None:
        """A patch as it is, on top of something else: strictly, else merged."""
        patch = self._patch(item, self._old(item))
        try:
            self._apply(patch, Fate.KEPT)
        except PatchDoesNotApply as error:
            self._merge(item, error)

    def _merge(self, item: Wanted, why: PatchDoesNotApply) -> None:
        from patchctl.system.mergetree import merge_trees

        assert item.was is not None
        objects = self._builder.objects
        self._store.write_objects(objects[self._flushed :])
        self._flushed = len(objects)
        ours = self._builder.tree
        before, after = self._current.tree(item.was), self._current.tree(item.was + 1)
        merge = merge_trees(self._store, before, ours, after)
        if not merge.clean:
            files = [display(path) for path in merge.conflicts]
            raise MergeConflict(
                f"patch `{item.name}` conflicts with the change, in "
                + ", ".join(f"`{file}`" for file in files)
                + "; nothing was changed",
                details=(*_told(merge.messages), f"strictly: {why.message}", *why.details),
                data={"patch": item.name, "files": files, "place": len(self.done)},
            )
        if merge.tree == ours:
            raise _nothing_left(item.name)
        old = self._current.patches[item.was]
        header = parse_patch(old.name, old.data, old.entry.strip).header
        head = self._builder.head
        commit = self._store.write_commit(
            merge.tree, (head,), header.author, COMMITTER, header.message
        )
        data = export_patch(self._store, commit, old.data, name=item.name, strip=old.entry.strip)
        self._builder.reset(self._store.read_tree(ours))
        self._apply(self._patch(item, data, merge.tree), Fate.MERGED)


def _told(messages: Sequence[tuple[str, str]]) -> list[str]:
    return [text for kind, text in messages if kind.startswith("CONFLICT")]


def _nothing_left(name: str) -> MergeConflict:
    return MergeConflict(
        f"nothing is left of patch `{name}`: all that it does is in the patches before it; "
        "nothing was changed",
        hint=f"patchctl drop {name}",
        data={"patch": name},
    )
