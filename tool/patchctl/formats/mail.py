# SPDX-License-Identifier: Apache-2.0
"""The head of a patch file: author, date and message, as ``git am --keep-non-patch`` takes them.

Rules, which together with the fixed committer make commit ids repeat:

- A file whose first block is mail headers with a ``From:`` is a mail. ``Subject`` loses ``Re:``
  and every ``[...PATCH...]`` in front; other brackets stay. Headers may use encoded words;
  bytes that are neither those nor UTF-8 are read as Latin-1.
- ``From:``, ``Date:`` and ``Subject:`` at the top of the body replace those of the mail.
- The message is subject, blank line, body up to ``---`` or the first diff, in UTF-8, with
  trailing blanks and doubled blank lines removed.
- quoted-printable and base64 bodies are decoded; the diff's bytes are otherwise left alone.
- A file that is no mail: the text before the diff is the message (or the file's name where
  there is none), the author is patchctl, the date `NO_DATE`.
"""

from __future__ import annotations

import binascii
import quopri
import re
from dataclasses import dataclass

from patchctl.errors import PatchDoesNotApply
from patchctl.formats.gitobjects import Identity, display
from patchctl.formats.patchmodel import Header, lines_of, malformed

TOOL_NAME = "patchctl"
TOOL_EMAIL = "patchctl@localhost.invalid"
NO_DATE = 946684800  # 2000-01-01T00:00:00Z

_BOM = b"\xef\xbb\xbf"
SEPARATOR = re.compile(rb"From \S+ .*\d\d:\d\d:\d\d.* \d{4}\s*$")
_FIELD = re.compile(rb"([!-9;-~]+):[ \t]*(.*)", re.DOTALL)
_IN_BODY = re.compile(rb"(From|Date|Subject):[ \t]*(.*)", re.DOTALL | re.IGNORECASE)
_CHARSET = re.compile(r"""charset\s*=\s*"?([^\s";]+)""", re.IGNORECASE)
_ADDRESS = re.compile(r"(?P<name>.*?)<(?P<email>[^<>]*)>(?P<rest>.*)$", re.DOTALL)
_SUBJECT_NOISE = re.compile(r"[rR][eE]:|[\s:]+|\[[^\]]*PATCH[^\]]*\]")
_OTHER_BRACKET = re.compile(r"\[[^\]]*\]\s?")
_ENCODING = "Content-Transfer-Encoding"
_CRUD = "".join(map(chr, range(33))) + ",:;<>\"\\'"


@dataclass(frozen=True)
class PatchFile:
    """A patch file in two: its header and the lines that follow the message.

    `diff_line` is the number of the first of `diff`; it counts lines of the decoded file where
    `encoding` is not empty.
    """

    header: Header
    diff: list[bytes]
    diff_line: int
    encoding: str


def read_patch_file(name: str, data: bytes) -> PatchFile:
    """Split a patch file into header and diff.

    Raises:
        PatchDoesNotApply: a byte order mark, CR LF line ends, several mails, an encoding that
            is not known, or a date that is none. Names the line.
    """
    if data.startswith(_BOM):
        raise malformed(name, 1, "a UTF-8 byte order mark (BOM)", "save the patch without one")
    lines = lines_of(data)
    if lines and lines[0].endswith(b"\r\n"):
        raise crlf(name, 1)
    mails = sum(1 for line in lines[1:] if SEPARATOR.match(line)) + 1
    if mails > 1:
        raise malformed(
            name,
            1,
            f"the file holds {mails} patches; it must hold one",
            f"split it, one mail a file: git mailsplit -o DIR patches/{name}",
        )
    fields, start = _mail_fields(lines)
    if fields is None:
        message, diff = _split(lines)
        for number, line in enumerate(message, 1):
            if line.startswith(b"@@ -"):
                raise malformed(name, number, "a hunk that belongs to no file")
        return PatchFile(_plain_header(name, message), diff, len(message) + 1, "")
    return _read_mail(name, fields, lines[start:], start)


def crlf(name: str, line: int) -> PatchDoesNotApply:
    """The error for a patch file with CR LF line ends."""
    return malformed(
        name,
        line,
        "the patch file has CRLF line ends",
        f"sed -i 's/\\r$//' patches/{name}, and set `patches/** -text` in .gitattributes",
    )


def decoded_mail(data: bytes) -> bytes:
    """The mail with its body decoded from quoted-printable or base64; anything else as it is."""
    lines = lines_of(data)
    fields, start = _mail_fields(lines)
    encoding = _text((fields or {}).get(_ENCODING.lower(), b"")).strip().lower()
    body = b"".join(lines[start:])
    if encoding == "quoted-printable":
        body = quopri.decodestring(body)
    elif encoding == "base64":
        try:
            body = binascii.a2b_base64(body)
        except binascii.Error:
            return data
    else:
        return data
    field = f"{_ENCODING}:".lower().encode()
    return b"".join(x for x in lines[:start] if not x.lower().startswith(field)) + body


def _mail_fields(lines: list[bytes]) -> tuple[dict[str, bytes] | None, int]:
    """The header fields (lower-case names) and where the body starts; None for no mail."""
    start = 1 if lines and SEPARATOR.match(lines[0]) else 0
    fields: dict[str, bytes] = {}
    last = ""
    for number, line in enumerate(lines[start:], start):
        text = line.rstrip(b"\r\n")
        if not text.strip():
            return (fields, number + 1) if start or "from" in fields else (None, 0)
        match = _FIELD.match(text)
        if text[:1] in (b" ", b"\t") and last:
            fields[last] += b" " + text[1:].rstrip()
        elif match is None:
            return None, 0
        else:
            last = match[1].decode("ascii").lower()
            fields.setdefault(last, b"")
            fields[last] = match[2]
    return (fields, len(lines)) if start or "from" in fields else (None, 0)


def _read_mail(name: str, fields: dict[str, bytes], body: list[bytes], start: int) -> PatchFile:
    encoding = _text(fields.get(_ENCODING.lower(), b"")).strip().lower()
    kind = _text(fields.get("content-type", b""))
    if kind.lower().startswith("multipart/"):
        raise malformed(name, 1, f"the mail is {kind.split(';')[0]}; it must be one text part")
    if encoding in ("", "7bit", "8bit", "binary"):
        encoding = ""
    elif encoding == "quoted-printable":
        body = lines_of(quopri.decodestring(b"".join(body)))
    elif encoding == "base64":
        try:
            body = lines_of(binascii.a2b_base64(b"".join(body)))
        except binascii.Error as error:
            raise malformed(name, start + 1, f"the base64 body cannot be read: {error}") from None
    else:
        raise malformed(name, 1, f"unknown Content-Transfer-Encoding `{encoding}`")
    message, diff = _split(body)
    diff_line = start + len(message) + 1
    extra, message = _in_body_fields(message)
    fields = fields | extra
    charset = _CHARSET.search(kind)
    text = _to_utf8(name, b"".join(message), charset[1] if charset else "")
    subject = _clean_subject(_decode_words(name, fields.get("subject", b"")))
    when, zone = _date(name, fields.get("date"))
    who, email = _person(_decode_words(name, fields.get("from", b"")))
    header = Header(
        Identity(who, email, when, zone),
        subject or name,
        _clean_message(subject.encode() + b"\n\n" + text) or f"{name}\n".encode(),
    )
    return PatchFile(header, diff, diff_line, encoding)


def _plain_header(name: str, message: list[bytes]) -> Header:
    text = _clean_message(_to_utf8(name, b"".join(message), "")) or f"{name}\n".encode()
    subject = text.split(b"\n", 1)[0].decode("utf-8", "replace")
    return Header(Identity(TOOL_NAME, TOOL_EMAIL, NO_DATE), subject, text)


def _split(lines: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """The message's lines, and those from the separator or the first diff on."""
    for number, line in enumerate(lines):
        text = line.rstrip()
        starts_diff = line.startswith((b"diff -", b"Index: "))
        # three dashes alone, or in front of a file name
        starts_file = line.startswith(b"--- ") and not line[4:5].isspace()
        if starts_diff or starts_file or text == b"---":
            return lines[:number], lines[number:]
    return lines, []


def _in_body_fields(message: list[bytes]) -> tuple[dict[str, bytes], list[bytes]]:
    """Headers repeated at the top of the body, and the message without them."""
    position = 0
    while position < len(message) and not message[position].strip():
        position += 1
    found: dict[str, bytes] = {}
    last = ""
    while position < len(message):
        text = message[position].rstrip(b"\r\n")
        match = _IN_BODY.match(text)
        if match is not None:
            last = match[1].decode().lower()
            found[last] = match[2]
        elif last and text[:1] in (b" ", b"\t"):
            found[last] += b" " + text[1:].rstrip()
        else:
            break
        position += 1
    return found, message[position:] if found else message


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _to_utf8(name: str, raw: bytes, charset: str) -> bytes:
    try:
        return raw.decode(charset).encode() if charset else _text(raw).encode()
    except UnicodeDecodeError:
        return _text(raw).encode()
    except (LookupError, ValueError):  # ValueError: the name holds a NUL byte
        raise malformed(name, 1, f"unknown charset `{display(charset.encode())}`") from None


def _decode_words(name: str, raw: bytes) -> str:
    text = _text(raw)
    if "=?" not in text:
        return text
    from email.errors import HeaderParseError
    from email.header import decode_header

    try:
        parts = decode_header(text)
        return "".join(
            part
            if isinstance(part, str)
            else part.decode(charset or "raw-unicode-escape", "replace")
            for part, charset in parts
        )
    except (HeaderParseError, LookupError, ValueError) as error:
        raise malformed(name, 1, f"cannot decode the header `{text}`: {error}") from None


def _clean_subject(text: str) -> str:
    position = 0
    while match := _SUBJECT_NOISE.match(text, position) or _OTHER_BRACKET.match(text, position):
        if match.re is _OTHER_BRACKET:
            position = match.end()
        else:
            text = text[:position] + text[match.end() :]
    return " ".join(text.split())


def _date(name: str, raw: bytes | None) -> tuple[int, str]:
    if raw is None:
        return NO_DATE, "+0000"
    from email.utils import mktime_tz, parsedate_tz

    try:
        parsed = parsedate_tz(_text(raw))
        when = -1 if parsed is None else int(mktime_tz(parsed))
    except (ValueError, OverflowError):  # the year 99999
        parsed, when = None, -1
    if parsed is None or when < 0:
        raise malformed(name, 1, f"the date `{_text(raw).strip()}` is not one since 1970")
    offset = int(parsed[9] or 0)
    minutes = abs(offset) // 60
    return when, f"{'-' if offset < 0 else '+'}{minutes // 60:02}{minutes % 60:02}"


def _person(text: str) -> tuple[str, str]:
    """Name and address of a ``From`` line."""
    match = _ADDRESS.match(text)
    if match is None:
        # "address (name)", or the address alone
        email, _, comment = text.strip().partition(" ")
        raw = comment.strip("() ") or email
    else:
        email, raw = match["email"].strip(), match["name"] + match["rest"]
    who = re.sub(r"\\(.)", r"\1", raw.strip().strip('"'))
    who = " ".join(re.sub(r"[<>\n\0]", "", who).split()).strip(_CRUD)
    return who or email or TOOL_NAME, re.sub(r"[<>\s\0]", "", email) or TOOL_EMAIL


def _clean_message(text: bytes) -> bytes:
    """No trailing blanks, no doubled blank lines, none at the ends; empty if nothing is left."""
    lines: list[bytes] = []
    for line in (raw.rstrip(b" \t\r\f\v") for raw in text.split(b"\n")):
        if line or (lines and lines[-1]):
            lines.append(line)
    joined = b"\n".join(lines).strip(b"\n")
    return joined + b"\n" if joined else b""
