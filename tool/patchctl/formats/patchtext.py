# SPDX-License-Identifier: Apache-2.0
"""A file that brings patches, as bytes that the patch reader knows: LF, no mark, one mail each."""

from __future__ import annotations

import re

from patchctl.formats.mail import SEPARATOR
from patchctl.formats.patchmodel import lines_of

_BOMS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))
_STRUCTURE = re.compile(rb"(diff --git |--- \S|\+\+\+ \S|@@ -\d)")


def split_mails(data: bytes) -> list[tuple[int, bytes]]:
    """The mails of a mailbox, each with the line (from 1) where it begins; one if it is none."""
    mails: list[tuple[int, list[bytes]]] = []
    for number, line in enumerate(lines_of(data), 1):
        if SEPARATOR.match(line) or not mails:
            mails.append((number, []))
        mails[-1][1].append(line)
    if len(mails) > 1 and not b"".join(mails[0][1]).strip():
        mails.pop(0)
    return [(number, b"".join(lines)) for number, lines in mails]


def plain_text(data: bytes) -> tuple[bytes, list[str]]:
    """The file without byte order mark, in bytes of one each, with LF at the ends of lines."""
    reasons = []
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            try:
                data = data.decode(encoding).removeprefix("\ufeff").encode()
            except UnicodeDecodeError:
                data = data.removeprefix(mark)
            reasons.append("byte order mark removed")
            if encoding != "utf-8":
                reasons.append("UTF-16 read")
    structure = [line for line in lines_of(data) if _STRUCTURE.match(line)]
    if structure and all(line.endswith(b"\r\n") for line in structure):
        data = b"\n".join(line.removesuffix(b"\r") for line in data.split(b"\n"))
        reasons.append("CR LF line ends removed")
    return data, reasons
