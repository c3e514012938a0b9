# SPDX-License-Identifier: Apache-2.0
"""The one place that starts programs."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from patchctl.errors import PatchctlError, ToolMissing
from patchctl.system.report import Reporter

TAIL_LINES = 15
_PR_SET_PDEATHSIG = 1  # of linux/prctl.h
GRACE = 5.0
"""Seconds that an interrupted program has to clean up after itself."""


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
        raise _cannot_start(args[0], cwd, error) from error
    except subprocess.TimeoutExpired as error:
        note = f"\nno answer after {timeout:g} s".encode()
        said = (error.stderr or b"") + note
        late = Completed(args, cwd, -signal.SIGKILL, error.stdout or b"", said)
        raise ProcessFailed(late) from error
    completed = Completed(args, cwd, done.returncode, done.stdout, done.stderr)
    if check and completed.code != 0:
        raise ProcessFailed(completed)
    return completed


def _cannot_start(program: str, cwd: Path | None, error: OSError) -> Exception:
    """A missing working folder is no missing program."""
    if cwd is not None and not cwd.is_dir():
        return error
    return ToolMissing(f"cannot run `{program}`: {error.strerror}")


def stream(
    argv: Sequence[str | os.PathLike[str]],
    on_line: Callable[[str], None],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> int:
    """Run a program, handing over each line of its output (both streams) as it comes.

    Returns the exit code (negative: killed by that signal). The program gets a session of its
    own, so that Ctrl-C is ours to pass on: whatever ends this call, no child of it stays. Even
    when we are killed outright, it is asked to stop.

    Raises:
        ToolMissing: there is no such program, or it may not be executed.
    """
    args = tuple(os.fspath(a) for a in argv)
    try:
        child = subprocess.Popen(
            args,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_parent(),
        )
    except (FileNotFoundError, PermissionError) as error:
        raise _cannot_start(args[0], cwd, error) from error
    assert child.stdout is not None
    try:
        for line in child.stdout:
            on_line(line.decode("utf-8", "backslashreplace").rstrip("\r\n"))
        return child.wait()
    finally:
        child.stdout.close()
        if child.poll() is None:
            _end(child)


def _end_with_parent() -> Callable[[], object]:
    """For the child, before it becomes the program: a SIGTERM when its parent dies."""
    import ctypes

    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def wait_for_others(program: str, folder: Path, report: Reporter) -> None:
    """Wait until no `program` runs in `folder`: one that a killed run left is still tidying up."""
    said = False
    while pids := [pid for pid in _processes() if _is_running(pid, program, folder)]:
        if not said:
            report.info(f"waiting for {program} (process {pids[0]}) that a killed run left")
            said = True
        time.sleep(0.05)


def _is_running(pid: int, program: str, folder: Path) -> bool:
    process = Path("/proc") / str(pid)
    try:
        name = (process / "comm").read_text().strip()
        return name == program and (process / "cwd").readlink() == folder.resolve()
    except OSError:  # gone, or somebody else's
        return False


def _processes() -> list[int]:
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ask the child to stop (ninja removes what it had half made), then make sure of it."""
    child.send_signal(signal.SIGINT)
    try:
        child.wait(GRACE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    for pid in _session(child.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _session(leader: int) -> list[int]:
    """The processes of a session; its members may have made process groups of their own."""
    members = []
    for pid in _processes():
        try:
            stat = (Path("/proc") / str(pid) / "stat").read_text(errors="replace")
        except OSError:
            continue
        # after the name, which may hold anything: state, parent, group, session
        if int(stat.rpartition(")")[2].split()[3]) == leader:
            members.append(pid)
    return members
