# SPDX-License-Identifier: Apache-2.0
"""Three-way merges of whole trees by git's own machinery, in the store, without a work tree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from patchctl.errors import ToolMissing
from patchctl.formats.gitobjects import Entry, Identity, Mode
from patchctl.system.gitrun import GitRepo
from patchctl.system.process import ProcessFailed

if TYPE_CHECKING:
    from patchctl.system.gitstore import Store

_ANYBODY = Identity("patchctl", "patchctl@localhost", 0)


@dataclass(frozen=True)
class Merge:
    """The result: `tree` has conflict markers in the files of `conflicts`.

    `clean` is whether git could merge all of it; `conflicts` maps a path to its versions (1 the
    base's, 2 ours, 3 theirs, as in git's index) and is empty where the trouble is with folders;
    `messages` is what git says about them, as (kind, text).
    """

    tree: str
    clean: bool
    conflicts: dict[bytes, dict[int, Entry]]
    messages: tuple[tuple[str, str], ...]


def merge_trees(store: Store, base: str, ours: str, theirs: str) -> Merge:
    """Merge what leads from tree `base` to tree `theirs` into tree `ours`.

    Raises:
        ToolMissing: git is older than 2.38.
    """
    # merge-tree looks for the base itself, so the trees become commits around it
    first = store.write_commit(base, (), _ANYBODY, _ANYBODY, b"base\n")
    sides = [
        store.write_commit(tree, (first,), _ANYBODY, _ANYBODY, name)
        for tree, name in ((ours, b"ours\n"), (theirs, b"theirs\n"))
    ]
    done = GitRepo(store.path).git(
        "merge-tree", "--write-tree", "-z", "--messages", *sides, check=False
    )
    if done.code not in (0, 1):
        if b"usage:" in done.stderr:
            raise ToolMissing(
                "this git cannot merge without a work tree", hint="rebase needs git 2.38 or newer"
            )
        raise ProcessFailed(done)
    return _parse(done.stdout, clean=done.code == 0)


def _parse(output: bytes, *, clean: bool) -> Merge:
    fields = iter(output.split(b"\0"))
    tree = next(fields).decode()
    conflicts: dict[bytes, dict[int, Entry]] = {}
    for item in fields:
        if not item:
            break
        meta, path = item.split(b"\t", 1)
        mode, hex_id, stage = meta.decode().split()
        conflicts.setdefault(path, {})[int(stage)] = Entry(Mode(mode), hex_id)
    return Merge(tree, clean, conflicts, tuple(_messages(fields)))


def _messages(fields: Iterator[bytes]) -> Iterator[tuple[str, str]]:
    for count in fields:
        if not count:
            return
        for _ in range(int(count)):
            next(fields)
        kind, text = next(fields), next(fields)
        yield kind.decode(), text.decode("utf-8", "backslashreplace").strip()


def favour_theirs(store: Store, merge: Merge) -> str:
    """The merged tree as if every conflict were resolved in their favour; for looking ahead."""
    tree = store.read_tree(merge.tree)
    for path, versions in merge.conflicts.items():
        theirs = versions.get(3)
        if theirs is None:
            tree.pop(path, None)
            continue
        data = _merged(store, versions) if len(versions) == 3 else None
        tree[path] = theirs if data is None else Entry(theirs.mode, store.write_blob(data))
    return store.write_tree(tree)


def _merged(store: Store, versions: dict[int, Entry]) -> bytes | None:
    """The file with both sides' changes, theirs where they clash; None for what is no text."""
    with TemporaryDirectory(prefix="patchctl-merge-") as folder:
        names = []
        for stage in (2, 1, 3):
            path = Path(folder) / str(stage)
            path.write_bytes(store.read_blob(versions[stage].id))
            names.append(str(path))
        done = GitRepo(store.path).git("merge-file", "-p", "--theirs", *names, check=False)
    return done.stdout if 0 <= done.code < 128 else None
