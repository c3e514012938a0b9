# SPDX-License-Identifier: Apache-2.0
"""Manual pages: a command's help as roff (man macros)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Template


@dataclass(frozen=True)
class Page:
    """One command for its page. `name` is with blanks (``patchctl toolchain show``).

    `help` is click's text, where a paragraph that begins with a line ``\\b`` keeps its lines;
    `options` and `commands` are (term, text); `related` names other pages.
    """

    name: str
    summary: str
    synopsis: str
    help: str
    options: Sequence[tuple[str, str]]
    commands: Sequence[tuple[str, str]]
    related: Sequence[str]
    version: str

    @property
    def file(self) -> str:
        """The page's file name."""
        return f"{self.name.replace(' ', '-')}.1"


def escape(text: str) -> str:
    """Text of one line for roff: nothing in it is read as a command."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga")
    text = text.replace("'", "\\(aq").replace("~", "\\(ti").replace("^", "\\(ha")
    return f"\\&{text}" if text.startswith(".") else text


def paragraphs(text: str) -> list[tuple[bool, list[str]]]:
    """The paragraphs of a help text as (keeps its lines, lines)."""
    found = []
    for block in re.split(r"\n\s*\n", text.replace("\f", "").strip("\n")):
        lines = [line.strip("\n") for line in block.split("\n")]
        kept = lines[0].strip() == "\b"
        lines = lines[1:] if kept else [" ".join(line.strip() for line in lines)]
        if any(line.strip() for line in lines):
            found.append((kept, lines))
    return found


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["roff"] = escape
    source = files("patchctl") / "templates" / "manpage.1.j2"
    return environment.from_string(source.read_text(encoding="utf-8"))


def manual_page(page: Page) -> str:
    """The page; the same command gives the same bytes (there is no date in it)."""
    return _template().render(page=page, paragraphs=paragraphs(page.help))
