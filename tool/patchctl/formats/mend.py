# SPDX-License-Identifier: Apache-2.0
"""A damaged patch made readable: hunk counts, file names, `diff --git` lines.

Nothing here looks at what the hunks say; whether they fit is for the grades. What cannot be
mended without a guess stays as it is, and the strict reader refuses it with the line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from patchctl.formats.gitobjects import display
from patchctl.formats.mail import decoded_mail
from patchctl.formats.mendnames import EXTENDED, Line, Section, named, readings
from patchctl.formats.patchlines import HUNK
from patchctl.formats.patchmodel import lines_of
from patchctl.formats.patchpaths import DEV_NULL, git_names, quote

_OPENS = (b"old mode", b"new file mode", b"deleted file mode", b"rename from", b"copy from")
_VERSION = re.compile(rb"\d+\.\d")
_CONTEXT = (b" ", b"\n")


@dataclass(frozen=True)
class Mended:
    """A patch that the strict reader may take, and what was done to it.

    Paths in `data` begin with ``a/`` and ``b/``. `origin` has, for each of its lines, the line in
    the file that was read. `readings` are the strip levels that fit equally well, when not one
    does: then, as where the text makes no sense at all, `data` is what was read. `headless`: a
    file's mode or new name stands without a ``diff --git`` line, which readers may overlook.
    """

    data: bytes
    origin: tuple[int, ...]
    reasons: tuple[str, ...] = ()
    readings: tuple[int, ...] = ()
    headless: bool = False


def mend(data: bytes, first: int, exists: Callable[[bytes], bool], strip: int | None) -> Mended:
    """Rewrite what follows the message of one patch, so that it can be read.

    `first` is the number of the data's first line, `exists` tells whether the tree has a file;
    `strip` is the level that the user declared, if any.
    """
    lines = list(enumerate(lines_of(decoded_mail(data)), first))
    return _Mender(lines, exists, strip).mended()


class _Mender:
    def __init__(
        self, lines: list[Line], exists: Callable[[bytes], bool], strip: int | None
    ) -> None:
        self._lines, self._exists, self._declared = lines, exists, strip
        self._at = 0
        self._reasons: list[str] = []
        self._sections: list[Section] = []

    def _peek(self, ahead: int = 0) -> bytes:
        position = self._at + ahead
        return self._lines[position][1] if position < len(self._lines) else b""

    def mended(self) -> Mended:
        self._at = self._first_diff()
        out = self._lines[: self._at]
        try:
            while self._peek() and not self._at_signature():
                if not self._peek().strip() or self._peek().startswith((b"Index: ", b"=====")):
                    self._at += 1
                    continue
                self._sections.append(self._section())
            levels = self._levels()
            if len(levels) != 1:
                return replace(_result(self._lines), readings=tuple(levels))
            for section in self._sections:
                out += self._emit(section, levels[0])
        except ValueError:  # no sense in it, or in a path's quotes
            return _result(self._lines)
        whole = [*out, *self._lines[self._at :]]
        headless = any(s.fields and not s.headed for s in self._sections)
        return replace(_result(whole), reasons=tuple(self._reasons), headless=headless)

    # -- reading

    def _first_diff(self) -> int:
        for at, (_, line) in enumerate(self._lines):
            behind = self._lines[at + 1][1] if at + 1 < len(self._lines) else b""
            if line.startswith((b"diff --git ", b"Index: ")):
                return at
            if line.startswith(b"--- ") and behind.startswith(b"+++ "):
                return at
            match = EXTENDED.match(line)
            if match and match[1] in _OPENS and EXTENDED.match(behind):
                return at
        return len(self._lines)

    def _at_signature(self) -> bool:
        follows = _VERSION.match(self._peek(1)) is not None or not self._peek(1).strip()
        return self._peek().rstrip() == b"--" and follows

    def _at_names(self, ahead: int = 0) -> bool:
        old, new = self._peek(ahead), self._peek(ahead + 1)
        return old.startswith(b"--- ") and new.startswith(b"+++ ")

    def _section(self) -> Section:
        section = Section(self._lines[self._at][0])
        if self._peek().startswith(b"diff --git "):
            section.git = git_names(self._peek().removeprefix(b"diff --git ").rstrip(b"\n"))
            section.headed = True
            self._at += 1
        elif self._peek().startswith(b"diff -"):
            self._at += 1
        while EXTENDED.match(self._peek()):
            section.fields.append(self._lines[self._at])
            self._at += 1
        if self._at_names():
            (old, was), (new, now) = named(self._peek()), named(self._peek(1))
            section.named, section.stamps = (old, new), (was, now)
            self._at += 2
            while HUNK.match(self._peek()):
                self._hunk(section)
        elif self._peek().startswith(b"GIT binary patch"):
            while self._peek() and not self._peek().startswith(b"diff --git "):
                if self._at_signature():
                    break
                section.body.append(self._lines[self._at])
                self._at += 1
        elif not section.fields:
            raise ValueError("neither a header nor a hunk")
        return section

    def _hunk(self, section: Section) -> None:
        number = sum(line.startswith(b"@@ ") for _, line in section.body) + 1
        match = HUNK.match(self._peek())
        assert match is not None
        before, after = (1 if match[i] is None else int(match[i]) for i in (2, 4))
        stated = (before, after)
        header = self._lines[self._at][0]
        start = self._at + 1
        end = self._as_stated(start, stated)
        counted = stated
        if end is None:
            end = self._as_found(start)
            body = [line for _, line in self._lines[start:end]]
            old = sum(line.startswith((*_CONTEXT, b"-")) for line in body)
            new = sum(line.startswith((*_CONTEXT, b"+")) for line in body)
            counted = (old, new)
            section.recounted.append((number, stated, counted))
        text = b"@@ -%s,%d +%s,%d @@%s" % (match[1], counted[0], match[3], counted[1], match[5])
        section.body.append((header, text.rstrip(b"\n") + b"\n"))
        section.body += self._lines[start:end]
        self._at = end

    def _as_stated(self, start: int, counts: tuple[int, ...]) -> int | None:
        """Where the hunk ends by its counts; None if there it cannot end."""
        old, new = counts
        at = start
        while old > 0 or new > 0 or self._line(at).startswith(b"\\"):
            line = self._line(at)
            if not line or not line.startswith((*_CONTEXT, b"-", b"+", b"\\")):
                return None
            old -= line.startswith((*_CONTEXT, b"-"))
            new -= line.startswith((*_CONTEXT, b"+"))
            if old < 0 or new < 0:
                return None
            at += 1
        return at if self._is_boundary(at) else None

    def _as_found(self, start: int) -> int:
        """Where the hunk ends by what follows; blank lines at its end are none of its context."""
        at = start
        while self._line(at).startswith((*_CONTEXT, b"-", b"+", b"\\")):
            if self._is_boundary(at) and self._line(at) != b"\n":
                break
            at += 1
        while at > start and self._line(at - 1) == b"\n":
            at -= 1
        return at

    def _line(self, at: int) -> bytes:
        return self._lines[at][1] if at < len(self._lines) else b""

    def _is_boundary(self, at: int) -> bool:
        line = self._line(at)
        kept, self._at = self._at, at
        signature = self._at_signature()
        names = self._at_names() and self._peek(2).startswith(b"@@")
        self._at = kept
        header = line.startswith((b"@@ -", b"diff -", b"Index: ", b"=====", b"\n"))
        return not line or header or signature or names or EXTENDED.match(line) is not None

    # -- writing

    def _levels(self) -> list[int]:
        """How many folders the names lose; one answer if it is clear."""
        if self._declared is not None:
            return [self._declared]
        if all(n.startswith((b"a/", b"b/")) for s in self._sections for n in s.names):
            return [1]
        levels = readings(self._sections, self._exists)
        if len(levels) == 1:
            why = "they do not begin with a/ and b/"
            self._reasons.append(f"paths read with -p{levels[0]}: {why}")
        return levels

    def _emit(self, section: Section, level: int) -> list[Line]:
        at = section.line
        old, new = section.paths(level)
        for number, *counts in section.recounted:
            stated, counted = (f"-{a} +{b}" for a, b in counts)
            where = f"hunk {number} of {display(new or old)}"
            what = f"{where}: counts {stated} corrected to {counted}"
            self._reasons.append(what)
        if section.fields and not section.headed:
            self._reasons.append(f"{display(new or old)}: `diff --git` line added")
        is_git = section.headed or bool(section.fields)
        lines: list[Line] = []
        if is_git:
            heads = quote(b"a/" + (old or new)), quote(b"b/" + (new or old))
            lines.append((at, b"diff --git %s %s\n" % heads))
        lines += section.fields
        if section.named:
            was = quote(b"a/" + old) if old else DEV_NULL
            now = quote(b"b/" + new) if new else DEV_NULL
            lines.append((at, b"--- %s%s\n" % (was, section.stamps[0])))
            lines.append((at, b"+++ %s%s\n" % (now, section.stamps[1])))
        return lines + self._renumbered(section, new or old)

    def _renumbered(self, section: Section, path: bytes) -> list[Line]:
        """The body with new line numbers that follow from the old ones."""
        lines: list[Line] = []
        shift = wrong = 0
        for number, line in section.body:
            match = HUNK.match(line)
            if match is None or section.body[0][1].startswith(b"GIT"):
                lines.append((number, line))
                continue
            start, old, stated, new = (int(match[i]) for i in (1, 2, 3, 4))
            right = start + (not old) + shift - (not new)
            wrong += right != stated
            counts = (start, old, right, new, match[5])
            lines.append((number, b"@@ -%d,%d +%d,%d @@%s\n" % counts))
            shift += new - old
        if wrong:
            self._reasons.append(f"{display(path)}: new line numbers corrected")
        return lines


def _result(lines: list[Line]) -> Mended:
    return Mended(b"".join(line for _, line in lines), tuple(number for number, _ in lines))
