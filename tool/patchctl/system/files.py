# SPDX-License-Identifier: Apache-2.0
"""Writing files so that a reader sees the old content or the new, never a part of it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

TEMP_PREFIX = ".patchctl-tmp-"
"""Every temporary file starts with this, so that leftovers of a killed run can be swept."""

_GET_FLAGS = 0x80086601  # FS_IOC_GETFLAGS of linux/fs.h
_PROTECTED = 0x10 | 0x20  # FS_IMMUTABLE_FL, FS_APPEND_FL


def temp_beside(path: Path) -> Path:
    """A new temporary name in the folder of `path`: a rename from there stays in its disk."""
    return path.with_name(f"{TEMP_PREFIX}{path.name}.{secrets.token_hex(4)}")


class AtomicFile:
    """A file that is written under a temporary name, synced, and renamed into place.

    The temporary file is in the folder of the target, because a rename across file systems
    copies. A process that has the old file mapped keeps its old content (a new inode).
    """

    def __init__(self, path: Path, *, mode: int = 0o644, sync: bool = True) -> None:
        self.path = path
        self.mode = mode
        self.sync = sync
        self.temp = temp_beside(path)

    def write(self, data: bytes) -> None:
        """Replace the file's content with `data`."""
        with self.open() as handle:
            handle.write(data)

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Write the new content piece by piece.

        It takes the place of the old one when the block ends, and is gone when the block fails.
        `path` may still change inside the block: a download is named by its digest.
        """
        self.temp.parent.mkdir(parents=True, exist_ok=True)
        try:
            fd = os.open(self.temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as handle:
                yield handle
                os.fchmod(handle.fileno(), self.mode)
                if self.sync:
                    handle.flush()
                    os.fsync(handle.fileno())
            self.commit()
        except BaseException:
            self.temp.unlink(missing_ok=True)
            raise

    def commit(self) -> None:
        """Rename `temp` (written by somebody else, a linker say) into place."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.temp.replace(self.path)
        if self.sync:
            sync_folder(self.path.parent)


def sweep(folder: Path, *, older_than: float = 86400.0) -> None:
    """Remove what killed runs left in `folder`; seconds, so that a run at work keeps its own."""
    for leftover in folder.glob(f"{TEMP_PREFIX}*"):
        with suppress(OSError):
            if time.time() - leftover.stat().st_mtime > older_than:
                leftover.unlink()


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` survive a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_file(path: Path, data: bytes | str, *, mode: int = 0o644, sync: bool = True) -> None:
    """Replace `path` atomically; text is written as UTF-8."""
    content = data.encode() if isinstance(data, str) else data
    AtomicFile(path, mode=mode, sync=sync).write(content)


def write_new(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write a file that nobody looks at yet: the caller renames it into place when it is whole.

    Raises:
        FileExistsError: something is there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as handle:
        handle.write(data)
        os.fchmod(handle.fileno(), mode)


def write_if_changed(path: Path, data: bytes | str, *, mode: int = 0o644) -> bool:
    """Write only when the content differs, so that time stamps mean something; True if written."""
    content = data.encode() if isinstance(data, str) else data
    try:
        if path.read_bytes() == content:
            return False
    except FileNotFoundError:
        pass
    write_file(path, content, mode=mode)
    return True


def sha256_of(path: Path) -> str:
    """The hex sha256 of a file's content."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def sha256_bytes(data: bytes) -> str:
    """The hex sha256 of `data`."""
    return hashlib.sha256(data).hexdigest()


def is_immutable(path: Path) -> bool:
    """Whether the file is marked so that nobody, root included, can replace it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        flags = fcntl.ioctl(fd, _GET_FLAGS, bytes(8))
    except OSError:  # a file system without such marks
        return False
    finally:
        os.close(fd)
    return bool(int.from_bytes(flags[:4], sys.byteorder) & _PROTECTED)
