# SPDX-License-Identifier: Apache-2.0
"""``patchctl series`` and ``patchctl show``: looking at the patches."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from patchctl.cli.app import App, command
from patchctl.cli.render import table

if TYPE_CHECKING:
    from patchctl.stages.serieslist import Row

_COLOURS = {"applied": "green", "locked": "cyan", "changed": "yellow", "new": "yellow"}


@command
def series(app: App) -> None:
    """List the patches in order, with state, author and size.

    \b
    applied    as locked, and in build/out/src
    locked     as locked; build/out/src is of another state
    changed    the file or its place is not the locked one: patchctl replay --lock
    new        not in the lock yet
    malformed, missing, unlisted: what is wrong stands below the list

    A star marks the patch that is open for editing. Reads only.
    """
    from patchctl.stages.serieslist import list_series

    rows = list_series(app.project)
    data = {"patches": [asdict(row) for row in rows]}
    app.show("series", data, lambda: _text(rows))


def _text(rows: list[Row]) -> str:
    if not rows:
        return "the series is empty"
    headers = ("patch", "state", "author", "files", "+", "-", "Upstream-Status")
    lines = table(
        headers,
        [
            (
                row.name + (" *" if row.open else ""),
                row.state,
                row.author,
                len(row.files) or "",
                row.added if row.files else "",
                row.removed if row.files else "",
                row.upstream_status,
            )
            for row in rows
        ],
        right="files,+,-",
    ).splitlines()
    lines += [f"{row.name}: {row.problem}" for row in rows if row.problem]
    listed = sum(row.state != "unlisted" for row in rows)
    lines.append(f"{listed} patch{'es' * (listed != 1)}")
    return "\n".join(lines)


@command
@click.argument("patch")
def show(app: App, patch: str) -> None:
    """Print a patch file: PATCH is its name or its number."""
    from patchctl.formats.patchnames import find_patch
    from patchctl.stages.serieslist import list_series

    project = app.project
    rows = list_series(project)
    there = [row for row in rows if row.state != "missing"]
    name = find_patch([row.name for row in there], patch, where=project.relative(project.series))
    raw = (project.patches / name).read_bytes()
    row = next(row for row in there if row.name == name)
    data = {**asdict(row), "text": raw.decode("utf-8", "backslashreplace")}
    app.show_raw("show", data, raw)
