# SPDX-License-Identifier: Apache-2.0
"""Files that nobody writes by hand: numbers of thousands of digits, dates that are none, cut ends.

Each is refused as what it is, with its place; none ends in an internal error.
"""

from __future__ import annotations

import pytest

from patchctl.cli.app import as_patchctl_error
from patchctl.errors import PatchDoesNotApply, UsageError
from patchctl.formats.baseline import read_lock
from patchctl.formats.patch import parse_patch
from patchctl.formats.patchmodel import Action
from patchctl.formats.resources import read_resources
from patchctl.formats.series import parse_series
from patchctl.formats.serieslock import read_series_lock
from patchctl.formats.target import read_target
from patchctl.formats.toolchainlock import read_toolchain_lock

MAIL = b"From: A <a@example.org>\nDate: %s\nSubject: %s\n\n---\n"
DIFF = b"diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n-a\n+b\n c\n"
DATE = b"Mon, 1 Jan 2024 00:00:00 +0000"
READERS = [
    lambda text: read_lock(text, where="x.toml"),
    lambda text: read_series_lock(text, where="x.toml"),
    lambda text: read_target(text, name="x", where="x.toml"),
    lambda text: read_toolchain_lock(text, where="x.toml"),
    lambda text: read_resources(text, where="x.toml"),
]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    "text",
    [
        b"a = " + b"9" * 5000,
        b"a = " + b"[" * 5000 + b"]" * 5000,
        b"a = 1979-13-41",
        b'"\\uD800" = 1',
        b"a = 1\0",
        b"\xef\xbb\xbfa = 1",
        b"a = nan",
    ],
)
def test_toml_that_no_one_writes_is_a_usage_error(read: object, text: bytes) -> None:
    assert callable(read)
    with pytest.raises(UsageError, match=r"`x\.toml`"):
        read(text)


def test_a_limit_below_zero_is_refused() -> None:
    with pytest.raises(UsageError, match=r"limits\.stack"):
        read_resources("[limits]\nstack = -1\n", where="x.toml")


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        (MAIL % (b"Mon, 1 Jan 99999 00:00:00 +0000", b"x") + DIFF, "the date `Mon, 1 Jan 99999"),
        (MAIL % (b"\xff\xfe", b"x") + DIFF, "the date"),
        (MAIL % (DATE, b"=?idna?Q?=E9?=") + DIFF, "cannot decode the header"),
        (MAIL % (DATE, b"=?undefined?Q?=E9?=") + DIFF, "cannot decode the header"),
        (MAIL % (DATE, b"=?utf\0-8?Q?=E9?=") + DIFF, "cannot decode the header"),
        (
            MAIL % (DATE, b"x\nContent-Type: text/plain; charset=a\0b") + DIFF,
            r"unknown charset `a\x00b`",
        ),
        (DIFF.replace(b"-1,2", b"-1," + b"9" * 5000), "is not a hunk's header"),
        (DIFF.replace(b"-1,2", b"-" + b"0" * 5000 + b"1,2"), "is not a hunk's header"),
        (DIFF[:-1], "ends in the middle of a line"),
        (DIFF[:-3], "announces 2 old and 2 new lines"),
        (b"diff --git a/f b/f\nnew file mode 100644", "the diff is missing"),
        (b"diff --git a/f b/f\nnew file mode 100644\n", "the diff is missing"),
        (b"diff --git a/f b/f\ndeleted file mode 100644\n", "the diff is missing"),
        (b"diff --git a/f b/f\nnew mode 100755\n", "`old mode` and `new mode` come together"),
        (b"diff --git a/f b/f\nold mode 100755\n", "`old mode` and `new mode` come together"),
        (
            b"diff --git a/f b/f\nnew file mode 100644\ndeleted file mode 100644\n"
            b"--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+a\n",
            "both `new file mode` and `deleted file mode`",
        ),
    ],
)
def test_a_patch_that_no_tool_writes_is_malformed(patch: bytes, said: str) -> None:
    with pytest.raises(PatchDoesNotApply) as caught:
        parse_patch("p.patch", patch)
    assert caught.value.message.startswith("patch `p.patch` is malformed: line ")
    assert said in caught.value.message


@pytest.mark.parametrize(
    "stamp",
    [
        b"1970-13-41 25:61:61 +0000",
        b"0000-00-00 00:00:00 +9999",
        b"1970-01-01 00:00:00. +0000",
        b"01970-01-01 00:00:00 +0000",
    ],
)
def test_a_time_stamp_that_is_none_is_not_the_epoch(stamp: bytes) -> None:
    patch = b"--- a/f\n+++ b/f\t%s\n@@ -1 +0,0 @@\n-a\n" % stamp
    with pytest.raises(PatchDoesNotApply, match="is left empty"):
        parse_patch("p.patch", patch)
    real = patch.replace(stamp, b"1970-01-01 01:00:00.0 +0100")
    assert parse_patch("p.patch", real).changes[0].action is Action.DELETE


def test_a_nul_byte_in_the_series_names_its_line() -> None:
    with pytest.raises(UsageError, match=r"line 2 .*a\\x00b.*NUL byte"):
        parse_series(b"# c\na\0b.patch\n", where="series")


def test_an_os_error_about_a_path_in_bytes_shows_the_path() -> None:
    assert "(`/a/b`)" in as_patchctl_error(NotADirectoryError(20, "no", b"/a/b")).message
