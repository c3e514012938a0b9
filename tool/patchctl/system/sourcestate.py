# SPDX-License-Identifier: Apache-2.0
"""What replay knows about the files that it wrote: the manifest, and the journal of an update.

The manifest serves as git's index does: a file whose size, times and inode are as recorded is
not read (nobody can set back the time at which a file last changed). One whose time is not older
than the manifest itself could have been edited in the same tick of the clock, and is read.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec

from patchctl.formats.gitobjects import Entry, Mode, blob_id
from patchctl.system.files import write_file


class FileState(msgspec.Struct, frozen=True, array_like=True):
    """A file as it was when its content was last known; times in nanoseconds."""

    mode: Mode
    id: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @property
    def entry(self) -> Entry:
        """The file as a tree names it."""
        return Entry(self.mode, self.id)


class _Stored(msgspec.Struct, frozen=True):
    # JSON knows no bytes: paths are stored as Latin-1, which is the same bytes
    tree: str
    files: dict[str, FileState]


class Manifest:
    """Path to state of every file that replay put there.

    `tree` is the tree that they make (empty while an interrupted update is in between);
    `written_ns` is when the manifest was saved, 0 if it never was.
    """

    def __init__(self, tree: str, files: dict[bytes, FileState], written_ns: int = 0) -> None:
        self.tree, self.files, self.written_ns = tree, files, written_ns

    @classmethod
    def load(cls, path: Path) -> Manifest:
        """Read it; an absent or damaged one knows no file."""
        try:
            with path.open("rb") as handle:
                written = os.fstat(handle.fileno()).st_mtime_ns
                stored = msgspec.json.decode(handle.read(), type=_Stored)
        except (FileNotFoundError, msgspec.DecodeError):
            return cls("", {})
        files = {name.encode("latin-1"): state for name, state in stored.files.items()}
        return cls(stored.tree, files, written)

    def save(self, path: Path) -> None:
        """Write it, after the files that it speaks of."""
        files = {name.decode("latin-1"): state for name, state in self.files.items()}
        write_file(path, msgspec.json.encode(_Stored(self.tree, files)))

    def identify(self, name: bytes, path: Path, found: os.stat_result) -> Entry | None:
        """What the file `path` (`name` in the tree) holds now; None if it is no file or link."""
        mode = mode_of(found)
        if mode is None:
            return None
        known = self.files.get(name)
        same = known is not None and mode is known.mode and known == state_of(known.entry, found)
        if known is not None and same and known.mtime_ns < self.written_ns:
            return known.entry
        return Entry(mode, blob_id(read_entry(path, mode)))


def mode_of(found: os.stat_result) -> Mode | None:
    """The mode that a tree gives to a file; None for what no tree can hold."""
    if stat.S_ISLNK(found.st_mode):
        return Mode.SYMLINK
    if not stat.S_ISREG(found.st_mode):
        return None
    return Mode.EXECUTABLE if found.st_mode & stat.S_IXUSR else Mode.FILE


def state_of(entry: Entry, found: os.stat_result) -> FileState:
    """A file with known content as it is now."""
    times = (found.st_mtime_ns, found.st_ctime_ns)
    return FileState(entry.mode, entry.id, found.st_size, *times, found.st_ino)


def read_entry(path: Path, mode: Mode) -> bytes:
    """A file's content, or a link's target."""
    return os.fsencode(path.readlink()) if mode is Mode.SYMLINK else path.read_bytes()


class _Intended(msgspec.Struct, frozen=True, array_like=True):
    mode: Mode
    id: str


class Journal:
    """What an update is about to do: path to new entry, or None where the file goes.

    It is there exactly while the tree may be between two states. A file that is as the journal
    says is therefore ours, not somebody's edit.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> dict[bytes, Entry | None] | None:
        """The intentions of an update that did not end; None if there is none."""
        try:
            stored = msgspec.json.decode(self._path.read_bytes(), type=dict[str, _Intended | None])
        except FileNotFoundError:
            return None
        except msgspec.DecodeError:
            return {}  # damaged: there was an update, and no difference counts as ours
        return {
            name.encode("latin-1"): None if item is None else Entry(item.mode, item.id)
            for name, item in stored.items()
        }

    def begin(self, intended: dict[bytes, Entry | None]) -> None:
        """Write the intentions down, before the first change."""
        stored = {
            name.decode("latin-1"): None if entry is None else _Intended(entry.mode, entry.id)
            for name, entry in intended.items()
        }
        write_file(self._path, msgspec.json.encode(stored))

    def end(self) -> None:
        """The tree is what the manifest says."""
        self._path.unlink(missing_ok=True)
