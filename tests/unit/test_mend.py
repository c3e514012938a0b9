# SPDX-License-Identifier: Apache-2.0
"""Damaged patch files: what is mended, and what is left for the strict reader to refuse."""

from __future__ import annotations

import random

import pytest

from patchctl.errors import PatchDoesNotApply
from patchctl.formats.mend import Mended, mend
from patchctl.formats.patch import parse_patch
from patchctl.formats.patchpaths import quote, unquote
from patchctl.formats.patchtext import plain_text, split_mails
from patchctl.formats.trailers import add_trailers, read_trailers

HUNKS = b"@@ -3,3 +3,4 @@ int f() {\n a\n-b\n+B\n+c\n d\n@@ -20,2 +21,1 @@\n-x\n y\n"
PLAIN = b"--- a/d/f.h\n+++ b/d/f.h\n" + HUNKS
GIT = b"diff --git a/d/f.h b/d/f.h\nindex 1234567..89abcde 100644\n" + PLAIN
MAIL = b"From: A <a@b.c>\nSubject: s\n\nbody\n---\n d/f.h | 1 +\n\n" + GIT + b"-- \n2.39.5\n\n"


def mended(data: bytes, *there: bytes, strip: int | None = None) -> Mended:
    return mend(data, 1, lambda path: path in (there or (b"d/f.h",)), strip)


@pytest.mark.parametrize("data", [PLAIN, GIT, MAIL])
def test_whole_patch_stays_as_it_is(data: bytes) -> None:
    done = mended(data)
    assert (done.reasons, done.readings, done.headless) == ((), (), False)
    assert parse_patch("p", done.data).changes[0].hunks == parse_patch("p", data).changes[0].hunks


@pytest.mark.parametrize("counts", [b"-3,9 +3,9", b"-3,1 +3,1", b"-3 +3", b"-3,3 +3,3"])
@pytest.mark.parametrize("data", [PLAIN, GIT, MAIL])
def test_wrong_counts_are_counted_anew(data: bytes, counts: bytes) -> None:
    done = mended(data.replace(b"-3,3 +3,4", counts))
    assert parse_patch("p", done.data).changes[0].hunks[0].new == (b"a\n", b"B\n", b"c\n", b"d\n")
    assert len(done.reasons) == 1
    assert done.reasons[0].startswith("hunk 1 of d/f.h: counts ")
    assert done.reasons[0].endswith(" corrected to -3 +4")


def test_wrong_new_line_is_derived_from_the_hunks_before() -> None:
    done = mended(GIT.replace(b"+21,1", b"+99,1"))
    assert parse_patch("p", done.data).changes[0].hunks[1].new_start == 21
    assert done.reasons == ("d/f.h: new line numbers corrected",)


def test_removed_line_that_looks_like_a_header_is_no_boundary() -> None:
    hunk = b"@@ -1,3 +1,9 @@\n a\n--- x\n+++ y\n b\n"
    done = mended(b"--- a/d/f.h\n+++ b/d/f.h\n" + hunk)
    (made,) = parse_patch("p", done.data).changes[0].hunks
    assert (made.old, made.new) == ((b"a\n", b"-- x\n", b"b\n"), (b"a\n", b"++ y\n", b"b\n"))


def test_blank_lines_behind_a_short_hunk_are_no_context() -> None:
    done = mended(PLAIN.replace(b"-20,2 +21,1", b"-20,5 +21,4") + b"\n\n")
    assert parse_patch("p", done.data).changes[0].hunks[1].old == (b"x\n", b"y\n")


def test_lines_are_traced_to_the_file_that_came() -> None:
    data = MAIL.replace(b"diff --git a/d/f.h b/d/f.h\n", b"").replace(b" +3,4", b" +3,5")
    done = mended(data)
    parsed = parse_patch("p", done.data).changes[0]
    lines = data.split(b"\n")
    assert lines[done.origin[parsed.hunks[1].line - 1] - 1].startswith(b"@@ -20,2")


def test_rename_and_mode_without_a_diff_line_are_kept() -> None:
    text = b"old mode 100644\nnew mode 100755\nsimilarity index 100%\nrename from f\nrename to g\n"
    done = mended(b"---\n" + text)
    (change,) = parse_patch("p", done.data).changes
    assert (change.old, change.new, change.new_mode) == (b"f", b"g", "100755")
    assert (done.headless, done.reasons) == (True, ("g: `diff --git` line added",))


def test_strict_reader_does_not_overlook_a_mode_without_its_diff_line() -> None:
    text = MAIL.replace(b"diff --git a/d/f.h b/d/f.h\n", b"old mode 100644\nnew mode 100755\n")
    with pytest.raises(PatchDoesNotApply, match="`old mode 100644` without a `diff --git` line"):
        parse_patch("p", text)


@pytest.mark.parametrize(
    ("old", "new", "level"),
    [(b"d/f.h", b"d/f.h", 0), (b"i/d/f.h", b"w/d/f.h", 1), (b"x/y/d/f.h", b"x/z/d/f.h", 2)],
)
def test_one_reading_of_the_paths_is_taken(old: bytes, new: bytes, level: int) -> None:
    done = mended(b"--- %s\n+++ %s\n" % (old, new) + HUNKS)
    assert parse_patch("p", done.data).changes[0].old == b"d/f.h"
    assert done.reasons == (f"paths read with -p{level}: they do not begin with a/ and b/",)


def test_two_readings_are_left_to_the_user() -> None:
    data = b"--- d/f.h\n+++ d/f.h\n" + HUNKS
    done = mended(data, b"d/f.h", b"f.h")
    assert (done.readings, done.data) == ((0, 1), data)
    assert mended(data, b"other").readings == ()
    declared = mended(data, b"d/f.h", b"f.h", strip=1)
    assert parse_patch("p", declared.data).changes[0].old == b"f.h"
    assert declared.reasons == ()


def test_time_stamp_that_means_deletion_is_kept() -> None:
    data = (
        b"--- d/f.h\t2020-01-01 00:00:00.0 +0000\n+++ d/f.h\t1970-01-01 00:00:00.0 +0000\n"
        b"@@ -1 +0,0 @@\n-x\n"
    )
    assert parse_patch("p", mended(data).data).changes[0].action == "delete"


@pytest.mark.parametrize(
    "text", [b"Only in b: x\n", b"garbage\n", b"Binary files a and b differ\n"]
)
def test_text_that_cannot_be_mended_is_left_alone(text: bytes) -> None:
    data = PLAIN + text + PLAIN.replace(b"f.h", b"g.h")
    done = mended(data, b"d/f.h", b"d/g.h")
    assert (done.data, done.reasons) == (data, ())
    with pytest.raises(PatchDoesNotApply):
        parse_patch("p", done.data)


def test_path_with_a_quote_that_is_not_closed_is_left_alone() -> None:
    data = b'diff --git a/f b/g\nrename from f\nrename to "g\n'
    assert mended(data).data == data


def test_name_that_is_shorter_than_the_level_is_no_deletion() -> None:
    data = b"--- a/d/f.h\n+++ b\n" + HUNKS
    assert mended(data).data == data


def test_random_damage_to_counts_and_new_lines_changes_no_content() -> None:
    rng = random.Random(3)
    for _ in range(300):
        hunks, line, shift = [], 1, 0
        for _ in range(rng.randrange(1, 4)):
            body = [rng.choice([b" c%d\n", b"-r%d\n", b"+a%d\n"]) % n for n in range(6)]
            body = [b" first\n", *body, b"-- gone\n", b"++ new\n", b" last\n"]
            old = sum(x[:1] in b" -" for x in body)
            new = sum(x[:1] in b" +" for x in body)
            hunks.append((line, old, line + shift, new, b"".join(body)))
            line, shift = line + old + 5, shift + new - old
        head = b"--- a/d/f.h\n+++ b/d/f.h\n"
        whole = head + b"".join(b"@@ -%d,%d +%d,%d @@\n%s" % h for h in hunks)
        wrong = [
            (a, rng.choice([b, b + 1, 1]), rng.choice([c, c + 7]), rng.choice([d, d + 2]), text)
            for a, b, c, d, text in hunks
        ]
        data = head + b"".join(b"@@ -%d,%d +%d,%d @@\n%s" % h for h in wrong)
        done = mended(data)
        assert parse_patch("p", done.data) == parse_patch("p", whole)
        assert bool(done.reasons) == (data != whole)


@pytest.mark.parametrize(
    ("mark", "encoding", "said"),
    [
        (b"\xef\xbb\xbf", "utf-8", ["byte order mark removed"]),
        (b"\xff\xfe", "utf-16-le", ["byte order mark removed", "UTF-16 read"]),
        (b"\xfe\xff", "utf-16-be", ["byte order mark removed", "UTF-16 read"]),
    ],
)
def test_byte_order_mark_is_removed(mark: bytes, encoding: str, said: list[str]) -> None:
    assert plain_text(mark + GIT.decode().encode(encoding)) == (GIT, said)


def test_cr_lf_goes_only_where_every_line_of_structure_has_it() -> None:
    dos = GIT.replace(b"\n", b"\r\n")
    assert plain_text(dos) == (GIT, ["CR LF line ends removed"])
    content = GIT.replace(b" a\n", b" a\r\n").replace(b"+B\n", b"+B\r\n")
    assert plain_text(content) == (content, [])


def test_mailbox_is_split_with_line_numbers() -> None:
    mail = b"From 0123 Mon Sep 17 00:00:00 2001\n" + MAIL
    lines = mail.count(b"\n")
    assert split_mails(mail * 3) == [(1, mail), (lines + 1, mail), (2 * lines + 1, mail)]
    assert split_mails(b"\n" + mail) == [(2, mail)] or split_mails(b"\n" + mail)[0][1].strip()
    assert split_mails(PLAIN) == [(1, PLAIN)]


def test_quoted_path_reads_back() -> None:
    rng = random.Random(5)
    assert quote(b"plain name/x.h") == b"plain name/x.h"
    for _ in range(200):
        path = bytes(rng.randrange(1, 256) for _ in range(8))
        text = quote(path)
        assert (unquote(text)[0] if text.startswith(b'"') else text) == path


MESSAGE = b"subject\n\nbody: not a trailer, but\na paragraph\n\nSigned-off-by: A\nAcked-by: B\n C\n"


def test_trailers_are_read_with_their_lines() -> None:
    found = [(t.key, t.value, t.line) for t in read_trailers(MESSAGE)]
    assert found == [("Signed-off-by", "A", 6), ("Acked-by", "B C", 7)]


@pytest.mark.parametrize("message", [b"key: subject\n", b"s\n\ntext\nKey: value\n", b"s\n"])
def test_paragraph_with_other_text_holds_no_trailers(message: bytes) -> None:
    assert read_trailers(message) == ()


def test_added_trailers_join_the_last_paragraph_once() -> None:
    more = [("Repaired", "hunk 1 of f: offset +9")]
    grown = add_trailers(MESSAGE, more)
    assert grown == MESSAGE + b"Repaired: hunk 1 of f: offset +9\n"
    assert add_trailers(grown, more) == grown
    assert add_trailers(b"subject\n", more) == b"subject\n\nRepaired: hunk 1 of f: offset +9\n"
