# SPDX-License-Identifier: Apache-2.0
"""`patches/` in the hands of the real quilt and the real `git am`, after patchctl changed it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.git.conftest import IDENTITY, MakeProject, Series, git

from patchctl.stages.edit import open_edit, open_new
from patchctl.stages.refresh import refresh
from patchctl.stages.reorder import drop, move
from patchctl.stages.replay import replay
from patchctl.system.report import QuietReporter

QUIET = QuietReporter()
needs_quilt = pytest.mark.skipif(
    shutil.which("quilt") is None, reason="quilt is not installed (apt install quilt)"
)


@pytest.fixture
def series(make_project: MakeProject) -> Series:
    """A series that was edited, added to, moved and dropped from, with comments in it."""
    series = Series.of_three(make_project)
    project = series.project
    first, second, third = series.names
    project.series.write_text(
        f"# our patches\n\n# about the first\n{first}\n\n"
        f"# about the second\n{second}  # why\n{third}\n"
    )
    series.relock()
    folder = open_edit(project, QUIET, first).folder
    text = (folder / "a.h").read_bytes()
    (folder / "a.h").write_bytes(b"// top\n" + text)
    (folder / "b.cu").rename(folder / "c.cu")
    refresh(project, QUIET)
    opened = open_new(project, QUIET, "core: add deep file", after=second)
    git(opened.folder, "config", "user.name", "N\u00e9w Author")
    git(opened.folder, "config", "user.email", "new@example.org")
    (opened.folder / "deep").mkdir()
    (opened.folder / "deep" / "x.h").write_text("x\nno newline")
    refresh(project, QUIET)
    (opened.folder / "deep" / "extra.h").write_text("extra\n")
    git(opened.folder, "add", "--all")
    git(opened.folder, "commit", "--quiet", "-m", "core: to be dropped")
    refresh(project, QUIET)
    drop(project, QUIET, "0005-core-to-be-dropped.patch")
    move(project, QUIET, third, before=second)
    replay(project, QUIET)
    return series


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.relative_to(folder).parts[0] not in (".pc", ".git", "patches")
    }


def baseline(series: Series, name: str) -> Path:
    folder = series.project.root.parent / name
    git(series.upstream, "worktree", "add", "--quiet", "--detach", str(folder), series.start)
    return folder


def quilt(folder: Path, *words: str) -> str:
    env = {k: v for k, v in os.environ.items() if not k.startswith("QUILT_")}
    done = subprocess.run(
        ["quilt", "--quiltrc", os.devnull, *words],
        cwd=folder,
        env=env | {"LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_quilt
def test_quilt_pushes_and_pops_all(series: Series) -> None:
    folder = baseline(series, "quilted")
    before = files(folder)
    (folder / "patches").symlink_to(series.project.patches)
    told = quilt(folder, "push", "-a")
    assert "fuzz" not in told and "offset" not in told
    assert files(folder) == files(series.project.source)
    applied = quilt(folder, "applied").split()
    assert [name.removeprefix("patches/") for name in applied] == series.names
    quilt(folder, "pop", "-a")
    assert files(folder) == before


@needs_quilt
def test_patch_refreshed_by_quilt_is_read_and_edited_in_its_style(series: Series) -> None:
    project, folder = series.project, baseline(series, "quilted")
    (folder / "patches").symlink_to(project.patches)
    name = series.names[0]
    quilt(folder, "push", name)
    (folder / "a.h").write_bytes((folder / "a.h").read_bytes().replace(b"line 30", b"thirty"))
    quilt(folder, "refresh", "-p", "ab", "--no-timestamps")
    quilt(folder, "push", "-a")
    series.relock()
    assert files(project.source) == files(folder)
    by_quilt = (project.patches / name).read_bytes()
    assert b"\nIndex: " in by_quilt
    tree = open_edit(project, QUIET, name).folder
    (tree / "a.h").write_bytes((tree / "a.h").read_bytes().replace(b"thirty", b"30"))
    refresh(project, QUIET)
    now = (project.patches / name).read_bytes()
    at = by_quilt.index(b"Index: ")
    assert now[now.index(b"Index: ") :] == by_quilt[at:].replace(b"\n+thirty\n", b"\n+30\n")


def test_git_am_takes_the_series_and_makes_the_locked_trees(series: Series) -> None:
    folder = baseline(series, "am")
    patches = [str(series.project.patches / name) for name in series.names]
    git(folder, "am", "--quiet", "--keep-cr", *patches)
    trees = git(folder, "log", "--reverse", "--format=%T", f"{series.start}..HEAD").split()
    assert trees == [patch.tree for patch in series.lock().patches]
    authors = git(folder, "log", "--reverse", "--format=%an", f"{series.start}..HEAD").split("\n")
    assert authors == ["P Author", "P Author", "P Author", "N\u00e9w Author"]
    assert IDENTITY["GIT_AUTHOR_NAME"] not in authors


def test_comments_went_with_their_patches(series: Series) -> None:
    first, third, second, new = series.names
    assert series.project.series.read_text() == (
        f"# our patches\n\n# about the first\n{first}\n\n{third}\n"
        f"# about the second\n{second}  # why\n{new}\n"
    )
