# SPDX-License-Identifier: Apache-2.0
"""Atomic files, records, processes and the project lock."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from patchctl.errors import ToolMissing
from patchctl.system.files import TEMP_PREFIX, write_file, write_if_changed
from patchctl.system.process import ProcessFailed, run
from patchctl.system.project import Project, exclusive
from patchctl.system.records import Record, load_record, save_record
from patchctl.system.report import QuietReporter


def test_write_replaces_by_rename_so_open_readers_keep_the_old(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("old")
    with path.open() as reader:
        write_file(path, "new", mode=0o755)
        assert reader.read() == "old"
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o755
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_failed_write_leaves_old_content_and_no_leftover(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    (folder / "inside").touch()
    with pytest.raises(OSError):
        write_file(folder, "x")
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
    assert not list(tmp_path.glob(f"{TEMP_PREFIX}*"))


def test_write_if_changed_keeps_the_time_stamp_of_equal_content(tmp_path: Path) -> None:
    path = tmp_path / "f"
    assert write_if_changed(path, "a")
    before = path.stat()
    assert not write_if_changed(path, "a")
    assert path.stat().st_mtime_ns == before.st_mtime_ns and path.stat().st_ino == before.st_ino
    assert write_if_changed(path, "b")


def test_record_says_each_input_that_differs(tmp_path: Path) -> None:
    project = Project(tmp_path, tmp_path / "out")
    assert load_record(project, "build") is None
    record = Record(stage="build", inputs={"a": "1", "b": "2", "c": "3"}, outputs={"library": "x"})
    save_record(project, record)
    loaded = load_record(project, "build")
    assert loaded == record
    assert loaded.stale_because({"a": "1", "b": "2", "c": "3"}) == []
    assert loaded.stale_because({"a": "1", "b": "9", "d": "4"}) == [
        "b changed (2 -> 9)",
        "c is gone",
        "d is new",
    ]


def test_damaged_record_counts_as_none(tmp_path: Path) -> None:
    project = Project(tmp_path, tmp_path / "out")
    save_record(project, Record(stage="fetch", inputs={}, outputs={}))
    path = project.records / "fetch.json"
    path.write_bytes(path.read_bytes()[:10])
    assert load_record(project, "fetch") is None


@pytest.mark.parametrize("change", [{"stage": "build"}, {"tool": "0.0.0"}])
def test_record_of_another_stage_or_tool_counts_as_none(
    tmp_path: Path, change: dict[str, str]
) -> None:
    project = Project(tmp_path, tmp_path / "out")
    save_record(project, Record(stage="fetch", inputs={}, outputs={}))
    path = project.records / "fetch.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert load_record(project, "fetch") is None


def test_content_is_on_the_disk_before_the_name_and_the_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power cut leaves an empty file under the right name."""
    seen: list[str] = []
    sync, rename = os.fsync, Path.replace

    def watch_sync(fd: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(fd).st_mode)
        seen.append("folder" if is_folder else f"content {os.fstat(fd).st_size}")
        sync(fd)

    def watch_rename(self: Path, target: Path) -> Path:
        seen.append("rename")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", watch_sync)
    monkeypatch.setattr(Path, "replace", watch_rename)
    write_file(tmp_path / "f", b"12345")
    assert seen == ["content 5", "rename", "folder"]
    seen.clear()
    write_file(tmp_path / "f", b"12345", sync=False)
    assert seen == ["rename"]


def test_process_failure_carries_command_code_and_output(tmp_path: Path) -> None:
    code = "import sys; print('out'); print('why', file=sys.stderr); sys.exit(3)"
    with pytest.raises(ProcessFailed) as caught:
        run([sys.executable, "-c", code], cwd=tmp_path)
    assert caught.value.completed.code == 3
    assert "exit code 3" in caught.value.message and str(tmp_path) in caught.value.message
    assert caught.value.details == ("why",)


def test_process_killed_by_a_signal_names_it() -> None:
    with pytest.raises(ProcessFailed, match="killed by SIGABRT"):
        run([sys.executable, "-c", "import os; os.abort()"])


def test_missing_program_is_a_missing_tool() -> None:
    with pytest.raises(ToolMissing, match="cannot run `no-such-program-here`"):
        run(["no-such-program-here"])


HOLD = """
import sys, time
from pathlib import Path
from patchctl.system.project import exclusive
from patchctl.system.report import QuietReporter
with exclusive(Path(sys.argv[1]), QuietReporter()):
    print("held", flush=True)
    sys.stdin.readline()
print("released", flush=True)
"""


class Listener(QuietReporter):
    """Lets the holder go as soon as somebody says that they wait."""

    def __init__(self, holder: subprocess.Popen[str]) -> None:
        super().__init__()
        self.holder = holder
        self.said: list[str] = []

    def info(self, text: str) -> None:
        self.said.append(text)
        assert self.holder.stdin
        self.holder.stdin.write("\n")
        self.holder.stdin.flush()


def start_holder(folder: Path) -> subprocess.Popen[str]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout and holder.stdout.readline() == "held\n"
    return holder


def test_second_patchctl_waits_and_says_for_whom(tmp_path: Path) -> None:
    holder = start_holder(tmp_path)
    report = Listener(holder)
    with exclusive(tmp_path, report):
        assert holder.wait(10) == 0
    assert len(report.said) == 1
    assert f"process {holder.pid}" in report.said[0]


def test_lock_of_a_killed_process_does_not_stay(tmp_path: Path) -> None:
    holder = start_holder(tmp_path)
    assert json.loads((tmp_path / "lock.holder").read_text())["pid"] == holder.pid
    holder.kill()
    holder.wait()
    with exclusive(tmp_path, QuietReporter()):
        pass
