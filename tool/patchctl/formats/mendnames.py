# SPDX-License-Identifier: Apache-2.0
"""One file's part of a damaged patch, and how many folders its names lose."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from patchctl.formats.patchpaths import DEV_NULL, unquote

Line = tuple[int, bytes]
"""A line and its number in the file that was read."""

Counts = tuple[int, int]
"""How many lines a hunk has on its old and on its new side."""

EXTENDED = re.compile(
    rb"(old mode|new mode|new file mode|deleted file mode|rename from|rename to|copy from|copy to"
    rb"|similarity index|dissimilarity index|index) (.*)"
)


@dataclass
class Section:
    """Its extended header, its names (as written), its hunks.

    `headed` tells whether it begins with ``diff --git``, `git` and `named` are the names there
    and in the ``---`` and ``+++`` lines, `stamps` what stands behind the latter; `recounted`
    are hunks with the counts that were stated and those that are right.
    """

    line: int
    fields: list[Line] = field(default_factory=list)
    git: tuple[bytes, bytes] | None = None
    named: tuple[bytes, bytes] | None = None
    stamps: tuple[bytes, bytes] = (b"", b"")
    body: list[Line] = field(default_factory=list)
    headed: bool = False
    recounted: list[tuple[int, Counts, Counts]] = field(default_factory=list)

    @property
    def _pair(self) -> tuple[bytes, bytes]:
        return self.named or self.git or (b"", b"")

    @property
    def names(self) -> list[bytes]:
        """All names that lose folders."""
        pairs = [pair for pair in (self.named, self.git) if pair]
        return [name for pair in pairs for name in pair if name != DEV_NULL]

    @property
    def old_name(self) -> bytes:
        """The name of a file that must exist; empty for one that is created."""
        old, new = self._pair
        if old == DEV_NULL or any(text.startswith(b"new file mode") for _, text in self.fields):
            return b""
        return new if old == new + b".orig" else old

    def paths(self, level: int) -> tuple[bytes, bytes]:
        """The old and the new path; empty for no file.

        Raises:
            ValueError: a name has no more than `level` parts.
        """
        moved = {m[1]: m[2] for _, text in self.fields if (m := EXTENDED.match(text))}
        for kind in (b"rename", b"copy"):
            if kind + b" from" in moved and kind + b" to" in moved:
                return _bare(moved[kind + b" from"]), _bare(moved[kind + b" to"])
        old, new = (b"" if n in (DEV_NULL, b"") else stripped(n, level) for n in self._pair)
        if not all(
            path or name in (DEV_NULL, b"")
            for path, name in zip((old, new), self._pair, strict=True)
        ):
            raise ValueError("a name is nothing but what is taken off it")
        return (new, new) if old == new + b".orig" else (old, new)


def readings(sections: Sequence[Section], exists: Callable[[bytes], bool]) -> list[int]:
    """How many folders the names may lose, so that every file that must exist does."""
    known = [name for name in (section.old_name for section in sections) if name]
    deepest = min((name.count(b"/") for name in known), default=-1)
    levels = range(deepest + 1)
    return [n for n in levels if all(exists(stripped(name, n)) for name in known)]


def stripped(name: bytes, level: int) -> bytes:
    """The name without its first `level` folders."""
    return b"/".join(name.split(b"/")[level:])


def named(line: bytes) -> tuple[bytes, bytes]:
    """The name of a ``---`` or ``+++`` line as written, and the time stamp behind it."""
    raw = line[4:].rstrip(b"\n")
    if raw.startswith(b'"'):
        return unquote(raw)
    name, tab, stamp = raw.partition(b"\t")
    return name, tab + stamp


def _bare(raw: bytes) -> bytes:
    return unquote(raw)[0] if raw.startswith(b'"') else raw
