# SPDX-License-Identifier: Apache-2.0
"""Changing several files as one step: all of them, or none, whenever the process is killed.

The new contents are written into one journal beside the series first. From the moment that it
is there the change is decided: whoever comes next carries it out. Contents are in the journal,
so it needs nothing from `build/out`, which anybody may remove at any time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import msgspec

from patchctl.errors import Unavailable
from patchctl.system.files import sweep, sync_folder, write_file
from patchctl.system.project import Project, exclusive
from patchctl.system.report import Reporter

_NAME = ".series-change.json"
_FOLDERS = ("patches", "vendor", "build")


def _journal(project: Project) -> Path:
    return project.patches / _NAME


def replace_files(project: Project, contents: Mapping[Path, bytes | None]) -> None:
    """Give every file its new content (None removes it), as one step.

    The paths must be below the project's root. The caller holds the project's lock.

    Raises:
        Unavailable: an earlier step is unfinished, or the journal cannot be written; nothing
            was changed then.
    """
    require_settled(project)
    stored = {
        path.relative_to(project.root).as_posix(): data
        for path, data in contents.items()
        if _content(path) != data
    }
    if stored:
        write_file(_journal(project), msgspec.json.encode(stored))
        _carry_out(project)


def require_settled(project: Project) -> None:
    """Refuse to read files that a killed run has changed only in part.

    Raises:
        Unavailable: there is an unfinished step; the next command finishes it.
    """
    if _journal(project).exists():
        where = project.relative(_journal(project))
        raise Unavailable(
            f"a change of the series is under way or was interrupted (`{where}`)",
            hint="run the command again: it finishes the change first",
        )


def finish_replacement(project: Project, report: Reporter) -> bool:
    """Carry out what a killed run had decided and sweep what it left; True if there was any.

    Takes the project's lock itself, and only when there is something to do.

    Raises:
        Unavailable: the files cannot be written.
    """
    leftovers = any(project.patches.glob(".patchctl-tmp-*"))
    if not leftovers and not _journal(project).exists():
        return False
    with exclusive(project.out, report):
        sweep(project.patches, older_than=0)
        unfinished = _journal(project).exists()
        if unfinished:
            _carry_out(project)
            report.info("finished a change of the series that was interrupted")
    return unfinished


def _carry_out(project: Project) -> None:
    """Every write is idempotent, so being killed again does no harm."""
    journal = _journal(project)
    stored = _read(project, journal)
    folders = set()
    for name, data in stored.items():
        path = project.root / name
        if data is None:
            path.unlink(missing_ok=True)
        elif _content(path) != data:
            # synced once a folder, below: the journal goes last
            write_file(path, data, sync=False)
        folders.add(path.parent)
    for name, data in stored.items():
        if data is not None:
            _sync(project.root / name)
    for folder in folders:
        if folder.is_dir():
            sync_folder(folder)
    journal.unlink()


def _read(project: Project, journal: Path) -> dict[str, bytes | None]:
    """The journal is written as a whole: what does not parse was damaged by somebody else."""
    try:
        stored = msgspec.json.decode(journal.read_bytes(), type=dict[str, bytes | None])
        strangers = [name for name in stored if PurePosixPath(name).parts[0] not in _FOLDERS]
    except (msgspec.DecodeError, IndexError) as error:
        raise Unavailable(
            f"`{project.relative(journal)}` is damaged: {error}",
            hint="look at `git status`, remove the file, then patchctl replay",
        ) from error
    if strangers or any(".." in PurePosixPath(name).parts for name in stored):
        raise Unavailable(
            f"`{project.relative(journal)}` names files outside the series and its locks",
            hint="remove it: patchctl did not write it",
        )
    return stored


def _sync(path: Path) -> None:
    with path.open("rb") as handle:
        os.fsync(handle.fileno())


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
