# SPDX-License-Identifier: Apache-2.0
"""The error funnel: every class has its code and its text; --json prints one object."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

from patchctl import errors
from patchctl.cli.app import App, as_patchctl_error, command, funnel

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
