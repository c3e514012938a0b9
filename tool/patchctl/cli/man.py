# SPDX-License-Identifier: Apache-2.0
"""`patchctl man`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from patchctl import __version__
from patchctl.cli.app import App, command
from patchctl.formats.roff import Page, manual_page
from patchctl.system.files import write_if_changed


@command
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
def man(app: App, folder: Path) -> None:
    """Write a manual page for every command into DIR.

    \b
    patchctl man ~/.local/share/man/man1
    man patchctl-replay
    """
    from patchctl.cli.main import main

    written = []
    with click.Context(main, info_name="patchctl") as context:
        for page in pages(main, context):
            write_if_changed(folder / page.file, manual_page(page))
            written.append(page.file)
    app.show("man", {"folder": folder, "pages": written}, "\n".join(written))


def pages(of: click.Command, context: click.Context) -> Iterator[Page]:
    """The page of a command, and those of its commands."""
    name = context.command_path
    below = of.list_commands(context) if isinstance(of, click.Group) else []
    children = [(n, c) for n in below if (c := _command(of, context, n)) is not None]
    parent = context.parent.command_path.replace(" ", "-") if context.parent else ""
    records = (parameter.get_help_record(context) for parameter in of.get_params(context))
    text = of.help or ""
    yield Page(
        name=name,
        summary=_summary(text),
        synopsis=" ".join(of.collect_usage_pieces(context)),
        help=text,
        options=[record for record in records if record is not None],
        commands=[(n, _summary(child.help or "")) for n, child in children],
        related=[parent] * bool(parent) + [f"{name} {n}".replace(" ", "-") for n, _ in children],
        version=__version__,
    )
    for child_name, child in children:
        with click.Context(child, parent=context, info_name=child_name) as inner:
            yield from pages(child, inner)


def _command(group: click.Command, context: click.Context, name: str) -> click.Command | None:
    return group.get_command(context, name) if isinstance(group, click.Group) else None


def _summary(text: str) -> str:
    """The first line, which begins with a verb, as `apropos` shows it."""
    first = text.strip().split("\n\n")[0].split("\n")
    return " ".join(line.strip() for line in first).rstrip(".")
