# SPDX-License-Identifier: Apache-2.0
"""What each prefix of the series made, so that an unchanged prefix is not applied again.

A prefix is known by its content only: the baseline and, of each patch, the name, the strip
level and the sha256 of the file. Times and the committed lock play no part. Written after the
objects that it speaks of.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from patchctl import __version__
from patchctl.formats.serieslock import LockedBaseline, LockedPatch
from patchctl.system.files import write_file
from patchctl.system.project import Project
from patchctl.system.seriesfiles import PatchSource


class Prefix(msgspec.Struct, frozen=True, array_like=True):
    """The result of the patches up to one: `key` says which they are."""

    key: str
    tree: str
    commit: str
    subject: str


def keys(base: LockedBaseline, patches: Sequence[PatchSource]) -> list[str]:
    """One key a prefix: of the first patch, of the first two, and so on."""
    key = f"{__version__} {base.tree} {base.commit}"
    found = []
    for patch in patches:
        content = f"{key}\0{patch.name}\0{patch.entry.strip}\0{patch.sha256}"
        key = hashlib.sha256(content.encode()).hexdigest()
        found.append(key)
    return found


def load_prefixes(project: Project) -> tuple[Prefix, ...]:
    """The recorded prefixes, shortest first; none if the record is damaged."""
    try:
        return msgspec.json.decode(_path(project).read_bytes(), type=tuple[Prefix, ...])
    except (OSError, msgspec.DecodeError):
        return ()


def save_prefixes(project: Project, prefixes: Sequence[Prefix]) -> None:
    """Remember them, unless more is known already (a longer series that begins the same)."""
    known = load_prefixes(project)
    if tuple(prefixes) != known[: len(prefixes)]:
        write_file(_path(project), msgspec.json.encode(tuple(prefixes)), sync=False)


def known_part(
    recorded: Sequence[Prefix], base: LockedBaseline, patches: Sequence[PatchSource]
) -> tuple[Prefix, ...]:
    """The recorded prefixes that are prefixes of `patches` on `base`."""
    count = 0
    for key, prefix in zip(keys(base, patches), recorded, strict=False):
        if prefix.key != key:
            break
        count += 1
    return tuple(recorded[:count])


def as_locked(
    prefixes: Sequence[Prefix], patches: Sequence[PatchSource]
) -> tuple[LockedPatch, ...]:
    """The prefixes' results in the form of the lock."""
    return tuple(
        LockedPatch(name=patch.name, sha256=patch.sha256, tree=made.tree, commit=made.commit)
        for patch, made in zip(patches, prefixes, strict=False)
    )


def _path(project: Project) -> Path:
    return project.records / "prefixes.json"
