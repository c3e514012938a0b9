# SPDX-License-Identifier: Apache-2.0
"""Whenever fetch is stopped, the last good baseline is there and the next fetch completes."""

from __future__ import annotations

import http.server
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.git.conftest import git, make_sdist, make_sdist_project, tree_of

from patchctl.stages.fetch import BASELINE_REF, Baseline, fetch
from patchctl.system.files import TEMP_PREFIX, write_file
from patchctl.system.project import Project
from patchctl.system.report import QuietReporter

OLD = {"old.h": b"int old;\n"}
NEW = {f"csrc/{n % 9}/{n}.h": b"int a%d;\n" % n * 40 for n in range(200)}
PATIENCE = 30.0  # seconds


def start(project: Project, **options: object) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "patchctl", "-C", str(project.root), "fetch"]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload,no-any-return]


def wait_for(condition: Callable[[], bool], child: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert child.poll() is None, "fetch ended before the moment to stop it"
        assert time.monotonic() < deadline
        time.sleep(0.001)


def objects(project: Project) -> int:
    return sum(1 for _ in project.store.glob("objects/??/*"))


def lock_new(project: Project, find_links: Path) -> Callable[[], None]:
    """Lock another archive; returns what brings the old lock back."""
    before = project.baseline_lock.read_bytes()
    sha256 = make_sdist(find_links / "pkg-1.0.tar.gz", NEW)
    make_sdist_project(project.root, sha256, tree_of(NEW))
    return lambda: write_file(project.baseline_lock, before)


@pytest.fixture
def good(tmp_path: Path, find_links: Path) -> tuple[Project, Baseline]:
    """A project with the old baseline in its store."""
    sha256 = make_sdist(find_links / "pkg-1.0.tar.gz", OLD)
    project = make_sdist_project(tmp_path / "p", sha256, tree_of(OLD))
    return project, fetch(project, QuietReporter())


def check_old_then_new(project: Project, old: Baseline, back: Callable[[], None]) -> None:
    git(project.store, "fsck", "--strict")
    assert git(project.store, "rev-parse", BASELINE_REF) == old.commit
    new_lock = project.baseline_lock.read_bytes()
    back()
    assert not fetch(project, QuietReporter(), offline=True).fetched
    project.baseline_lock.write_bytes(new_lock)
    assert fetch(project, QuietReporter()).tree == tree_of(NEW)
    git(project.store, "fsck", "--strict")


@pytest.mark.parametrize(
    ("how", "written"),
    [(signal.SIGKILL, 1), (signal.SIGKILL, 150), (signal.SIGINT, 100), (signal.SIGTERM, 50)],
)
def test_stopped_while_blobs_are_written(
    good: tuple[Project, Baseline], find_links: Path, how: signal.Signals, written: int
) -> None:
    project, old = good
    back = lock_new(project, find_links)
    before = objects(project)
    child = start(project)
    wait_for(lambda: objects(project) >= before + written, child)
    child.send_signal(how)
    _, said = child.communicate(timeout=PATIENCE)
    if how is signal.SIGKILL:
        assert child.returncode == -signal.SIGKILL
    else:
        assert child.returncode == 130
        assert b"interrupted; what was complete before is still in place" in said
    check_old_then_new(project, old, back)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_stopped_while_downloading(
    good: tuple[Project, Baseline],
    find_links: Path,
    private_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    how: signal.Signals,
) -> None:
    project, old = good
    back = lock_new(project, find_links)
    with stalling_server() as url:
        monkeypatch.setenv("PIP_FIND_LINKS", f"{url}/pkg-1.0.tar.gz")
        child = start(project)
        wait_for(lambda: bool(partial(private_cache)), child)
        child.send_signal(how)
        child.communicate(timeout=PATIENCE)
    assert child.returncode == (130 if how is signal.SIGINT else -how)
    assert bool(partial(private_cache)) is (how is signal.SIGKILL)
    monkeypatch.setenv("PIP_FIND_LINKS", str(find_links))
    check_old_then_new(project, old, back)


@contextmanager
def stalling_server() -> Iterator[str]:
    """Promises a file and never sends it."""
    over = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/gzip")
            self.send_header("Content-Length", "999999")
            self.end_headers()

        def do_GET(self) -> None:
            self.do_HEAD()
            over.wait(PATIENCE)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        over.set()
        server.shutdown()


def partial(cache: Path) -> list[Path]:
    return list((cache / "archives").glob(f"{TEMP_PREFIX}*"))


def test_leftover_of_a_killed_download_is_swept_when_it_is_old(
    good: tuple[Project, Baseline], find_links: Path, private_cache: Path
) -> None:
    project, _ = good
    lock_new(project, find_links)
    old, young = (private_cache / "archives" / f"{TEMP_PREFIX}{n}" for n in ("old", "young"))
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    fetch(project, QuietReporter())
    assert partial(private_cache) == [young]


@pytest.mark.parametrize("limit", [256, 20_000])
def test_no_space_leaves_the_last_good_state(
    good: tuple[Project, Baseline], find_links: Path, limit: int
) -> None:
    """A limit on the size of a file stands for a full disk: the write fails in the same place."""
    project, old = good
    big = {"big.h": os.urandom(50_000)} if limit > 10_000 else NEW
    back = lock_new(project, find_links)
    if big is not NEW:
        sha256 = make_sdist(find_links / "pkg-1.0.tar.gz", big)
        make_sdist_project(project.root, sha256, tree_of(big))
    child = start(
        project,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    _, said = child.communicate(timeout=PATIENCE)
    assert child.returncode == 8
    assert b"File too large" in said
    assert git(project.store, "rev-parse", BASELINE_REF) == old.commit
    back()
    assert not fetch(project, QuietReporter(), offline=True).fetched


def test_second_fetch_waits_for_the_first(good: tuple[Project, Baseline], find_links: Path) -> None:
    project, _ = good
    lock_new(project, find_links)
    before = objects(project)
    first = start(project)
    wait_for(lambda: objects(project) > before, first)
    first.send_signal(signal.SIGSTOP)
    second = start(project)
    assert second.stderr is not None
    assert b"waiting for another patchctl" in second.stderr.readline()
    first.send_signal(signal.SIGCONT)
    outputs = [child.communicate(timeout=PATIENCE)[0] for child in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0]
    assert b"(fetched)" in outputs[0]
    assert b"(already there)" in outputs[1]
