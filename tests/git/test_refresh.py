# SPDX-License-Identifier: Apache-2.0
"""refresh: what people do with their git becomes patch files, and nothing else in them changes."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
from tests.git.conftest import MakeProject, Series, git

from patchctl.errors import LocalChanges, MergeConflict, UsageError
from patchctl.stages.edit import open_edit, open_new
from patchctl.stages.refresh import Refreshed, refresh
from patchctl.stages.replay import replay
from patchctl.stages.showdiff import difference
from patchctl.stages.sourceedits import refresh_from_source
from patchctl.system.report import QuietReporter

QUIET = QuietReporter()
FIRST, SECOND, THIRD = (f"000{n}-core-{w}-change.patch" for n, w in enumerate(
    ("first", "second", "third"), 1))  # fmt: skip


@pytest.fixture
def series(make_project: MakeProject) -> Series:
    return Series.of_three(make_project)


def open_at(series: Series, patch: str) -> Path:
    return open_edit(series.project, QUIET, patch).folder


def substitute(path: Path, old: bytes, new: bytes) -> None:
    text = path.read_bytes()
    assert old in text
    path.write_bytes(text.replace(old, new))


def refreshed(series: Series, **options: bool) -> Refreshed:
    done = refresh(series.project, QUIET, **options)
    # what was written replays, and is locked
    assert not replay(series.project, QUIET, discard=True).relocked
    # and a second time there is nothing to do
    before = series.files()
    assert not refresh(series.project, QUIET).changed
    assert series.files() == before
    return done


def fates(done: Refreshed) -> dict[str, str]:
    return {name: str(fate) for name, fate in done.patches}


def changed_lines(old: bytes, new: bytes) -> list[str]:
    """The lines that differ, with their signs."""
    lines = difflib.ndiff(old.decode().splitlines(), new.decode().splitlines())
    return [line for line in lines if line[:2] in ("+ ", "- ")]


def test_nothing_edited_changes_nothing(series: Series) -> None:
    before = series.files()
    open_at(series, SECOND)
    assert not refresh(series.project, QUIET).changed
    assert series.files() == before


def test_uncommitted_edit_goes_into_the_patch_and_nothing_else_changes(series: Series) -> None:
    before = series.files()
    folder = open_at(series, FIRST)
    substitute(folder / "a.h", b"first\n", b"first, better\n")
    done = refreshed(series)
    assert fates(done) == {FIRST: "edited", SECOND: "kept", THIRD: "kept"}
    after = series.files()
    assert {n for n in after if after[n] != before.get(n)} == {FIRST, "series.lock.toml"}
    shown = changed_lines(before[FIRST], after[FIRST])
    assert [line for line in shown if "index " not in line] == ["- +first", "+ +first, better"]
    assert len(shown) == 4  # and the index line, which names the file's content


def test_edit_that_is_undone_gives_the_same_bytes_again(series: Series) -> None:
    before = series.files()
    folder = open_at(series, SECOND)
    substitute(folder / "a.h", b"second\n", b"other\n")
    refreshed(series)
    assert series.files() != before
    substitute(folder / "a.h", b"other\n", b"second\n")
    refreshed(series)
    assert series.files() == before


def test_author_date_message_and_trailers_survive(series: Series) -> None:
    old = git_log(series)
    folder = open_at(series, SECOND)
    substitute(folder / "a.h", b"second\n", b"other\n")
    git(folder, "commit", "--quiet", "--all", "--amend", "--no-edit")
    refreshed(series)
    assert git_log(series) == old
    assert b"Signed-off-by: P Author" in (series.project.patches / SECOND).read_bytes()
    assert "P Author <p@example.org> 1750000060 +0200" in old


def git_log(series: Series) -> str:
    """Author, date and message of every patch, as replay has them."""
    return git(series.project.store, "log", "--date=raw", "--format=%an <%ae> %ad%n%B",
               "refs/patchctl/head")  # fmt: skip


def test_new_file_goes_in_and_leftovers_do_not(series: Series) -> None:
    folder = open_at(series, SECOND)
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "x.h").write_text("x\n")
    for leftover in ("a.h.orig", "a.h.rej", "deep/a.h~"):
        (folder / leftover).write_text("no\n")
    done = refreshed(series)
    assert set(done.leftovers) == {"a.h.orig", "a.h.rej", "deep/a.h~"}
    assert (series.project.source / "deep" / "er" / "x.h").read_text() == "x\n"
    assert not (series.project.source / "a.h.orig").exists()


def test_moved_context_is_merged_into_the_later_patch(series: Series) -> None:
    folder = open_at(series, FIRST)
    text = (folder / "a.h").read_bytes()
    (folder / "a.h").write_bytes(b"top 1\ntop 2\n" + text)
    before = series.files()
    done = refreshed(series)
    assert fates(done) == {FIRST: "edited", SECOND: "merged", THIRD: "kept"}
    shown = changed_lines(before[SECOND], series.files()[SECOND])
    assert [line.split("@@")[1] for line in shown if "@@" in line] == [
        " -38,7 +38,7 ", " -40,7 +40,7 "
    ]  # fmt: skip
    assert all("@@" in line or "index " in line for line in shown)
    source = (series.project.source / "a.h").read_bytes()
    assert source.startswith(b"top 1\ntop 2\nline 0\n") and b"\nsecond\n" in source


def test_conflict_names_patch_and_file_and_leaves_all_as_it_was(series: Series) -> None:
    folder = open_at(series, FIRST)
    substitute(folder / "a.h", b"line 40\n", b"taken\n")
    before = series.files()
    with pytest.raises(MergeConflict) as caught:
        refresh(series.project, QUIET)
    assert caught.value.exit_code == 4
    assert SECOND in caught.value.message and "`a.h`" in caught.value.message
    assert "--resolve" in caught.value.hint
    assert caught.value.data["files"] == ["a.h"]
    assert series.files() == before
    assert git(folder, "status", "--porcelain") == "M a.h"


def test_conflict_can_be_resolved_in_the_edit_tree(series: Series) -> None:
    folder = open_at(series, FIRST)
    substitute(folder / "a.h", b"line 40\n", b"taken\n")
    with pytest.raises(MergeConflict) as caught:
        refresh(series.project, QUIET, resolve=True)
    assert "cherry-pick --continue" in caught.value.hint
    with pytest.raises(LocalChanges) as busy:
        refresh(series.project, QUIET)
    assert "cherry-pick" in busy.value.message
    (folder / "a.h").write_bytes(
        b"".join({10: b"first\n", 40: b"both\n"}.get(n, b"line %d\n" % n) for n in range(60))
    )
    git(folder, "add", "--update")
    git(folder, "-c", "core.editor=true", "cherry-pick", "--continue")
    done = refreshed(series)
    assert fates(done) == {FIRST: "edited", SECOND: "edited", THIRD: "kept"}
    patch = (series.project.patches / SECOND).read_bytes()
    assert b"\n-taken\n+both\n" in patch
    assert b"From: P Author <p@example.org>" in patch


def test_edit_that_takes_a_later_patch_in_says_to_drop_it(series: Series) -> None:
    folder = open_at(series, FIRST)
    substitute(folder / "a.h", b"line 40\n", b"second\n")
    with pytest.raises(MergeConflict) as caught:
        refresh(series.project, QUIET)
    assert "nothing is left" in caught.value.message
    assert caught.value.hint == f"patchctl drop {SECOND}"


def test_reworded_patch_keeps_its_name_and_its_diff(series: Series) -> None:
    before = series.files()
    folder = open_at(series, THIRD)
    git(folder, "-c", "sequence.editor=sed -i '2s/pick/reword/'",
        "-c", "core.editor=sed -i '1s/second/2nd/'", "rebase", "-i", "baseline")  # fmt: skip
    done = refreshed(series)
    assert fates(done) == {FIRST: "kept", SECOND: "edited", THIRD: "kept"}
    assert changed_lines(before[SECOND], series.files()[SECOND]) == [
        "- Subject: core: second change",
        "+ Subject: core: 2nd change",
    ]


def test_commits_reordered_by_rebase_reorder_the_series(series: Series) -> None:
    before = series.files()
    folder = open_at(series, THIRD)
    git(folder, "-c", "sequence.editor=sed -i '1{h;d};2{G}'", "rebase", "-i", "baseline")
    refreshed(series)
    assert series.names == [SECOND, FIRST, THIRD]
    after = series.files()
    assert after[FIRST] == before[FIRST] and after[SECOND] == before[SECOND]
    assert after["series"].startswith(b"# our patches\n\n")


def test_commits_that_people_add_become_patches(series: Series) -> None:
    folder = open_at(series, FIRST)
    (folder / "b.cu").write_text("ONE\ntwo\nthree\n")
    git(folder, "commit", "--quiet", "--all", "-m", "core: shout")
    with pytest.raises(MergeConflict):
        refresh(series.project, QUIET)  # the third patch changes the line next to it
    (folder / "b.cu").write_text("one\ntwo\nthree\nfour\nfive\n")
    git(folder, "commit", "--quiet", "--all", "--amend", "-m", "core: count on")
    done = refreshed(series)
    assert done.patches[1] == ("0004-core-count-on.patch", "new")
    assert series.names == [FIRST, "0004-core-count-on.patch", SECOND, THIRD]


def test_patch_whose_commit_is_gone_is_dropped_only_when_told(series: Series) -> None:
    folder = open_at(series, THIRD)
    git(folder, "-c", "sequence.editor=sed -i '2d'", "rebase", "-i", "baseline")
    before = series.files()
    with pytest.raises(LocalChanges) as caught:
        refresh(series.project, QUIET)
    assert SECOND in caught.value.message and series.files() == before
    done = refreshed(series, allow_drop=True)
    assert done.dropped == (SECOND,)
    assert series.names == [FIRST, THIRD] and SECOND not in series.files()


def test_squashed_commits_become_one_patch(series: Series) -> None:
    folder = open_at(series, SECOND)
    git(folder, "reset", "--quiet", "--soft", "HEAD~1")
    git(folder, "commit", "--quiet", "--amend", "--no-edit")
    done = refreshed(series, allow_drop=True)
    assert fates(done)[FIRST] == "edited" and done.dropped == (SECOND,)


def test_uncommitted_changes_on_top_of_a_new_commit_are_refused(series: Series) -> None:
    folder = open_at(series, FIRST)
    (folder / "x.h").write_text("x\n")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", "core: x")
    (folder / "x.h").write_text("y\n")
    with pytest.raises(LocalChanges) as caught:
        refresh(series.project, QUIET)
    assert FIRST in caught.value.message


def test_merge_on_the_branch_is_refused(series: Series) -> None:
    folder = open_at(series, FIRST)
    git(folder, "checkout", "--quiet", "-b", "side", "baseline")
    (folder / "s.h").write_text("s\n")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", "side")
    git(folder, "checkout", "--quiet", "series")
    git(folder, "merge", "--quiet", "--no-ff", "-m", "merge", "side")
    with pytest.raises(LocalChanges) as caught:
        refresh(series.project, QUIET)
    assert "merge" in caught.value.message and "rebase baseline" in caught.value.hint


@pytest.mark.parametrize("line", ["---", "diff --git a/x b/x", "--- a/x"])
def test_message_that_a_patch_file_cannot_hold_is_refused(series: Series, line: str) -> None:
    folder = open_at(series, FIRST)
    git(folder, "commit", "--quiet", "--amend", "-m", "core: first change", "-m", f"a\n{line}\nb")
    before = series.files()
    with pytest.raises(UsageError) as caught:
        refresh(series.project, QUIET)
    assert "message" in caught.value.message and series.files() == before


def test_new_patch_from_uncommitted_changes(series: Series) -> None:
    opened = open_new(series.project, QUIET, "core: add y", after=FIRST)
    with pytest.raises(LocalChanges):
        refresh(series.project, QUIET)
    git(opened.folder, "config", "user.name", "New Author")
    git(opened.folder, "config", "user.email", "new@example.org")
    (opened.folder / "y.h").write_text("y\n")
    done = refreshed(series, sign_off=True)
    assert done.patches[1] == ("0004-core-add-y.patch", "new")
    assert series.names == [FIRST, "0004-core-add-y.patch", SECOND, THIRD]
    patch = (series.project.patches / "0004-core-add-y.patch").read_text()
    assert "\nFrom: New Author <new@example.org>\n" in patch
    assert "\nSubject: core: add y\n" in patch
    assert "Upstream-Status: Pending\nSigned-off-by: New Author <new@example.org>\n" in patch
    (opened.folder / "y.h").write_text("yy\n")
    assert fates(refreshed(series))["0004-core-add-y.patch"] == "edited"


def test_new_patch_committed_by_the_user_takes_the_name(series: Series) -> None:
    opened = open_new(series.project, QUIET, "core-add-y")
    (opened.folder / "y.h").write_text("y\n")
    git(opened.folder, "add", "--all")
    git(opened.folder, "commit", "--quiet", "-m", "core: quite another subject")
    done = refreshed(series)
    assert done.patches[-1] == ("0004-core-add-y.patch", "new")


def test_first_patch_of_an_empty_series(make_project: MakeProject) -> None:
    project = make_project({"a.h": b"a\n"})
    replay(project, QUIET, lock=True)
    opened = open_new(project, QUIET, "core: b")
    (opened.folder / "a.h").write_text("b\n")
    git(opened.folder, "commit", "--quiet", "--all", "-m", "core: b")
    assert refresh(project, QUIET).patches == (("0001-core-b.patch", "new"),)
    assert replay(project, QUIET).written == 1


def test_patch_changed_meanwhile_is_not_overwritten(series: Series) -> None:
    folder = open_at(series, SECOND)
    substitute(folder / "a.h", b"second\n", b"mine\n")
    path = series.project.patches / FIRST
    path.write_bytes(path.read_bytes().replace(b"+first", b"+somebody's"))
    series.relock()
    before = series.files()
    with pytest.raises(LocalChanges):
        refresh(series.project, QUIET)
    assert series.files() == before


def test_renames_modes_links_and_binary_files(series: Series) -> None:
    folder = open_at(series, SECOND)
    (folder / "a.h").rename(folder / "renamed.h")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("run.sh")
    (folder / "blob").write_bytes(bytes(range(256)))
    refreshed(series)
    source = series.project.source
    assert b"second\n" in (source / "renamed.h").read_bytes() and not (source / "a.h").exists()
    assert (source / "run.sh").stat().st_mode & 0o100
    assert str((source / "link").readlink()) == "run.sh"
    assert (source / "blob").read_bytes() == bytes(range(256))


def test_from_source_into_the_last_and_into_an_earlier_patch(series: Series) -> None:
    source = series.project.source
    substitute(source / "b.cu", b"2\n", b"two!\n")
    (source / "more.h").write_text("more\n")
    done = refresh_from_source(series.project, QUIET, THIRD)
    assert fates(done) == {FIRST: "kept", SECOND: "kept", THIRD: "edited"}
    assert replay(series.project, QUIET).written == 0
    substitute(source / "a.h", b"first\n", b"first!\n")
    done = refresh_from_source(series.project, QUIET, "1")
    assert fates(done) == {FIRST: "edited", SECOND: "kept", THIRD: "kept"}
    assert replay(series.project, QUIET).written == 0


def test_from_source_into_a_patch_before_the_one_that_made_the_line(series: Series) -> None:
    substitute(series.project.source / "a.h", b"second\n", b"second!\n")
    before = series.files()
    with pytest.raises(MergeConflict) as caught:
        refresh_from_source(series.project, QUIET, FIRST)
    assert "a later patch changes these lines" in caught.value.message
    assert series.files() == before


def test_from_source_without_edits_is_refused(series: Series) -> None:
    with pytest.raises(LocalChanges):
        refresh_from_source(series.project, QUIET, FIRST)


def test_diff_of_the_edit_tree_and_of_the_source_tree(series: Series) -> None:
    substitute(series.project.source / "b.cu", b"2\n", b"22\n")
    found = difference(series.project)
    assert found.files == ("b.cu",) and b"\n-2\n+22\n" in found.text
    folder = open_at(series, FIRST)
    assert difference(series.project).text == b""
    substitute(folder / "a.h", b"first\n", b"committed\n")
    git(folder, "commit", "--quiet", "--all", "--amend", "--no-edit")
    (folder / "z.h").write_text("z\n")
    found = difference(series.project)
    assert found.files == ("a.h", "z.h") and found.patch == FIRST
    assert difference(series.project, source=True).files == ("b.cu",)
    assert git(folder, "status", "--porcelain") == "?? z.h"  # the index is the user's
