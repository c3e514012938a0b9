# SPDX-License-Identifier: Apache-2.0
"""The text of `patches/series` after patches were added, dropped, moved or renamed.

Comment lines directly above an entry belong to it and go where it goes. All other comments and
blank lines stay where they are: the ones at the top of the file are its head, the others
follow the entry above them. A line whose entry does not change keeps its bytes.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from patchctl.formats.series import parse_series

_NAME = re.compile(rb"[^\s#]\S*")
_OPTIONS = re.compile(rb"([ \t]+-p\d+)+")


class Listed(NamedTuple):
    """An entry that the new series must have.

    `was` is the name that the entry has in the old series; None for a new entry.
    """

    name: str
    strip: int = 1
    was: str | None = None


@dataclass
class _Block:
    """An entry's line with the comments that are its own, and what merely follows it."""

    name: str
    strip: int
    own: list[bytes]
    line: bytes
    loose: list[bytes]


def rewrite_series(data: bytes, wanted: Sequence[Listed], *, where: str) -> bytes:
    """The series with exactly the entries `wanted`, in that order.

    Raises:
        UsageError: the old series does not parse.
    """
    head, blocks = _blocks(data, where)
    place: dict[str | None, int] = {block.name: number for number, block in enumerate(blocks)}
    order = [place[item.was] for item in wanted if item.was in place]
    fixed = set(_longest_increasing(order))
    # what follows an entry that goes elsewhere stays: behind the one before it
    loose: dict[int, list[bytes]] = {-1: list(head)}
    above = -1
    for number, block in enumerate(blocks):
        above = number if number in fixed else above
        loose.setdefault(above, []).extend(block.loose)
    lines = loose[-1]
    for item in wanted:
        if item.was not in place:
            lines.append(_entry_line(item))
            continue
        number = place[item.was]
        block = blocks[number]
        lines += [*block.own, _renamed(block, item)]
        if number in fixed:
            lines += loose[number]
    return b"".join(line + b"\n" for line in lines)


def _blocks(data: bytes, where: str) -> tuple[list[bytes], list[_Block]]:
    entries = {entry.line: entry for entry in parse_series(data, where=where)}
    lines = data.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    head: list[bytes] = []
    blocks: list[_Block] = []
    waiting: list[bytes] = []
    for number, line in enumerate(lines, 1):
        if number not in entries:
            waiting.append(line)
            continue
        own = len(waiting)
        while own and waiting[own - 1].strip():
            own -= 1
        if not blocks and own == 0:
            own = len(waiting)  # the first lines of the file speak of the whole of it
        (blocks[-1].loose if blocks else head).extend(waiting[:own])
        entry = entries[number]
        blocks.append(_Block(entry.name, entry.strip, waiting[own:], line, []))
        waiting = []
    (blocks[-1].loose if blocks else head).extend(waiting)
    return head, blocks


def _entry_line(item: Listed) -> bytes:
    return item.name.encode() + (b"" if item.strip == 1 else b" -p%d" % item.strip)


def _renamed(block: _Block, item: Listed) -> bytes:
    if (block.name, block.strip) == (item.name, item.strip):
        return block.line
    match = _NAME.search(block.line)
    assert match is not None
    behind = _OPTIONS.sub(b"", block.line[match.end() :], count=1)
    return block.line[: match.start()] + _entry_line(item) + behind


def _longest_increasing(numbers: Sequence[int]) -> list[int]:
    """The longest increasing part of `numbers`: the entries that need not move."""
    tails: list[int] = []
    best: list[int] = []
    before: dict[int, int | None] = {}
    for number in numbers:
        at = bisect.bisect_left(tails, number)
        before[number] = tails[at - 1] if at else None
        tails[at : at + 1] = [number]
    link = tails[-1] if tails else None
    while link is not None:
        best.append(link)
        link = before[link]
    return best[::-1]
