# SPDX-License-Identifier: Apache-2.0
"""A tree that is edited path by path; only what changed is hashed and handed out again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from patchctl.formats.gitobjects import Entry, Tree, object_id, tree_content


class Clash(ValueError):
    """A path cannot be there; `path` is what stands in the way."""

    def __init__(self, path: bytes, entry: Entry | None) -> None:
        super().__init__(path)
        self.path, self.entry = path, entry


@dataclass
class _Folder:
    files: dict[bytes, Entry] = field(default_factory=dict)
    folders: dict[bytes, _Folder] = field(default_factory=dict)
    id: str = ""  # empty when something below has changed since the last `new_objects`


class EditTree:
    """A whole tree in memory."""

    def __init__(self, tree: Tree) -> None:
        self._root = _Folder()
        for path, entry in tree.items():
            self.set(path, entry)

    def _way(self, path: bytes) -> tuple[list[_Folder], list[bytes]]:
        """The folders from the root down to the file's, as far as they exist, and the parts."""
        parts = path.split(b"/")
        way = [self._root]
        for part in parts[:-1]:
            child = way[-1].folders.get(part)
            if child is None:
                break
            way.append(child)
        return way, parts

    def get(self, path: bytes) -> Entry | None:
        """The file at `path`, or None."""
        way, parts = self._way(path)
        return way[-1].files.get(parts[-1]) if len(way) == len(parts) else None

    def blocker(self, path: bytes) -> Clash | None:
        """What keeps `path` from being a file: a file or link on the way, or a folder there."""
        way, parts = self._way(path)
        if len(way) == len(parts):
            return Clash(path, None) if parts[-1] in way[-1].folders else None
        entry = way[-1].files.get(parts[len(way) - 1])
        return Clash(b"/".join(parts[: len(way)]), entry) if entry else None

    def set(self, path: bytes, entry: Entry) -> None:
        """Put a file at `path`, making folders.

        Raises:
            Clash: a file is where a folder is needed, or the other way round.
        """
        clash = self.blocker(path)
        if clash is not None:
            raise clash
        way, parts = self._way(path)
        while len(way) < len(parts):
            way.append(way[-1].folders.setdefault(parts[len(way) - 1], _Folder()))
        way[-1].files[parts[-1]] = entry
        for folder in way:
            folder.id = ""

    def remove(self, path: bytes) -> None:
        """Take the file at `path` away, and the folders that become empty."""
        way, parts = self._way(path)
        del way[-1].files[parts[-1]]
        for folder in way:
            folder.id = ""
        for depth in range(len(way) - 1, 0, -1):
            if way[depth].files or way[depth].folders:
                break
            del way[depth - 1].folders[parts[depth - 1]]

    def new_objects(self) -> Iterator[tuple[str, bytes]]:
        """The tree objects that changed since the last call, children first; consume it all."""
        yield from _emit(self._root)

    @property
    def id(self) -> str:
        """The tree's id; up to date after `new_objects`."""
        return self._root.id

    def flat(self) -> dict[bytes, Entry]:
        """Every file: path to entry."""
        return dict(_walk(self._root, b""))


def tree_objects(tree: Tree) -> Iterator[tuple[str, bytes]]:
    """Every tree object of `tree` as (id, content), children first, the root last.

    Raises:
        Clash: a path is both a file and a folder.
    """
    return EditTree(tree).new_objects()


def tree_id(tree: Tree) -> str:
    """The id of a whole tree."""
    return list(tree_objects(tree))[-1][0]


def _emit(folder: _Folder) -> Iterator[tuple[str, bytes]]:
    if folder.id:
        return
    for child in folder.folders.values():
        yield from _emit(child)
    content = tree_content({n: f.id for n, f in folder.folders.items()}, folder.files)
    folder.id = object_id("tree", content)
    yield folder.id, content


def _walk(folder: _Folder, prefix: bytes) -> Iterator[tuple[bytes, Entry]]:
    for name, entry in folder.files.items():
        yield prefix + name, entry
    for name, child in folder.folders.items():
        yield from _walk(child, prefix + name + b"/")
