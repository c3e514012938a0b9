# SPDX-License-Identifier: Apache-2.0
"""A source archive becomes the baseline only if it is the locked one and harmless."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.git.conftest import git, make_sdist, make_sdist_project, tree_of

from patchctl.cli.app import funnel
from patchctl.cli.main import main
from patchctl.errors import LockMismatch, Unavailable, UsageError
from patchctl.stages.fetch import BASELINE_REF, fetch, fetch_inputs
from patchctl.system.files import TEMP_PREFIX, sha256_of
from patchctl.system.gitstore import Store
from patchctl.system.project import Project
from patchctl.system.records import load_record
from patchctl.system.report import QuietReporter

CASES = Path(__file__).parents[1] / "data" / "cases"
FILES = {"LICENSE": b"free\n", "csrc/a.h": b"int a;\r\n", "setup.py": b"raise SystemExit(1)\n"}
KEPT = {name: FILES[name] for name in ("LICENSE", "csrc/a.h")}
CASE_TREE = "dcb0a4de2fada490342b08280998ad99164e6c1f"


@pytest.fixture
def project(tmp_path: Path, find_links: Path) -> Project:
    sha256 = make_sdist(find_links / "pkg-1.0.tar.gz", FILES)
    return make_sdist_project(tmp_path / "p", sha256, tree_of(KEPT), "LICENSE", "csrc/**")


def case_project(tmp_path: Path, find_links: Path, name: str, tree: str = CASE_TREE) -> Project:
    archive = Path(shutil.copy(CASES / name, find_links / "pkg-1.0.tar.gz"))
    return make_sdist_project(tmp_path / "p", sha256_of(archive), tree)


def nothing_was_kept(project: Project) -> bool:
    """No baseline, and not one object of it."""
    objects = [p for p in project.store.rglob("objects/??/*")]
    return not (project.store / BASELINE_REF).exists() and not objects


def test_baseline_is_a_parentless_commit_of_the_included_files(project: Project) -> None:
    baseline = fetch(project, QuietReporter())
    assert (baseline.tree, baseline.files, baseline.fetched) == (tree_of(KEPT), 2, True)
    assert git(project.store, "rev-parse", BASELINE_REF) == baseline.commit
    assert git(project.store, "rev-list", "--parents", BASELINE_REF) == baseline.commit
    assert git(project.store, "ls-tree", "-r", "--name-only", BASELINE_REF).split() == list(KEPT)
    assert git(project.store, "fsck", "--strict") == ""
    with Store(project.store) as store:
        entry = store.read_tree(baseline.commit)[b"csrc/a.h"]
        assert store.read_blob(entry.id) == KEPT["csrc/a.h"]


def test_second_fetch_has_nothing_to_do_and_needs_no_source(
    project: Project, find_links: Path, private_cache: Path
) -> None:
    first = fetch(project, QuietReporter())
    shutil.rmtree(find_links)
    shutil.rmtree(private_cache)
    second = fetch(project, QuietReporter(), offline=True)
    assert not second.fetched
    assert (second.commit, second.tree, second.files) == (first.commit, first.tree, 2)


@pytest.mark.parametrize("lost", ["store.git", f"store.git/{BASELINE_REF}", "state/fetch.json"])
def test_fetch_repairs_what_is_gone_from_the_cache_alone(
    project: Project, find_links: Path, lost: str
) -> None:
    first = fetch(project, QuietReporter())
    shutil.rmtree(find_links)
    path = project.out / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    again = fetch(project, QuietReporter(), offline=True)
    assert again.fetched
    assert again.commit == first.commit == git(project.store, "rev-parse", BASELINE_REF)


def test_ref_that_was_moved_by_hand_is_put_back(project: Project) -> None:
    first = fetch(project, QuietReporter())
    other = git(project.store, "commit-tree", "-m", "other", first.tree)
    git(project.store, "update-ref", BASELINE_REF, other)
    assert fetch(project, QuietReporter()).fetched
    assert git(project.store, "rev-parse", BASELINE_REF) == first.commit


def test_packed_store_counts_as_there(project: Project) -> None:
    fetch(project, QuietReporter())
    git(project.store, "gc", "--quiet")
    assert not fetch(project, QuietReporter()).fetched


def test_leftovers_of_a_killed_run_do_not_block(project: Project) -> None:
    fetch(project, QuietReporter())
    left = [
        project.store / f"{BASELINE_REF}.lock",
        project.store / "shallow.lock",
        project.store / "objects" / "objx1y2z3",
        project.out / f"{TEMP_PREFIX}store.git.abc" / "HEAD",
    ]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (project.records / "fetch.json").unlink()
    assert fetch(project, QuietReporter()).fetched
    assert [path for path in left if path.exists()] == []


def test_comment_in_the_lock_does_not_fetch_again(project: Project) -> None:
    fetch(project, QuietReporter())
    lock = project.baseline_lock
    lock.write_text("# a remark\n" + lock.read_text())
    assert not fetch(project, QuietReporter()).fetched


def test_include_is_part_of_the_inputs(project: Project) -> None:
    fetch(project, QuietReporter())
    lock = project.baseline_lock
    lock.write_text(lock.read_text().replace('"LICENSE"', '"setup.py"'))
    record = load_record(project, "fetch")
    assert record is not None
    assert [r.split()[0] for r in record.stale_because(fetch_inputs(project))] == ["include"]
    with pytest.raises(LockMismatch, match="not the locked ones: got tree") as caught:
        fetch(project, QuietReporter())
    assert tree_of(KEPT) in caught.value.message
    assert "patchctl fetch --lock" in caught.value.hint


def test_glob_without_files_is_an_error(project: Project) -> None:
    lock = project.baseline_lock
    lock.write_text(lock.read_text().replace('"LICENSE"', '"LICENCE"'))
    with pytest.raises(UsageError, match="`LICENCE` matches no file"):
        fetch(project, QuietReporter())


def test_missing_lock_is_a_usage_error(project: Project) -> None:
    project.baseline_lock.unlink()
    with pytest.raises(UsageError, match=r"`vendor/flash-attn\.lock\.toml` is missing"):
        fetch(project, QuietReporter())


def test_offline_without_the_archive_says_what_helps(project: Project, find_links: Path) -> None:
    (find_links / "pkg-1.0.tar.gz").unlink()
    with pytest.raises(Unavailable, match="--offline forbids") as caught:
        fetch(project, QuietReporter(), offline=True)
    assert "PIP_FIND_LINKS" in caught.value.hint
    assert any(str(find_links) in line for line in caught.value.details)


def test_damaged_cache_is_removed_and_the_archive_is_taken_again(
    project: Project, private_cache: Path
) -> None:
    fetch(project, QuietReporter())
    (cached,) = private_cache.rglob("pkg-1.0.tar.gz")
    cached.write_bytes(cached.read_bytes()[:-1])
    shutil.rmtree(project.out)
    report = QuietReporter()
    assert fetch(project, report).fetched
    assert "was damaged" in report.warnings[0]


# --- case 28: archives that try to leave the target ---------------------------------------


def test_case_28_good_archive_passes(tmp_path: Path, find_links: Path) -> None:
    project = case_project(tmp_path, find_links, "28/control-good.tar.gz")
    assert fetch(project, QuietReporter()).files == 2


@pytest.mark.parametrize(
    ("name", "member"),
    [
        ("absolute", "/tmp/patchctl-escaped/ESCAPED.txt"),
        ("dotdot", "pkg-1.0/../../ESCAPED.txt"),
        ("device", "pkg-1.0/fifo"),
        ("symlink-out", "out/ESCAPED.txt"),
    ],
)
@pytest.mark.parametrize("lock", [False, True])
def test_case_28_member_is_refused_before_any_is_kept(
    tmp_path: Path, find_links: Path, name: str, member: str, lock: bool
) -> None:
    project = case_project(tmp_path, find_links, f"28/{name}.tar.gz")
    before = project.baseline_lock.read_bytes()
    with pytest.raises(UsageError) as caught:
        fetch(project, QuietReporter(), lock=lock)
    assert f"`{member}`" in caught.value.message
    assert nothing_was_kept(project)
    assert project.baseline_lock.read_bytes() == before
    assert list(tmp_path.rglob("ESCAPED.txt")) == []
    assert not Path("/tmp/patchctl-escaped").exists()


def test_case_28_setuid_is_dropped_and_told(tmp_path: Path, find_links: Path) -> None:
    tree = "70a28fdcfb07773758ff69e41152d4d64a224fa8"
    project = case_project(tmp_path, find_links, "28/setuid.tar.gz", tree)
    report = QuietReporter()
    fetch(project, report)
    assert report.warnings == ["`tool`: set-id and sticky bits are dropped"]
    assert "100755 blob" in git(project.store, "ls-tree", BASELINE_REF, "tool")


# --- case 30: another archive than the locked one -----------------------------------------


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("recompressed", "content is identical, container differs"),
        ("really-changed", "content differs: got tree 826feeb571a1cd3d"),
    ],
)
def test_case_30_other_digest_is_refused(
    tmp_path: Path, find_links: Path, name: str, verdict: str
) -> None:
    locked = sha256_of(CASES / "30/locked.tar.gz")
    project = make_sdist_project(tmp_path / "p", locked, CASE_TREE)
    found = Path(shutil.copy(CASES / f"30/{name}.tar.gz", find_links / "pkg-1.0.tar.gz"))
    with pytest.raises(LockMismatch) as caught:
        fetch(project, QuietReporter())
    error = caught.value
    assert f"got sha256 {sha256_of(found)}, expected {locked}" in error.message
    assert error.details[0].startswith(verdict)
    assert "patchctl fetch --lock" in error.hint
    assert nothing_was_kept(project)
    assert locked in project.baseline_lock.read_text()


def test_case_30_relock_is_explicit_and_shows_old_and_new(tmp_path: Path, find_links: Path) -> None:
    locked = sha256_of(CASES / "30/locked.tar.gz")
    project = make_sdist_project(tmp_path / "p", locked, CASE_TREE)
    found = Path(shutil.copy(CASES / "30/really-changed.tar.gz", find_links / "pkg-1.0.tar.gz"))
    baseline = fetch(project, QuietReporter(), lock=True)
    assert baseline.relocked == (
        ("sha256", locked, sha256_of(found)),
        ("tree", CASE_TREE, baseline.tree),
    )
    assert not fetch(project, QuietReporter()).fetched


def test_right_archive_is_found_behind_a_wrong_one(
    project: Project, find_links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = tmp_path / "wrong"
    make_sdist(wrong / "pkg-1.0.tar.gz", {"x": b""})
    monkeypatch.setenv("PIP_FIND_LINKS", f"{wrong} {find_links}")
    assert fetch(project, QuietReporter()).tree == tree_of(KEPT)


# --- archives that are not whole ----------------------------------------------------------


def test_truncated_archive_is_a_mismatch_that_says_so(project: Project, find_links: Path) -> None:
    archive = find_links / "pkg-1.0.tar.gz"
    archive.write_bytes(archive.read_bytes()[:-20])
    with pytest.raises(LockMismatch) as caught:
        fetch(project, QuietReporter())
    assert "is not a complete tar archive" in caught.value.details[0]
    assert nothing_was_kept(project)


def tar_bytes(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes())


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress])
def test_flipped_byte_is_a_mismatch_and_no_fault_of_the_system(
    project: Project, find_links: Path, pack: Callable[[bytes], bytes]
) -> None:
    """gzip and bz2 call a damaged stream an OSError, as a disk does."""
    archive = find_links / "pkg-1.0.tar.gz"
    packed = bytearray(pack(tar_bytes(archive) + os.urandom(1 << 16)))
    packed[len(packed) // 2] ^= 0xFF
    archive.write_bytes(packed)
    with pytest.raises(LockMismatch, match="got sha256") as caught:
        fetch(project, QuietReporter())
    assert "is not a complete tar archive" in caught.value.details[0]
    assert nothing_was_kept(project)


@pytest.mark.parametrize("damage", ["gzip", "block", "header", "end", "text"])
def test_damaged_archive_cannot_be_locked(project: Project, find_links: Path, damage: str) -> None:
    archive = find_links / "pkg-1.0.tar.gz"
    data = tar_bytes(archive)
    last = data.rindex(b"pkg-1.0/setup.py")
    archive.write_bytes(
        {
            "gzip": archive.read_bytes()[:-4],
            "block": gzip.compress(data[: last + 512 + 7]),
            "header": gzip.compress(data[:last] + b"!" * 512 + data[last + 512 :]),
            "end": gzip.compress(data[: last + 1024]),
            "text": b"<html>Please log in</html>",
        }[damage]
    )
    before = project.baseline_lock.read_bytes()
    with pytest.raises(UsageError, match=r"`pkg-1.0.tar.gz` is not a complete tar archive"):
        fetch(project, QuietReporter(), lock=True)
    assert project.baseline_lock.read_bytes() == before
    assert nothing_was_kept(project)


@pytest.mark.parametrize("mode", ["w", "w:bz2", "w:xz"])
def test_other_compressions_are_read(tmp_path: Path, find_links: Path, mode: str) -> None:
    suffix = mode.replace("w", ".tar").replace(":", ".")
    archive = find_links / f"pkg-1.0{suffix}"
    make_sdist(find_links / "x.tar.gz", FILES)
    with tarfile.open(archive, mode) as tar, tarfile.open(find_links / "x.tar.gz") as source:
        for info in source:
            tar.addfile(info, source.extractfile(info))
    project = make_sdist_project(tmp_path / "p", sha256_of(archive), tree_of(FILES))
    assert fetch(project, QuietReporter()).files == 3


# --- case 31: a submodule that the archive does not carry ---------------------------------


def test_case_31_empty_submodule_is_told_at_once(tmp_path: Path, find_links: Path) -> None:
    project = case_project(tmp_path, find_links, "31/fa-2.8.3.tar.gz")
    with pytest.raises(UsageError) as caught:
        fetch(project, QuietReporter(), lock=True)
    assert caught.value.message == (
        "submodule csrc/cutlass is empty in this archive; use the sdist, "
        "or lock the submodule's commit too"
    )
    assert nothing_was_kept(project)


def test_case_31_submodule_outside_include_does_not_matter(
    tmp_path: Path, find_links: Path
) -> None:
    shutil.copy(CASES / "31/fa-2.8.3.tar.gz", find_links / "pkg-1.0.tar.gz")
    project = make_sdist_project(tmp_path / "p", "", "", "csrc/flash_attn/**")
    assert fetch(project, QuietReporter(), lock=True).files == 1


def test_store_that_is_no_repository_is_told(project: Project) -> None:
    fetch(project, QuietReporter())
    (project.store / "HEAD").unlink()
    (project.records / "fetch.json").unlink()
    with pytest.raises(Unavailable, match=r"store\.git` is not a whole git repository") as caught:
        fetch(project, QuietReporter())
    assert caught.value.hint.startswith("remove it")


# --- the command --------------------------------------------------------------------------


def test_command_prints_what_was_fetched(
    project: Project, find_links: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert funnel(main, ["-C", str(project.root), "fetch"]) == 0
    said = capsys.readouterr()
    assert "baseline  pkg 1.0 (fetched)" in said.out
    assert f"sha256    {sha256_of(find_links / 'pkg-1.0.tar.gz')}" in said.out
    assert f"tree      {tree_of(KEPT)}" in said.out
    assert "kept      2 files" in said.out
    assert "reading pkg-1.0.tar.gz" in said.err


def test_command_prints_the_same_as_json(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = project.baseline_lock
    lock.write_text(lock.read_text().replace(tree_of(KEPT), ""))
    assert funnel(main, ["-C", str(project.root), "fetch", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["hint"].startswith("patchctl fetch --lock")
    assert funnel(main, ["-C", str(project.root), "fetch", "--json", "--lock"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["version"], shown["source"], shown["files"]) == (1, "pkg 1.0", 2)
    assert shown["relocked"] == [{"key": "tree", "old": "", "new": tree_of(KEPT)}]


def test_command_exits_3_on_another_archive(
    project: Project, find_links: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_sdist(find_links / "pkg-1.0.tar.gz", {"x": b""})
    assert funnel(main, ["-C", str(project.root), "fetch"]) == 3
    assert "is not the file that was locked" in capsys.readouterr().err
