# SPDX-License-Identifier: Apache-2.0
"""A patch file brought up to date with as few changed bytes as there can be.

`renew` takes the file as it was and as git would write it now. What says the same in both is
kept as it was: the header, the diff of a file, the text behind a hunk's ``@@``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from patchctl.formats.mail import PatchFile, read_patch_file
from patchctl.formats.patchlines import HUNK
from patchctl.formats.patchmodel import Change, Header, Patch, lines_of
from patchctl.formats.patchpaths import DEV_NULL

IsSame = Callable[[Change], bool]
"""Whether a change of the old file does exactly what is wanted, where it stands."""

_DIFFSTAT_TOTAL = re.compile(rb" \d+ files? changed(,|$)")
_MAIL_FIELD = re.compile(rb"(From|Date|Subject):[ \t]", re.IGNORECASE)


@dataclass(frozen=True)
class _Section:
    """The diff of one file, in lines: all before the first hunk, and from there on."""

    head: list[bytes]
    body: list[bytes]

    @property
    def is_git(self) -> bool:
        return any(line.startswith(b"diff --git ") for line in self.head)


@dataclass(frozen=True)
class _Parts:
    """A patch file in lines: header with message, diffstat with its ``---``, diffs, signature."""

    head: list[bytes]
    stat: list[bytes]
    sections: list[_Section]
    tail: list[bytes]


def renew(old: Patch, old_data: bytes, new: Patch, new_data: bytes, is_same: IsSame) -> bytes:
    """The new patch file, with the bytes of the old one wherever they still hold.

    `new_data` is git's own; both are parsed too. Where the old file is encoded (quoted-printable,
    base64) the new one is taken as it is.

    Raises:
        PatchDoesNotApply: a file cannot be split into header and diff.
    """
    old_file = read_patch_file(old.name, old_data)
    if old_file.encoding:
        return new_data
    was = _parts(old_data, old_file, old)
    now = _parts(new_data, read_patch_file(new.name, new_data), new)
    kept = {
        _key(change): section
        for change, section in zip(old.changes, was.sections, strict=True)
        if is_same(change)
    }
    by_path = {_key(c): s for c, s in zip(old.changes, was.sections, strict=True)}
    style = _Style.of(was.sections)
    sections = []
    for change, section in zip(new.changes, now.sections, strict=True):
        key = _key(change)
        same = kept.get(key)
        sections.append(same or _styled(section, by_path.get(key), style))
    order = {_key(change): number for number, change in enumerate(old.changes)}
    ranks = [order.get(_key(change), -1) for change in new.changes]
    sections = _in_old_order(sections, ranks)
    head = was.head if _same_header(old.header, new.header) else _head(was.head, now.head, old, new)
    same_diffs = len(kept) == len(old.changes) == len(new.changes)
    stat = was.stat if same_diffs or not _has_diffstat(was.stat) else now.stat
    lines = [*head, *stat]
    for section in sections:
        lines += [*section.head, *section.body]
    return b"".join([*lines, *was.tail])


def _key(change: Change) -> tuple[str, bytes, bytes]:
    return change.action, change.old, change.new


def _same_header(old: Header, new: Header) -> bool:
    return (old.author, old.message) == (new.author, new.message)


def _parts(data: bytes, file: PatchFile, patch: Patch) -> _Parts:
    lines = lines_of(data)
    first = file.diff_line - 1
    starts = [change.line - 1 for change in patch.changes]
    # what a plain diff has in front of its `---`: `Index:` and a rule
    for number, start in enumerate(starts):
        floor = first if number == 0 else starts[number - 1] + 1
        while start > floor and lines[start - 1].startswith((b"Index: ", b"=====", b"diff -")):
            start -= 1
        starts[number] = start
    end = _end(lines, starts[-1], patch.changes[-1])
    sections = [
        _section(lines[start:stop]) for start, stop in zip(starts, [*starts[1:], end], strict=True)
    ]
    return _Parts(lines[:first], lines[first : starts[0]], sections, lines[end:])


def _end(lines: list[bytes], start: int, last: Change) -> int:
    """Where the diff `last`, which begins at `start`, ends: what follows is the mail's signature.

    A removed line ``- `` looks like a signature's dashes, so the hunk's own count decides.
    """
    if not last.hunks:
        ends = (n for n in range(start, len(lines)) if lines[n].rstrip() == b"--")
        return next(ends, len(lines))
    hunk = last.hunks[-1]
    at, left = hunk.line, len(hunk.marks)
    while left or (lines[at : at + 1] and lines[at].startswith(b"\\ ")):
        left -= not lines[at].startswith(b"\\ ")
        at += 1
    return at


def _section(lines: list[bytes]) -> _Section:
    at = next((n for n, line in enumerate(lines) if HUNK.match(line)), len(lines))
    return _Section(lines[:at], lines[at:])


@dataclass(frozen=True)
class _Style:
    """How a patch file is written that has no header of git's.

    `rule` is the line under ``Index:``, empty without such lines; `notes` says whether hunks
    have text behind the second ``@@``.
    """

    plain: bool
    rule: bytes
    notes: bool

    @classmethod
    def of(cls, sections: list[_Section]) -> _Style:
        heads = [line for section in sections for line in section.head]
        rules = (line for line in heads if line.startswith(b"====="))
        has_index = any(line.startswith(b"Index: ") for line in heads)
        notes = [note for section in sections for _, note, _ in _hunks(section.body)]
        return cls(
            not any(section.is_git for section in sections),
            next(rules, b"") if has_index else b"",
            any(note.strip() for note in notes),
        )


def _styled(section: _Section, old: _Section | None, style: _Style) -> _Section:
    """A new diff in the style of the old one of the same file, or of the old file as a whole."""
    body = _with_old_notes(section.body, old.body) if old else section.body
    if not style.plain or not body or not _is_plain(section.head):
        return _Section(section.head, body)
    if not style.notes:
        body = [part for place, _, lines in _hunks(body) for part in (place + b"\n", *lines)]
    if old is not None:
        return _Section(old.head, body)
    names = [line for line in section.head if line[:4] in (b"--- ", b"+++ ")]
    path = next(line[4:] for line in reversed(names) if not line[4:].startswith(DEV_NULL))
    return _Section([b"Index: " + path, style.rule, *names] if style.rule else names, body)


def _is_plain(head: list[bytes]) -> bool:
    """Whether a diff without git's header says as much: no mode, rename or binary content."""
    for line in head:
        if line.startswith((b"old mode", b"rename ", b"copy ", b"GIT binary")):
            return False
        if line.startswith((b"new file mode", b"deleted file mode")) and b"100644" not in line:
            return False
    return True


def _with_old_notes(body: list[bytes], old: list[bytes]) -> list[bytes]:
    """Hunks that are in the old diff too keep what that has behind the second ``@@``."""
    notes = {tuple(lines): note for _, note, lines in _hunks(old)}
    result: list[bytes] = []
    for place, note, lines in _hunks(body):
        result += [place + notes.get(tuple(lines), note), *lines]
    return result or body


def _hunks(body: list[bytes]) -> list[tuple[bytes, bytes, list[bytes]]]:
    """Each hunk as place (``@@ ... @@``), the rest of that line, and its lines."""
    found: list[tuple[bytes, bytes, list[bytes]]] = []
    for line in body:
        match = HUNK.match(line)
        if match is not None:
            at = match.start(5)
            found.append((line[:at], line[at:], []))
        elif found:
            found[-1][2].append(line)
    return found


def _has_diffstat(stat: list[bytes]) -> bool:
    return any(_DIFFSTAT_TOTAL.match(line) for line in stat)


def _in_old_order(sections: list[_Section], ranks: list[int]) -> list[_Section]:
    """Diffs in the order of the old file; a new one behind the one that git puts before it."""
    keyed = []
    last = -1
    for number, (section, rank) in enumerate(zip(sections, ranks, strict=True)):
        last = rank if rank >= 0 else last
        keyed.append((last, rank < 0, number, section))
    return [section for *_, section in sorted(keyed, key=lambda item: item[:3])]


def _head(old_lines: list[bytes], new_lines: list[bytes], old: Patch, new: Patch) -> list[bytes]:
    """The new header, with those fields of the old mail that did not change."""
    was, now = _mail_head(old_lines), _mail_head(new_lines)
    if was is None or now is None:
        return new_lines
    (old_fields, old_body), (new_fields, new_body) = was, now
    if any(_MAIL_FIELD.match(line) for line in old_body[:4]):
        return new_lines  # repeated in the body, where they count more
    same = {
        b"from": (old.header.author.name, old.header.author.email)
        == (new.header.author.name, new.header.author.email),
        b"date": (old.header.author.when, old.header.author.zone)
        == (new.header.author.when, new.header.author.zone),
        b"subject": old.header.subject == new.header.subject,
    }
    replaced = {_field_name(field): field for field in new_fields}
    fields = []
    for field in old_fields:
        name = _field_name(field)
        fields.append(field if same.get(name, True) else replaced.get(name, field))
    had = {_field_name(field) for field in old_fields}
    fields += [field for field in new_fields if _field_name(field) not in had]
    body_is_same = _body(old) == _body(new)
    lines = [line for field in fields for line in field]
    return [*lines, *(old_body if body_is_same else new_body)]


def _body(patch: Patch) -> bytes:
    return patch.header.message.partition(b"\n")[2]


def _field_name(field: list[bytes]) -> bytes:
    return b"" if field[0].startswith(b"From ") else field[0].partition(b":")[0].lower()


def _mail_head(lines: list[bytes]) -> tuple[list[list[bytes]], list[bytes]] | None:
    """The header fields of a mail, each with its continuation lines, and the rest; None if none."""
    end = next((n for n, line in enumerate(lines) if not line.strip()), len(lines))
    fields: list[list[bytes]] = []
    for line in lines[:end]:
        if line[:1] in (b" ", b"\t") and fields:
            fields[-1].append(line)
        else:
            fields.append([line])
    if not any(_field_name(field) == b"from" for field in fields):
        return None
    return fields, lines[end:]
