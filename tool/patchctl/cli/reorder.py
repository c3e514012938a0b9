# SPDX-License-Identifier: Apache-2.0
"""``patchctl drop`` and ``patchctl move``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from patchctl.cli.app import App, command
from patchctl.cli.render import after_change

if TYPE_CHECKING:
    from patchctl.stages.reorder import Reordered


@command
@click.argument("patch")
def drop(app: App, patch: str) -> None:
    """Take PATCH out of the series and remove its file.

    The patches after it are put on top again: strictly, else by a three-way merge. On a
    conflict nothing changes. A copy of the file stays in build/out/discarded.
    """
    from patchctl.stages.reorder import drop as run
    from patchctl.system.project import exclusive

    with exclusive(app.project.out, app.report):
        done = run(app.project, app.report, patch, offline=app.offline)
    _show(app, "drop", done, "dropped")


@command
@click.argument("patch")
@click.option("--before", metavar="OTHER", help="Put it directly before this patch.")
@click.option("--after", metavar="OTHER", help="Put it directly after this patch.")
def move(app: App, patch: str, before: str | None, after: str | None) -> None:
    """Move PATCH before or after another patch.

    Its file keeps its name.

    The patches in between are put on top again: strictly, else by a three-way merge. On a
    conflict nothing changes.
    """
    from patchctl.stages.reorder import move as run
    from patchctl.system.project import exclusive

    with exclusive(app.project.out, app.report):
        done = run(app.project, app.report, patch, before=before, after=after, offline=app.offline)
    _show(app, "move", done, "moved")


def _show(app: App, name: str, done: Reordered, verb: str) -> None:
    data = {
        "patch": done.patch,
        "kept": done.kept,
        "patches": [{"name": patch, "fate": fate} for patch, fate in done.patches],
    }
    lines = [f"{done.patch}: {verb}"]
    if done.kept is not None:
        lines[0] += f"; a copy is in {app.project.relative(done.kept)}"
    lines += [f"{patch}: {fate}" for patch, fate in done.patches if fate != "kept"]
    kept = sum(fate == "kept" for _, fate in done.patches)
    lines += after_change(app.project, kept)
    app.show(name, data, "\n".join(lines))
