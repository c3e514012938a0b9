# SPDX-License-Identifier: Apache-2.0
"""Workflow commands: escaped as the runner reads them, at the line of the patch."""

from __future__ import annotations

from patchctl.errors import LockMismatch, PatchDoesNotApply, UsageError
from patchctl.formats.annotations import annotation, annotation_of
from patchctl.formats.findings import Severity


def test_properties_and_message_are_escaped() -> None:
    line = annotation(
        "50%\nnext: a,b", file="a,b:c.patch", line=3, title="x", severity=Severity.WARNING
    )
    assert line == "::warning file=a%2Cb%3Ac.patch,line=3,title=x::50%25%0Anext: a,b"


def test_patch_that_does_not_apply_is_said_at_its_hunk() -> None:
    error = PatchDoesNotApply(
        "patch `0003.patch` does not apply: `csrc/a.h`, hunk 2 of 3, line 118",
        details=("expected: `x`",),
        hint="look",
        data={"patch": "0003.patch", "patch_line": 40, "line": 118, "hunk": 2},
    )
    assert annotation_of(error, patches="patches", prefix="carry/") == (
        "::error file=carry/patches/0003.patch,line=40,title=patch does not apply::"
        "patch `0003.patch` does not apply: `csrc/a.h`, hunk 2 of 3, line 118"
        "%0Aexpected: `x`%0Ahint: look"
    )


def test_error_about_a_line_of_a_file_is_said_there() -> None:
    error = UsageError("wrong", data={"file": "patches/series", "line": 7})
    assert annotation_of(error, patches="patches") == (
        "::error file=patches/series,line=7,title=usage::wrong"
    )


def test_error_without_a_place_has_no_annotation() -> None:
    assert annotation_of(LockMismatch("differs", data={"got": "x"}), patches="patches") is None
