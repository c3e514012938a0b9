# SPDX-License-Identifier: Apache-2.0
"""Reading patch files: what is understood, and what is refused with which line."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from patchctl.errors import PatchDoesNotApply
from patchctl.formats.binarypatch import apply_delta, decode_lines
from patchctl.formats.gitobjects import Mode
from patchctl.formats.mail import NO_DATE
from patchctl.formats.patch import parse_patch
from patchctl.formats.patchmodel import Action, Change, lines_of
from patchctl.formats.patchpaths import git_names, unquote, why_unsafe, why_unsafe_link

NAMES = b"--- a/f\n+++ b/f\n"
HUNK = b"@@ -1,2 +1,2 @@\n-a\n+b\n c\n"


def only(data: bytes, strip: int = 1) -> Change:
    (change,) = parse_patch("p.patch", data, strip).changes
    return change


def refusal(data: bytes, strip: int = 1) -> str:
    with pytest.raises(PatchDoesNotApply) as caught:
        parse_patch("p.patch", data, strip)
    assert caught.value.message.startswith("patch `p.patch` is malformed: line ")
    return caught.value.message.removeprefix("patch `p.patch` is malformed: ")


def test_plain_diff_is_an_edit_by_patchctl() -> None:
    patch = parse_patch("p.patch", NAMES + HUNK)
    (change,) = patch.changes
    assert (change.action, change.old, change.new) == (Action.EDIT, b"f", b"f")
    assert change.hunks[0].old == (b"a\n", b"c\n")
    assert change.hunks[0].new == (b"b\n", b"c\n")
    assert change.hunks[0].line == 3
    assert patch.header.subject == "p.patch"
    assert (patch.header.author.name, patch.header.author.when) == ("patchctl", NO_DATE)


def test_text_before_a_plain_diff_is_the_message() -> None:
    patch = parse_patch("p.patch", b"why it is so\n\nmore\nIndex: f\n=====\n" + NAMES + HUNK)
    assert patch.header.message == b"why it is so\n\nmore\n"
    assert patch.header.subject == "why it is so"


def test_mode_change_without_hunks_is_understood() -> None:
    change = only(b"diff --git a/x b/x\nold mode 100644\nnew mode 100755\n")
    assert (change.action, change.old_mode, change.new_mode) == (
        Action.EDIT, Mode.FILE, Mode.EXECUTABLE,
    )  # fmt: skip


def test_rename_with_blanks_in_its_names_is_understood() -> None:
    change = only(
        b"diff --git a/x b/x b/y b/y\nsimilarity index 100%\nrename from x b/x\nrename to y b/y\n"
    )
    assert (change.action, change.old, change.new) == (Action.RENAME, b"x b/x", b"y b/y")


def test_new_empty_file_is_understood() -> None:
    change = only(b"diff --git a/x b/x\nnew file mode 100755\nindex 0000000..e69de29\n")
    assert (change.action, change.new_mode) == (Action.CREATE, Mode.EXECUTABLE)


def test_paths_without_prefix_need_p0() -> None:
    data = b"diff --git x x\n--- x\n+++ x\n" + HUNK
    assert only(data, 0).path == b"x"
    assert "declare -p0" in refusal(data)


@pytest.mark.parametrize("zone", ["+0000", "+0100", "-0500"])
def test_epoch_in_any_zone_means_no_file(zone: str) -> None:
    hours = int(zone) // 100 % 24
    day = "1969-12-31" if zone.startswith("-") else "1970-01-01"
    stamp = f"\t{day} {hours:02}:00:00.000000000 {zone}".encode()
    gone = b"--- a/f\t2026-01-05 10:00:00 +0000\n+++ b/f" + stamp + b"\n@@ -1 +0,0 @@\n-a\n"
    assert only(gone).action is Action.DELETE
    born = b"--- a/f" + stamp + b"\n+++ b/f\t2026-01-05 10:00:00 +0000\n@@ -0,0 +1 @@\n+a\n"
    assert only(born).action is Action.CREATE


def test_empty_result_without_a_word_about_deletion_is_refused() -> None:
    assert "name /dev/null" in refusal(NAMES + b"@@ -1 +0,0 @@\n-a\n")


def test_marker_of_a_missing_newline_may_say_anything() -> None:
    change = only(NAMES + b"@@ -1 +1 @@\n-a\n\\ Kein Zeilenumbruch\n+b\n\\ x\n")
    assert (change.hunks[0].old, change.hunks[0].new) == ((b"a",), (b"b",))


def test_marker_after_context_counts_for_both_sides() -> None:
    change = only(NAMES + b"@@ -1,2 +1,2 @@\n-a\n+b\n c\n\\ x\n")
    assert (change.hunks[0].old[-1], change.hunks[0].new[-1]) == (b"c", b"c")


def test_second_hunk_without_old_lines_in_the_middle_of_a_file_is_refused() -> None:
    says = refusal(NAMES + b"@@ -5,0 +6 @@\n+x\n")
    assert "adds lines without context" in says


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "line 1: the file is empty"),
        (b"just words\n", "line 1: the file holds no diff"),
        (b"\xef\xbb\xbf" + NAMES + HUNK, "line 1: a UTF-8 byte order mark"),
        ((NAMES + HUNK).replace(b"\n", b"\r\n"), "line 1: the patch file has CRLF line ends"),
        (b"text\n" + NAMES.replace(b"\n", b"\r\n") + HUNK, "line 2: the patch file has CRLF"),
        (NAMES + HUNK + b" d\n", "line 7: more lines than the hunk's header announces"),
        (NAMES + HUNK + b"words\n", "line 7: text between diffs: `words`"),
        (NAMES + HUNK + b"-- \n2.39\n\n" + NAMES + HUNK, "line 10: a diff after the mail's"),
        (NAMES + HUNK[:-3], "line 6: hunk 1 of `f` announces 2 old and 2 new lines; 1 and 1"),
        (NAMES + b"@@ -1 +1 @@\n x\n", "line 3: hunk 1 of `f` changes nothing"),
        (NAMES + b"@@ -0 +1 @@\n-x\n+y\n", "begins at line 0"),
        (NAMES + HUNK + b"@@ -2 +2 @@\n-c\n+d\n", "line 7: hunk 2 begins before the end"),
        (NAMES + HUNK + b"@@ -9 +10 @@\n-c\n+d\n", "says new line 10; old line 9 and the hunks"),
        (b"---\n@@ -1 +1 @@\n-a\n+b\n", "line 2: a hunk that belongs to no file"),
        (b"text\n@@ -1 +1 @@\n-a\n+b\n" + NAMES + HUNK, "line 2: a hunk that belongs to no file"),
        (NAMES + b"@@ -1 +1 @@\n\\ x\n-a\n+b\n", "hunk 1 of `f` announces"),
        (NAMES + b"@@ -1 +1 @@\n-a\n\\ x\n\\ x\n+b\n", "hunk 1 of `f` announces"),
        (b"diff --git a/f b/f\n--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+b\n", "`new file mode`"),
        (b"diff --git a/f b/f\n--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-b\n", "`deleted file"),
        (b"diff --cc f\n", "line 1: a diff of a merge"),
        (b"--- a/f\n+++ b/g\n" + HUNK, "two different files: `f` and `g`"),
        (b"diff --git a/f b/f\nindex 12345..54321 100644\n", "the diff is missing"),
        (b"diff --git a/f b/f\nnew file mode 100644\nindex 0000000..54321\n", "is missing"),
        (b"diff --git a/f b/f\n", "`f` is named, but nothing changes"),
        (b"diff --git a/f b/f\nnew file mode 160000\n", "mode `160000` is not supported"),
        (b"diff --git a/f b/f\nold mode 100664\nnew mode 100755\n", "mode `100664` is not"),
        (b"diff --git a/f b/f\nrename from f\n", "come together"),
        (b"diff --git a/f b/g\n--- a/f\n+++ b/g\n" + HUNK, "neither a rename nor a copy"),
        (b"diff --git a/f b/f\n--- a/g\n+++ b/g\n" + HUNK, "the header names both `g` -> `g`"),
        (b'diff --git "a/f b/f\n', "not closed"),
        (b"diff --git a/f b/f\nBinary files a/f and b/f differ\n", "without its data"),
        (b"diff --git a/f b/f\nindex 11..22\nGIT binary patch\n", "cannot be read"),
        (b"--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-a\n+b\n", "both files are /dev/null"),
        (b"--- /dev/null\n+++ b/x/../../y\n@@ -0,0 +1 @@\n+b\n", "leaves the tree"),
    ],
)
def test_malformed_file_is_refused_with_the_line(data: bytes, says: str) -> None:
    assert says in refusal(data)


MAIL = b"From: A <a@b.org>\nSubject: [PATCH] x\n"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (MAIL + b"Date: soon\n\n", "the date `soon` is not one"),
        (MAIL + b"Date: Sat, 5 Jan 1963 10:00:00 +0000\n\n", "is not one since 1970"),
        (MAIL + b"Content-Transfer-Encoding: uuencode\n\n", "Content-Transfer-Encoding `uuencode`"),
        (MAIL + b"Content-Type: multipart/mixed; boundary=x\n\n", "multipart/mixed"),
        (MAIL + b"Content-Type: text/plain; charset=klingon\n\n\xe9\n", "charset `klingon`"),
        (MAIL + b"\n\n" + b"From x@y Mon Sep 17 00:00:00 2001\n" + MAIL, "holds 2 patches"),
    ],
)
def test_mail_that_cannot_be_read_is_refused(data: bytes, says: str) -> None:
    assert says in refusal(data)


def test_base64_mail_is_decoded() -> None:
    import base64

    body = base64.encodebytes(b"why\n---\n" + NAMES + HUNK)
    patch = parse_patch("p.patch", MAIL + b"Content-Transfer-Encoding: base64\n\n" + body)
    assert patch.header.message == b"x\n\nwhy\n"
    assert patch.changes[0].hunks[0].new == (b"b\n", b"c\n")


def test_error_in_a_decoded_mail_says_so() -> None:
    head = MAIL + b"Content-Transfer-Encoding: quoted-printable\n\n"
    assert "(after decoding quoted-printable)" in refusal(head + NAMES + HUNK[:-3])


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (rb'"a\303\251"', "aé".encode()),
        (rb'"a\tb\"c\\d"', b'a\tb"c\\d'),
        (rb'"\a\b\f\n\r\v"', b"\a\b\f\n\r\v"),
    ],
)
def test_quoted_path_is_read_as_git_writes_it(text: bytes, path: bytes) -> None:
    assert unquote(text + b" rest") == (path, b" rest")


@pytest.mark.parametrize("text", [b'"a', rb'"\9"', rb'"\x41"', rb'"\477"'])
def test_bad_quoting_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="quoted path"):
        unquote(text)


@pytest.mark.parametrize(
    ("rest", "names"),
    [
        (b"a/x b/x", (b"a/x", b"b/x")),
        (b"a/x b/x b/x b/x", (b"a/x b/x", b"b/x b/x")),
        (b"a/x b/y", None),
        (b'"a/\\t" "b/\\t"', (b"a/\t", b"b/\t")),
        (b'a/x "b/\\t"', (b"a/x", b"b/\t")),
        (b'"a/\\t" b/x', (b"a/\t", b"b/x")),
        (b"x x", (b"x", b"x")),
    ],
)
def test_names_of_a_git_header(rest: bytes, names: tuple[bytes, bytes] | None) -> None:
    assert git_names(rest) == names


@pytest.mark.parametrize(
    "path",
    [b"/x", b"../x", b"a/../x", b"a/..", b".git/x", b"a/.Git", b"a/.GIT/x", b"git~1/x",
     b".git./x", b"a//x", b"./x", b"x/", b"a\0b"],
)  # fmt: skip
def test_path_that_no_patch_may_name(path: bytes) -> None:
    assert why_unsafe(path)


@pytest.mark.parametrize("path", [b"x", b"a/.gitignore", b"..x/y", b"a b\t", b"a/.github/x"])
def test_path_that_is_fine(path: bytes) -> None:
    assert why_unsafe(path) == ""


@pytest.mark.parametrize(
    ("path", "target", "bad"),
    [
        (b"a/l", b"../x", False),
        (b"a/l", b"../../x", True),
        (b"l", b"..", True),
        (b"l", b"/etc", True),
        (b"a/b/l", b"../../x/../y", False),
        (b"a/l", b"b/../../../x", True),
        (b"l", b"./../x", True),
        (b"a/l", b".//../x", False),
        (b"a/l", b"", True),
        (b"a/l", b"x\0y", True),
    ],
)
def test_link_must_stay_in_the_tree(path: bytes, target: bytes, bad: bool) -> None:
    assert bool(why_unsafe_link(path, target)) is bad


def test_damaged_binary_data_is_refused() -> None:
    good = [b"NcmZQzWMXDvWd{J~4*&oF"]
    for lines, size in ((good, 3), ([b"!" + good[0][1:]], 14), ([good[0][:-5]], 14), ([], 4)):
        with pytest.raises(ValueError, match=r"data|base 85|length"):
            decode_lines(lines, size)


@pytest.mark.parametrize(
    "delta", [b"", b"\x04\x04\x91\x00\x09", b"\x03\x01\x01x", b"\x04\x09\x01x", b"\x04\x01\x00"]
)
def test_damaged_delta_is_refused(delta: bytes) -> None:
    with pytest.raises(ValueError, match="delta"):
        apply_delta(b"abcd", delta)


def test_delta_copies_and_inserts() -> None:
    assert apply_delta(b"abcdef", b"\x06\x06\x90\x03\x03xyz") == b"abcxyz"


CASES = Path(__file__).parents[1] / "data" / "cases"


def test_damaged_patch_is_read_or_refused_and_never_crashes() -> None:
    rng = random.Random(1)
    seeds = [path.read_bytes() for path in sorted(CASES.glob("*/patches/*.patch"))]
    outcomes = {True: 0, False: 0}
    for _ in range(3000):
        lines = lines_of(rng.choice(seeds)) or [b"\n"]
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(lines))
            damage = bytearray(lines[at])
            damage[rng.randrange(len(damage))] = rng.randrange(256)
            insert = rng.choice(lines)
            lines[at : at + 1] = rng.choice([[], [bytes(damage)], [lines[at], insert], [insert]])
            lines = lines or [b"\n"]
        try:
            parse_patch("p.patch", b"".join(lines))
            outcomes[True] += 1
        except PatchDoesNotApply:
            outcomes[False] += 1
    assert min(outcomes.values()) > 100


def test_time_stamp_of_no_day_is_no_reason_to_fail() -> None:
    data = b"--- a/f\t2026-06-05 60:00:00 +0600\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n"
    assert parse_patch("p.patch", data).changes[0].action is Action.EDIT
