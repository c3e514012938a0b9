# SPDX-License-Identifier: Apache-2.0
"""replay as a stage: the lock, the prefix, the source tree, and edits made in it."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.git.conftest import MakeProject, git

from patchctl.errors import LocalChanges, LockMismatch, PatchDoesNotApply, UsageError
from patchctl.stages.replay import HEAD_REF, ReplayResult, replay, replay_inputs
from patchctl.system.project import Project
from patchctl.system.records import load_record
from patchctl.system.report import QuietReporter

BASE = {
    "csrc/a.h": b"a0\na1\na2\n",
    "csrc/b.h": b"b0\nb1\nb2\n",
    "csrc/old/only.h": b"1\n",
    "tools/run.sh": b"#!/bin/sh\n",
}
FIRST = b"--- a/csrc/a.h\n+++ b/csrc/a.h\n@@ -1,3 +1,3 @@\n a0\n-a1\n+A1\n a2\n"
SECOND = (
    b"--- a/csrc/old/only.h\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n"
    b"--- /dev/null\n+++ b/csrc/sm70/new.h\n@@ -0,0 +1 @@\n+n\n"
)
THIRD = b"--- a/csrc/a.h\n+++ b/csrc/a.h\n@@ -1,3 +1,3 @@\n-a0\n+A0\n A1\n a2\n"
PATCHES = {"0001-first.patch": FIRST, "0002-second.patch": SECOND, "0003-third.patch": THIRD}


@pytest.fixture
def project(make_project: MakeProject) -> Project:
    """Three patches, locked and replayed."""
    project = make_project(BASE, PATCHES, executable=["tools/run.sh"])
    run(project, lock=True)
    return project


def run(
    project: Project, *, lock: bool = False, through: str | None = None, discard: bool = False
) -> ReplayResult:
    return replay(project, QuietReporter(), lock=lock, through=through, discard=discard)


def source(project: Project) -> dict[str, bytes]:
    return {
        path.relative_to(project.source).as_posix(): path.read_bytes()
        for path in project.source.rglob("*")
        if path.is_file()
    }


def write_patch(project: Project, name: str, data: bytes) -> None:
    (project.patches / name).write_bytes(data)


def set_series(project: Project, *names: str) -> None:
    project.series.write_text("".join(f"{name}\n" for name in names))
    for path in project.patches.glob("*.patch"):
        if path.name not in names:
            path.unlink()


# -- the lock


def test_every_patch_is_a_commit_and_the_lock_says_so(project: Project) -> None:
    result = run(project)
    commits = git(project.store, "rev-list", "--reverse", HEAD_REF).split()[1:]
    assert commits == [patch.commit for patch in result.patches]
    trees = [git(project.store, "rev-parse", f"{c}^{{tree}}") for c in commits]
    assert trees == [patch.tree for patch in result.patches]
    assert (result.head, result.tree) == (commits[-1], trees[-1])
    lock = project.series_lock.read_text()
    assert all(text in lock for text in [*commits, *trees, *PATCHES])
    git(project.store, "fsck", "--strict")


@pytest.mark.parametrize(("name", "shown"), [(b"\xff", r"\xff"), (b"a\nb", r"a\nb")])
def test_unlisted_patch_with_an_odd_name_is_shown_in_one_readable_line(
    project: Project, name: bytes, shown: str
) -> None:
    (project.patches / os.fsdecode(name + b".patch")).touch()
    with pytest.raises(UsageError) as caught:
        run(project)
    assert f"`patches/{shown}.patch` is not named" in caught.value.message


def test_second_project_gets_the_same_ids(
    project: Project, make_project: MakeProject, tmp_path: Path
) -> None:
    first = project.series_lock.read_bytes()
    (tmp_path / "project").rename(tmp_path / "first")
    (tmp_path / "upstream").rename(tmp_path / "first-upstream")
    second = make_project(BASE, PATCHES, executable=["tools/run.sh"])
    run(second, lock=True)
    assert second.series_lock.read_bytes() == first


def test_missing_lock_is_an_error_with_the_command(make_project: MakeProject) -> None:
    project = make_project(BASE, PATCHES)
    with pytest.raises(LockMismatch, match=r"`patches/series\.lock\.toml` is missing") as caught:
        run(project)
    assert caught.value.hint == "patchctl replay --lock"
    assert not project.source.exists()


def test_changed_patch_is_named_and_nothing_is_written(project: Project) -> None:
    before = source(project)
    write_patch(project, "0002-second.patch", SECOND.replace(b"+n\n", b"+m\n"))
    with pytest.raises(LockMismatch, match=r"`0002-second\.patch` differs") as caught:
        run(project)
    assert caught.value.data["changed"] == ["the patch file", "the result"]
    assert source(project) == before
    assert run(project, lock=True).relocked[0].startswith("0002-second.patch: the patch file")
    assert source(project)["csrc/sm70/new.h"] == b"m\n"
    assert not run(project).fresh


def test_edited_lock_is_told_from_a_changed_patch(project: Project) -> None:
    result = run(project)
    text = project.series_lock.read_text()
    project.series_lock.write_text(text.replace(result.patches[1].tree, "0" * 40))
    with pytest.raises(LockMismatch, match=r"`0002-second\.patch`.*: the result changed"):
        run(project)


def test_removed_and_reordered_patches_are_told(project: Project) -> None:
    set_series(project, "0002-second.patch", "0001-first.patch", "0003-third.patch")
    with pytest.raises(LockMismatch) as caught:
        run(project)
    assert caught.value.data["changed"] == ["the series"]
    assert caught.value.data["expected"] == "`0001-first.patch`"
    set_series(project, "0001-first.patch", "0002-second.patch")
    with pytest.raises(LockMismatch) as caught:
        run(project)
    assert caught.value.data["got"] == "the end of the series"


def test_other_baseline_is_told_before_any_patch(project: Project) -> None:
    text = project.series_lock.read_text()
    record = load_record(project, "fetch")
    assert record is not None
    project.series_lock.write_text(text.replace(record.outputs["tree"], "0" * 40))
    write_patch(project, "0001-first.patch", FIRST.replace(b"a2", b"zz"))
    with pytest.raises(LockMismatch, match="the baseline differs"):
        run(project)


def test_failing_patch_says_whether_it_is_the_locked_one(project: Project) -> None:
    write_patch(project, "0003-third.patch", THIRD.replace(b" a2", b" zz"))
    with pytest.raises(PatchDoesNotApply) as caught:
        run(project)
    assert "the patch file has changed since it was locked" in caught.value.details
    assert "`patches/series` line 3" in caught.value.details


def test_unchanged_lock_is_not_written_again(project: Project) -> None:
    before = project.series_lock.stat()
    (project.records / "replay.json").unlink()
    assert run(project, lock=True).relocked == ()
    assert project.series_lock.stat().st_mtime_ns == before.st_mtime_ns
    assert project.series_lock.stat().st_ino == before.st_ino


# -- a prefix of the series


def test_through_stops_after_the_patch_and_verifies_the_prefix(project: Project) -> None:
    result = run(project, through="0001-first.patch")
    assert [patch.name for patch in result.patches] == ["0001-first.patch"]
    assert source(project) == {**BASE, "csrc/a.h": b"a0\nA1\na2\n"}
    assert not run(project, through="0001-first.patch").fresh
    assert run(project).fresh
    assert "csrc/sm70/new.h" in source(project)


def test_through_verifies_the_lock_of_the_prefix_only(project: Project) -> None:
    write_patch(project, "0003-third.patch", THIRD.replace(b"+A0", b"+X0"))
    run(project, through="0002-second.patch")
    write_patch(project, "0001-first.patch", FIRST.replace(b"+A1", b"+X1"))
    with pytest.raises(LockMismatch, match=r"0001-first\.patch"):
        run(project, through="0002-second.patch")


def test_through_an_unknown_patch_names_a_near_one(project: Project) -> None:
    with pytest.raises(UsageError, match=r"names no patch `0001-frst\.patch`") as caught:
        run(project, through="0001-frst.patch")
    assert "0001-first.patch" in caught.value.hint
    with pytest.raises(UsageError, match="--through"):
        run(project, through="0001-first.patch", lock=True)


def test_stale_record_says_what_changed(project: Project) -> None:
    record = load_record(project, "replay")
    assert record is not None
    assert record.stale_because(replay_inputs(project)) == []
    write_patch(project, "0001-first.patch", FIRST + b"\n")
    (reason,) = record.stale_because(replay_inputs(project))
    assert reason.startswith("patch 0001-first.patch changed")


# -- the source tree


def test_only_changed_files_are_written(project: Project) -> None:
    stats = {p: p.stat() for p in project.source.rglob("*") if p.is_file()}
    time.sleep(0.02)
    result = run(project, through="0002-second.patch")
    assert (result.written, result.removed) == (1, 0)
    changed = project.source / "csrc/a.h"
    for path, before in stats.items():
        now = path.stat()
        same = (now.st_mtime_ns, now.st_ino) == (before.st_mtime_ns, before.st_ino)
        assert same is (path != changed)


def test_emptied_folders_go_and_come_back(project: Project) -> None:
    assert not (project.source / "csrc/old").exists()
    run(project, through="0001-first.patch")
    assert (project.source / "csrc/old/only.h").exists()
    assert not (project.source / "csrc/sm70").exists()


def test_mode_change_alone_keeps_the_time_stamp(project: Project) -> None:
    path = project.source / "tools/run.sh"
    before = path.stat()
    patch = b"diff --git a/tools/run.sh b/tools/run.sh\nold mode 100755\nnew mode 100644\n"
    write_patch(project, "0004-mode.patch", patch)
    set_series(project, *PATCHES, "0004-mode.patch")
    assert run(project, lock=True).written == 1
    after = path.stat()
    assert (before.st_mode & 0o777, after.st_mode & 0o777) == (0o755, 0o644)
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)


def test_file_folder_and_link_take_each_others_place(project: Project) -> None:
    steps = {
        "0004-folder.patch": b"--- a/csrc/b.h\n+++ /dev/null\n@@ -1,3 +0,0 @@\n-b0\n-b1\n-b2\n"
        b"--- /dev/null\n+++ b/csrc/b.h/x\n@@ -0,0 +1 @@\n+x\n",
        "0005-link.patch": b"--- a/csrc/b.h/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
        b"diff --git a/csrc/b.h b/csrc/b.h\nnew file mode 120000\n--- /dev/null\n+++ b/csrc/b.h\n"
        b"@@ -0,0 +1 @@\n+a.h\n\\ x\n",
        "0006-file.patch": b"diff --git a/csrc/b.h b/csrc/b.h\ndeleted file mode 120000\n"
        b"--- a/csrc/b.h\n+++ /dev/null\n@@ -1 +0,0 @@\n-a.h\n\\ x\n"
        b"diff --git a/csrc/b.h b/csrc/b.h\nnew file mode 100755\n--- /dev/null\n+++ b/csrc/b.h\n"
        b"@@ -0,0 +1 @@\n+b\n",
    }
    for name, data in steps.items():
        write_patch(project, name, data)
    set_series(project, *PATCHES, *steps)
    run(project, lock=True)
    path = project.source / "csrc/b.h"
    for name in ["0004-folder.patch", "0005-link.patch", "0006-file.patch"] * 2:
        run(project, through=name)
        if name == "0004-folder.patch":
            assert (path / "x").read_bytes() == b"x\n"
        else:
            assert path.is_symlink() is (name == "0005-link.patch")
            assert path.read_bytes() == (b"A0\nA1\na2\n" if path.is_symlink() else b"b\n")


def test_no_space_for_the_new_files_leaves_the_tree_as_it_was(project: Project) -> None:
    big = b"--- /dev/null\n+++ b/big\n@@ -0,0 +1,60000 @@\n" + b"+line\n" * 60000
    write_patch(project, "0004-big.patch", THIRD.replace(b"A0", b"B0").replace(b"a0", b"A0") + big)
    set_series(project, *PATCHES, "0004-big.patch")
    before = source(project)
    done = subprocess.run(
        [sys.executable, "-m", "patchctl", "-C", str(project.root), "replay", "--lock"],
        # the compressed object fits, the file does not
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "File too large" in done.stderr) == (8, True), done.stderr
    assert source(project) == before
    assert not list(project.records.glob("staging/*"))
    assert run(project, lock=True).written == 2


# -- edits made by hand


def test_edited_and_removed_files_are_listed_and_kept(project: Project) -> None:
    (project.source / "csrc/b.h").write_bytes(b"mine\n")
    (project.source / "tools/run.sh").chmod(0o644)
    (project.source / "csrc/sm70/new.h").unlink()
    before = source(project)
    for _ in range(2):
        with pytest.raises(LocalChanges, match="3 files in `build/out/src`") as caught:
            run(project)
        assert caught.value.exit_code == 5
        assert caught.value.details[:3] == (
            "edited: csrc/b.h", "removed: csrc/sm70/new.h", "edited: tools/run.sh",
        )  # fmt: skip
        assert "--discard" in caught.value.hint
        assert source(project) == before


def test_command_in_the_message_saves_the_edits_as_a_diff(project: Project, tmp_path: Path) -> None:
    (project.source / "csrc/b.h").write_bytes(b"b0\nmine\nb2\n")
    with pytest.raises(LocalChanges) as caught:
        run(project)
    command = caught.value.details[-1]
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    assert "-b1\n+mine\n" in (tmp_path / "edits.diff").read_text()
    assert "a.h" not in (tmp_path / "edits.diff").read_text()


def test_edit_of_the_same_size_and_time_is_seen(project: Project) -> None:
    path = project.source / "csrc/b.h"
    stat = path.stat()
    path.write_bytes(b"b0\nXX\nb2\n")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000))
    with pytest.raises(LocalChanges):
        run(project)


def test_edit_in_the_tick_of_the_clock_in_which_it_was_recorded_is_seen(project: Project) -> None:
    path = project.source / "csrc/b.h"
    recorded = (project.records / "source.json").stat().st_mtime_ns
    # the file as it would be had it been written in the same tick as the manifest
    os.utime(path, ns=(recorded, recorded))
    run(project)
    os.utime(project.records / "source.json", ns=(recorded, recorded))
    path.write_bytes(b"b0\nXX\nb2\n")
    os.utime(path, ns=(recorded, recorded))
    manifest = project.records / "source.json"
    content = json.loads(manifest.read_bytes())
    content["files"]["csrc/b.h"][4] = path.stat().st_ctime_ns
    manifest.write_text(json.dumps(content))
    os.utime(manifest, ns=(recorded, recorded))
    with pytest.raises(LocalChanges):
        run(project)


def test_edit_whose_time_was_set_back_is_seen(project: Project) -> None:
    path = project.source / "csrc/b.h"
    stamp = path.stat().st_mtime_ns
    path.write_bytes(b"b0\nXX\nb2\n")
    os.utime(path, ns=(stamp, stamp))
    with pytest.raises(LocalChanges):
        run(project)


def test_touched_file_is_no_edit(project: Project) -> None:
    os.utime(project.source / "csrc/b.h")
    assert not run(project).fresh
    assert not run(project).fresh


def test_edit_that_equals_the_new_content_is_no_edit(project: Project) -> None:
    (project.source / "csrc/a.h").write_bytes(b"a0\nA1\na2\n")
    result = run(project, through="0002-second.patch")
    assert (result.written, result.removed) == (0, 0)


def test_discard_saves_the_edits_and_replays(project: Project) -> None:
    good = source(project)
    (project.source / "csrc/b.h").write_bytes(b"mine\n")
    (project.source / "csrc/sm70/new.h").unlink()
    result = run(project, discard=True)
    assert source(project) == good
    assert result.discarded is not None
    assert result.discarded.parent == project.out / "discarded"
    assert (result.discarded / "csrc/b.h").read_bytes() == b"mine\n"
    assert not run(project).fresh


def test_file_of_somebody_else_is_reported_and_left_alone(project: Project) -> None:
    mine = project.source / "csrc/sm70/notes.txt"
    mine.write_text("mine")
    report = QuietReporter()
    result = replay(project, report)
    assert (result.fresh, result.untracked) == (False, ("csrc/sm70/notes.txt",))
    assert "csrc/sm70/notes.txt" in report.warnings[0]
    run(project, through="0001-first.patch")
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("name", ["csrc/sm70/new.h", "csrc/sm70", "csrc/sm70/new.h/x"])
def test_file_of_somebody_else_in_the_way_is_kept(project: Project, name: str) -> None:
    run(project, through="0001-first.patch")
    mine = project.source / name
    mine.parent.mkdir(parents=True, exist_ok=True)
    mine.write_text("mine")
    with pytest.raises(LocalChanges) as caught:
        run(project)
    assert caught.value.details[0] == f"in the way: {name}"
    assert mine.read_text() == "mine"
    saved = run(project, discard=True).discarded
    assert saved is not None
    assert (saved / name).read_text() == "mine"
    assert source(project)["csrc/sm70/new.h"] == b"n\n"


def test_same_file_of_somebody_else_is_taken_over(project: Project) -> None:
    run(project, through="0001-first.patch")
    mine = project.source / "csrc/sm70/new.h"
    mine.parent.mkdir()
    mine.write_bytes(b"n\n")
    inode = mine.stat().st_ino
    run(project)
    assert mine.stat().st_ino == inode


def test_folder_replaced_by_a_link_is_not_followed(project: Project, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (project.source / "csrc").rename(outside)
    (project.source / "csrc").symlink_to(outside)
    with pytest.raises(LocalChanges):
        run(project, through="0001-first.patch")
    run(project, through="0001-first.patch", discard=True)
    assert (outside / "a.h").read_bytes() == b"A0\nA1\na2\n"
    assert not (project.source / "csrc").is_symlink()


def test_lost_state_adopts_what_is_right_and_keeps_what_is_not(project: Project) -> None:
    for path in project.records.glob("*.json"):
        path.unlink()
    inode = (project.source / "csrc/a.h").stat().st_ino
    assert run(project).written == 0
    assert (project.source / "csrc/a.h").stat().st_ino == inode
    (project.source / "csrc/b.h").write_bytes(b"mine\n")
    (project.records / "source.json").write_text("{broken")
    with pytest.raises(LocalChanges, match="1 file "):
        run(project)


@pytest.mark.parametrize("content", [b"", b"{", b"\0\xff", b'{"csrc/a.h": 3}'])
def test_damaged_journal_takes_no_edit_for_ours(project: Project, content: bytes) -> None:
    journal = project.records / "source.journal.json"
    journal.write_bytes(content)
    run(project)
    assert not journal.exists()
    journal.write_bytes(content)
    (project.source / "csrc/a.h").write_bytes(b"mine\n")
    with pytest.raises(LocalChanges, match="1 file "):
        run(project)
    run(project, discard=True)
    assert not journal.exists()


def test_git_folder_in_the_source_tree_is_not_looked_into(project: Project) -> None:
    git(project.source, "init", "--quiet")
    assert run(project).untracked == ()
    assert (project.source / ".git/HEAD").exists()


# -- the command line


def patchctl(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "patchctl", "-C", str(project.root), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_command_prints_each_patch_and_totals(project: Project) -> None:
    (project.records / "replay.json").unlink()
    done = patchctl(project, "replay")
    lines = done.stdout.splitlines()
    result = run(project)
    assert [line.split() for line in lines[:3]] == [
        [p.name, p.tree[:12], p.subject] for p in result.patches
    ]
    assert lines[3].startswith("applied 3 patches: tree ")
    assert lines[4] == "build/out/src: files written 0, removed 0"


def test_command_prints_everything_as_json(project: Project) -> None:
    document = json.loads(patchctl(project, "replay", "--json").stdout)
    result = run(project)
    assert (document["head"], document["tree"], document["fresh"]) == (
        result.head, result.tree, False,
    )  # fmt: skip
    assert document["patches"][1] == {
        "name": "0002-second.patch",
        "subject": "0002-second.patch",
        "tree": result.patches[1].tree,
        "commit": result.patches[1].commit,
    }


def test_nothing_to_do_starts_no_git(project: Project) -> None:
    done = patchctl(project, "replay")
    assert "nothing to do" in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "patchctl.stages.replay" in imported
    assert not imported & {"git", "gitdb", "torch", "patchctl.formats.apply"}
