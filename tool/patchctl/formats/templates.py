# SPDX-License-Identifier: Apache-2.0
"""Files that are generated from the templates in ``patchctl/templates``."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


def render(template: str, **values: object) -> str:
    """The text of `template` (its file name without ``.j2``).

    Raises:
        jinja2.UndefinedError: the template names a value that is not given.
    """
    return _environment().get_template(f"{template}.j2").render(values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("patchctl"),
        undefined=StrictUndefined,
        autoescape=False,  # plain text, never HTML
        keep_trailing_newline=True,
        trim_blocks=True,
    )
