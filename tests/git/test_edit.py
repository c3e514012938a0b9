# SPDX-License-Identifier: Apache-2.0
"""Opening patches for editing: the tree and branch that people get, and what is protected."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.git.conftest import MakeProject, Series, git

from patchctl.errors import LocalChanges, LockMismatch, UsageError
from patchctl.stages.edit import open_edit, open_new
from patchctl.stages.editsession import release, require_session
from patchctl.stages.replay import replay
from patchctl.system.report import QuietReporter

QUIET = QuietReporter()


@pytest.fixture
def series(make_project: MakeProject) -> Series:
    return Series.of_three(make_project)


def files(folder: Path) -> dict[str, bytes]:
    found = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not name.startswith(".git/"):
            found[name] = path.read_bytes()
    return found


def test_edit_gives_exactly_the_patches_up_to_it(series: Series) -> None:
    project = series.project
    replay(project, QUIET, through=series.names[1])
    opened = open_edit(project, QUIET, "2")
    assert files(opened.folder) == files(project.source)
    assert git(opened.folder, "status", "--porcelain") == ""
    assert git(opened.folder, "branch", "--show-current") == "series"
    assert git(opened.folder, "log", "--format=%s", "--reverse", "baseline..HEAD") == (
        "core: first change\ncore: second change"
    )


def test_commits_of_the_branch_are_the_locked_ones(series: Series) -> None:
    opened = open_edit(series.project, QUIET, None)
    locked = [patch.commit for patch in series.lock().patches]
    commits = git(opened.folder, "rev-list", "--reverse", "baseline..HEAD").split()
    assert commits == locked


def test_edit_of_another_patch_moves_the_same_tree(series: Series) -> None:
    first = open_edit(series.project, QUIET, "3")
    (first.folder / "note.orig").write_text("kept\n")
    second = open_edit(series.project, QUIET, "1")
    assert second.folder == first.folder
    assert "new.h" not in files(second.folder)
    assert (second.folder / "note.orig").read_text() == "kept\n"


@pytest.mark.parametrize("commit", [False, True])
def test_edits_in_no_patch_are_not_overwritten(series: Series, commit: bool) -> None:
    opened = open_edit(series.project, QUIET, "1")
    (opened.folder / "a.h").write_text("mine\n")
    if commit:
        git(opened.folder, "commit", "--quiet", "--all", "--amend", "--no-edit")
    with pytest.raises(LocalChanges) as caught:
        open_edit(series.project, QUIET, "2")
    assert "patchctl refresh" in caught.value.hint
    assert (opened.folder / "a.h").read_text() == "mine\n"
    again = open_edit(series.project, QUIET, "2", discard=True)
    assert again.discarded is not None
    assert (again.discarded / "a.h").read_text() == "mine\n"
    git(again.discarded, "fsck", "--strict")
    assert git(again.folder, "status", "--porcelain") == ""


def test_edit_without_a_lock_is_refused(series: Series) -> None:
    series.project.series_lock.unlink()
    with pytest.raises(LockMismatch):
        open_edit(series.project, QUIET, "1")
    assert not (series.project.out / "edit").exists()


def test_patch_file_changed_by_hand_is_not_buried(series: Series) -> None:
    path = series.project.patches / series.names[0]
    path.write_bytes(path.read_bytes().replace(b"first change", b"first, by hand"))
    with pytest.raises(LockMismatch) as caught:
        open_edit(series.project, QUIET, "1")
    assert series.names[0] in caught.value.message


def test_unknown_patch_is_named_with_the_nearest(series: Series) -> None:
    with pytest.raises(UsageError) as caught:
        open_edit(series.project, QUIET, "0002-core-secnd-change.patch")
    assert series.names[1] in caught.value.hint


def test_user_configuration_does_not_change_what_is_on_the_disk(
    series: Series, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(
        "[core]\n\tautocrlf = true\n\thooksPath = /nonexistent\n[commit]\n\tgpgSign = true\n"
        "[init]\n\ttemplateDir = /nonexistent\n[diff]\n\tnoprefix = true\n"
    )
    monkeypatch.setenv("HOME", str(home))
    opened = open_edit(series.project, QUIET, "3")
    assert b"\r" not in (opened.folder / "a.h").read_bytes()


def test_open_edit_survives_the_loss_of_build_out(series: Series) -> None:
    open_edit(series.project, QUIET, "2")
    shutil.rmtree(series.project.out)
    opened = open_edit(series.project, QUIET, "2")
    assert git(opened.folder, "status", "--porcelain") == ""


def test_new_patch_gets_number_and_form_of_house_style(series: Series) -> None:
    opened = open_new(series.project, QUIET, "sm70: add m8n8k4 mainloop")
    assert opened.session.patch == "0004-sm70-add-m8n8k4-mainloop.patch"
    assert opened.session.message == ("sm70: add m8n8k4 mainloop\n\nUpstream-Status: Pending\n")
    assert git(opened.folder, "rev-list", "--count", "baseline..HEAD") == "3"


def test_new_patch_in_the_middle_stands_on_the_patches_before_it(series: Series) -> None:
    opened = open_new(series.project, QUIET, "between", after="1", message="core: between")
    assert opened.session.covered == (series.names[0],)
    assert opened.session.message.startswith("core: between\n")


def test_rebase_that_is_open_keeps_its_tree(series: Series) -> None:
    session = series.project.out / "session" / "rebase.json"
    session.parent.mkdir(parents=True)
    session.write_text("{}")
    with pytest.raises(LocalChanges) as caught:
        open_edit(series.project, QUIET, "1")
    assert "rebase" in caught.value.message


def test_releasing_an_edit_with_changes_is_refused(series: Series) -> None:
    opened = open_edit(series.project, QUIET, "2")
    (opened.folder / "a.h").write_text("mine\n")
    release(series.project, [series.names[2]])  # not covered
    with pytest.raises(LocalChanges):
        release(series.project, [series.names[0]])


def test_tree_that_lost_its_repository_can_be_discarded(series: Series) -> None:
    opened = open_edit(series.project, QUIET, "1")
    (opened.folder / "a.h").write_text("mine\n")
    shutil.rmtree(opened.folder / ".git")
    with pytest.raises(LocalChanges):
        open_edit(series.project, QUIET, "2")
    assert (opened.folder / "a.h").read_text() == "mine\n"
    again = open_edit(series.project, QUIET, "2", discard=True)
    assert again.discarded is not None
    assert (again.discarded / "a.h").read_text() == "mine\n"
    assert git(again.folder, "status", "--porcelain") == ""


def test_repository_inside_of_the_tree_is_named(series: Series) -> None:
    opened = open_edit(series.project, QUIET, "1")
    nested = opened.folder / "nested"
    nested.mkdir()
    git(nested, "init", "--quiet")
    with pytest.raises(LocalChanges) as caught:
        open_edit(series.project, QUIET, "2")
    assert "nested/" in "".join(caught.value.details)


def test_nothing_open_while_a_rebase_is_says_so(series: Series) -> None:
    session = series.project.out / "session" / "rebase.json"
    session.parent.mkdir(parents=True)
    session.write_text("{}")
    with pytest.raises(UsageError) as caught:
        require_session(series.project)
    assert "rebase --status" in caught.value.hint
