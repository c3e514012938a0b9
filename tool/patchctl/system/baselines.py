# SPDX-License-Identifier: Apache-2.0
"""The baselines of a project: the locks in `vendor/` that say where a pristine source is."""

from __future__ import annotations

import re
from dataclasses import replace

from patchctl.errors import UsageError
from patchctl.formats.baseline import describes_baseline
from patchctl.formats.wording import did_you_mean
from patchctl.system.project import DEFAULT_BASELINE, LOCK_SUFFIX, Project

# What can be a part of a file's name and of a git ref.
_NAME = re.compile(r"(?!.*\.\.)(?!.*\.lock$)[A-Za-z0-9](?:[A-Za-z0-9._+-]*[A-Za-z0-9+-])?")


def baseline_names(project: Project) -> list[str]:
    """Every lock in `vendor/` with a ``[baseline]`` table, the default first, then by name.

    Raises:
        UsageError: a lock there is no TOML, or its name is none for a baseline.
    """
    names = []
    for path in sorted((project.root / "vendor").glob(f"*{LOCK_SUFFIX}")):
        if describes_baseline(path.read_bytes(), where=project.relative(path)):
            names.append(_checked(path.name.removesuffix(LOCK_SUFFIX)))
    return sorted(names, key=lambda name: name != DEFAULT_BASELINE)


def with_baseline(project: Project, name: str) -> Project:
    """The project on the baseline `name`.

    Raises:
        UsageError: there is no such baseline; names those that are there.
    """
    chosen = replace(project, baseline=_checked(name))
    path = chosen.baseline_lock
    where = project.relative(path)
    if path.is_file() and describes_baseline(path.read_bytes(), where=where):
        return chosen
    known = baseline_names(project)
    fault = "has no `[baseline]` table" if path.is_file() else "is not there"
    raise UsageError(
        f"no baseline `{name}`: `{where}` {fault}",
        hint=did_you_mean(name, known) or f"known: {', '.join(known) or 'none'}",
        data={"baseline": name, "known": known},
    )


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"`{name}` cannot name a baseline: it is a part of file names and git refs",
            hint="use letters, digits and `.`, `_`, `+`, `-` between them",
        )
    return name
