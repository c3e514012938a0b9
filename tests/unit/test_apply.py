# SPDX-License-Identifier: Apache-2.0
"""Applying one patch to a tree in memory: exactly, or with an error that shows the difference."""

from __future__ import annotations

import base64
import difflib
import random
import zlib

import pytest

from patchctl.errors import AlreadyApplied, PatchDoesNotApply
from patchctl.formats.apply import Effects, apply_patch
from patchctl.formats.edittree import EditTree, tree_id
from patchctl.formats.gitobjects import Entry, Mode, blob_id
from patchctl.formats.patch import parse_patch
from patchctl.formats.patchmodel import lines_of

Files = dict[str, bytes]


def apply(files: Files, patch: bytes, modes: dict[str, Mode] | None = None) -> Effects:
    modes = modes or {}
    blobs = {blob_id(data): data for data in files.values()}
    tree = EditTree(
        {n.encode(): Entry(modes.get(n, Mode.FILE), blob_id(d)) for n, d in files.items()}
    )
    effects = apply_patch(parse_patch("p.patch", patch), tree, blobs.__getitem__)
    for path, content in effects.items():
        assert tree.get(path) == (content.entry if content else None)
    return effects


def contents(effects: Effects) -> dict[bytes, bytes | None]:
    return {path: content and content.data for path, content in effects.items()}


def refusal(files: Files, patch: bytes, **modes: Mode) -> PatchDoesNotApply:
    with pytest.raises(PatchDoesNotApply) as caught:
        apply(files, patch, modes)
    return caught.value


def edit(old: bytes, new: bytes, context: int = 3, name: str = "f") -> bytes:
    """A plain diff that keeps each file's bytes."""
    lines = [[x.decode("latin-1") for x in lines_of(side)] for side in (old, new)]
    out = []
    for line in difflib.unified_diff(*lines, f"a/{name}", f"b/{name}", n=context):
        out.append(line if line.endswith("\n") else line + "\n\\ No newline\n")
    return "".join(out).encode("latin-1")


TEXT = b"".join(b"line %d\n" % n for n in range(1, 21))


def test_hunk_at_its_line_is_applied() -> None:
    new = TEXT.replace(b"line 10\n", b"ten\n")
    assert contents(apply({"f": TEXT}, edit(TEXT, new))) == {b"f": new}


def test_random_edits_give_exactly_the_new_content() -> None:
    rng = random.Random(7)
    letters = [b"a\n", b"b\n", b"c\r\n", b"\n", b"-- \n", b"++ x\n", b"\\ y\n", b"@@ -1 +1 @@\n"]
    for _ in range(400):
        old = [rng.choice(letters) for _ in range(rng.randrange(0, 30))]
        new = list(old)
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(len(new) + 1)
            new[at : at + rng.randrange(3)] = [rng.choice(letters) for _ in range(rng.randrange(3))]
        sides = [b"".join(old), b"".join(new)]
        if rng.random() < 0.3:
            sides[rng.randrange(2)] += b"end"
        if sides[0] == sides[1] or not sides[0] or not sides[1]:
            continue
        patch = edit(*sides, context=rng.choice([1, 3]))
        assert contents(apply({"f": sides[0]}, patch)) == {b"f": sides[1]}


def test_message_names_patch_file_hunk_line_and_both_lines() -> None:
    new = TEXT.replace(b"line 3\n", b"3\n").replace(b"line 15\n", b"15\n")
    error = refusal({"f": TEXT.replace(b"line 14\n", b"other\tline\n")}, edit(TEXT, new))
    assert error.message == "patch `p.patch` does not apply: `f`, hunk 2 of 2, line 14"
    assert error.details[:2] == ("expected: `line 14`", r"found:    `other\tline`")
    assert error.exit_code == 4
    assert error.data == {
        "patch": "p.patch", "file": "f", "hunk": 2, "hunks": 2, "line": 14,
        "expected": "`line 14`", "found": r"`other\tline`", "elsewhere": [], "patch_line": 11,
    }  # fmt: skip


def test_offset_is_refused_and_told() -> None:
    new = TEXT.replace(b"line 10\n", b"ten\n")
    error = refusal({"f": b"one more\n" * 9 + TEXT}, edit(TEXT, new))
    assert "the same lines are at line 16 (offset +9)" in error.details
    assert "never applied" in error.hint


def test_file_that_is_too_short_shows_its_end() -> None:
    new = TEXT.replace(b"line 19\n", b"19\n")
    error = refusal({"f": TEXT[: TEXT.index(b"line 18")]}, edit(TEXT, new))
    assert (error.data["line"], error.data["found"]) == (
        18, "the end of the file (it has 17 lines)",
    )  # fmt: skip


def test_difference_in_blanks_only_is_told() -> None:
    patch = edit(b"a\nb\nc\n", b"a\nB\nc\n")
    assert "white space" in " ".join(refusal({"f": b"a \nb\nc\n"}, patch).details)
    assert "line ends" in " ".join(refusal({"f": b"a\r\nb\r\nc\r\n"}, patch).details)


def test_missing_newline_at_the_end_of_the_file_is_a_difference() -> None:
    error = refusal({"f": b"a\nb"}, edit(b"a\nb\n", b"A\nb\n"))
    assert error.data["found"] == "`b` without a newline at the end"


def test_new_last_line_without_newline_must_be_the_last() -> None:
    patch = b"--- a/f\n+++ b/f\n@@ -1 +1,2 @@\n a\n+b\n\\ x\n"
    assert refusal({"f": b"a\nrest\n"}, patch).data["expected"] == "the end of the file"


def test_lines_for_an_empty_file_do_not_go_into_a_full_one() -> None:
    patch = b"--- a/f\n+++ b/f\n@@ -0,0 +1 @@\n+x\n"
    assert contents(apply({"f": b""}, patch)) == {b"f": b"x\n"}
    assert refusal({"f": b"y\n"}, patch).data["found"] == "`y`"


GIT = "diff --git a/{0} b/{1}\n"


def rename(old: str, new: str, verb: str = "rename") -> bytes:
    return (GIT.format(old, new) + f"{verb} from {old}\n{verb} to {new}\n").encode()


def test_renames_that_swap_read_the_tree_before_the_patch() -> None:
    effects = apply({"a": b"1\n", "b": b"2\n"}, rename("a", "b") + rename("b", "a"))
    assert contents(effects) == {b"a": b"2\n", b"b": b"1\n"}


def test_copy_reads_the_source_before_the_patch_edits_it() -> None:
    patch = edit(b"1\n", b"2\n", name="a").replace(b"--- ", b"diff --git a/a b/a\n--- ", 1)
    effects = apply({"a": b"1\n"}, patch + rename("a", "b", "copy"))
    assert contents(effects) == {b"a": b"2\n", b"b": b"1\n"}


def test_two_diffs_of_one_file_apply_in_order() -> None:
    patch = edit(b"1\n", b"2\n") + edit(b"2\n", b"3\n")
    assert contents(apply({"f": b"1\n"}, patch)) == {b"f": b"3\n"}


def test_file_can_become_a_folder() -> None:
    patch = (
        b"--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n--- /dev/null\n+++ b/f/g\n@@ -0,0 +1 @@\n+2\n"
    )
    assert contents(apply({"f": b"1\n"}, patch)) == {b"f": None, b"f/g": b"2\n"}


CREATE = b"--- /dev/null\n+++ b/%s\n@@ -0,0 +1 @@\n+x\n"
DELETE = b"--- a/%s\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n"
LINK = b"diff --git a/%s b/%s\nnew file mode 120000\n"
LINK += b"--- /dev/null\n+++ b/%s\n@@ -0,0 +1 @@\n+%s\n\\ x\n"


@pytest.mark.parametrize(
    ("files", "patch", "says"),
    [
        ({"f": b"1\n"}, CREATE % b"f", "`f` already exists"),
        ({"d/f": b"1\n"}, CREATE % b"d", "`d` is a folder"),
        ({"d": b"1\n"}, CREATE % b"d/f", "`d/f` would be written through the file `d`; refused"),
        ({}, CREATE % b"f" + CREATE % b"f", "`f` already exists"),
        ({}, edit(b"1\n", b"2\n"), "`f` does not exist"),
        ({}, rename("a", "b"), "`a` does not exist"),
        ({"a": b"1\n", "b": b""}, rename("a", "b"), "`b` already exists"),
        ({"f": b"1\n"}, edit(b"1\n", b"2\n") + edit(b"2\n", b"1\n"), "does not change"),
        (
            {"f": b"1\n"},
            b"diff --git a/f b/f\nindex 1111..2222 100755\n" + edit(b"1\n", b"2\n"),
            "has mode 100644, the patch expects 100755",
        ),
        (
            {"f": b"1\n2\n"},
            b"--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n",
            "has content left after delete: 1 line ",
        ),
        ({}, LINK % (b"d/l", b"d/l", b"d/l", b"../../x"), "which leaves the tree; refused"),
        (
            {},
            LINK % (b"l", b"l", b"l", b"d") + CREATE % b"l/f",
            "`l/f` would be written through the link `l`; refused",
        ),
    ],
)
def test_patch_that_does_not_fit_the_tree_is_refused(files: Files, patch: bytes, says: str) -> None:
    error = refusal(files, patch)
    assert type(error) is PatchDoesNotApply
    assert error.message.startswith("patch `p.patch` does not apply: ")
    assert says in error.message


def test_write_through_a_link_of_the_baseline_is_refused() -> None:
    error = refusal({"l": b"d"}, CREATE % b"l/f", l=Mode.SYMLINK)
    assert "through the link `l`" in error.message


@pytest.mark.parametrize(
    ("files", "patch"),
    [
        ({"f": b"2\n"}, edit(b"1\n", b"2\n")),
        ({"f": b"x\n"}, CREATE % b"f"),
        ({"b": b"1\n"}, rename("a", "b")),
        ({"f": b"2\n", "g": b"x\n"}, edit(b"1\n", b"2\n") + CREATE % b"g"),
        ({"f": b"2\n"}, edit(b"1\n", b"2\n") + DELETE % b"g"),
    ],
)
def test_patch_whose_result_is_there_is_already_applied(files: Files, patch: bytes) -> None:
    error = refusal(files, patch)
    assert isinstance(error, AlreadyApplied)
    assert (error.exit_code, error.kind) == (4, "already-applied")


def test_patch_that_is_there_in_part_does_not_apply() -> None:
    error = refusal({"f": b"2\n"}, edit(b"1\n", b"2\n") + CREATE % b"g")
    assert type(error) is PatchDoesNotApply


def test_missing_file_is_not_taken_for_deleted() -> None:
    patch = b"--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n"
    assert type(refusal({"g": b""}, patch)) is PatchDoesNotApply


def test_edited_tree_has_the_id_of_the_whole_tree() -> None:
    rng = random.Random(3)
    names = [f"{a}/{b}/{c}".encode() for a in "xyz" for b in "uv" for c in "abc"]
    names += [b"x.h", b"x0", b"top"]
    flat: dict[bytes, Entry] = {}
    tree = EditTree({})
    for step in range(300):
        name = rng.choice(names)
        if name in flat and rng.random() < 0.5:
            del flat[name]
            tree.remove(name)
        else:
            flat[name] = Entry(rng.choice([Mode.FILE, Mode.EXECUTABLE]), blob_id(b"%d" % step))
            tree.set(name, flat[name])
        assert len(list(tree.new_objects())) <= 3
        assert (tree.id, tree.flat()) == (tree_id(flat), flat)


def binary_patch(content: bytes, named: bytes) -> bytes:
    """Creates a file of `content`; the index line names the id of `named`."""
    packed = zlib.compress(content)
    coded = base64.b85encode(packed + b"\0" * (-len(packed) % 4))
    return (
        b"diff --git a/x.bin b/x.bin\nnew file mode 100644\n"
        b"index %s..%s\nGIT binary patch\nliteral %d\n%c%s\n\n"
        % (b"0" * 40, blob_id(named).encode(), len(content), ord("A") + len(packed) - 1, coded)
    )


def test_binary_content_that_is_not_what_the_patch_names_is_refused() -> None:
    """The data inflates, and makes another file than the index line says."""
    assert contents(apply({}, binary_patch(b"one\0", b"one\0"))) == {b"x.bin": b"one\0"}
    error = refusal({}, binary_patch(b"one\0", b"two\0"))
    assert "does not get the content that the patch names" in error.message
