# SPDX-License-Identifier: Apache-2.0
"""Baselines side by side: own locks, refs and trees in one project; submodules in a git one."""

from __future__ import annotations

import json
import shutil
import tomllib
from dataclasses import replace as with_fields
from pathlib import Path

import pytest
from tests.git.conftest import MakeProject, git, make_repo, tree_of, write_files

from patchctl.cli.app import funnel
from patchctl.cli.main import main
from patchctl.errors import LockMismatch, Unavailable, UsageError
from patchctl.formats.baseline import resolve_url
from patchctl.stages.fetch import fetch
from patchctl.stages.replay import replay
from patchctl.system.baselines import baseline_names, with_baseline
from patchctl.system.project import Project
from patchctl.system.report import QuietReporter

BASE = {"csrc/a.h": b"a0\na1\na2\n", "csrc/b.h": b"b0\n"}
NEWER = {"csrc/a.h": b"a0\na1\na2\n", "csrc/b.h": b"newer\n"}
PATCH = b"--- a/csrc/a.h\n+++ b/csrc/a.h\n@@ -1,3 +1,3 @@\n a0\n-a1\n+A1\n a2\n"
TOOLCHAIN = 'version = "12.4"\n[debian]\nname = "baseline"\n'


def add_baseline(project: Project, name: str, files: dict[str, bytes]) -> Project:
    """A second git baseline beside the project."""
    commit = make_repo(project.root.parent / name, files)
    (project.root / "vendor" / f"{name}.lock.toml").write_text(
        f'[baseline]\nkind = "git"\nurl = "../{name}"\ncommit = "{commit}"\n'
        f'tree = "{tree_of(files)}"\ninclude = ["**"]\n'
    )
    return with_baseline(project, name)


@pytest.fixture
def two(make_project: MakeProject) -> tuple[Project, Project]:
    """The default baseline and `newer`, the one patch locked on both."""
    project = make_project(BASE, {"0001-a.patch": PATCH})
    newer = add_baseline(project, "newer", NEWER)
    for each in (project, newer):
        replay(each, QuietReporter(), lock=True)
    return project, newer


# -- which there are


def test_baselines_are_told_by_their_content(two: tuple[Project, Project]) -> None:
    project, _ = two
    (project.root / "vendor" / "cuda.lock.toml").write_text(TOOLCHAIN)
    assert baseline_names(project) == ["flash-attn", "newer"]
    with pytest.raises(UsageError, match=r"`vendor/cuda.lock.toml` has no `\[baseline\]` table"):
        with_baseline(project, "cuda")


def test_unknown_baseline_names_the_nearest(two: tuple[Project, Project]) -> None:
    with pytest.raises(UsageError) as caught:
        with_baseline(two[0], "never")
    assert caught.value.message == "no baseline `never`: `vendor/never.lock.toml` is not there"
    assert caught.value.hint == "did you mean `newer`?"


@pytest.mark.parametrize("name", ["../evil", "a/b", "", "a..b", "x.lock", ".hidden", "end."])
def test_name_that_no_ref_can_have_is_refused(two: tuple[Project, Project], name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a baseline"):
        with_baseline(two[0], name)


def test_lock_that_does_not_parse_is_named(two: tuple[Project, Project]) -> None:
    (two[0].root / "vendor" / "broken.lock.toml").write_text("[baseline\n")
    with pytest.raises(UsageError, match=r"`vendor/broken.lock.toml` is not valid TOML"):
        baseline_names(two[0])


# -- what each has of its own


def test_each_baseline_has_its_own_lock_refs_and_tree(two: tuple[Project, Project]) -> None:
    project, newer = two
    assert newer.series_lock == project.patches / "series.newer.lock.toml"
    assert (project.source / "csrc/b.h").read_bytes() == b"b0\n"
    assert (newer.source / "csrc/b.h").read_bytes() == b"newer\n"
    assert project.store == newer.store
    for each in two:
        head = tomllib.loads(each.series_lock.read_text())["head"]
        assert git(each.store, "rev-parse", each.head_ref) == head
        assert git(each.store, "rev-parse", f"{each.head_ref}~1") == git(
            each.store, "rev-parse", each.baseline_ref
        )


def test_changing_to_and_fro_does_no_work(two: tuple[Project, Project]) -> None:
    for each in (*two, *two):
        result = replay(each, QuietReporter())
        assert (result.fresh, result.written) == (False, 0)


def test_patch_that_fits_one_baseline_only_fails_on_the_other(
    two: tuple[Project, Project],
) -> None:
    project, newer = two
    body = b"--- a/csrc/b.h\n+++ b/csrc/b.h\n@@ -1 +1 @@\n-b0\n+B0\n"
    write_files(project.patches, {"0002-b.patch": body, "series": b"0001-a.patch\n0002-b.patch\n"})
    before = newer.series_lock.read_bytes()
    replay(project, QuietReporter(), lock=True)
    assert call(newer, "replay") == 4
    assert newer.series_lock.read_bytes() == before
    assert (newer.source / "csrc/a.h").read_bytes() == b"a0\nA1\na2\n"


def call(project: Project, *words: str) -> int:
    return funnel(main, ["-C", str(project.root), "--baseline", project.baseline, *words])


def test_option_works_on_both_sides_of_the_command(
    two: tuple[Project, Project], capsys: pytest.CaptureFixture[str]
) -> None:
    _, newer = two
    root = str(newer.root)
    for words in (["--baseline", "newer", "replay"], ["replay", "--baseline", "newer"]):
        assert funnel(main, ["-C", root, "--json", *words]) == 0
        data = json.loads(capsys.readouterr().out)
        assert data["source"] == "build/out/baselines/newer/src"


def test_next_step_of_an_edit_repeats_the_baseline(
    two: tuple[Project, Project], capsys: pytest.CaptureFixture[str]
) -> None:
    _, newer = two
    assert call(newer, "edit", "1") == 0
    assert "then patchctl --baseline newer refresh" in capsys.readouterr().out
    (newer.out / "edit" / "csrc" / "b.h").write_text("mine\n")
    assert call(newer, "refresh") == 0
    assert "next: patchctl --baseline newer replay\n" in capsys.readouterr().out


def test_hints_repeat_the_baseline(
    two: tuple[Project, Project], capsys: pytest.CaptureFixture[str]
) -> None:
    _, newer = two
    newer.series_lock.unlink()
    assert call(newer, "replay") == 3
    assert "hint: patchctl --baseline newer replay --lock" in capsys.readouterr().err
    newer.series_lock.unlink(missing_ok=True)
    project = with_fields(newer, baseline="flash-attn")
    project.series_lock.unlink()
    assert call(project, "replay") == 3
    assert "hint: patchctl replay --lock" in capsys.readouterr().err


# -- submodules of a git baseline

CUTLASS = {"include/cute/tensor.hpp": b"tensor\n", "test/big.cu": b"big\n"}
KEPT = ["LICENSE", "csrc/flash_attn/**", "csrc/cutlass/include/**"]
FLASH = {"LICENSE": b"free\n", "csrc/flash_attn/a.h": b"a\n"}
ALL_KEPT = {**FLASH, "csrc/cutlass/include/cute/tensor.hpp": b"tensor\n"}


@pytest.fixture
def with_cutlass(tmp_path: Path) -> Project:
    """A project locked to a repository with `csrc/cutlass` as a submodule; nothing else locked."""
    cutlass = make_repo(tmp_path / "cutlass", CUTLASS)
    modules = '[submodule "csrc/cutlass"]\n\tpath = csrc/cutlass\n\turl = ../cutlass\n'
    make_repo(tmp_path / "flash", {**FLASH, ".gitmodules": modules.encode()})
    flash = tmp_path / "flash"
    git(flash, "update-index", "--add", "--cacheinfo", f"160000,{cutlass},csrc/cutlass")
    git(flash, "commit", "--quiet", "--message", "cutlass")
    project = Project(tmp_path / "project", tmp_path / "project" / "build" / "out")
    write_files(
        project.root,
        {
            "patches/series": b"",
            "vendor/flash-attn.lock.toml": (
                "# where FlashAttention is\n"
                '[baseline]\nkind = "git"\nurl = "../flash"\n'
                f'commit = "{git(flash, "rev-parse", "HEAD")}"\ntree = ""\n'
                f"include = {json.dumps(KEPT)}\n"
            ).encode(),
        },
    )
    return project


def locked(project: Project) -> dict[str, object]:
    baseline: dict[str, object] = tomllib.loads(project.baseline_lock.read_text())["baseline"]
    return baseline


def head(folder: Path) -> str:
    return git(folder, "rev-parse", "HEAD")


def test_lock_fills_in_the_submodule(with_cutlass: Project, tmp_path: Path) -> None:
    baseline = fetch(with_cutlass, QuietReporter(), lock=True)
    commit = head(tmp_path / "cutlass")
    assert baseline.tree == tree_of(ALL_KEPT)
    assert ("submodule csrc/cutlass", "", commit) in baseline.relocked
    assert locked(with_cutlass)["submodules"] == [
        {"path": "csrc/cutlass", "url": "../cutlass", "commit": commit}
    ]
    assert with_cutlass.baseline_lock.read_text().startswith("# where FlashAttention is\n")


def test_locked_submodule_is_fetched_from_nothing(with_cutlass: Project) -> None:
    fetch(with_cutlass, QuietReporter(), lock=True)
    before = with_cutlass.baseline_lock.read_bytes()
    shutil.rmtree(with_cutlass.out)
    baseline = fetch(with_cutlass, QuietReporter())
    assert (baseline.fetched, baseline.tree) == (True, tree_of(ALL_KEPT))
    assert not fetch(with_cutlass, QuietReporter(), lock=True).relocked
    assert with_cutlass.baseline_lock.read_bytes() == before


def test_submodule_that_is_not_locked_is_told_with_its_commit(
    with_cutlass: Project, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="nothing says what is right"):
        fetch(with_cutlass, QuietReporter())
    text = with_cutlass.baseline_lock.read_text()
    with_cutlass.baseline_lock.write_text(text.replace('tree = ""', f'tree = "{"0" * 40}"'))
    with pytest.raises(UsageError, match=r"submodule csrc/cutlass is empty in this commit") as said:
        fetch(with_cutlass, QuietReporter())
    assert said.value.hint == f"patchctl fetch --lock (locks commit {head(tmp_path / 'cutlass')})"


def test_submodule_at_another_commit_is_drift(with_cutlass: Project, tmp_path: Path) -> None:
    fetch(with_cutlass, QuietReporter(), lock=True)
    commit = head(tmp_path / "cutlass")
    text = with_cutlass.baseline_lock.read_text()
    with_cutlass.baseline_lock.write_text(text.replace(commit, "ab" * 20))
    with pytest.raises(LockMismatch) as caught:
        fetch(with_cutlass, QuietReporter())
    assert f"got {commit}, expected {'ab' * 20}" in caught.value.message


def test_newer_submodule_commit_is_locked_again_and_shown(
    with_cutlass: Project, tmp_path: Path
) -> None:
    fetch(with_cutlass, QuietReporter(), lock=True)
    old = head(tmp_path / "cutlass")
    write_files(tmp_path / "cutlass", {"include/cute/tensor.hpp": b"newer\n"})
    git(tmp_path / "cutlass", "commit", "--quiet", "--all", "--message", "newer")
    new = head(tmp_path / "cutlass")
    before = head(tmp_path / "flash")
    cacheinfo = f"160000,{new},csrc/cutlass"
    git(tmp_path / "flash", "update-index", "--add", "--cacheinfo", cacheinfo)
    git(tmp_path / "flash", "commit", "--quiet", "--message", "newer")
    text = with_cutlass.baseline_lock.read_text().replace(before, head(tmp_path / "flash"))
    with_cutlass.baseline_lock.write_text(text)
    baseline = fetch(with_cutlass, QuietReporter(), lock=True)
    assert ("submodule csrc/cutlass", old, new) in baseline.relocked
    newer = {**ALL_KEPT, "csrc/cutlass/include/cute/tensor.hpp": b"newer\n"}
    assert baseline.tree == tree_of(newer)


def test_url_in_the_lock_wins_over_gitmodules(with_cutlass: Project, tmp_path: Path) -> None:
    (tmp_path / "cutlass").rename(tmp_path / "mirror")
    lock = with_cutlass.baseline_lock
    lock.write_text(
        lock.read_text()
        + '\n[[baseline.submodules]]\npath = "csrc/cutlass"\nurl = "../mirror"\ncommit = ""\n'
    )
    assert fetch(with_cutlass, QuietReporter(), lock=True).tree == tree_of(ALL_KEPT)
    assert locked(with_cutlass)["submodules"] == [
        {"path": "csrc/cutlass", "url": "../mirror", "commit": head(tmp_path / "mirror")}
    ]


def test_local_clone_with_its_submodules_is_enough_offline(
    with_cutlass: Project, tmp_path: Path
) -> None:
    fetch(with_cutlass, QuietReporter(), lock=True)
    shutil.rmtree(with_cutlass.out)
    lock = with_cutlass.baseline_lock
    lock.write_text(lock.read_text().replace('"../cutlass"', '"https://git.invalid/cutlass"'))
    with pytest.raises(Unavailable, match="--offline forbids"):
        fetch(with_cutlass, QuietReporter(), offline=True)
    shutil.rmtree(tmp_path / "flash" / "csrc" / "cutlass", ignore_errors=True)
    git(tmp_path / "flash", "clone", "--quiet", str(tmp_path / "cutlass"), "csrc/cutlass")
    assert fetch(with_cutlass, QuietReporter(), offline=True).tree == tree_of(ALL_KEPT)


def test_submodule_of_a_submodule_is_locked_too(with_cutlass: Project, tmp_path: Path) -> None:
    inner = make_repo(tmp_path / "inner", {"x.h": b"x\n"})
    cutlass = tmp_path / "cutlass"
    modules = b'[submodule "i"]\n\tpath = include/inner\n\turl = ../inner\n'
    write_files(cutlass, {".gitmodules": modules})
    git(cutlass, "add", ".gitmodules")
    git(cutlass, "update-index", "--add", "--cacheinfo", f"160000,{inner},include/inner")
    git(cutlass, "commit", "--quiet", "--message", "inner")
    flash, before = tmp_path / "flash", head(tmp_path / "flash")
    git(flash, "update-index", "--add", "--cacheinfo", f"160000,{head(cutlass)},csrc/cutlass")
    git(flash, "commit", "--quiet", "--message", "newer")
    lock = with_cutlass.baseline_lock
    lock.write_text(lock.read_text().replace(before, head(flash)))
    baseline = fetch(with_cutlass, QuietReporter(), lock=True)
    assert baseline.tree == tree_of({**ALL_KEPT, "csrc/cutlass/include/inner/x.h": b"x\n"})
    shutil.rmtree(with_cutlass.out)
    assert fetch(with_cutlass, QuietReporter()).tree == baseline.tree


def test_locked_submodule_that_is_not_there_is_refused(with_cutlass: Project) -> None:
    fetch(with_cutlass, QuietReporter(), lock=True)
    lock = with_cutlass.baseline_lock
    more = f'\n[[baseline.submodules]]\npath = "csrc/x"\nurl = "../x"\ncommit = "{"1" * 40}"\n'
    lock.write_text(lock.read_text() + more)
    with pytest.raises(UsageError, match="`csrc/x` is no submodule of"):
        fetch(with_cutlass, QuietReporter())
    fetch(with_cutlass, QuietReporter(), lock=True)
    assert "csrc/x" not in lock.read_text()


@pytest.mark.parametrize(
    ("base", "url", "expected"),
    [
        ("https://host/org/flash.git", "../cutlass.git", "https://host/org/cutlass.git"),
        ("https://host/org/flash/", "../../b", "https://host/b"),
        ("host:flash", "../cutlass", "host:cutlass"),
        ("../flash", "../cutlass", "../cutlass"),
        ("flash", "../cutlass", "./cutlass"),
        ("../flash", "./sub", "../flash/sub"),
        ("../flash", "https://host/x", "https://host/x"),
        ("../flash", "", ""),
    ],
)
def test_relative_urls_are_resolved_as_git_does(base: str, url: str, expected: str) -> None:
    assert resolve_url(base, url) == expected
