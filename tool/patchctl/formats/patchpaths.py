# SPDX-License-Identifier: Apache-2.0
"""The paths that patches name: git's quoting, strip levels, and what is never allowed."""

from __future__ import annotations

import re

_ESCAPES = {
    b"a": b"\a",
    b"b": b"\b",
    b"f": b"\f",
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
    b"v": b"\v",
    b'"': b'"',
    b"\\": b"\\",
}
_QUOTED = re.compile(rb'"((?:[^"\\]|\\[abfnrtv"\\]|\\[0-3][0-7]{2})*)"')
_ESCAPE = re.compile(rb'\\([abfnrtv"\\]|[0-3][0-7]{2})')
DEV_NULL = b"/dev/null"


def unquote(text: bytes) -> tuple[bytes, bytes]:
    """The path at the start of `text`, which begins with a double quote, and what follows it.

    Raises:
        ValueError: no closing quote, or an escape that git does not write.
    """
    match = _QUOTED.match(text)
    if match is None:
        raise ValueError("a quoted path is not closed or has an unknown escape")

    def plain(escape: re.Match[bytes]) -> bytes:
        code = escape[1]
        return _ESCAPES[code] if code in _ESCAPES else bytes([int(code, 8)])

    return _ESCAPE.sub(plain, match[1]), text[match.end() :]


_PLAIN = {code: name for name, code in _ESCAPES.items()}
_ODD = re.compile(rb'[\x00-\x1f\x7f-\xff"\\]')


def quote(path: bytes) -> bytes:
    """The path as git writes it: in double quotes with escapes where it holds odd bytes."""
    if _ODD.search(path) is None:
        return path

    def escape(match: re.Match[bytes]) -> bytes:
        byte = match[0]
        return b"\\" + (_PLAIN[byte] if byte in _PLAIN else b"%03o" % byte[0])

    return b'"' + _ODD.sub(escape, path) + b'"'


def git_names(rest: bytes) -> tuple[bytes, bytes] | None:
    """The two names of ``diff --git``; None where blanks make them ambiguous.

    Unquoted names can hold blanks, so they can be told apart only when both are the same path:
    then the line's middle is the blank between them.

    Raises:
        ValueError: bad quoting.
    """
    if rest.startswith(b'"'):
        old, tail = unquote(rest)
        new = tail[1:]
        return old, unquote(new)[0] if new.startswith(b'"') else new
    if rest.endswith(b'"'):
        old, _, new = rest.partition(b' "')
        return old, unquote(b'"' + new)[0]
    middle = len(rest) // 2
    old, new = rest[:middle], rest[middle + 1 :]
    same = old == new or ((old[:2], new[:2]) == (b"a/", b"b/") and old[2:] == new[2:])
    return (old, new) if rest[middle : middle + 1] == b" " and same else None


def strip_prefix(path: bytes, strip: int, prefix: bytes) -> bytes:
    """`path` without its ``a/`` or ``b/``, where `strip` is 1.

    Any other first folder is not taken off: ``util/scale.h`` could be meant as it stands, and
    may exist in both readings.

    Raises:
        ValueError: the path does not start with `prefix`.
    """
    if strip == 0:
        return path
    if not path.startswith(prefix):
        raise ValueError(
            f"the path has no {prefix.decode()} prefix; declare -p0 in the series if it is whole"
        )
    return path[len(prefix) :]


def why_unsafe(path: bytes) -> str:
    """Why nothing may be written at `path`; empty if it is fine."""
    if path.startswith(b"/"):
        return "is absolute"
    if b"\0" in path:
        return "holds a NUL byte"
    for part in path.split(b"/"):
        if part == b"..":
            return "leaves the tree (`..`)"
        if part in (b"", b"."):
            return "has an empty or `.` component"
        # git checks these spellings too: some file systems take them for .git
        if part.rstrip(b" .").lower() in (b".git", b"git~1"):
            return "is inside a git directory"
    return ""


def why_unsafe_link(path: bytes, target: bytes) -> str:
    """Why a symbolic link at `path` to `target` is refused; empty if it stays in the tree."""
    if target.startswith(b"/"):
        return "is absolute"
    if not target or b"\0" in target:
        return "is no path"
    depth = path.count(b"/")
    for part in target.split(b"/"):
        depth += -1 if part == b".." else 0 if part in (b"", b".") else 1
        if depth < 0:
            return "leaves the tree"
    return ""
