# SPDX-License-Identifier: Apache-2.0
"""The error funnel: every class has its code and its text; --json prints one object."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from patchctl import errors
from patchctl.cli import reporter
from patchctl.cli.app import App, as_patchctl_error, command, funnel
from patchctl.cli.main import main

CLASSES = {
    errors.GateFailed: 1,
    errors.UsageError: 2,
    errors.LockMismatch: 3,
    errors.PatchDoesNotApply: 4,
    errors.AlreadyApplied: 4,
    errors.MergeConflict: 4,
    errors.LocalChanges: 5,
    errors.ToolMissing: 6,
    errors.BuildFailed: 7,
    errors.Unavailable: 8,
    errors.PatchctlError: 70,
    errors.Interrupted: 130,
}


def failing(error: BaseException) -> click.Command:
    @click.group()
    @click.pass_context
    def group(ctx: click.Context) -> None:
        ctx.obj = App()

    @command
    def fail(app: App) -> None:
        """Fail."""
        raise error

    group.add_command(fail, "fail")
    return group


def test_every_error_class_is_in_the_table() -> None:
    found = {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.PatchctlError)
    }
    assert found == set(CLASSES)


@pytest.mark.parametrize(("kind", "code"), CLASSES.items())
def test_error_gives_its_code_text_and_hint(
    kind: type[errors.PatchctlError], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    error = kind("`x` is wrong", hint="patchctl right", details=("got 1", "expected 2"))
    assert funnel(failing(error), ["fail"]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.splitlines()
    assert lines == ["error: `x` is wrong", "  got 1", "  expected 2", "hint: patchctl right"]


def test_error_with_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    error = errors.LockMismatch("drift", data={"patch": "0001"})
    assert funnel(failing(error), ["fail", "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["version"] == 1
    assert document["error"] == {
        "kind": "lock",
        "message": "drift",
        "exit": 3,
        "data": {"patch": "0001"},
    }


def test_wrong_option_with_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert funnel(failing(errors.UsageError("")), ["fail", "--json", "--nonsense"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "usage"


def test_unexpected_exception_is_called_a_bug(capsys: pytest.CaptureFixture[str]) -> None:
    assert funnel(failing(ZeroDivisionError("x")), ["fail"]) == 70
    assert "internal error: ZeroDivisionError: x" in capsys.readouterr().err


def test_no_space_is_no_bug() -> None:
    error = as_patchctl_error(OSError(errno.ENOSPC, "No space left on device", "/f"))
    assert error.exit_code == 8
    assert "No space left on device" in error.message and "`/f`" in error.message
    assert "free some space" in error.hint


def test_interrupt_ends_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert funnel(failing(KeyboardInterrupt()), ["fail"]) == 130


def test_folder_outside_a_project_is_a_usage_error(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "patchctl", "-C", str(tmp_path), "status"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "not inside a patchctl project" in done.stderr
    assert "hint: patchctl -C DIR" in done.stderr


PATCHCTL = [sys.executable, "-m", "patchctl"]


def make_project(folder: Path) -> Path:
    for name in ("patches", "vendor", "build"):
        (folder / name).mkdir(parents=True)
    return folder


@pytest.mark.parametrize("after", [False, True])
def test_global_options_are_understood_before_and_after_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], after: bool
) -> None:
    project = make_project(tmp_path / "a folder with spaces")
    options = ["-C", str(project), "--target", "other", "--offline", "-v", "--json"]
    assert funnel(main, ["status", *options] if after else [*options, "status"]) == 2
    message = json.loads(capsys.readouterr().out)["error"]["message"]
    assert message == "there is no target `other`: no `build/other.toml`"


def test_every_command_has_the_global_options_and_a_whole_summary() -> None:
    listing = CliRunner().invoke(main, ["--help"], terminal_width=80).output
    assert "..." not in listing.partition("Commands:")[2]
    for name in ("status", "fetch", "replay", "build", "verify", "install", "uninstall", "check"):
        text = CliRunner().invoke(main, [name, "--help"]).output
        assert all(flag in text for flag in ("-C DIR", "--target NAME", "--json", "--offline"))


@pytest.mark.parametrize(("fails", "code"), [(False, 0), (True, 1)])
def test_reader_that_has_gone_does_not_change_the_verdict(fails: bool, code: int) -> None:
    script = (
        "import sys\n"
        "from patchctl import errors\n"
        "from patchctl.cli.app import command, funnel\n"
        "@command\n"
        "def say(app):\n"
        "    app.show('say', {}, 'x' * 100000)\n"
        f"    if {fails}: raise errors.GateFailed('no')\n"
        "sys.exit(funnel(say, []))\n"
    )
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", script], stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    assert done.returncode == code
    assert done.stderr == ("" if code == 0 else "error: no\n")


def test_reader_of_the_help_that_has_gone_is_no_verdict() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*PATCHCTL, "--help"], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_closed_stdout_is_no_crash() -> None:
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *PATCHCTL, "--version"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("variable", "coloured"), [("", True), ("1", False)])
def test_no_color_is_honoured_on_a_terminal(tmp_path: Path, variable: str, coloured: bool) -> None:
    terminal, end = os.openpty()
    environment = {**os.environ, "NO_COLOR": variable, "TERM": "xterm"}
    subprocess.run([*PATCHCTL, "-C", str(tmp_path), "status"], stderr=end, env=environment)
    os.close(end)
    said = os.read(terminal, 4096)
    os.close(terminal)
    assert b"error:" in said
    assert (b"\x1b[" in said) is coloured


def test_a_target_is_a_name_and_no_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = make_project(tmp_path)
    (project / "build" / "sm70.toml").touch()
    (project / "other.toml").touch()
    assert funnel(main, ["-C", str(project), "--target", "../other", "status"]) == 2
    assert "hint: --target with one of: sm70\n" in capsys.readouterr().err


def test_progress_without_a_terminal_is_in_plain_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reporter, "PLAIN_INTERVAL", 0.0)
    report = reporter.ClickReporter(verbose=False)
    with report.task("replaying", 1, unit="patch"):
        pass
    with report.task("building", 2, unit="step") as task:
        task.advance()
    with report.task("downloading", 3_000_000, unit="B") as task:
        task.advance(1_000_000)
    assert capsys.readouterr().err.splitlines() == [
        "replaying (1 patch)",
        "building (2 steps)",
        "  building: 1 of 2 steps",
        "downloading (3.0 MB)",
        "  downloading: 1.0 MB of 3.0 MB",
    ]
