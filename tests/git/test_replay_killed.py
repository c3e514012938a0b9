# SPDX-License-Identifier: Apache-2.0
"""replay killed with SIGKILL at many moments: the next run goes on, and no edit is invented."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.git.conftest import MakeProject, git, write_files

from patchctl.errors import LocalChanges
from patchctl.stages.replay import HEAD_REF, replay
from patchctl.system.project import Project
from patchctl.system.report import QuietReporter
from patchctl.system.worktree import Worktree

FILES = 400
BASE = {
    f"csrc/d{n % 20}/f{n}.h": b"".join(b"%d %d\n" % (n, i) for i in range(30)) for n in range(FILES)
}


@pytest.fixture
def project(make_project: MakeProject) -> Project:
    """A prefix and a whole series whose trees differ in many files, folders, modes and links."""
    project = make_project(BASE)
    work = project.root.parent / "upstream"
    start = git(work, "rev-parse", "HEAD")
    edited = {n: c.replace(b" 7\n", b" seven\n") for i, (n, c) in enumerate(BASE.items()) if i % 2}
    write_files(work, edited)
    git(work, "commit", "--quiet", "--all", "--message", "edit")
    for number in range(0, FILES, 4):
        path = work / f"csrc/d{number % 20}/f{number}.h"
        if number % 8:
            path.unlink()
            path.symlink_to("f1.h")
        else:
            target = work / f"csrc/new{number % 7}/deep/f{number}.h"
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
            target.chmod(0o755)
    git(work, "add", "--all")
    git(work, "commit", "--quiet", "--message", "move")
    git(work, "format-patch", "--quiet", "-N", "-M", "-o", str(project.patches), start)
    names = sorted(path.name for path in project.patches.glob("*.patch"))
    project.series.write_text("\n".join(names))
    replay(project, QuietReporter(), lock=True)
    return project


def snapshot(folder: Path) -> dict[str, tuple[object, int]]:
    found: dict[str, tuple[object, int]] = {}
    for path in folder.rglob("*"):
        content: object = None
        if path.is_symlink():
            content = str(path.readlink())
        elif path.is_file():
            content = path.read_bytes()
        found[path.relative_to(folder).as_posix()] = (content, path.lstat().st_mode)
    return found


def start(project: Project, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "patchctl", "-C", str(project.root), "replay", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def kill_while_it_updates(child: subprocess.Popen[bytes], journal: Path, delay: float) -> bool:
    """Kill `child` some seconds after its journal appears; whether it left one."""
    while not journal.exists() and child.poll() is None:
        time.sleep(0.0002)
    time.sleep(delay)
    child.send_signal(signal.SIGKILL)
    child.wait()
    return journal.exists()


def test_killed_at_any_moment_the_next_run_finishes(project: Project) -> None:
    rng = random.Random(11)
    states: dict[str | None, dict[str, tuple[object, int]]] = {}
    choices: list[str | None] = ["0001-edit.patch", None]
    for through in choices:
        replay(project, QuietReporter(), through=through)
        states[through] = snapshot(project.source)
    journal = project.records / "source.journal.json"
    torn = 0
    for attempt in range(24):
        here = choices[attempt % 2]
        arguments = [f"--through={here}"] if here else []
        torn += kill_while_it_updates(start(project, *arguments), journal, rng.random() * 0.02)
        if rng.random() < 0.3:
            # a second run that goes the other way is killed too
            there = choices[(attempt + 1) % 2]
            arguments = [f"--through={there}"] if there else []
            kill_while_it_updates(start(project, *arguments), journal, rng.random() * 0.02)
        wanted = rng.choice(choices)
        replay(project, QuietReporter(), through=wanted)
        assert snapshot(project.source) == states[wanted]
        assert not journal.exists()
        assert not (project.records / "staging").exists()
        assert not replay(project, QuietReporter(), through=wanted).fresh
    assert torn, "no kill hit the update itself"


def test_killed_at_any_time_of_the_first_run_the_next_one_finishes(project: Project) -> None:
    wanted = snapshot(project.source)
    rng = random.Random(5)
    for _ in range(8):
        for path in (project.source, project.records):
            shutil.rmtree(path)
        child = start(project)
        time.sleep(rng.random() * 0.8)
        child.kill()
        child.wait()
        replay(project, QuietReporter())
        assert snapshot(project.source) == wanted
        git(project.store, "fsck", "--strict", HEAD_REF)


def test_folder_made_just_before_the_kill_is_gone_after_the_next_run(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay(project, QuietReporter(), through="0001-edit.patch")
    wanted = snapshot(project.source)

    def killed_after_mkdir(self: Worktree, name: bytes, *more: object) -> None:
        (project.source / "csrc/new0/deep").mkdir(parents=True)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Worktree, "_place", killed_after_mkdir)
        replay(project, QuietReporter())
    replay(project, QuietReporter(), through="0001-edit.patch")
    assert snapshot(project.source) == wanted


def test_edit_made_after_the_kill_is_still_kept(project: Project) -> None:
    journal = project.records / "source.journal.json"
    for _ in range(10):
        if kill_while_it_updates(start(project, "--through=0001-edit.patch"), journal, 0.004):
            break
        replay(project, QuietReporter())
    assert journal.exists()
    mine = project.source / "csrc/d1/f1.h"
    mine.write_bytes(b"mine\n")
    for through in ("0001-edit.patch", None):
        with pytest.raises(LocalChanges) as caught:
            replay(project, QuietReporter(), through=through)
        assert caught.value.details[0] == "edited: csrc/d1/f1.h"
        assert mine.read_bytes() == b"mine\n"
