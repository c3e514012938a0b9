# SPDX-License-Identifier: Apache-2.0
"""Whether a patch file is in house form: its name, subject, message, trailers and diff."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from patchctl.errors import PatchDoesNotApply
from patchctl.formats.asserts import read_promises
from patchctl.formats.findings import Severity
from patchctl.formats.lintmodel import Remark, from_error
from patchctl.formats.mail import TOOL_NAME, decoded_mail, read_patch_file
from patchctl.formats.patch import parse_patch
from patchctl.formats.patchmodel import Header, lines_of
from patchctl.formats.trailers import read_trailers

AREA = "patches"
SUBJECT_LENGTH = 75
STATES = ("Pending", "Submitted [where]", "Backport [what]", "Denied", "Inappropriate [why]")

_NAME = re.compile(r"(?P<number>\d{4,})-[a-z0-9]+([-.][a-z0-9]+)+\.patch")
_SUBJECT = re.compile(r"[a-z0-9][\w./,-]*: \S.*[^.\s]")
_BRACKETS = re.compile(rb"Subject:\s*\[", re.IGNORECASE)
_STATUS = re.compile(r"(Pending|Denied)( \[.+\])?|(Submitted|Backport|Inappropriate) \[.+\]")
_SIGNED = re.compile(r".*\S <[^<>@\s]+@[^<>@\s]+>")
_COMMIT = re.compile(rb"From (?P<id>[0-9a-f]{40}) ")
_INDEX = re.compile(rb"index (?P<old>[0-9a-f]+)\.\.(?P<new>[0-9a-f]+)( \d{6})?$")


def lint_names(names: Sequence[str], lines: Sequence[int], *, series: str) -> Iterator[Remark]:
    """The names in the series, each in its line: their form, and numbers that go up."""
    before = -1
    for name, line in zip(names, lines, strict=True):
        match = _NAME.fullmatch(name)
        if match is None:
            text = f"`{name}` is not named `NNNN-area-verb-object.patch`"
            yield Remark(series, line, "series", "name", text)
            continue
        number = int(match["number"])
        if number <= before:
            text = f"`{name}` is numbered {number} and stands after {before}"
            yield Remark(series, line, "series", "numbering", text)
        before = max(before, number)


def lint_patch(name: str, data: bytes, strip: int, *, file: str) -> Iterator[Remark]:
    """Everything that is not in house form; a patch that cannot be read has one remark."""
    try:
        parse_patch(name, data, strip)
        read_promises(name, data)
        read = read_patch_file(name, data)
        head = lines_of(decoded_mail(data))[: read.diff_line - 1]
    except PatchDoesNotApply as error:
        yield from_error(error, file, AREA, "malformed")
        return
    at = next((n for n, line in enumerate(head, 1) if line.lower().startswith(b"subject:")), 1)
    if read.header.author.name == TOOL_NAME:
        text = "names no author: it is no mail as `git format-patch` writes it"
        yield Remark(file, 1, AREA, "author", text)
    yield from _lint_subject(read.header, head, at, file)
    yield from _lint_message(read.header, head, at, file)
    yield from _lint_churn(lines_of(data), file)


def _lint_subject(header: Header, head: list[bytes], at: int, file: str) -> Iterator[Remark]:
    if _BRACKETS.match(head[at - 1] if at <= len(head) else b""):
        text = "the subject has `[brackets]`; git format-patch -N --subject-prefix= writes none"
        yield Remark(file, at, AREA, "brackets", text)
    subject = header.subject
    if not _SUBJECT.fullmatch(subject):
        text = f"the subject `{subject}` is not `area: verb object` without a full stop"
        yield Remark(file, at, AREA, "subject", text)
    if len(subject) > SUBJECT_LENGTH:
        text = f"the subject has {len(subject)} characters, more than {SUBJECT_LENGTH}"
        yield Remark(file, at, AREA, "subject-length", text, Severity.WARNING)


def _lint_message(header: Header, head: list[bytes], at: int, file: str) -> Iterator[Remark]:
    trailers = read_trailers(header.message)
    values = {
        key: [t.value for t in trailers if t.key.lower() == key.lower()]
        for key in ("Upstream-Status", "Signed-off-by")
    }
    for key, found in values.items():
        if not found:
            text = f"no `{key}:` among the trailers (the last paragraph of the message)"
            yield Remark(file, at, AREA, key.lower(), text)
    for value in values["Upstream-Status"]:
        if not _STATUS.fullmatch(value):
            text = f"`Upstream-Status: {value}` is none of: {', '.join(STATES)}"
            yield Remark(
                file, _line_of(head, "Upstream-Status", value), AREA, "upstream-status", text
            )
    for value in values["Signed-off-by"]:
        if not _SIGNED.fullmatch(value):
            text = f"`Signed-off-by: {value}` is not `Name <address>`"
            yield Remark(file, _line_of(head, "Signed-off-by", value), AREA, "signed-off-by", text)
    paragraphs = header.message.decode().strip().split("\n\n")
    if len(paragraphs) - bool(trailers) < 2:
        text = "the message says nothing of why: it has a subject and no body"
        yield Remark(file, at, AREA, "body", text, Severity.WARNING)


def _line_of(head: list[bytes], key: str, value: str) -> int:
    """The line of a trailer; a folded one begins there."""
    for number, line in enumerate(head, 1):
        found, _, rest = line.partition(b":")
        is_key = found.strip().lower() == key.lower().encode()
        if is_key and value.encode().startswith(rest.strip()):
            return number
    return 1


def _lint_churn(lines: list[bytes], file: str) -> Iterator[Remark]:
    """What makes a patch file differ although its effect does not."""
    commit = _COMMIT.match(lines[0])
    if commit and commit["id"].strip(b"0"):
        text = "the first line names a commit; git format-patch --zero-commit names none"
        yield Remark(file, 1, AREA, "commit-id", text, Severity.WARNING)
    for number, line in enumerate(lines, 1):
        index = _INDEX.match(line.rstrip())
        if index and len(index["old"]) < 40:
            text = "abbreviated object ids; git format-patch --full-index writes them whole"
            yield Remark(file, number, AREA, "index", text, Severity.WARNING)
            break
    if len(lines) > 2 and b"-- \n" in lines[-3:]:
        at = len(lines) - lines[::-1].index(b"-- \n")
        text = "a signature with git's version; git format-patch --no-signature writes none"
        yield Remark(file, at, AREA, "signature", text, Severity.WARNING)
