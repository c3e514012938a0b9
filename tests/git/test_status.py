# SPDX-License-Identifier: Apache-2.0
"""What `status` says of work that was begun, and of files that a build would stumble over."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.git.conftest import MakeProject, Series
from tests.git.rebaserig import QUIET, Rig, change, make_rig, text

from patchctl.cli.main import main
from patchctl.errors import PatchDoesNotApply
from patchctl.stages.edit import open_edit, open_new
from patchctl.stages.rebase import session_file
from patchctl.stages.replay import replay
from patchctl.stages.status import OpenWork, open_work
from patchctl.system.project import Project

ROOT = Path(__file__).resolve().parents[2]
SM70 = "csrc/flash_attn/src/sm70"


def with_target(project: Project) -> Project:
    (project.root / "build").mkdir(exist_ok=True)
    shutil.copy(ROOT / "build" / "sm70.toml", project.root / "build")
    return project


@pytest.fixture
def series(make_project: MakeProject) -> Series:
    made = Series.of_three(make_project)
    with_target(made.project)
    return made


@pytest.fixture
def rig(make_project: MakeProject) -> Rig:
    made = make_rig(make_project, {"a.h": text("a"), "b.h": text("b")})
    with_target(made.project)
    return made


def test_nothing_is_open_in_a_project_that_was_only_replayed(series: Series) -> None:
    assert open_work(series.project, "sm70") == []
    replay(series.project, QUIET)
    assert open_work(series.project, "sm70") == []


def test_an_open_rebase_is_said_with_its_progress(rig: Rig) -> None:
    rig.patch("one", change("a", "20:mine"))
    rig.patch("two", change("b", "20:mine"))
    rig.lock()
    onto = rig.release(change("b", "20:theirs"))
    with pytest.raises(PatchDoesNotApply):
        rig.start(onto)
    what = f"a rebase is open onto {onto}: 1 of 2 patches done, next `two.patch`"
    assert open_work(rig.project, "sm70") == [OpenWork(what, "patchctl rebase --status")]
    done = CliRunner().invoke(main, ["-C", str(rig.project.root), "status"])
    assert done.stdout.splitlines()[-1] == f"open: {what} (patchctl rebase --status)"


def test_a_damaged_record_of_a_rebase_is_said_too(series: Series) -> None:
    path = session_file(series.project)
    path.parent.mkdir(parents=True)
    path.write_text("{")
    (found,) = open_work(series.project, "sm70")
    assert series.project.relative(path) in found.what


def test_a_patch_that_is_open_for_editing_is_said(series: Series) -> None:
    open_edit(series.project, QUIET, "2")
    (found,) = open_work(series.project, "sm70")
    assert found.what == f"`{series.names[1]}` is open for editing in `build/out/edit`"
    open_new(series.project, QUIET, "more", after=None, message="core: more")
    (found,) = open_work(series.project, "sm70")
    assert "more.patch` is open for editing" in found.what


@pytest.mark.parametrize("name", ["new.cu", "new.cu.jinja", "../new.h"])
def test_a_file_that_a_build_would_read_and_that_is_not_of_the_series_is_said(
    name: str, series: Series
) -> None:
    replay(series.project, QUIET)
    path = series.project.source / SM70 / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("// mine\n")
    (series.project.source / "notes.txt").write_text("no build reads this\n")
    done = CliRunner().invoke(main, ["-C", str(series.project.root), "status", "--json"])
    (found,) = json.loads(done.stdout)["open"]
    where = path.resolve().relative_to(series.project.root.resolve())
    assert found["what"] == f"`{where}` is not of the series: build refuses it"
