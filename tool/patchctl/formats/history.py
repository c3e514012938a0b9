# SPDX-License-Identifier: Apache-2.0
"""A baseline and a series turned into commits, in memory.

The author is the patch's, the committer always `COMMITTER` at the author's date: with equal
baseline and patch files the commit ids are equal, on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable
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


def make_history(
    baseline: LockedBaseline,
    tree: Tree,
    patches: Iterable[tuple[Patch, str]],
    read: ReadBlob,
    *,
    done: tuple[LockedPatch, ...] = (),
) -> History:
    """Apply `patches`, each with the sha256 of its file, to `tree` one after the other.

    `read` gives the content of a blob of `tree` by its id. `done` are the patches before them,
    whose result `tree` is.

    Raises:
        PatchDoesNotApply: the first patch that does not fit.
    """
    working = EditTree(tree)
    for _ in working.new_objects():
        pass  # the objects of what is there already
    blobs: dict[str, bytes] = {}
    objects: list[tuple[str, bytes]] = []
    head = done[-1].commit if done else baseline.commit
    locked = list(done)

    def read_any(hex_id: str) -> bytes:
        return blobs[hex_id] if hex_id in blobs else read(hex_id)

    for patch, sha256 in patches:
        for content in apply_patch(patch, working, read_any).values():
            if content is not None:
                blobs[content.entry.id] = content.data
                objects.append(("blob", content.data))
        objects += [("tree", data) for _, data in working.new_objects()]
        author = patch.header.author
        committer = replace(COMMITTER, when=author.when, zone=author.zone)
        commit = commit_object(working.id, (head,), author, committer, patch.header.message)
        objects.append(("commit", commit))
        head = object_id("commit", commit)
        locked.append(LockedPatch(name=patch.name, sha256=sha256, tree=working.id, commit=head))
    lock = SeriesLock(head=head, baseline=baseline, patches=tuple(locked))
    return History(lock, working.id, working.flat(), tuple(objects))
