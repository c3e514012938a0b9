# SPDX-License-Identifier: Apache-2.0
"""Failures that people report (tests/data/cases), each through the real command line.

Every case runs twice: in a project without a source tree, and in one that holds the replayed
baseline. Where the series is refused, not a byte of either may differ afterwards.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.git.conftest import MakeProject, git

from patchctl.stages.replay import replay
from patchctl.system.project import Project
from patchctl.system.report import QuietReporter

CASES = Path(__file__).parents[1] / "data" / "cases"


@dataclass(frozen=True)
class Refused:
    """A series that must be refused: exit code, and what the message must hold."""

    folder: str
    series: str
    code: int
    says: tuple[str, ...]


OK = [
    ("05", "series"),
    ("07", "series"),
    ("09", "series"),
    ("10", "series"),
    ("12", "series"),
    ("18", "series"),
    ("21", "series"),
    ("22", "series"),
    ("23", "series"),
    ("24", "series"),
    ("24", "series.localised"),
    ("25", "series"),
]

REFUSED = [
    Refused("01", "series", 4, (
        "patch `0001-fwd-narrow-tile.patch` does not apply: `csrc/tile_pick.h`, hunk 1 of 1",
        "offset -9", "expected:", "found:",
    )),
    Refused("01", "series.fuzz", 4, (
        "patch `0002-fuzz.patch` does not apply: `csrc/fuzz_pick.h`, hunk 1 of 1",
    )),
    Refused("02", "series", 4, ("0001-add-header.patch", "CRLF")),
    Refused("04", "series", 4, ("0001-rename.patch", "byte order mark (BOM)")),
    Refused("07", "series.truncated", 4, (
        "line 10", "hunk 1", "announces 5 old and 5 new lines; 3 and 3 are there",
    )),
    Refused("11", "series", 4, ("holds 3 patches",)),
    Refused("14", "series", 4, ("patch `0001-fix.patch` is already applied",)),
    Refused("15", "series", 4, ("`csrc/keep.h` already exists",)),
    Refused("15", "series.delete", 4, ("`csrc/gone.h` does not exist",)),
    Refused("15", "series.delete-differs", 4, ("`csrc/keep.h`", "content left after delete")),
    Refused("16", "series.absolute", 4, ("/tmp/patchctl-escaped/ESCAPED.txt", "absolute")),
    Refused("16", "series.dotdot", 4, ("../ESCAPED.txt", "leaves the tree")),
    Refused("16", "series.dotdot-middle", 4, ("csrc/../../ESCAPED.txt", "leaves the tree")),
    Refused("16", "series.dotgit", 4, (".git/hooks/post-checkout", "git directory")),
    Refused("16", "series.dotgit-case", 4, ("csrc/.GIT/config", "git directory")),
    Refused("16", "series.rename-out", 4, ("../ESCAPED.txt", "leaves the tree")),
    Refused("16", "series.symlink-then-write", 4, ("`csrc/out`", "leaves the tree")),
    Refused("21", "series.no-data", 4, ("`assets/logo.bin`", "without its data")),
    Refused("22", "series.default", 4, ("no a/ prefix", "declare -p0")),
    Refused("26", "series", 4, (
        "patch `0002-half.patch` does not apply: `csrc/c.c`, hunk 1 of 1, line 2",
        "expected: `c-other`", "found:    `c1`", "`patches/series` line 2",
    )),
    Refused("27", "series.bom", 2, ("`patches/series` line 1", "byte order mark")),
    Refused("27", "series.crlf", 2, ("`patches/series` line 1", "CR LF")),
    Refused("27", "series.missing", 2, ("`patches/series` line 2", "0009-absent.patch")),
    Refused("27", "series.twice", 2, ("`patches/series` line 2", "0001-one.patch", "line 1")),
    Refused("27", "series.escape", 2, ("`patches/series` line 1", "outside")),
    Refused("27", "series.empty-patch", 4, ("0002-empty.patch", "empty", "series` line 1")),
    Refused("27", "series.header-only", 4, ("0003-only-header.patch", "no diff", "line 1")),
    Refused("27", "series.unlisted", 2, ("`patches/0001-one.patch` is not named",)),
]  # fmt: skip


def patchctl(
    project: Project, *arguments: str, home: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the real command line in `project`, with nobody to answer a question."""
    env = dict(os.environ)
    if home is not None:
        env.pop("XDG_CONFIG_HOME", None)
        env["HOME"] = str(home)
    return subprocess.run(
        [sys.executable, "-m", "patchctl", "-C", str(project.root), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=env,
        timeout=60,
        check=False,
    )


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    """The error message, without the progress in front of it."""
    return done.stderr[done.stderr.index("error:") :]


def snapshot(folder: Path) -> dict[str, tuple[str, object, bool]]:
    """Every path below `folder`, with what makes a tree: content, link target, exec bit."""
    found: dict[str, tuple[str, object, bool]] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = ("link", str(path.readlink()), False)
        elif path.is_file():
            executable = bool(path.stat().st_mode & 0o100)
            found[name] = ("file", path.read_bytes(), executable)
        else:
            found[name] = ("folder", None, False)
    return found


def everything(project: Project) -> dict[str, object]:
    """All that a refused series must leave as it was."""
    return {
        "source": snapshot(project.source),
        "there": project.source.exists(),
        "lock": project.series_lock.exists() and project.series_lock.read_bytes(),
        "around": sorted(p.name for p in project.root.parent.iterdir()),
    }


def make(make_project: MakeProject, case: str) -> Project:
    """A project with the case's tree as its baseline, and no patch."""
    base = CASES / case / "base"
    files = {p.relative_to(base).as_posix(): p for p in base.rglob("*") if p.is_file()}
    executable = [name for name, path in files.items() if path.stat().st_mode & 0o100]
    contents = {name: path.read_bytes() for name, path in files.items()}
    return make_project(contents, executable=executable)


def add_series(project: Project, case: str, series: str) -> None:
    """Put the case's series into the project, and the patch files that its text mentions."""
    folder = CASES / case / "patches"
    text = (folder / series).read_bytes()
    project.series.write_bytes(text)
    for patch in folder.glob("*.patch"):
        if patch.name.encode() in text:
            shutil.copyfile(patch, project.patches / patch.name)


@pytest.mark.parametrize("with_tree", [False, True], ids=["no-tree", "tree"])
@pytest.mark.parametrize(("case", "series"), OK)
def test_series_gives_the_expected_tree(
    make_project: MakeProject, case: str, series: str, with_tree: bool
) -> None:
    project = make(make_project, case)
    if with_tree:
        replay(project, QuietReporter(), lock=True)
    add_series(project, case, series)
    done = patchctl(project, "replay", "--lock")
    assert (done.returncode, "error" in done.stderr) == (0, False), done.stderr
    assert snapshot(project.source) == snapshot(CASES / case / "expected")
    again = patchctl(project, "replay")
    assert again.returncode == 0
    assert "nothing to do" in again.stdout


@pytest.mark.parametrize("with_tree", [False, True], ids=["no-tree", "tree"])
@pytest.mark.parametrize("refused", REFUSED, ids=lambda r: f"{r.folder}-{r.series}")
def test_series_is_refused_and_nothing_is_written(
    make_project: MakeProject, refused: Refused, with_tree: bool
) -> None:
    project = make(make_project, refused.folder)
    if with_tree:
        replay(project, QuietReporter(), lock=True)
    before = everything(project)
    add_series(project, refused.folder, refused.series)
    done = patchctl(project, "replay", "--lock")
    assert done.returncode == refused.code, done.stderr
    assert done.stdout == ""
    for text in refused.says:
        assert text in done.stderr
    assert "Traceback" not in done.stderr
    after = everything(project)
    after["around"] = [n for n in after["around"] if n != "cache"]  # type: ignore[attr-defined]
    assert after == before
    again = patchctl(project, "replay", "--lock")
    assert again.returncode == done.returncode
    assert error_of(again) == error_of(done)


@pytest.mark.parametrize("series", ["series.comments", "series.noeol"])
def test_series_oddity_that_is_fine_changes_the_file_once(
    make_project: MakeProject, series: str
) -> None:
    project = make(make_project, "27")
    add_series(project, "27", series)
    done = patchctl(project, "replay", "--lock")
    assert "applied 1 patch:" in done.stdout
    assert (project.source / "csrc/s.c").read_bytes() == b"s0\ns1x\ns2\n"


def test_series_empty_says_that_nothing_was_applied(make_project: MakeProject) -> None:
    project = make(make_project, "27")
    add_series(project, "27", "series.empty")
    done = patchctl(project, "replay", "--lock")
    assert done.returncode == 0
    assert "applied 0 patches" in done.stdout
    assert (project.source / "csrc/s.c").read_bytes() == b"s0\ns1\ns2\n"


def test_escaping_patch_last_in_a_long_series_is_refused_before_the_first(
    make_project: MakeProject,
) -> None:
    good = b"--- /dev/null\n+++ b/csrc/n%d\n@@ -0,0 +1 @@\n+n\n"
    project = make(make_project, "16")
    add_series(project, "16", "series.dotdot")
    names = [f"{number:04}.patch" for number in range(40)]
    for number, name in enumerate(names):
        (project.patches / name).write_bytes(good % number)
    project.series.write_text("\n".join([*names, "dotdot.patch"]))
    done = patchctl(project, "replay", "--lock")
    assert (done.returncode, project.source.exists()) == (4, False)
    assert "`patches/series` line 41" in done.stderr


def test_latin1_in_header_and_diff_leaves_json_valid(make_project: MakeProject) -> None:
    project = make(make_project, "05")
    add_series(project, "05", "series")
    done = patchctl(project, "replay", "--lock", "--json")
    assert '"subject": "Param\\u00e8tre d\'ordre"' in done.stdout


def test_project_in_another_repository_leaves_that_alone(
    make_project: MakeProject, tmp_path: Path
) -> None:
    project = make(make_project, "18")
    git(tmp_path, "init", "--quiet")
    (tmp_path / ".gitignore").write_text("/project/\n")
    git(tmp_path, "add", ".gitignore")
    before = [(tmp_path / ".git" / name).read_bytes() for name in ("index", "config")]
    add_series(project, "18", "series")
    assert patchctl(project, "replay", "--lock").returncode == 0
    assert snapshot(project.source) == snapshot(CASES / "18" / "expected")
    assert before == [(tmp_path / ".git" / name).read_bytes() for name in ("index", "config")]
    assert git(project.store, "diff-tree", "-r", "--name-only", "--no-commit-id",
               "refs/patchctl/head").split() == [
        "csrc/dos.h", "csrc/plain.h", "tools/gen.sh", "tools/run.sh",
    ]  # fmt: skip


def test_hostile_git_configuration_gives_the_same_ids(
    make_project: MakeProject, tmp_path: Path
) -> None:
    project = make(make_project, "19")
    add_series(project, "19", "series")
    hostile, empty = tmp_path / "hostile", tmp_path / "empty"
    shutil.copytree(CASES / "19" / "home", hostile)
    empty.mkdir()
    done = patchctl(project, "replay", "--lock", home=hostile)
    assert done.returncode == 0, done.stderr
    assert snapshot(project.source) == snapshot(CASES / "19" / "expected")
    assert not list(hostile.glob("*HOOK_RAN"))
    shutil.rmtree(project.out)
    assert patchctl(project, "replay", home=empty).returncode == 0
    assert (empty / ".gitconfig").exists() is False


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_store_of_another_user_works(make_project: MakeProject) -> None:
    project = make(make_project, "19")
    replay(project, QuietReporter(), lock=True)
    for path in [project.store, *project.store.rglob("*")]:
        os.chown(path, 4711, 4711)
    add_series(project, "19", "series")
    done = patchctl(project, "replay", "--lock")
    assert done.returncode == 0, done.stderr
    assert snapshot(project.source) == snapshot(CASES / "19" / "expected")
