# SPDX-License-Identifier: Apache-2.0
"""Ninja trusts time stamps. This notices a source whose bytes changed without a newer one."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from patchctl.system.files import sha256_of, write_file

_FILE = "source-digests.json"


class Snapshot(msgspec.Struct, frozen=True):
    """The files of a source tree: path -> (mtime, ctime, size in bytes, sha256); times in ns."""

    at: int
    files: dict[str, tuple[int, int, int, str]]


def source_files(source: Path) -> list[str]:
    """Every file below `source`, relative, sorted."""
    found = []
    for folder, folders, names in os.walk(source):
        folders.sort()
        prefix = os.path.relpath(folder, source)
        found += [name if prefix == "." else f"{prefix}/{name}" for name in names]
    return sorted(found)


def take_snapshot(source: Path, files: list[str], build_folder: Path) -> bool:
    """Remember the files' content for the next build.

    Returns False when the content of some file differs from the last snapshot although its
    time stamp is not newer than that: then no object can be trusted.
    """
    memory = build_folder / _FILE
    try:
        old = msgspec.json.decode(memory.read_bytes(), type=Snapshot)
    except (OSError, msgspec.DecodeError):
        old = Snapshot(0, {})
    trusted = True
    now = time.time_ns()
    current: dict[str, tuple[int, int, int, str]] = {}
    for name in files:
        stat = (source / name).stat()
        before = old.files.get(name)
        found = (stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size)
        if before is not None and before[:3] == found:
            current[name] = before
            continue
        digest = sha256_of(source / name)
        current[name] = (*found, digest)
        if before is not None and before[3] != digest and stat.st_mtime_ns <= old.at:
            trusted = False
    if current != old.files:
        write_file(memory, msgspec.json.encode(Snapshot(now, current)), sync=False)
    return trusted
