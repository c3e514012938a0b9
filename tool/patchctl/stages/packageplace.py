# SPDX-License-Identifier: Apache-2.0
"""Where a package is, as its interpreter imports it, found without importing it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from patchctl.errors import UsageError
from patchctl.stages.interpreter import Interpreter, ask, last_line
from patchctl.system.process import ProcessFailed

DEFAULT_SUBPACKAGES = {"vllm": "vllm.vllm_flash_attn"}
"""Where packages that we know keep their copy of the library."""


@dataclass(frozen=True)
class Place:
    """A package's folder. `beside` holds the top package; `checkout` is true when that is no
    folder of installed packages (an editable install)."""

    package: str
    folder: Path
    beside: Path
    checkout: bool


def find_place(interpreter: Interpreter, package: str, *, into_checkout: bool) -> Place:
    """The folder of `package` (or of the subpackage that is known for it).

    Raises:
        UsageError: not a name, not found, found twice, or an editable install without
            `into_checkout`.
    """
    dotted = DEFAULT_SUBPACKAGES.get(package, package)
    if not all(part.isidentifier() for part in dotted.split(".")):
        raise UsageError(f"`{package}` is not the name of a Python package")
    try:
        answer = ask(interpreter.python, "package", dotted)
    except ProcessFailed as error:
        raise UsageError(
            f"`{interpreter.python}` cannot look for `{dotted}`: {last_line(error)}",
            details=error.details,
        ) from error
    imported = _real(answer["imported"])
    if not imported:
        why = f"`{dotted}` is not a package in it" if answer["found"] else "it is not installed"
        raise UsageError(
            f"`{interpreter.python}` does not find `{dotted}`: {why}",
            hint="--overlay PACKAGE.SUBPACKAGE names the folder of the library",
        )
    copies = _real([*answer["imported"], *answer["copies"]])
    if len(copies) > 1:
        raise UsageError(
            f"`{interpreter.python}` has {len(copies)} copies of `{dotted}`",
            details=tuple(
                f"{path}{' (imported)' if path == imported[0] else ''}" for path in copies
            ),
            hint="remove the one that is not meant, or take it off PYTHONPATH",
        )
    folder = imported[0]
    beside = folder.parents[len(dotted.split(".")) - 1]
    sources = {Path(source): name for source, name in answer["editable"].items()}
    owner = next((name for source, name in sources.items() if source in folder.parents), "")
    checkout = bool(owner) or beside not in interpreter.site
    if checkout and not into_checkout:
        what = f"{owner or dotted.split('.')[0]} is an editable install or on PYTHONPATH"
        raise UsageError(
            f"`{folder}` is not in site-packages: {what}",
            hint="--into-checkout changes that folder",
        )
    return Place(dotted, folder, beside, checkout)


def _real(folders: list[str]) -> list[Path]:
    """Distinct real folders, in order."""
    return list(dict.fromkeys(Path(os.path.realpath(folder)) for folder in folders))
