# SPDX-License-Identifier: Apache-2.0
"""What somebody did in the source folder: how it is saved, and what may not be built."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from pathlib import PurePosixPath

from patchctl.errors import LocalChanges
from patchctl.formats.gitobjects import display
from patchctl.formats.globs import Include
from patchctl.formats.target import Target
from patchctl.formats.wording import counted
from patchctl.system.project import Project
from patchctl.system.worktree import Worktree


def diff_lines(project: Project, tree: str) -> list[str]:
    """How a person saves what differs from `tree` in the source folder, new files too."""
    git = shlex.join(["git", f"--git-dir={project.store}", f"--work-tree={project.source}"])
    steps = (f"read-tree {tree}", "add --intent-to-add .", "diff > edits.diff")
    return ["to keep the edits as a diff:", " && ".join(f"{git} {step}" for step in steps)]


def stray_files(project: Project, target: Target, files: Iterable[str]) -> list[str]:
    """Those of `files`, below the source folder, that a build would read and that are not replay's.

    A tree that was never replayed has none.
    """
    replayed = Worktree(project.source, project.records).manifest
    parts = (target.kernels, target.host)
    compiled = Include(tuple(glob for part in parts for glob in part.sources))
    included = [folder for part in parts for folder in part.include]
    included += [str(PurePosixPath(table).parent) for table in target.generate.tables]
    below = tuple("" if folder == "." else f"{folder}/" for folder in included)
    return [
        name
        for name in (files if replayed.files else ())
        if os.fsencode(name) not in replayed.files
        and (name.startswith(below) or compiled.matches(os.fsencode(name)))
    ]


def refuse_strays(project: Project, target: Target, files: Iterable[str]) -> None:
    """See that each of `files`, below the source folder, that a build would read is replay's.

    Raises:
        LocalChanges: one is not.
    """
    strays = stray_files(project, target, files)
    if strays:
        raise LocalChanges(
            f"{counted(len(strays), 'file')} in `{project.relative(project.source)}` that a "
            "build would read: not of the series",
            details=(
                *(f"new: {display(os.fsencode(name))}" for name in strays),
                *diff_lines(project, Worktree(project.source, project.records).manifest.tree),
            ),
            hint="make it a patch, or remove it; `patchctl build --edited` tries it",
            data={"files": [{"path": name, "kind": "new"} for name in strays]},
        )
