# SPDX-License-Identifier: Apache-2.0
"""Progress on stderr: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from patchctl.formats.wording import counted

if TYPE_CHECKING:
    from click._termui_impl import ProgressBar

PLAIN_INTERVAL = 5.0  # seconds between two lines of the same task where there is no terminal


class _BarTask:
    def __init__(self, bar: ProgressBar[str]) -> None:
        self._bar = bar

    def advance(self, amount: int = 1) -> None:
        self._bar.update(amount)

    def note(self, text: str) -> None:
        self._bar.current_item = text
        self._bar.render_progress()


class _PlainTask:
    def __init__(self, label: str, total: int, unit: str) -> None:
        self._label, self._total, self._unit = label, total, unit
        self._done = 0
        self._spoke = time.monotonic()

    def advance(self, amount: int = 1) -> None:
        self._done += amount
        if time.monotonic() - self._spoke >= PLAIN_INTERVAL:
            self._say("")

    def note(self, text: str) -> None:
        if time.monotonic() - self._spoke >= PLAIN_INTERVAL:
            self._say(f" ({text})")

    def _say(self, note: str) -> None:
        self._spoke = time.monotonic()
        done = _amount(self._done, "B") if self._unit == "B" else self._done
        total = _amount(self._total, self._unit)
        click.echo(f"  {self._label}: {done} of {total}{note}", err=True)


def _amount(value: int, unit: str) -> str:
    if unit == "B":
        return f"{value / 1e6:.1f} MB"
    return counted(value, unit) if unit else str(value)


class ClickReporter:
    """The reporter of the command line."""

    def __init__(self, *, verbose: bool) -> None:
        self._verbose = verbose

    def info(self, text: str) -> None:
        """A step that a user would want to see."""
        click.echo(text, err=True)

    def detail(self, text: str) -> None:
        """Shown with ``-v`` only."""
        if self._verbose:
            click.echo(click.style(text, dim=True), err=True)

    def warn(self, text: str) -> None:
        """Something that is not an error and needs a look."""
        click.echo(click.style("warning:", fg="yellow", bold=True) + f" {text}", err=True)

    @contextmanager
    def task(self, label: str, total: int, *, unit: str = "") -> Iterator[_BarTask | _PlainTask]:
        """A bar on a terminal; elsewhere a line when it starts and every few seconds."""
        if sys.stderr.isatty() and total > 0:
            bar: ProgressBar[str] = click.progressbar(
                length=total,
                label=label,
                file=sys.stderr,
                show_pos=unit != "B",
                item_show_func=lambda item: str(item or ""),
            )
            with bar:
                yield _BarTask(bar)
        else:
            click.echo(f"{label} ({_amount(total, unit)})" if total else label, err=True)
            yield _PlainTask(label, total, unit)
