# SPDX-License-Identifier: Apache-2.0
"""How well a patch fits a tree that it was not made for, and what a repair makes of it."""

from __future__ import annotations

import difflib
import random
from pathlib import Path

import pytest

from patchctl.formats.apply import Content, Effects, apply_patch
from patchctl.formats.edittree import EditTree
from patchctl.formats.gitobjects import Entry, Mode, blob_id
from patchctl.formats.grade import grade_patch
from patchctl.formats.grademodel import Grade, HunkGrade, PatchGrade
from patchctl.formats.patch import parse_patch
from patchctl.formats.patchmodel import Patch, lines_of
from patchctl.formats.repairs import Repaired, repair

CASES = Path(__file__).parents[1] / "data" / "cases"
Files = dict[str, bytes]


def read_from(files: Files, executable: tuple[str, ...] = ()) -> object:
    def read(path: bytes) -> Content | None:
        name = path.decode()
        mode = Mode.EXECUTABLE if name in executable else Mode.FILE
        return Content(mode, files[name]) if name in files else None

    return read


def graded(files: Files, patch: Patch, executable: tuple[str, ...] = ()) -> PatchGrade:
    return grade_patch(patch, read_from(files, executable))  # type: ignore[arg-type]


def repaired(files: Files, patch: Patch) -> tuple[Repaired, Effects]:
    """The repaired patch, and what the strict engine says that it does."""
    made = repair(patch, graded(files, patch), read_from(files))  # type: ignore[arg-type]
    blobs = {blob_id(data): data for data in files.values()}
    tree = EditTree({n.encode(): Entry(Mode.FILE, blob_id(d)) for n, d in files.items()})
    return made, apply_patch(made.patch, tree, blobs.__getitem__)


def edit(old: bytes, new: bytes, context: int = 3) -> Patch:
    """The patch from `old` to `new` of the file `f`."""
    lines = [[x.decode("latin-1") for x in lines_of(side)] for side in (old, new)]
    out = []
    for line in difflib.unified_diff(*lines, "a/f", "b/f", n=context):
        out.append(line if line.endswith("\n") else line + "\n\\ No newline\n")
    return parse_patch("p.patch", "".join(out).encode("latin-1"))


def hunk_of(files: Files, patch: Patch) -> HunkGrade:
    (file,) = graded(files, patch).files
    (hunk,) = file.hunks
    return hunk


def text(first: int = 1, last: int = 30) -> bytes:
    return b"".join(b"line %d of text\n" % n for n in range(first, last + 1))


OLD = text()
NEW = OLD.replace(b"line 15 of", b"fifteen of")
PATCH = edit(OLD, NEW)


def result(effects: Effects) -> bytes:
    content = effects[b"f"]
    assert content is not None
    return content.data


def test_patch_for_this_tree_is_exact() -> None:
    grade = graded({"f": OLD}, PATCH)
    assert (grade.grade, grade.is_exact, grade.partly_present) == (Grade.EXACT, True, False)
    assert hunk_of({"f": OLD}, PATCH).place == 12


@pytest.mark.parametrize("offset", [-7, -1, 1, 9])
def test_moved_lines_are_an_offset(offset: int) -> None:
    moved = text(1 - offset) if offset < 0 else b"new\n" * offset + OLD
    hunk = hunk_of({"f": moved}, PATCH)
    assert (hunk.grade, hunk.offset, hunk.place) == (Grade.OFFSET, offset, 12 + offset)
    made, effects = repaired({"f": moved}, PATCH)
    assert result(effects) == moved.replace(b"line 15 of", b"fifteen of")
    assert made.reasons == (f"hunk 1 of f: offset {offset:+d}",)


def test_blanks_that_differ_are_shown_side_by_side_and_repaired() -> None:
    tree = OLD.replace(b"line 13 of text", b"line 13  of text \t")
    hunk = hunk_of({"f": tree}, PATCH)
    assert (hunk.grade, hunk.offset) == (Grade.WHITESPACE, 0)
    (difference,) = hunk.differences
    assert (difference.line, difference.patch, difference.tree, difference.blanks_only) == (
        13, b"line 13 of text\n", b"line 13  of text \t\n", True,
    )  # fmt: skip
    made, effects = repaired({"f": tree}, PATCH)
    assert result(effects) == tree.replace(b"line 15 of", b"fifteen of")
    assert made.reasons == ("hunk 1 of f: whitespace",)


def test_added_lines_take_line_ends_of_the_file() -> None:
    tree = OLD.replace(b"\n", b"\r\n")
    made, effects = repaired({"f": tree}, PATCH)
    assert result(effects) == NEW.replace(b"\n", b"\r\n")
    assert made.reasons == ("hunk 1 of f: whitespace; added lines end in CR LF, as the file's do",)
    back, effects = repaired({"f": OLD}, edit(tree, NEW.replace(b"\n", b"\r\n")))
    assert result(effects) == NEW
    assert "end in LF" in back.reasons[0]


def test_added_lines_take_indentation_of_the_file() -> None:
    old = b"int f() {\n    if (x) {\n        y();\n    }\n}\n"
    new = old.replace(b"        y();\n", b"        y();\n        z();\n    \tw();\n")
    tabs = old.replace(b"    ", b"\t")
    made, effects = repaired({"f": tabs}, edit(old, new))
    assert result(effects) == b"int f() {\n\tif (x) {\n\t\ty();\n\t\tz();\n    \tw();\n\t}\n}\n"
    assert made.reasons == ("hunk 1 of f: whitespace; 1 added line indented as the file is",)


@pytest.mark.parametrize("lost", [True, False])
def test_lost_or_invented_final_newline_follows_the_file(lost: bool) -> None:
    whole, cut = text(1, 5), text(1, 5)[:-1]
    new = whole.replace(b"line 4", b"four")
    patch = edit(whole, new) if lost else edit(cut, new[:-1])
    tree = cut if lost else whole
    made, effects = repaired({"f": tree}, patch)
    assert result(effects) == (new[:-1] if lost else new)
    assert "final newline as in the file" in made.reasons[0]


def test_patch_that_means_to_change_the_final_newline_still_does() -> None:
    tree = text(1, 5).replace(b"line 3 of", b"line 3  of")
    patch = edit(text(1, 5), text(1, 5)[:-1])
    assert result(repaired({"f": tree}, patch)[1]) == tree[:-1]


def test_line_appended_behind_one_without_newline_starts_a_line() -> None:
    patch = edit(text(1, 5), text(1, 6))
    _, effects = repaired({"f": text(1, 5)[:-1]}, patch)
    assert result(effects) == text(1, 6)[:-1]


@pytest.mark.parametrize(("line", "fuzz"), [(12, 1), (13, 2)])
def test_changed_context_at_the_ends_is_fuzz(line: int, fuzz: int) -> None:
    tree = OLD.replace(b"line %d of" % line, b"other of")
    hunk = hunk_of({"f": tree}, PATCH)
    assert (hunk.grade, hunk.fuzz, hunk.place) == (Grade.FUZZ, fuzz, 12)
    assert [d.line for d in hunk.differences] == [line]
    made, effects = repaired({"f": tree}, PATCH)
    assert result(effects) == tree.replace(b"line 15 of", b"fifteen of")
    assert made.reasons == (f"hunk 1 of f: fuzz {fuzz}",)


@pytest.mark.parametrize("line", [14, 15, 16])
def test_changed_lines_next_to_the_change_fit_nowhere(line: int) -> None:
    tree = OLD.replace(b"line %d of" % line, b"other of")
    hunk = hunk_of({"f": tree}, PATCH)
    assert hunk.grade is Grade.NONE
    assert [(d.line, d.tree) for d in hunk.differences] == [(line, b"other of text\n")]


def test_fuzz_leaves_out_context_only() -> None:
    patch = parse_patch("p", b"--- a/f\n+++ b/f\n@@ -1,4 +1,3 @@\n-b\n a\n-b\n+B\n c\n")
    assert hunk_of({"f": b"a\nb\nc\n"}, patch).grade is Grade.NONE


def test_result_that_is_there_is_already_present() -> None:
    grade = graded({"f": NEW}, PATCH)
    assert (grade.grade, grade.is_exact) == (Grade.PRESENT, False)
    moved = hunk_of({"f": b"x\n" * 4 + NEW}, PATCH)
    assert (moved.grade, moved.place) == (Grade.PRESENT, 16)


def test_half_of_a_patch_that_is_there_is_left_out() -> None:
    both = NEW.replace(b"line 28 of", b"28 of")
    patch = edit(OLD, both)
    grade = graded({"f": NEW}, patch)
    assert [h.grade for h in grade.files[0].hunks] == [Grade.PRESENT, Grade.EXACT]
    assert (grade.grade, grade.partly_present, grade.is_exact) == (Grade.EXACT, True, False)
    made, effects = repaired({"f": NEW}, patch)
    assert result(effects) == both
    assert made.reasons == ("hunk 1 of f: left out, what it does is there already",)


def test_removal_is_not_called_present_because_its_context_is_somewhere() -> None:
    context = b"a();\nb();\nc();\n"
    old = context + b"bad();\n" + context
    patch = edit(text(1, 20) + old, text(1, 20) + context + context)
    tree = context + context + text(1, 20) + context + b"worse();\n" + context
    assert hunk_of({"f": tree}, patch).grade is Grade.AMBIGUOUS


def test_two_equal_places_are_ambiguous_and_both_shown() -> None:
    block = b"a();\nb();\nc();\nd();\ne();\nf();\ng();\n"
    patch = edit(block, block.replace(b"d();", b"D();"))
    hunk = hunk_of({"f": b"x\n" + block + b"y\n" + block}, patch)
    assert hunk.grade is Grade.AMBIGUOUS
    assert [(p.line, p.why) for p in hunk.places] == [(2, "all 7 lines"), (10, "all 7 lines")]


def test_equal_place_between_two_hunks_that_moved_alike_is_settled() -> None:
    block = b"a();\nb();\nc();\nd();\ne();\nf();\ng();\n"
    old = text(1, 9) + block + text(40, 49) + block
    new = old.replace(b"line 2 of", b"2 of").replace(b"d();", b"D();", 1)
    new = new.replace(b"line 48 of", b"48 of")
    grade = graded({"f": b"x\n" * 3 + old}, edit(old, new))
    assert [(h.grade, h.offset) for h in grade.files[0].hunks] == [(Grade.OFFSET, 3)] * 3


FUNCTIONS = (
    b"int one(int x) {\n    int a = 1;\n    int b = 2;\n    int c = 3;\n    return a;\n}\n\n"
    b"int two(int x) {\n    int a = 1;\n    int b = 2;\n    int c = 3;\n    return a;\n}\n"
)
IN_TWO = (
    b"--- a/f\n+++ b/f\n@@ -%d,3 +%d,4 @@ int two(int x) {\n"
    b"     int a = 1;\n     int b = 2;\n+    b = 7;\n     int c = 3;\n"
)


@pytest.mark.parametrize(("stated", "grade"), [(9, Grade.EXACT), (12, Grade.OFFSET)])
def test_heading_tells_equal_places_apart(stated: int, grade: Grade) -> None:
    hunk = hunk_of({"f": FUNCTIONS}, parse_patch("p", IN_TWO % (stated, stated)))
    assert (hunk.grade, hunk.place) == (grade, 9)


def test_stated_line_in_another_function_is_a_decoy() -> None:
    hunk = hunk_of({"f": FUNCTIONS}, parse_patch("p", IN_TWO % (2, 2)))
    assert (hunk.grade, hunk.why) == (Grade.AMBIGUOUS, "the header names another function")
    assert [p.line for p in hunk.places] == [2, 9]
    assert "in `int one(int x) {`; the patch names `int two(int x) {`" in hunk.places[0].why


def test_only_place_in_another_function_is_refused() -> None:
    one, two = FUNCTIONS.split(b"\n\n")
    tree = one + b"\n\n" + two.replace(b"int b = 2;", b"int b = two();")
    hunk = hunk_of({"f": tree}, parse_patch("p", IN_TWO % (9, 9)))
    assert hunk.grade is Grade.AMBIGUOUS
    assert {2, 9} == {p.line for p in hunk.places}


def test_heading_that_the_file_no_longer_has_proves_nothing() -> None:
    tree = b"// more\n" + FUNCTIONS.split(b"\n\n")[1].replace(b"int two", b"long two")
    assert hunk_of({"f": tree}, parse_patch("p", IN_TWO % (2, 2))).grade is Grade.OFFSET


@pytest.mark.parametrize("name", ["0001-fwd-narrow-tile.patch", "0002-fuzz.patch"])
def test_decoy_of_the_reports_is_refused_with_both_places(name: str) -> None:
    base = CASES / "01" / "base"
    files = {p.relative_to(base).as_posix(): p.read_bytes() for p in base.rglob("*.h")}
    patch = parse_patch(name, (CASES / "01" / "patches" / name).read_bytes())
    hunk = hunk_of(files, patch)
    assert hunk.grade is Grade.AMBIGUOUS
    assert [p.line for p in hunk.places] == [4, 13]
    assert "as stated" in hunk.places[1].why


GIT = b"diff --git a/%s b/%s\n"


def parsed(*parts: bytes) -> Patch:
    return parse_patch("p.patch", b"".join(parts))


def test_target_that_is_gone() -> None:
    grade = graded({}, PATCH)
    assert grade.grade is Grade.GONE
    assert grade.files[0].why == "there is no such file"


def test_created_file_that_exists() -> None:
    head = b"--- /dev/null\n+++ b/f\n@@ -0,0 +1,2 @@\n+one\n+two\n"
    assert graded({}, parsed(head)).is_exact
    assert graded({"f": b"one\ntwo\n"}, parsed(head)).grade is Grade.PRESENT
    other = graded({"f": b"one\n2\n"}, parsed(head))
    assert other.grade is Grade.NONE
    assert [(d.line, d.patch, d.tree) for d in other.files[0].differences] == [
        (2, b"two\n", b"2\n")
    ]


def test_deleted_file() -> None:
    patch = parsed(b"--- a/f\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-one\n-two\n")
    assert graded({"f": b"one\ntwo\n"}, patch).is_exact
    assert graded({}, patch).grade is Grade.GONE
    assert graded({"f": b"one\n2\n"}, patch).grade is Grade.NONE
    files = {"f": b"one \ntwo\n"}
    assert graded(files, patch).grade is Grade.WHITESPACE
    _, effects = repaired(files, patch)
    assert effects == {b"f": None}


def test_deletion_that_states_another_line_is_an_offset() -> None:
    patch = parsed(b"--- a/f\n+++ /dev/null\n@@ -3,2 +2,0 @@\n-one\n-two\n")
    grade = graded({"f": b"one\ntwo\n"}, patch)
    assert (grade.grade, grade.files[0].hunks[0].offset) == (Grade.OFFSET, -2)
    assert repaired({"f": b"one\ntwo\n"}, patch)[1] == {b"f": None}


def test_file_created_out_of_lines_that_are_nowhere_does_not_fit() -> None:
    patch = parsed(b"--- /dev/null\n+++ b/f\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n")
    assert graded({}, patch).grade is Grade.GONE


def test_deletion_long_done_beside_a_present_edit_is_present() -> None:
    both = parsed(
        b"--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"
        b"--- a/g\n+++ /dev/null\n@@ -1 +0,0 @@\n-g\n"
    )
    assert graded({"f": b"one\n2\n"}, both).grade is Grade.PRESENT


def test_renamed_file() -> None:
    rename = parsed(GIT % (b"f", b"g"), b"similarity index 100%\nrename from f\nrename to g\n")
    assert graded({"f": b"one\n"}, rename).is_exact
    assert graded({"g": b"one\n"}, rename).grade is Grade.PRESENT
    assert graded({}, rename).grade is Grade.GONE
    assert graded({"f": b"one\n", "g": b"two\n"}, rename).grade is Grade.NONE


def test_mode_change() -> None:
    mode = parsed(GIT % (b"f", b"f"), b"old mode 100644\nnew mode 100755\n")
    assert graded({"f": b"x\n"}, mode).is_exact
    assert graded({"f": b"x\n"}, mode, ("f",)).grade is Grade.PRESENT
    edit = b"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n+y\n"
    both = parsed(GIT % (b"f", b"f"), b"old mode 100644\nnew mode 100755\n", edit)
    assert graded({"f": b"y\n"}, both, ("f",)).grade is Grade.PRESENT
    half = graded({"f": b"y\n"}, both)
    assert (half.grade, half.files[0].why) == (
        Grade.NONE, "its content is there already, its mode is not",
    )  # fmt: skip


def test_reasons_of_neighbouring_hunks_share_a_line() -> None:
    old = text(1, 60)
    new = old
    for number in (10, 30, 50):
        new = new.replace(b"line %d of" % number, b"%d of" % number)
    made, _ = repaired({"f": b"x\n" * 9 + old}, edit(old, new))
    assert made.reasons == ("hunks 1-3 of f: offset +9",)


def test_json_of_a_grade_holds_both_lines() -> None:
    tree = OLD.replace(b"line 15 of", b"other of")
    data = graded({"f": tree}, PATCH).as_json()
    (file,) = data["files"]  # type: ignore[misc]
    assert file["hunks"][0]["differences"] == [  # type: ignore[index]
        {
            "line": 15,
            "patch": "line 15 of text",
            "tree": "other of text",
            "blanks_only": False,
        }
    ]


def random_lines(rng: random.Random, count: int) -> list[bytes]:
    """Code-like lines; many are equal, so that there are decoys."""
    return [
        rng.choice([b"}\n", b"\n", b"x += 1;\n", b"call(%d);\n" % rng.randrange(200)])
        for _ in range(count)
    ]


def with_edits(rng: random.Random, lines: list[bytes], count: int) -> list[bytes]:
    new = list(lines)
    for _ in range(count):
        at = rng.randrange(len(new))
        new[at : at + rng.randrange(3)] = [b"new(%d);\n" % rng.randrange(9999)]
    return new


def test_random_moves_are_graded_with_the_true_offset_or_as_unclear() -> None:
    rng = random.Random(11)
    exact = unclear = 0
    for _ in range(400):
        old = random_lines(rng, rng.randrange(10, 60))
        new = with_edits(rng, old, rng.randrange(1, 4))
        if old == new:
            continue
        patch = edit(b"".join(old), b"".join(new))
        above = random_lines(rng, rng.randrange(1, 12))
        tree, wanted = b"".join(above + old), b"".join(above + new)
        hunks = graded({"f": tree}, patch).files[0].hunks
        stated = [h.grade is Grade.EXACT for h in hunks]
        if any(stated):  # a decoy at the very line: no tool can tell it from the truth
            continue
        if any(h.grade is Grade.AMBIGUOUS for h in hunks):
            unclear += 1
            assert all(len(h.places) > 1 for h in hunks if h.grade is Grade.AMBIGUOUS)
            continue
        assert {h.offset for h in hunks} == {len(above)}
        assert result(repaired({"f": tree}, patch)[1]) == wanted
        exact += 1
    assert exact > 200
    assert unclear > 5


def test_random_damage_to_white_space_is_repaired_to_the_intended_result() -> None:
    rng = random.Random(12)
    done = 0
    for _ in range(300):
        old = [b"call(%d, %d);\n" % (n, rng.randrange(99)) for n in range(rng.randrange(5, 40))]
        new = with_edits(rng, old, rng.randrange(1, 4))
        damage = {line: line.replace(b", ", rng.choice([b",  ", b",\t", b", "])) for line in old}
        above = [b"above(%d);\n" % n for n in range(rng.randrange(5))]
        tree = above + [damage[line] for line in old]
        wanted = above + [damage.get(line, line) for line in new]
        patch = edit(b"".join(old), b"".join(new))
        grade = graded({"f": b"".join(tree)}, patch)
        assert grade.grade.fits, grade
        assert {h.offset for h in grade.files[0].hunks} == {len(above)}
        assert result(repaired({"f": b"".join(tree)}, patch)[1]) == b"".join(wanted)
        done += 1
    assert done == 300
