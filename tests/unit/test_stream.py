# SPDX-License-Identifier: Apache-2.0
"""A streaming child: its lines as they come, and nothing left of it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from patchctl.errors import ToolMissing
from patchctl.system import process
from patchctl.system.process import stream, wait_for_others
from patchctl.system.report import QuietReporter


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":
            return  # dead; whoever is its parent has not looked yet
        time.sleep(0.02)
    pytest.fail(f"process {pid} is still there")


def test_both_streams_arrive_line_by_line_with_the_exit_code() -> None:
    lines: list[str] = []
    code = stream(["sh", "-c", "echo one; echo two >&2; printf '\\377'; exit 3"], lines.append)
    assert (code, lines) == (3, ["one", "two", "\\xff"])


def test_a_killed_child_has_a_negative_code() -> None:
    assert stream(["sh", "-c", "kill -9 $$"], lambda line: None) == -9


def test_a_missing_program_is_named() -> None:
    with pytest.raises(ToolMissing, match="no-such-program"):
        stream(["no-such-program"], print)


def test_an_exception_ends_the_child_and_its_children_in_groups_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "GRACE", 0.2)
    pids: list[int] = []

    def interrupt(line: str) -> None:
        pids.extend(int(word) for word in line.split())
        raise KeyboardInterrupt

    # the child ignores SIGINT, its child is in another process group, as ninja's compilers are
    script = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '60'], process_group=0)\n"
        "print(os.getpid(), child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with pytest.raises(KeyboardInterrupt):
        stream([sys.executable, "-c", script], interrupt)
    assert len(pids) == 2
    for pid in pids:
        wait_until_gone(pid)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_the_child_ends_when_we_are_killed(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    code = (
        "import sys\n"
        "from patchctl.system.process import stream\n"
        f"stream(['sh', '-c', 'echo $$ >{mark}.t; mv {mark}.t {mark}; exec sleep 60'], print)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code])
    while not mark.exists():
        assert child.poll() is None
        time.sleep(0.02)
    child.kill()
    child.wait()
    wait_until_gone(int(mark.read_text()))


def test_a_program_left_in_a_folder_is_waited_for_and_elsewhere_it_is_not(tmp_path: Path) -> None:
    class Said(QuietReporter):
        def info(self, text: str) -> None:
            self.warnings.append(text)

    other = tmp_path / "other"
    other.mkdir()
    report = Said()
    with subprocess.Popen(["sleep", "0.3"], cwd=tmp_path) as child:
        wait_for_others("sleep", other, report)
        assert report.warnings == []
        threading.Thread(target=child.wait).start()
        wait_for_others("sleep", tmp_path, report)
    assert report.warnings == [f"waiting for sleep (process {child.pid}) that a killed run left"]
