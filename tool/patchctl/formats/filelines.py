# SPDX-License-Identifier: Apache-2.0
"""A file's lines, indexed: where a run of lines stands, exactly or but for white space."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cached_property

_HEADING = re.compile(rb"[A-Za-z_$]")
# `public:`, `default:`; diff drivers for C++ pass over them
_LABEL = re.compile(rb"\s*\w+\s*:\s*$")
_WORD = re.compile(rb"\w")


def loose(line: bytes) -> bytes:
    """The line with every run of white space as one blank, and none at its ends."""
    return b" ".join(line.split())


def telling(line: bytes) -> bool:
    """Whether the line says more than a brace or a blank one does."""
    return _WORD.search(line) is not None


class FileLines:
    """The lines of one file of the tree; all line numbers count from 1."""

    def __init__(self, lines: Sequence[bytes]) -> None:
        self.lines = list(lines)

    @cached_property
    def _exact(self) -> dict[bytes, list[int]]:
        return _index(self.lines)

    @cached_property
    def _loose_lines(self) -> list[bytes]:
        return [loose(line) for line in self.lines]

    @cached_property
    def _loose(self) -> dict[bytes, list[int]]:
        return _index(self._loose_lines)

    def at(self, line: int, count: int) -> list[bytes]:
        """Up to `count` lines from `line` on; what is in front of the file is left out."""
        return self.lines[max(line - 1, 0) : max(line - 1 + count, 0)]

    def places(self, wanted: Sequence[bytes]) -> list[int]:
        """Every line at which `wanted` stands, byte for byte."""
        return _places(wanted, self.lines, self._exact)

    def loose_places(self, wanted: Sequence[bytes]) -> list[int]:
        """Every line at which `wanted` stands when white space does not count."""
        return _places([loose(w) for w in wanted], self._loose_lines, self._loose)

    def likeness(self, wanted: Sequence[bytes]) -> Counter[int]:
        """Line to the number of telling lines of `wanted` that stand where they would, from there.

        A line may be before the file's first: then `wanted` begins in front of the file.
        """
        votes: Counter[int] = Counter()
        for position, line in enumerate(wanted):
            if telling(line):
                for at in self._loose.get(loose(line), ()):
                    votes[at - position] += 1
        return votes

    def contradicts(self, heading: bytes, line: int) -> bytes | None:
        """The line under which `line` is, when that is surely not `heading`; else None.

        `heading` is what diff wrote behind ``@@``: the last line in front of the hunk that
        looks like the start of a function, perhaps cut short. A heading that the file does not
        have proves nothing.
        """
        own = {at for at, text in self._headings if text.startswith(heading)} if heading else None
        if not own:
            return None
        before = [(at, text) for at, text in self._headings if at < line]
        at, text = before[-1] if before else (0, b"")
        return None if at in own else text.rstrip()

    @cached_property
    def _headings(self) -> list[tuple[int, bytes]]:
        return [
            (at, line)
            for at, line in enumerate(self.lines, 1)
            if _HEADING.match(line) and not _LABEL.match(line)
        ]


def _index(lines: Sequence[bytes]) -> dict[bytes, list[int]]:
    found: defaultdict[bytes, list[int]] = defaultdict(list)
    for at, line in enumerate(lines, 1):
        found[line].append(at)
    return found


def _places(
    wanted: Sequence[bytes], lines: list[bytes], index: dict[bytes, list[int]]
) -> list[int]:
    if not wanted:
        return []
    # the rarest line leaves the fewest places to look at
    anchor = min(range(len(wanted)), key=lambda i: len(index.get(wanted[i], ())))
    run = list(wanted)
    starts = (at - anchor for at in index.get(wanted[anchor], ()))
    return [s for s in starts if s > 0 and lines[s - 1 : s - 1 + len(run)] == run]
