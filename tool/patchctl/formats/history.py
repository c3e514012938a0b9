# SPDX-License-Identifier: Apache-2.0
"""A baseline and a series turned into commits, in memory.

The author is the patch's, the committer always `COMMITTER` at the author's date: with equal
baseline and patch files the commit ids are equal, on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from patchctl.formats.apply import ReadBlob, apply_patch
from patchctl.formats.edittree import EditTree
from patchctl.formats.gitobjects import Entry, Identity, Tree, commit_object, object_id
from patchctl.formats.mail import TOOL_EMAIL, TOOL_NAME
from patchctl.formats.patchmodel import Patch
from patchctl.formats.serieslock import LockedBaseline, LockedPatch, SeriesLock

COMMITTER = Identity(TOOL_NAME, TOOL_EMAIL, 0)


@dataclass(frozen=True)
class History:
    """The commits of a series.

    `lock` describes them, `tree` is the last tree's id and `files` its content; `objects` are
    the new git objects as (kind, content), each after those that it names.
    """

    lock: SeriesLock
    tree: str
    files: dict[bytes, Entry]
    objects: tuple[tuple[str, bytes], ...]


class HistoryBuilder:
    """Patches applied one after the other, each becoming a commit.

    `tree` is what the patches `done` make of the baseline (with none, the baseline's tree);
    `read` gives the content of a blob of it by its id.
    """

    def __init__(
        self,
        baseline: LockedBaseline,
        tree: Tree,
        read: ReadBlob,
        *,
        done: tuple[LockedPatch, ...] = (),
    ) -> None:
        self._baseline, self._read_old = baseline, read
        self._locked = list(done)
        self._objects: list[tuple[str, bytes]] = []
        self._blobs: dict[str, bytes] = {}
        self.reset(tree)

    def reset(self, tree: Tree) -> None:
        """Go on with `tree`, which is what the patches so far make: after a patch that failed."""
        self._working = EditTree(tree)
        for _ in self._working.new_objects():
            pass  # the objects of what is there already

    @property
    def tree(self) -> str:
        """The id of the tree that the patches so far make."""
        return self._locked[-1].tree if self._locked else self._baseline.tree

    @property
    def head(self) -> str:
        """The id of the last commit."""
        return self._locked[-1].commit if self._locked else self._baseline.commit

    @property
    def objects(self) -> tuple[tuple[str, bytes], ...]:
        """The new git objects so far."""
        return tuple(self._objects)

    def push(self, patch: Patch, sha256: str) -> LockedPatch:
        """Apply the next patch, whose file has the digest `sha256`, strictly.

        Raises:
            PatchDoesNotApply: it does not fit; then only `reset` helps.
        """
        working, head = self._working, self.head
        for content in apply_patch(patch, working, self._read).values():
            if content is not None:
                self._blobs[content.entry.id] = content.data
                self._objects.append(("blob", content.data))
        self._objects += [("tree", data) for _, data in working.new_objects()]
        author = patch.header.author
        committer = replace(COMMITTER, when=author.when, zone=author.zone)
        commit = commit_object(working.id, (head,), author, committer, patch.header.message)
        self._objects.append(("commit", commit))
        hex_id = object_id("commit", commit)
        self._locked.append(
            LockedPatch(name=patch.name, sha256=sha256, tree=working.id, commit=hex_id)
        )
        return self._locked[-1]

    def _read(self, hex_id: str) -> bytes:
        return self._blobs[hex_id] if hex_id in self._blobs else self._read_old(hex_id)

    def result(self) -> History:
        """All of it."""
        lock = SeriesLock(head=self.head, baseline=self._baseline, patches=tuple(self._locked))
        return History(lock, self.tree, self._working.flat(), self.objects)
