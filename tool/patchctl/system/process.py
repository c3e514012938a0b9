# SPDX-License-Identifier: Apache-2.0
"""The one place that starts programs."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from patchctl.errors import PatchctlError, ToolMissing

TAIL_LINES = 15


@dataclass(frozen=True)
class Completed:
    """A program that ran: its argv, exit code (negative: killed by that signal) and output."""

    argv: tuple[str, ...]
    cwd: Path | None
    code: int
    stdout: bytes
    stderr: bytes

    @property
    def out(self) -> str:
        """Standard output as text; undecodable bytes are escaped."""
        return self.stdout.decode("utf-8", "backslashreplace")

    @property
    def err(self) -> str:
        """Standard error as text; undecodable bytes are escaped."""
        return self.stderr.decode("utf-8", "backslashreplace")

    def tail(self, lines: int = TAIL_LINES) -> tuple[str, ...]:
        """The last lines of what it said, errors preferred."""
        text = self.err.strip() or self.out.strip()
        return tuple(text.splitlines()[-lines:])

    def how_it_ended(self) -> str:
        """``exit code 3`` or ``killed by SIGKILL``."""
        if self.code >= 0:
            return f"exit code {self.code}"
        try:
            return f"killed by {signal.Signals(-self.code).name}"
        except ValueError:
            return f"killed by signal {-self.code}"


class ProcessFailed(PatchctlError):
    """A program failed; callers turn this into the error class with the right remedy."""

    def __init__(self, completed: Completed, *, log: Path | None = None) -> None:
        where = f" (in `{completed.cwd}`)" if completed.cwd else ""
        details = completed.tail()
        if log is not None:
            details = (*details, f"full log: {log}")
        super().__init__(
            f"`{shlex.join(completed.argv)}`{where} failed: {completed.how_it_ended()}",
            details=details,
            data={"argv": list(completed.argv), "code": completed.code},
        )
        self.completed = completed


def run(
    argv: Sequence[str | os.PathLike[str]],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    input: bytes = b"",
    check: bool = True,
    timeout: float | None = None,
) -> Completed:
    """Run a program to its end and return what it said.

    `env` replaces the whole environment when given. Standard input is `input`, never the
    terminal, so nothing can prompt.

    Raises:
        ToolMissing: there is no such program, or it may not be executed.
        ProcessFailed: `check` is true and the exit code is not 0, or `timeout` seconds passed.
    """
    args = tuple(os.fspath(a) for a in argv)
    try:
        done = subprocess.run(
            args, cwd=cwd, env=env, input=input, capture_output=True, timeout=timeout, check=False
        )
    except (FileNotFoundError, PermissionError) as error:
        if cwd is not None and not cwd.is_dir():
            raise
        raise ToolMissing(f"cannot run `{args[0]}`: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        note = f"\nno answer after {timeout:g} s".encode()
        said = (error.stderr or b"") + note
        late = Completed(args, cwd, -signal.SIGKILL, error.stdout or b"", said)
        raise ProcessFailed(late) from error
    completed = Completed(args, cwd, done.returncode, done.stdout, done.stderr)
    if check and completed.code != 0:
        raise ProcessFailed(completed)
    return completed
