# SPDX-License-Identifier: Apache-2.0
"""The series file: quilt's syntax, strictly."""

from __future__ import annotations

import pytest

from patchctl.errors import UsageError
from patchctl.formats.series import SeriesEntry, parse_series, unlisted

WHERE = "patches/series"


def parse(data: bytes) -> tuple[SeriesEntry, ...]:
    return parse_series(data, where=WHERE)


def test_entries_keep_order_line_and_strip_level() -> None:
    data = b"# first\n\nb.patch\n  a.patch -p0   # why\nsub/c.diff -p1\n#d.patch\n"
    assert parse(data) == (
        SeriesEntry("b.patch", 1, 3),
        SeriesEntry("a.patch", 0, 4),
        SeriesEntry("sub/c.diff", 1, 5),
    )


def test_hash_inside_a_name_is_no_comment() -> None:
    assert parse(b"a#b.patch\n")[0].name == "a#b.patch"


def test_empty_series_has_no_entries() -> None:
    assert parse(b"") == ()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\xef\xbb\xbfa.patch\n", "line 1 starts with a UTF-8 byte order mark"),
        (b"a.patch\nb.patch\r\n", "line 2 ends in CR LF"),
        (b"a.patch\n./a.patch\n", "line 2 names `a.patch` again (first on line 1)"),
        (b"a.patch -p2\n", "line 1 has `-p2`; known are -p0 and -p1"),
        (b"a.patch -R\n", "line 1 has `-R`"),
        (b"../a.patch\n", "line 1 names `../a.patch`, which is outside"),
        (b"x/../../a.patch\n", "which is outside"),
        (b"/a.patch\n", "which is outside"),
        (b"a.patch\n\xff.patch\n", "line 2 is not UTF-8"),
    ],
)
def test_wrong_line_is_refused_with_its_number(data: bytes, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(data)
    assert f"`{WHERE}`" in caught.value.message
    assert says in caught.value.message


def test_patch_file_that_no_entry_names_is_found() -> None:
    names = ["series", "a.patch", "b.diff", "notes.md", "series.lock.toml", "old/c.patch"]
    assert unlisted(names, parse(b"a.patch\n")) == ["b.diff", "old/c.patch"]
