# SPDX-License-Identifier: Apache-2.0
"""``patchctl diff``."""

from __future__ import annotations

import click

from patchctl.cli.app import App, command


@command
@click.option("--source", is_flag=True, help="Of build/out/src, also while an edit is open.")
@click.option("--stat", is_flag=True, help="Only how much changed in which file.")
def diff(app: App, source: bool, stat: bool) -> None:
    """Show what your tree has that the series has not.

    That is build/out/edit while a patch is open for editing (commits and uncommitted changes),
    else build/out/src. The output is a diff that `git apply` takes.
    """
    from patchctl.stages.showdiff import difference
    from patchctl.system.project import exclusive

    with exclusive(app.project.out, app.report):
        found = difference(app.project, source=source or None, stat=stat)
    text = found.text.decode("utf-8", "backslashreplace")
    data = {"tree": found.where, "patch": found.patch, "files": list(found.files), "diff": text}
    app.show_raw("diff", data, found.text)
