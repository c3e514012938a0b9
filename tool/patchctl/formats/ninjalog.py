# SPDX-License-Identifier: Apache-2.0
"""What ninja prints while it builds: progress, and the block of the first command that failed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

STATUS_FORMAT = "[%f/%t] "
"""NINJA_STATUS: edges finished of all, then the edge's description."""

SHOWN_LINES = 15

_STATUS = re.compile(r"^\[(?P<done>\d+)/(?P<total>\d+)\] (?P<what>.*)$")
_FAILED = re.compile(r"^FAILED: (?:\[code=(?P<code>\d+)\] )?(?P<outputs>.*?)\s*$")
_ERROR = re.compile(
    r"\berror\b|\bfatal\b|\bundefined reference\b|died due to signal", re.IGNORECASE
)
# g++ `x.h:1:2: warning: ...`, nvcc `x.cu(1): warning #1-D: ...`, ptxas `ptxas warning : ...`
_WARNING = re.compile(r"(?:^ptxas |: )warning ?(?:#\S+)? ?:")
_KILLED = re.compile(
    r"\bKilled\b|signal 9\b|out of memory|Cannot allocate memory|virtual memory exhausted",
    re.IGNORECASE,
)
_FULL = re.compile(r"No space left on device|Disk quota exceeded", re.IGNORECASE)


@dataclass(frozen=True)
class Status:
    """One finished edge: how many of how many, and its description."""

    done: int
    total: int
    what: str


def read_status(line: str) -> Status | None:
    """A status line, or None for anything else that ninja or a compiler said."""
    match = _STATUS.match(line)
    return Status(int(match["done"]), int(match["total"]), match["what"]) if match else None


def count_warnings(lines: list[str]) -> int:
    """How many warnings of compilers are in the log."""
    return sum(1 for line in lines if _WARNING.search(line))


@dataclass
class Failure:
    """The first failed command: its first output, its exit code if ninja says it, its text."""

    output: str
    code: int | None
    command: str = ""
    text: list[str] = field(default_factory=list)

    @property
    def out_of_memory(self) -> bool:
        """Whether the kernel's memory killer is the likely cause."""
        return self.code in (137, 9) or any(_KILLED.search(line) for line in self.text)

    @property
    def disk_full(self) -> bool:
        """Whether there was no space."""
        return any(_FULL.search(line) for line in self.text)

    @property
    def says_why(self) -> bool:
        """Whether there is an error message in it."""
        return any(_ERROR.search(line) for line in self.text)

    def shown(self) -> tuple[str, ...]:
        """The lines to show: from the first error on, else the last ones."""
        start = next((i for i, line in enumerate(self.text) if _ERROR.search(line)), None)
        if start is None:
            return tuple(self.text[-SHOWN_LINES:])
        # a compiler says first in which function or include it is
        context = max(0, start - 2)
        return tuple(self.text[context : context + SHOWN_LINES])


def first_failure(lines: list[str]) -> Failure | None:
    """The first ``FAILED:`` block of a log, or None."""
    failure: Failure | None = None
    for line in lines:
        match = _FAILED.match(line)
        if failure is None:
            if match:
                code = int(match["code"]) if match["code"] else None
                failure = Failure(match["outputs"].split(" ")[0], code)
        elif match or read_status(line) or line.startswith("ninja: "):
            break
        elif not failure.command:
            failure.command = line
        else:
            failure.text.append(line)
    return failure
