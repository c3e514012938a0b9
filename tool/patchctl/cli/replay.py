# SPDX-License-Identifier: Apache-2.0
"""``patchctl replay``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from patchctl.cli.app import App, command
from patchctl.formats.wording import counted

if TYPE_CHECKING:
    from patchctl.stages.replay import ReplayResult
    from patchctl.system.project import Project


@command
@click.option("--lock", is_flag=True, help="Write patches/series.lock.toml, show what changed.")
@click.option("--through", metavar="PATCH", help="Stop after PATCH, a file name of the series.")
@click.option(
    "--discard",
    is_flag=True,
    help="Move files that were edited in the source tree to build/out/discarded first.",
)
def replay(app: App, lock: bool, through: str | None, discard: bool) -> None:
    """Apply the series, exactly, and update build/out/src.

    Every line must be where its patch says: no fuzz, no offset, no three-way. Each patch becomes
    a commit; trees and commits must equal patches/series.lock.toml. In the source tree only
    files whose content changes are written, and none that was edited by hand.
    """
    from patchctl.stages.replay import replay as run
    from patchctl.system.project import exclusive

    with exclusive(app.project.out, app.report):
        result = run(
            app.project,
            app.report,
            lock=lock,
            through=through,
            offline=app.offline,
            discard=discard,
        )
    app.show("replay", _data(app.project, result), lambda: _text(app.project, result, through))


def _data(project: Project, result: ReplayResult) -> dict[str, object]:
    from dataclasses import asdict

    discarded = result.discarded and project.relative(result.discarded)
    return {**asdict(result), "discarded": discarded, "source": project.relative(project.source)}


def _text(project: Project, result: ReplayResult, through: str | None) -> str:
    width = max((len(patch.name) for patch in result.patches), default=0)
    lines = [
        f"{patch.name:{width}}  {patch.tree[:12]}  {patch.subject}" for patch in result.patches
    ]
    lines += [f"locked: {change}" for change in result.relocked]
    count = counted(len(result.patches), "patch")
    verb = "applied" if result.fresh else "nothing to do:"
    lines.append(f"{verb} {count}: tree {result.tree[:12]}, commit {result.head[:12]}")
    where = project.relative(project.source)
    lines.append(f"{where}: files written {result.written}, removed {result.removed}")
    if through:
        lines.append(f"stopped after `{through}`: `patchctl replay` applies the whole series")
    return "\n".join(lines)
