# SPDX-License-Identifier: Apache-2.0
"""Patch names: what people type, and what a new patch is called."""

from __future__ import annotations

import pytest

from patchctl.errors import UsageError
from patchctl.formats.patchnames import find_patch, name_patch, subject_of

NAMES = ["0001-a-b.patch", "0002-a-c.patch", "0010-deep.diff", "sub/0011-x.patch"]


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("0001-a-b.patch", "0001-a-b.patch"),
        ("0002-a-c", "0002-a-c.patch"),
        ("patches/0002-a-c.patch", "0002-a-c.patch"),
        ("2", "0002-a-c.patch"),
        ("0010", "0010-deep.diff"),
        ("sub/0011-x.patch", "sub/0011-x.patch"),
        ("11", "sub/0011-x.patch"),
    ],
)
def test_patch_is_found_by_name_or_number(typed: str, name: str) -> None:
    assert find_patch(NAMES, typed, where="patches/series") == name


@pytest.mark.parametrize("typed", ["3", "0002", "nothing", "", "a-b"])
def test_what_is_not_there_is_refused_with_the_series(typed: str) -> None:
    names = [name for name in NAMES if not name.startswith("0002")]
    with pytest.raises(UsageError) as caught:
        find_patch(names, typed, where="patches/series")
    assert "patches/series" in caught.value.message


def test_number_that_two_patches_have_is_ambiguous() -> None:
    with pytest.raises(UsageError) as caught:
        find_patch(["0001-a.patch", "001-b.patch"], "1", where="s")
    assert "`0001-a.patch`, `001-b.patch`" in caught.value.message


@pytest.mark.parametrize(
    ("text", "after", "name"),
    [
        ("sm70: add m8n8k4 mainloop", "0002-a-c.patch", "0003-sm70-add-m8n8k4-mainloop.patch"),
        ("sm70-add-x.patch", "0002-a-c.patch", "0003-sm70-add-x.patch"),
        ("between", "0001-a-b.patch", "0011-between.patch"),
        ("first", None, "0011-first.patch"),
        ("0042-given", "0001-a-b.patch", "0042-given.patch"),
        ("0002-taken", "0010-deep.diff", "0011-taken.patch"),
        ("w: ../../etc/passwd", "0010-deep.diff", "0011-w-etc-passwd.patch"),
        ("a" * 200, "0010-deep.diff", f"0011-{'a' * 60}.patch"),
    ],
)
def test_new_name_has_the_form_of_house_style(text: str, after: str | None, name: str) -> None:
    assert name_patch(text, NAMES[:3], after=after) == name


def test_first_patch_of_all_is_number_one() -> None:
    assert name_patch("x", [], after=None) == "0001-x.patch"


def test_name_without_a_letter_is_refused() -> None:
    with pytest.raises(UsageError):
        name_patch("0001-...", [], after=None)


def test_subject_from_a_name() -> None:
    assert subject_of("0004-sm70-add-mma-loop.patch") == "sm70: add mma loop"
    assert subject_of("0004-fix.patch") == "fix"
