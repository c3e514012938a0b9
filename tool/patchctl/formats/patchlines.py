# SPDX-License-Identifier: Apache-2.0
"""The lines of a patch file: a cursor that fails with the line's number, hunks, binary data."""

from __future__ import annotations

import re
from typing import NoReturn

from patchctl.formats.binarypatch import decode_lines
from patchctl.formats.gitobjects import display
from patchctl.formats.mail import crlf
from patchctl.formats.patchmodel import Binary, BinaryMethod, Hunk, malformed

# no file has 10**9 lines, and Python refuses to read a number of thousands of digits
HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@(.*)")
INDEX = re.compile(rb"([0-9a-f]{4,64})\.\.([0-9a-f]{4,64})(?: (\d{6}))?$")
_BLOCK = re.compile(rb"(literal|delta) (\d{1,10})$")
_SIDES = {b" ": (0, 1), b"\n": (0, 1), b"-": (0,), b"+": (1,)}
"""Which sides of a hunk (0 old, 1 new) a line belongs to, by its first byte.

A line that is empty is a blank line of context whose blank an editor has cut.
"""


class Cursor:
    """A place in the diff part of a patch file.

    `first` is the number of the first line in the file, `note` is added to each message.
    """

    def __init__(self, name: str, lines: list[bytes], first: int, note: str = "") -> None:
        self.name, self._lines, self._first, self._note = name, lines, first, note
        self.at = 0

    def number(self, at: int) -> int:
        """The line number, in the file, of position `at`."""
        return self._first + at

    def fail(self, what: str, *, at: int | None = None, hint: str = "") -> NoReturn:
        """Refuse the file because of the line at `at` (default: the current one)."""
        line = self.number(self.at if at is None else at)
        raise malformed(self.name, line, what + self._note, hint)

    def peek(self, ahead: int = 0) -> bytes:
        """A line with its end; empty behind the last."""
        position = self.at + ahead
        return self._lines[position] if 0 <= position < len(self._lines) else b""

    def text(self) -> bytes:
        """The current line, of a header, without its end."""
        line = self.peek()
        if line.endswith(b"\r\n"):
            raise crlf(self.name, self.number(self.at))
        return line.rstrip(b"\n")


def read_hunks(cursor: Cursor, path: bytes) -> tuple[Hunk, ...]:
    """The hunks at the cursor, at least one; their positions must be in order and consistent."""
    hunks: list[Hunk] = []
    old_end = shift = 0
    while cursor.peek().startswith(b"@@"):
        start = cursor.at
        hunk = _read_hunk(cursor, len(hunks) + 1, path)
        # the first line of a hunk whose side is empty is the line in front of it
        old_first = hunk.old_start + (not hunk.old)
        new_first = hunk.new_start + (not hunk.new)
        if hunks and old_first < old_end:
            cursor.fail(f"hunk {len(hunks) + 1} begins before the end of the last", at=start)
        if new_first != old_first + shift:
            cursor.fail(
                f"hunk {len(hunks) + 1} of `{display(path)}` says new line {hunk.new_start}; "
                f"old line {hunk.old_start} and the hunks before it give "
                f"{old_first + shift - (not hunk.new)}",
                at=start,
            )
        old_end = old_first + len(hunk.old)
        shift += len(hunk.new) - len(hunk.old)
        hunks.append(hunk)
    if not hunks:
        cursor.fail(f"no hunk for `{display(path)}`")
    return tuple(hunks)


def _read_hunk(cursor: Cursor, number: int, path: bytes) -> Hunk:
    start = cursor.at
    match = HUNK.match(cursor.peek())
    if match is None:
        cursor.fail(f"`{display(cursor.peek().strip())[:60]}` is not a hunk's header")
    counts = [int(match[i]) if match[i] is not None else 1 for i in (2, 4)]
    sides: tuple[list[bytes], list[bytes]] = ([], [])
    closed = [False, False]
    marks = bytearray()
    cursor.at += 1
    while [len(s) for s in sides] != counts or cursor.peek().startswith(b"\\ "):
        line = cursor.peek()
        touched = _SIDES.get(line[:1], ())
        marked = _SIDES.get(cursor.peek(-1)[:1], ())
        if line.startswith(b"\\ ") and marked and cursor.at > start + 1:
            for side in marked:
                sides[side][-1] = sides[side][-1].removesuffix(b"\n")
                closed[side] = True
            cursor.at += 1
            continue
        if touched and not line.endswith(b"\n"):
            cursor.fail("the file ends in the middle of a line", hint="it was cut: fetch it again")
        if not touched or any(len(sides[s]) == counts[s] for s in touched):
            cursor.fail(
                f"hunk {number} of `{display(path)}` announces {counts[0]} old and "
                f"{counts[1]} new lines; {len(sides[0])} and {len(sides[1])} are there",
            )
        for side in touched:
            if closed[side]:
                cursor.fail("a line after the one that has no newline at the end of the file")
            sides[side].append(line[1:].removesuffix(b"\n") + b"\n")
        marks += line[:1].replace(b"\n", b" ")
        cursor.at += 1
    old, new = (tuple(side) for side in sides)
    if (old and match[1] == b"0") or (new and match[3] == b"0"):
        cursor.fail(f"hunk {number} of `{display(path)}` begins at line 0", at=start)
    if old == new:
        cursor.fail(f"hunk {number} of `{display(path)}` changes nothing", at=start)
    if not old and int(match[1]):
        cursor.fail(
            f"hunk {number} of `{display(path)}` adds lines without context, so nothing "
            "proves the place",
            at=start,
            hint="make the patch with context: git diff -U3",
        )
    starts = (int(match[1]), int(match[3]))
    return Hunk(cursor.number(start), *starts, old, new, bytes(marks), match[5].strip())


def read_binary(cursor: Cursor, index: bytes) -> Binary:
    """The binary data at the cursor; `index` is the value of the header's index line."""
    ids = INDEX.match(index)
    if ids is None or len(ids[1]) != 40 or len(ids[2]) != 40:
        cursor.fail("a binary patch needs a full `index` line", hint="git diff --full-index")
    cursor.at += 1
    forward = _read_block(cursor)
    if forward is None:
        cursor.fail("no `literal` or `delta` after `GIT binary patch`")
    if _BLOCK.match(cursor.text()):
        _read_block(cursor)  # the way back, which replaying never needs
    method, data = forward
    return Binary(method, data, ids[1].decode(), ids[2].decode())


def _read_block(cursor: Cursor) -> tuple[BinaryMethod, bytes] | None:
    match = _BLOCK.match(cursor.text())
    if match is None:
        return None
    start = cursor.at
    cursor.at += 1
    lines: list[bytes] = []
    while cursor.peek().strip():
        lines.append(cursor.text())
        cursor.at += 1
    cursor.at += 1
    try:
        return BinaryMethod(match[1].decode()), decode_lines(lines, int(match[2]))
    except ValueError as error:
        cursor.fail(f"binary data: {error}", at=start)
