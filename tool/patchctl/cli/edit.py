# SPDX-License-Identifier: Apache-2.0
"""``patchctl new``, ``edit`` and ``refresh``: changing a patch with one's own git."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from patchctl.cli.app import App, command
from patchctl.cli.render import after_change

if TYPE_CHECKING:
    from patchctl.stages.edit import Opened
    from patchctl.stages.refresh import Refreshed

_DISCARD = click.option(
    "--discard",
    is_flag=True,
    help="Move an edit tree with changes that are in no patch to build/out/discarded first.",
)


@command
@click.argument("name")
@click.option("--after", metavar="PATCH", help="Put it behind this patch, not on top of all.")
@click.option("-m", "--message", default="", help="The commit message; its first line is subject.")
@_DISCARD
def new(app: App, name: str, after: str | None, message: str, discard: bool) -> None:
    """Start a new patch: opens build/out/edit for it.

    NAME is a subject ("sm70: add foo") or a file name; NNNN and the form of the name come from
    house style. Edit there and run `patchctl refresh`, or commit there yourself first.
    """
    from patchctl.stages.edit import open_new
    from patchctl.system.project import exclusive

    with exclusive(app.project.out, app.report):
        opened = open_new(
            app.project,
            app.report,
            name,
            after=after,
            message=message,
            offline=app.offline,
            discard=discard,
        )
    _show_opened(app, "new", opened)


@command
@click.argument("patch", required=False)
@_DISCARD
def edit(app: App, patch: str | None, discard: bool) -> None:
    """Open a patch for editing in build/out/edit.

    There stands the tree with exactly the patches up to it.

    It is an ordinary git repository, branch `series`, one commit a patch on tag `baseline`; use
    your own git in it: edit files, commit --amend, rebase -i baseline. `patchctl refresh` makes
    patch files of it again. PATCH is a name or a number; without it the last patch is opened.
    """
    from patchctl.stages.edit import open_edit
    from patchctl.system.project import exclusive

    with exclusive(app.project.out, app.report):
        opened = open_edit(app.project, app.report, patch, offline=app.offline, discard=discard)
    _show_opened(app, "edit", opened)


def _show_opened(app: App, name: str, opened: Opened) -> None:
    session = opened.session
    folder = app.project.relative(opened.folder)
    data = {
        "patch": session.patch,
        "subject": opened.subject,
        "folder": folder,
        "commits": len(session.covered),
        "head": session.head,
        "new": bool(session.new),
    }
    count = len(session.covered)
    below = f"{count} patch{'es' * (count != 1)} {'below it' if session.new else 'as commits'}"
    text = (
        f"{session.patch}: {opened.subject}\n"
        f"{folder}: {below}, on branch `series`\n"
        f"next: edit there, then {app.spelled('patchctl refresh')}"
    )
    app.show(name, data, text)


@command
@click.option(
    "--from-source",
    metavar="PATCH",
    help="Take what was edited in build/out/src into PATCH instead.",
)
@click.option("--allow-drop", is_flag=True, help="Drop patches whose commits are gone.")
@click.option("-s", "--signoff", is_flag=True, help="Add your Signed-off-by to a new patch.")
@click.option(
    "--resolve",
    is_flag=True,
    help="Bring a later patch that conflicts into build/out/edit, to be merged there.",
)
def refresh(
    app: App, from_source: str | None, allow_drop: bool, signoff: bool, resolve: bool
) -> None:
    """Make patch files of what is in build/out/edit.

    Uncommitted changes and new files go into the patch that was opened; commits that you amended,
    reworded, moved or added become patches. The patches after it are put on top again: strictly,
    else by a three-way merge. On a conflict nothing changes. A patch whose effect is the same
    keeps its bytes. All files change in one step, the lock too.
    """
    from patchctl.stages.refresh import refresh as run
    from patchctl.stages.sourceedits import refresh_from_source
    from patchctl.system.project import exclusive

    with exclusive(app.project.out, app.report):
        if from_source is not None:
            done = refresh_from_source(app.project, app.report, from_source, offline=app.offline)
        else:
            done = run(
                app.project,
                app.report,
                offline=app.offline,
                allow_drop=allow_drop,
                sign_off=signoff,
                resolve=resolve,
            )
    for name in done.leftovers:
        app.report.warn(f"`{name}` looks like a leftover and is in no patch")
    data = {
        "changed": done.changed,
        "patches": [{"name": name, "fate": fate} for name, fate in done.patches],
        "dropped": list(done.dropped),
        "leftovers": list(done.leftovers),
    }
    app.show("refresh", data, lambda: _text(app, done))


def _text(app: App, done: Refreshed) -> str:
    lines = [f"{name}: {fate}" for name, fate in done.patches if fate != "kept"]
    lines += [f"{name}: dropped" for name in done.dropped]
    kept = sum(fate == "kept" for _, fate in done.patches)
    if not done.changed:
        return f"nothing to do: all {kept} patches say what the tree says"
    lines += after_change(app.project, kept)
    return "\n".join(lines)
