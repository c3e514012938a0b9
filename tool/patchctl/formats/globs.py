# SPDX-License-Identifier: Apache-2.0
"""Globs over the paths of a tree: ``*`` and ``?`` inside a folder, ``**`` across folders."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Include:
    """Which files of a tree are kept: those that at least one glob matches.

    A glob is matched against the whole path, case counts, and a folder's name alone does not
    match what is below it (``csrc/**`` does).
    """

    globs: tuple[str, ...]

    @cached_property
    def _patterns(self) -> list[re.Pattern[bytes]]:
        return [re.compile(_as_regex(glob).encode(), re.DOTALL) for glob in self.globs]

    def matches(self, path: bytes) -> bool:
        """Whether the file at `path` is kept."""
        return any(pattern.fullmatch(path) for pattern in self._patterns)

    def reaches_into(self, folder: bytes) -> bool:
        """Whether some path below `folder` could be kept."""
        parts = folder.decode("utf-8", "surrogateescape").split("/")
        return any(_reaches(glob.split("/"), parts) for glob in self.globs)

    def unused(self, paths: Iterable[bytes]) -> list[str]:
        """The globs that match none of `paths`."""
        everything = list(paths)
        pairs = zip(self.globs, self._patterns, strict=True)
        return [g for g, pattern in pairs if not any(map(pattern.fullmatch, everything))]


def glob_fault(glob: str) -> str:
    """What is wrong with a glob, or ``""``."""
    parts = glob.split("/")
    if not all(parts):
        return "must be relative to the tree, without empty parts"
    if "." in parts or ".." in parts:
        return "must not contain `.` or `..`"
    if any("**" in part and part != "**" for part in parts):
        return "may have `**` only as a whole part between slashes"
    return ""


def _as_regex(glob: str) -> str:
    parts = glob.split("/")
    last = len(parts) - 1
    pieces = []
    for position, part in enumerate(parts):
        if part == "**":
            pieces.append(".+" if position == last else "(?:[^/]+/)*")
        else:
            pieces.append(_part_regex(part) + ("" if position == last else "/"))
    return "".join(pieces)


def _part_regex(part: str) -> str:
    """One part of a glob; fnmatch's own rules, kept from crossing a slash."""
    out = []
    for piece in re.split(r"(\*|\?|\[!?\]?[^\]]*\])", part):
        if piece == "*":
            out.append("[^/]*")
        elif piece == "?":
            out.append("[^/]")
        elif piece.startswith("[") and piece.endswith("]"):
            out.append("(?!/)" + fnmatch.translate(piece).removeprefix("(?s:").removesuffix(r")\Z"))
        else:
            out.append(re.escape(piece))
    return "".join(out)


def _reaches(glob: list[str], folder: list[str]) -> bool:
    for position, name in enumerate(folder):
        if position >= len(glob):
            return False
        if glob[position] == "**":
            return True
        if not fnmatch.fnmatchcase(name, glob[position]):
            return False
    return len(glob) > len(folder)
