# SPDX-License-Identifier: Apache-2.0
"""`patches/series`: the patch files in their order, in quilt's syntax, read strictly.

One entry a line, ``NAME [-p0|-p1]``; ``#`` starts a comment at the beginning of a line or after
a blank. What quilt itself would stumble over (a byte order mark, CR LF) is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from patchctl.errors import UsageError
from patchctl.formats.gitobjects import display

PATCH_SUFFIXES = (".patch", ".diff")
"""A file in `patches/` with such a name is a patch, so the series must name it."""

_BOM = b"\xef\xbb\xbf"
_COMMENT = re.compile(r"(^|\s)#.*")
_STRIP_LEVELS = {"-p0": 0, "-p1": 1}


@dataclass(frozen=True)
class SeriesEntry:
    """A patch of the series.

    `name` is the path from `patches/`, `strip` how many leading folders its paths lose, `line`
    the line of the series that names it (from 1).
    """

    name: str
    strip: int
    line: int


def parse_series(data: bytes, *, where: str) -> tuple[SeriesEntry, ...]:
    """The entries of a series file.

    Raises:
        UsageError: an entry that leaves the folder, is there twice or has unknown options; a
            byte order mark, CR LF, or bytes that are no UTF-8. Names the line.
    """
    if data.startswith(_BOM):
        raise _refused(where, 1, "starts with a UTF-8 byte order mark", "save it without one")
    entries: list[SeriesEntry] = []
    first_line: dict[str, int] = {}
    for number, raw in enumerate(data.split(b"\n"), 1):
        if raw.endswith(b"\r"):
            raise _refused(where, number, "ends in CR LF", f"sed -i 's/\\r$//' {where}")
        entry = _parse_line(raw, number, where)
        if entry is None:
            continue
        if entry.name in first_line:
            first = first_line[entry.name]
            raise _refused(
                where, number, f"names `{entry.name}` again (first on line {first})", "drop one"
            )
        first_line[entry.name] = number
        entries.append(entry)
    return tuple(entries)


def _parse_line(raw: bytes, number: int, where: str) -> SeriesEntry | None:
    try:
        words = _COMMENT.sub("", raw.decode()).split()
    except UnicodeDecodeError:
        raise _refused(where, number, f"is not UTF-8: `{display(raw)}`") from None
    if not words:
        return None
    name, *options = words
    strip = 1
    for option in options:
        if option not in _STRIP_LEVELS:
            raise _refused(where, number, f"has `{option}`; known are -p0 and -p1 (the default)")
        strip = _STRIP_LEVELS[option]
    if "\0" in name:
        raise _refused(where, number, f"names `{display(name.encode())}`, which holds a NUL byte")
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise _refused(where, number, f"names `{name}`, which is outside the series' folder")
    return SeriesEntry(str(path), strip, number)


def unlisted(names: Iterable[str], entries: Iterable[SeriesEntry]) -> list[str]:
    """The patch files among `names` (paths from `patches/`) that no entry names."""
    listed = {entry.name for entry in entries}
    return sorted(n for n in names if n.endswith(PATCH_SUFFIXES) and n not in listed)


def _refused(where: str, number: int, what: str, hint: str = "") -> UsageError:
    return UsageError(
        f"`{where}` line {number} {what}", hint=hint, data={"file": where, "line": number}
    )
