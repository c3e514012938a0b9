# SPDX-License-Identifier: Apache-2.0
"""rebase against real git: the ways in which a patch can fit, conflicts, what accepting does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.git.conftest import MakeProject, git, make_repo, make_sdist, write_files
from tests.git.rebaserig import QUIET, Rig, change, make_rig, text

from patchctl.cli.main import main
from patchctl.errors import LocalChanges, LockMismatch, PatchDoesNotApply, Unavailable, UsageError
from patchctl.formats.rebasesession import Fit, Outcome, Session
from patchctl.stages.edit import open_edit
from patchctl.stages.editsession import release
from patchctl.stages.rebase import abort, classify, load_session, session_file
from patchctl.stages.replay import replay

BASE = {f"{name}.h": text(name) for name in "abcdefgh"}


@pytest.fixture
def rig(make_project: MakeProject) -> Rig:
    return make_rig(make_project, BASE)


def outcomes(session: Session) -> dict[str, Outcome]:
    return {step.patch.removesuffix(".patch"): step.outcome for step in session.steps}


def test_each_class_is_told_apart_and_nothing_is_touched(rig: Rig) -> None:
    names = "clean", "offset", "whitespace", "fuzz", "conflict", "upstream", "gone", "moved"
    for name, patch in zip("abcdefgh", names, strict=True):
        rig.patch(patch, change(name, "20:mine"))
    rig.lock()
    onto = rig.release(
        {
            **change("a", "40:theirs"),
            "b.h": b"new\nnew\n" + text("b"),
            **change("c", "18:c   line 18"),
            **change("d", "17:theirs"),
            **change("e", "20:theirs"),
            **change("f", "20:mine"),
            "g.h": None,
            "h.h": None,
            "renamed.h": text("h", "1:renamed"),
        }
    )
    before = rig.state()
    session = classify(rig.project, onto, QUIET, offline=False)
    fits = {step.patch.removesuffix(".patch"): step.fit for step in session.steps}
    assert fits == {
        "clean": Fit.CLEAN,
        "offset": Fit.OFFSET,
        "whitespace": Fit.WHITESPACE,
        "fuzz": Fit.FUZZ,
        "conflict": Fit.CONFLICT,
        "upstream": Fit.UPSTREAM,
        "gone": Fit.GONE,
        "moved": Fit.THREE_WAY,
    }
    assert rig.state() == before
    assert load_session(rig.project) is None
    assert not rig.edit.exists()
    assert "rebase" not in git(rig.project.store, "for-each-ref")


def test_series_that_fits_is_moved_and_replays_at_once(rig: Rig) -> None:
    rig.patch("one", change("a", "20:mine"))
    rig.patch("two", {"new.h": b"new\n"} | change("b", "20:mine"))
    rig.lock()
    files = {name: (rig.project.patches / name).read_bytes() for name in ("one.patch", "two.patch")}
    onto = rig.release(change("c", "1:theirs"))
    before = rig.state()
    session = rig.start(onto)
    assert outcomes(session) == {"one": Outcome.APPLIED, "two": Outcome.APPLIED}
    assert rig.state() == before, "nothing changes until it is accepted"
    assert git(rig.edit, "status", "--porcelain") == ""
    assert git(rig.edit, "log", "--format=%s", f"{session.new_base}..HEAD").split("\n") == [
        "area: two",
        "area: one",
    ]
    done = rig.accept()
    assert done.unchanged == ("one.patch", "two.patch")
    assert {n: (rig.project.patches / n).read_bytes() for n in files} == files
    assert onto.rpartition("@")[2] in rig.project.baseline_lock.read_text()
    assert not rig.edit.exists()
    assert load_session(rig.project) is None
    again = replay(rig.project, QUIET, offline=True)
    assert again.head == done.lock.head == session.head
    assert (rig.project.source / "c.h").read_bytes() == text("c", "1:theirs")
    assert (rig.project.source / "a.h").read_bytes() == text("a", "20:mine")


def test_only_what_moved_changes_in_a_patch_file(rig: Rig) -> None:
    rig.patch("offset", change("a", "20:mine"))
    rig.lock()
    path = rig.project.patches / "offset.patch"
    old = path.read_bytes()
    rig.start(rig.release({"a.h": b"new\nnew\n" + text("a")}))
    assert rig.accept().rewritten == ("offset.patch",)
    differing = [
        (a, b)
        for a, b in zip(old.split(b"\n"), path.read_bytes().split(b"\n"), strict=True)
        if a != b
    ]
    assert [a[:5] for a, _ in differing] == [b"index", b"@@ -1"]
    replay(rig.project, QUIET)


@pytest.fixture
def stopped(rig: Rig) -> Rig:
    """A session that stopped at the second of three patches."""
    rig.patch("first", change("a", "5:mine"))
    rig.patch("second", change("b", "20:mine") | change("c", "20:mine"))
    rig.patch("third", change("b", "20:mine", "30:mine") | change("d", "20:mine"))
    rig.lock()
    rig.onto = rig.release(change("b", "20:theirs") | change("a", "30:theirs"))
    rig.before = rig.state()
    with pytest.raises(PatchDoesNotApply) as caught:
        rig.start(rig.onto)
    assert caught.value.exit_code == 4
    assert caught.value.message.startswith("patch `second.patch` (2 of 3) conflicts with ")
    assert caught.value.details == ("conflict: b.h",)
    assert "patchctl rebase --continue" in caught.value.hint
    return rig


RESOLVED = change("b", "20:both")


def resolve(rig: Rig) -> None:
    write_files(rig.edit, {n: c for n, c in RESOLVED.items() if c})
    git(rig.edit, "add", "b.h")


def test_conflict_is_an_ordinary_one_of_git(stopped: Rig) -> None:
    assert git(stopped.edit, "status", "--porcelain") == "UU b.h\nM  c.h"
    shown = (stopped.edit / "b.h").read_text()
    assert shown.index("<<<<<<< HEAD") < shown.index("|||||||") < shown.index(">>>>>>> ")
    assert git(stopped.edit, "log", "-1", "--format=%s") == "area: first"
    session = load_session(stopped.project)
    assert session is not None
    assert outcomes(session)["second"] is Outcome.STOPPED
    assert stopped.state() == stopped.before


def test_resolved_and_staged_it_goes_on(stopped: Rig) -> None:
    resolve(stopped)
    session = stopped.go("resume")
    assert outcomes(session) == {
        "first": Outcome.APPLIED,
        "second": Outcome.RESOLVED,
        "third": Outcome.APPLIED,
    }
    assert stopped.state() == stopped.before
    done = stopped.accept()
    assert done.rewritten == ("second.patch",)
    replay(stopped.project, QUIET)
    assert (stopped.project.source / "b.h").read_bytes() == text("b", "20:both", "30:mine")
    patch = (stopped.project.patches / "second.patch").read_text()
    assert "From: Ann Other <ann@example.org>\nDate: Fri, 2 Jan 2026 03:04:05 +0200\n" in patch
    assert "Why second.\n\nSigned-off-by: Ann <ann@example.org>\n---" in patch


@pytest.mark.parametrize(
    "commit",
    [["commit", "--quiet", "--no-edit"], ["-c", "core.editor=true", "cherry-pick", "--continue"]],
)
def test_resolved_and_committed_it_goes_on(stopped: Rig, commit: list[str]) -> None:
    resolve(stopped)
    git(stopped.edit, *commit)
    session = stopped.go("resume")
    assert outcomes(session)["second"] is Outcome.RESOLVED
    stopped.accept()
    patch = (stopped.project.patches / "second.patch").read_text()
    assert "From: Ann Other <ann@example.org>\nDate: Fri, 2 Jan 2026 03:04:05 +0200\n" in patch
    assert "Conflicts" not in patch


def test_message_reworded_in_the_commit_is_taken(stopped: Rig) -> None:
    resolve(stopped)
    git(stopped.edit, "commit", "--quiet", "-m", "area: second, reworded")
    stopped.go("resume")
    stopped.accept()
    patch = (stopped.project.patches / "second.patch").read_text()
    assert "Subject: area: second, reworded\n" in patch
    assert "From: Ann Other <ann@example.org>" in patch


def test_second_rebase_uses_the_remembered_resolution(stopped: Rig) -> None:
    resolve(stopped)
    stopped.go("resume")
    abort(stopped.project, QUIET)
    assert stopped.state() == stopped.before
    session = stopped.start(stopped.onto)
    assert outcomes(session)["second"] is Outcome.REUSED
    assert git(stopped.project.store, "show", f"{session.head}:b.h").encode() + b"\n" == text(
        "b", "20:both", "30:mine"
    )


def test_resolution_staged_before_abort_is_remembered(stopped: Rig) -> None:
    resolve(stopped)
    abort(stopped.project, QUIET)
    assert outcomes(stopped.start(stopped.onto))["second"] is Outcome.REUSED


def test_skip_leaves_the_patch_out(stopped: Rig) -> None:
    session = stopped.go("skip")
    assert outcomes(session) == {
        "first": Outcome.APPLIED,
        "second": Outcome.SKIPPED,
        "third": Outcome.APPLIED,
    }
    assert git(stopped.edit, "status", "--porcelain") == ""
    done = stopped.accept()
    assert done.dropped == ("second.patch",)
    assert not (stopped.project.patches / "second.patch").exists()
    assert stopped.project.series.read_text() == "first.patch\nthird.patch\n"
    replay(stopped.project, QUIET)
    assert (stopped.project.source / "c.h").read_bytes() == text("c")


def test_abort_leaves_nothing(stopped: Rig) -> None:
    abort(stopped.project, QUIET)
    assert stopped.state() == stopped.before
    assert not stopped.edit.exists()
    assert list((stopped.project.out / "session").iterdir()) == []
    assert "rebase" not in git(stopped.project.store, "for-each-ref")
    with pytest.raises(UsageError, match="no rebase is under way"):
        abort(stopped.project, QUIET)


def test_unresolved_conflict_stops_again(stopped: Rig) -> None:
    for action in ("resume", "run"):
        with pytest.raises(PatchDoesNotApply, match=r"second\.patch.* conflicts"):
            stopped.go(action)


def test_markers_that_were_staged_are_refused(stopped: Rig) -> None:
    git(stopped.edit, "add", "b.h")
    with pytest.raises(PatchDoesNotApply, match="markers are left") as caught:
        stopped.go("resume")
    assert caught.value.details == ("b.h:20", "b.h:26")
    resolve(stopped)
    stopped.go("resume")


def test_unstaged_change_is_refused(stopped: Rig) -> None:
    resolve(stopped)
    (stopped.edit / "d.h").write_bytes(b"forgotten\n")
    with pytest.raises(LocalChanges, match="not staged") as caught:
        stopped.go("resume")
    assert caught.value.details == ("d.h",)


def test_several_commits_are_refused_with_the_way_back(stopped: Rig) -> None:
    resolve(stopped)
    git(stopped.edit, "commit", "--quiet", "--no-edit")
    git(stopped.edit, "commit", "--quiet", "--allow-empty", "-m", "more")
    with pytest.raises(LocalChanges, match="2 commits after it") as caught:
        stopped.go("resume")
    command = caught.value.hint.split(",")[0].split()
    git(stopped.edit, *command[3:])
    assert outcomes(stopped.go("resume"))["second"] is Outcome.RESOLVED


def test_conflict_that_was_undone_is_set_up_again(stopped: Rig) -> None:
    git(stopped.edit, "cherry-pick", "--abort")
    with pytest.raises(PatchDoesNotApply, match=r"second\.patch"):
        stopped.go("resume")
    assert git(stopped.edit, "status", "--porcelain") == "UU b.h\nM  c.h"


def test_work_tree_that_was_removed_is_made_again(stopped: Rig) -> None:
    git(stopped.edit.parent, "init", "--quiet", "nothing")
    stopped.edit.rename(stopped.project.root / "elsewhere")
    with pytest.raises(PatchDoesNotApply, match=r"second\.patch"):
        stopped.go("resume")
    assert git(stopped.edit, "status", "--porcelain") == "UU b.h\nM  c.h"


def test_nothing_left_after_resolution_asks_for_skip(stopped: Rig) -> None:
    git(stopped.edit, "checkout", "HEAD", "--", "b.h", "c.h")
    with pytest.raises(PatchDoesNotApply, match="nothing is left") as caught:
        stopped.go("resume")
    assert "--skip" in caught.value.hint
    assert outcomes(stopped.go("skip"))["second"] is Outcome.SKIPPED


def test_series_changed_meanwhile_is_refused(stopped: Rig) -> None:
    path = stopped.project.patches / "first.patch"
    data = path.read_bytes()
    path.write_bytes(data + b"\n")
    resolve(stopped)
    for action in ("resume", "skip"):
        with pytest.raises(LocalChanges, match="series was changed") as caught:
            stopped.go(action)
        assert caught.value.details == ("patches/first.patch",)
    path.write_bytes(data)
    stopped.go("resume")


def test_work_tree_changed_after_the_end_is_not_lost(stopped: Rig) -> None:
    resolve(stopped)
    stopped.go("resume")
    (stopped.edit / "d.h").write_bytes(b"afterthought\n")
    with pytest.raises(LocalChanges, match="after the last patch"):
        stopped.accept()
    assert (stopped.edit / "d.h").read_bytes() == b"afterthought\n"
    git(stopped.edit, "reset", "--quiet", "--hard", "HEAD")
    stopped.accept()


def test_not_through_is_not_accepted(stopped: Rig) -> None:
    with pytest.raises(UsageError, match="2 patches of the rebase are not through"):
        stopped.accept()
    assert stopped.state() == stopped.before


def test_second_conflict_comes_in_the_same_folder(rig: Rig) -> None:
    for name in "abc":
        rig.patch(name, change(name, "20:mine"))
    rig.lock()
    onto = rig.release(change("a", "20:theirs") | change("c", "20:theirs"))
    with pytest.raises(PatchDoesNotApply, match=r"a\.patch"):
        rig.start(onto)
    inode = rig.edit.stat().st_ino
    (rig.edit / "notes.txt").write_text("mine\n")
    write_files(rig.edit, {"a.h": text("a", "20:both")})
    git(rig.edit, "add", "a.h")
    with pytest.raises(PatchDoesNotApply, match=r"c\.patch"):
        rig.go("resume")
    assert rig.edit.stat().st_ino == inode
    assert (rig.edit / "notes.txt").read_text() == "mine\n"
    assert git(rig.edit, "log", "-2", "--format=%s") == "area: b\narea: a"
    assert "UU c.h" in git(rig.edit, "status", "--porcelain")


def test_file_in_the_way_of_a_conflict_is_kept(rig: Rig) -> None:
    rig.patch("a", change("a", "20:mine"))
    rig.patch("c", change("c", "20:mine") | {"new.h": b"ours\n"})
    rig.lock()
    with pytest.raises(PatchDoesNotApply, match=r"a\.patch"):
        rig.start(rig.release(change("a", "20:theirs") | change("c", "20:theirs")))
    (rig.edit / "new.h").write_bytes(b"mine\n")
    write_files(rig.edit, {"a.h": text("a", "20:both")})
    git(rig.edit, "add", "a.h")
    with pytest.raises(PatchDoesNotApply, match=r"c\.patch"):
        rig.go("resume")
    assert (rig.edit / "new.h").read_bytes() == b"ours\n"
    (kept,) = (rig.project.out / "discarded").iterdir()
    assert (kept / "new.h").read_bytes() == b"mine\n"
    assert git(kept, "log", "-1", "--format=%s") == "area: a"


def test_file_that_upstream_removed_is_a_conflict(rig: Rig) -> None:
    rig.patch("gone", change("g", "20:mine"))
    rig.lock()
    onto = rig.release({"g.h": None})
    with pytest.raises(PatchDoesNotApply):
        rig.start(onto)
    assert git(rig.edit, "status", "--porcelain") == "DU g.h"
    git(rig.edit, "add", "g.h")
    session = rig.go("resume")
    assert outcomes(session)["gone"] is Outcome.RESOLVED
    rig.accept()
    assert "new file mode" in (rig.project.patches / "gone.patch").read_text()
    replay(rig.project, QUIET)


def test_patch_that_is_upstream_is_dropped_with_a_note(rig: Rig) -> None:
    rig.patch("theirs", change("a", "20:mine"))
    rig.patch("ours", change("b", "20:mine"))
    rig.lock()
    session = rig.start(rig.release(change("a", "20:mine")))
    assert outcomes(session)["theirs"] is Outcome.UPSTREAM
    done = rig.accept()
    assert done.dropped == ("theirs.patch",)
    assert rig.project.series.read_text() == "ours.patch\n"
    replay(rig.project, QUIET)


def test_second_session_is_refused(stopped: Rig) -> None:
    with pytest.raises(UsageError, match="under way already"):
        classify(stopped.project, stopped.onto, QUIET, offline=False)


def test_series_that_is_not_the_locked_one_is_not_rebased(rig: Rig) -> None:
    rig.patch("one", change("a", "20:mine"))
    rig.lock()
    rig.patch("two", change("b", "20:mine"))
    with pytest.raises(LockMismatch):
        rig.start(rig.release(change("c", "1:theirs")))
    assert load_session(rig.project) is None


def test_folder_of_somebody_else_is_left_alone(rig: Rig) -> None:
    rig.patch("one", change("a", "20:mine"))
    rig.lock()
    (rig.edit / ".git").mkdir(parents=True)
    with pytest.raises(LocalChanges, match="no edit or rebase of ours"):
        rig.start(rig.release(change("c", "1:theirs")))
    assert (rig.edit / ".git").exists()


def test_open_edit_is_let_go_when_all_of_it_is_in_the_patches(rig: Rig) -> None:
    rig.patch("one", change("a", "20:mine"))
    rig.lock()
    onto = rig.release(change("c", "1:theirs"))
    open_edit(rig.project, QUIET, None)
    (rig.edit / "a.h").write_bytes(b"unsaved\n")
    with pytest.raises(LocalChanges, match="uncommitted changes"):
        rig.start(onto)
    assert (rig.edit / "a.h").read_bytes() == b"unsaved\n"
    git(rig.edit, "checkout", "--quiet", "a.h")
    rig.start(onto)
    with pytest.raises(LocalChanges, match="a rebase is open"):
        open_edit(rig.project, QUIET, None)
    rig.accept()
    replay(rig.project, QUIET)
    open_edit(rig.project, QUIET, None)


def test_edit_that_was_closed_does_not_stand_in_the_way(rig: Rig) -> None:
    rig.patch("one", change("a", "20:mine"))
    rig.lock()
    open_edit(rig.project, QUIET, None)
    release(rig.project, ["one.patch"])
    (rig.edit / "a.h").write_bytes(b"unsaved\n")
    onto = rig.release(change("c", "1:theirs"))
    with pytest.raises(LocalChanges, match="uncommitted changes"):
        rig.start(onto)
    git(rig.edit, "checkout", "--quiet", "a.h")
    rig.start(onto)


def test_edit_tree_that_lost_its_repository_is_not_removed(rig: Rig) -> None:
    rig.patch("one", change("a", "20:mine"))
    rig.lock()
    open_edit(rig.project, QUIET, None)
    (rig.edit / "a.h").write_bytes(b"unsaved\n")
    shutil.rmtree(rig.edit / ".git")
    with pytest.raises(LocalChanges, match="no edit or rebase of ours"):
        rig.start(rig.release(change("c", "1:theirs")))
    assert (rig.edit / "a.h").read_bytes() == b"unsaved\n"


def test_damaged_record_can_be_aborted(stopped: Rig) -> None:
    session_file(stopped.project).write_text("{")
    with pytest.raises(UsageError, match="cannot be read") as caught:
        stopped.go("resume")
    assert caught.value.hint.startswith("patchctl rebase --abort")
    abort(stopped.project, QUIET)
    assert stopped.state() == stopped.before


def test_archive_becomes_the_baseline_and_is_found_offline(rig: Rig, find_links: Path) -> None:
    rig.patch("one", change("a", "20:mine"))
    rig.lock()
    archive = rig.project.root / "our_base-2.0.tar.gz"
    sha256 = make_sdist(archive, {**BASE, "a.h": text("a", "1:theirs")})
    rig.start(str(archive))
    rig.accept()
    lock = rig.project.baseline_lock.read_text()
    for line in ('kind = "sdist"', 'name = "our-base"', 'version = "2.0"', f'sha256 = "{sha256}"'):
        assert line in lock
    archive.unlink()
    (rig.project.records / "fetch.json").unlink()
    replay(rig.project, QUIET, offline=True)
    assert (rig.project.source / "a.h").read_bytes() == text("a", "1:theirs", "20:mine")


def test_commit_with_a_submodule_becomes_the_baseline_of_an_sdist(
    rig: Rig, find_links: Path
) -> None:
    make_sdist(find_links / "pkg-1.0.tar.gz", BASE)
    inner = rig.upstream.parent / "inner"
    make_repo(inner, {"part.h": b"part\n"})
    rig.patch("one", change("a", "20:mine"))
    rig.lock()
    rig.start("pkg==1.0")
    rig.accept()
    git(rig.upstream, "checkout", "--quiet", "next")
    git(
        rig.upstream, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add",
        str(inner), "parts",
    )  # fmt: skip
    onto = rig.release({})
    rig.start(onto)
    rig.accept()
    lock = rig.project.baseline_lock.read_text()
    assert 'kind = "git"' in lock
    assert "[[baseline.submodules]]" in lock
    replay(rig.project, QUIET, offline=True)
    assert (rig.project.source / "parts" / "part.h").read_bytes() == b"part\n"


def test_release_is_taken_from_an_index(rig: Rig, find_links: Path) -> None:
    rig.patch("one", change("a", "20:mine"))
    rig.lock()
    make_sdist(find_links / "pkg-2.0.post1.tar.gz", {**BASE, "b.h": text("b", "1:theirs")})
    rig.start("pkg==2.0.post1")
    rig.accept()
    assert 'version = "2.0.post1"' in rig.project.baseline_lock.read_text()
    replay(rig.project, QUIET, offline=True)


def test_release_that_nobody_has_leaves_no_session(rig: Rig, find_links: Path) -> None:
    rig.patch("one", change("a", "20:mine"))
    rig.lock()
    before = rig.state()
    with pytest.raises(Unavailable, match=r"pkg 9\.9"):
        rig.start("pkg==9.9")
    assert rig.state() == before
    assert load_session(rig.project) is None


def command(rig: Rig, *arguments: str) -> tuple[int, dict[str, object]]:
    from patchctl.cli.app import funnel

    runner = CliRunner()
    with runner.isolation() as (out, _, _):
        code = funnel(main, ["-C", str(rig.project.root), "rebase", *arguments, "--json"])
        return code, json.loads(out.getvalue().decode())


def test_script_needs_no_answers(stopped: Rig) -> None:
    code, said = command(stopped, "--status")
    assert (code, said["active"], said["current"]) == (0, True, "second.patch")
    code, said = command(stopped, "--continue")
    error = said["error"]
    assert isinstance(error, dict)
    assert (code, error["exit"], error["data"]["files"]) == (4, 4, ["b.h"])
    resolve(stopped)
    code, said = command(stopped, "--continue", "--accept")
    accepted = said["accepted"]
    assert isinstance(accepted, dict)
    assert (code, accepted["rewritten"]) == (0, ["second.patch"])
    assert str(said["range_diff"]).count("\n") == 2
    code, said = command(stopped, "--status")
    assert (code, said["active"]) == (0, False)


def test_range_diff_is_gits_own(stopped: Rig) -> None:
    resolve(stopped)
    session = stopped.go("resume")
    lines = git(
        stopped.edit, "range-diff", "--no-color", "--no-patch", "--creation-factor=90",
        f"{session.old_base}..{session.old_head}", f"{session.new_base}..HEAD",
    )  # fmt: skip
    assert [line.split()[2] for line in lines.split("\n")] == ["=", "!", "="]
    assert command(stopped, "--continue")[1]["range_diff"] == lines
