# SPDX-License-Identifier: Apache-2.0
"""How stages tell the user what happens. The command line brings the real reporter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Task(Protocol):
    """One piece of work in progress."""

    def advance(self, amount: int = 1) -> None:
        """Say that `amount` more units (of the task's total) are done."""

    def note(self, text: str) -> None:
        """Say which item is being worked on."""


class Reporter(Protocol):
    """Progress, notices and warnings; everything goes to stderr."""

    def info(self, text: str) -> None:
        """A step that a user would want to see."""

    def detail(self, text: str) -> None:
        """Shown with ``-v`` only."""

    def warn(self, text: str) -> None:
        """Something that is not an error and needs a look."""

    def task(self, label: str, total: int, *, unit: str = "") -> AbstractContextManager[Task]:
        """Start work of `total` units; `unit` is ``"B"`` for bytes, else a noun."""


class QuietTask:
    """A task that nobody watches."""

    def advance(self, amount: int = 1) -> None:
        """Ignore."""

    def note(self, text: str) -> None:
        """Ignore."""


class QuietReporter:
    """Says nothing and remembers warnings: for libraries and tests."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def info(self, text: str) -> None:
        """Ignore."""

    def detail(self, text: str) -> None:
        """Ignore."""

    def warn(self, text: str) -> None:
        """Remember."""
        self.warnings.append(text)

    @contextmanager
    def task(self, label: str, total: int, *, unit: str = "") -> Iterator[Task]:
        """A task that nobody watches."""
        yield QuietTask()
