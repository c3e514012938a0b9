# SPDX-License-Identifier: Apache-2.0
"""refresh, drop and move killed with SIGKILL at random moments: the old series, or the new."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.git.conftest import MakeProject, Series, git

from patchctl.errors import LocalChanges
from patchctl.stages.edit import open_edit, open_new
from patchctl.stages.editsession import require_session
from patchctl.stages.refresh import refresh
from patchctl.stages.replay import replay
from patchctl.system.editrepo import EditRepo
from patchctl.system.project import Project
from patchctl.system.report import QuietReporter
from patchctl.system.seriesjournal import finish_replacement

QUIET = QuietReporter()
PATCHES = 30


@pytest.fixture
def series(make_project: MakeProject) -> Series:
    """Thirty patches on one file, so that a change of the first changes many files."""
    lines = [b"line %d\n" % n for n in range(PATCHES * 10)]
    series = Series(make_project({"a.h": b"".join(lines)}))
    for number in range(PATCHES):
        lines[number * 10 + 5] = b"patch %d\n" % number
        series.commit(f"core: change {number}", {"a.h": b"".join(lines)})
    return series.export()


def start(project: Project, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "patchctl", "-C", str(project.root), *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def kill_near_the_change(child: subprocess.Popen[bytes], folder: Path, delay: float) -> bool:
    """Kill the child `delay` seconds after it begins to write; whether it was killed in time."""
    begun = {path.name for path in folder.iterdir()}
    while child.poll() is None and {path.name for path in folder.iterdir()} <= begun:
        time.sleep(0.0002)
    time.sleep(delay)
    running = child.poll() is None
    child.send_signal(signal.SIGKILL)
    child.wait()
    return running


def settled(series: Series) -> dict[str, bytes]:
    """The files after the next command, which must find a series that replays as locked."""
    finish_replacement(series.project, QUIET)
    replay(series.project, QUIET)
    files = series.files()
    assert set(files) == {*series.names, "series", "series.lock.toml"}
    return files


@pytest.mark.parametrize("words", [("drop", "1"), ("move", "1", "--after", "29")])
def test_killed_drop_and_move_leave_the_old_or_the_new_series(
    series: Series, words: tuple[str, ...]
) -> None:
    old = series.files()
    assert start(series.project, *words).wait() == 0
    new = settled(series)
    assert new != old
    rng = random.Random(3)
    killed = 0
    for _ in range(14):
        restore(series, old)
        child = start(series.project, *words)
        killed += kill_near_the_change(child, series.project.patches, rng.random() * 0.012)
        files = settled(series)
        assert files in (old, new)
    assert killed, "no kill hit the change"


def restore(series: Series, files: dict[str, bytes]) -> None:
    for name in series.files().keys() - files.keys():
        (series.project.patches / name).unlink()
    for name, data in files.items():
        (series.project.patches / name).write_bytes(data)
    replay(series.project, QUIET)


def test_killed_refresh_leaves_the_old_or_the_new_series_and_keeps_the_edit(
    series: Series,
) -> None:
    project = series.project
    folder = open_edit(project, QUIET, "1").folder
    rng = random.Random(7)
    killed = 0
    for attempt in range(16):
        text = (folder / "a.h").read_bytes()
        edited = b"// attempt %d\n" % attempt + text
        (folder / "a.h").write_bytes(edited)
        before = series.files()
        child = start(project, "refresh")
        if attempt % 4:
            killed += kill_near_the_change(child, project.patches, rng.random() * 0.02)
        else:  # while it starts and computes
            time.sleep(rng.random() * 0.2)
            child.kill()
            child.wait()
        after = settled(series)
        assert (folder / "a.h").read_bytes() == edited
        # the same again finishes it, from wherever it was
        done = refresh(project, QUIET)
        final = settled(series)
        assert done.changed == (after == before)
        assert after in (before, final)
        assert b"+// attempt %d\n" % attempt in final[series.names[0]]
        session, repo = require_session(project)
        assert repo.head == session.head
        assert git(folder, "status", "--porcelain") == ""
    assert killed, "no kill hit the change"


def test_killed_at_any_time_of_its_run(series: Series) -> None:
    project = series.project
    folder = open_edit(project, QUIET, "1").folder
    rng = random.Random(9)
    for attempt in range(10):
        (folder / "a.h").write_bytes(b"// %d\n" % attempt + (folder / "a.h").read_bytes())
        child = start(project, "refresh")
        time.sleep(rng.random() * 1.5)
        child.kill()
        child.wait()
        settled(series)
        refresh(project, QUIET)
        assert b"+// %d\n" % attempt in settled(series)[series.names[0]]
    git(project.store, "fsck", "--strict", "refs/patchctl/edit")


def test_unfinished_change_is_not_read_as_a_series(series: Series) -> None:
    journal = series.project.patches / ".series-change.json"
    data = (series.project.patches / series.names[0]).read_bytes()
    journal.write_bytes(b'{"patches/new.patch":null}')
    child = start(series.project, "series")
    assert child.wait() == 0
    assert not journal.exists()
    assert (series.project.patches / series.names[0]).read_bytes() == data


@pytest.mark.parametrize("new", [False, True])
def test_killed_after_the_patches_were_written_the_edit_tree_follows(
    series: Series, monkeypatch: pytest.MonkeyPatch, new: bool
) -> None:
    project = series.project
    opened = open_new(project, QUIET, "core: y") if new else open_edit(project, QUIET, "2")
    git(opened.folder, "config", "user.name", "N")
    git(opened.folder, "config", "user.email", "n@example.org")
    (opened.folder / "y.h").write_text("y\n")
    with monkeypatch.context() as patched:
        patched.setattr(EditRepo, "settle_at", killed)
        with pytest.raises(KeyboardInterrupt):
            refresh(project, QUIET)
    written = series.files()
    assert git(opened.folder, "status", "--porcelain") == "?? y.h"
    assert not refresh(project, QUIET).changed
    assert series.files() == written
    assert git(opened.folder, "status", "--porcelain") == ""


def test_killed_while_it_brings_a_conflict_the_next_run_brings_it(
    series: Series, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = series.project
    folder = open_edit(project, QUIET, "1").folder
    text = (folder / "a.h").read_bytes()
    (folder / "a.h").write_bytes(text.replace(b"line 25\n", b"taken\n"))
    before = series.files()
    with monkeypatch.context() as patched:
        patched.setattr(EditRepo, "checkout", killed)
        with pytest.raises(KeyboardInterrupt):
            refresh(project, QUIET, resolve=True)
    with pytest.raises(LocalChanges) as caught:
        refresh(project, QUIET)
    assert "cherry-pick" in caught.value.message
    assert b"<<<<<<<" in (folder / "a.h").read_bytes()
    assert series.files() == before
    assert git(folder, "rev-list", "--count", "baseline..HEAD") == "2"


def killed(*arguments: object) -> None:
    raise KeyboardInterrupt
