# SPDX-License-Identifier: Apache-2.0
"""The files in `patches/`: the series, the patches that it names, the lock."""

from __future__ import annotations

import os
from dataclasses import dataclass

from patchctl.errors import PatchctlError, UsageError
from patchctl.formats.gitobjects import display
from patchctl.formats.series import SeriesEntry, parse_series, unlisted
from patchctl.formats.serieslock import SeriesLock, read_series_lock
from patchctl.formats.wording import did_you_mean
from patchctl.system.files import sha256_bytes
from patchctl.system.project import Project
from patchctl.system.seriesjournal import require_settled


@dataclass(frozen=True)
class PatchSource:
    """A patch file of the series, unread but for its bytes."""

    entry: SeriesEntry
    data: bytes
    sha256: str

    @property
    def name(self) -> str:
        """The file's path from `patches/`."""
        return self.entry.name


@dataclass(frozen=True)
class SeriesFiles:
    """The series as it is on disk: its own sha256, and the patches in order."""

    sha256: str
    patches: tuple[PatchSource, ...]

    def up_to(self, name: str | None, *, where: str) -> tuple[PatchSource, ...]:
        """The patches up to and including `name`, or all.

        Raises:
            UsageError: the series has no such patch.
        """
        if name is None:
            return self.patches
        names = [patch.name for patch in self.patches]
        if name not in names:
            near = did_you_mean(name, names) or f"the file names are in `{where}`"
            raise UsageError(f"`{where}` names no patch `{name}`", hint=near)
        return self.patches[: names.index(name) + 1]


def read_series(project: Project) -> SeriesFiles:
    """Read the series and every patch file that it names.

    Raises:
        UsageError: no series, a wrong line, a missing patch file, or a patch file in the folder
            that the series does not name.
        Unavailable: a killed run changed them in part; the next command finishes that.
    """
    require_settled(project)
    where = project.relative(project.series)
    try:
        data = project.series.read_bytes()
    except FileNotFoundError:
        raise UsageError(
            f"`{where}` is missing: it names the patches in their order",
            hint=f"touch {where} for a series without patches",
        ) from None
    entries = parse_series(data, where=where)
    patches = tuple(_read_patch(project, entry) for entry in entries)
    folder = project.patches
    there = (path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    extra = [display(os.fsencode(name)) for name in unlisted(there, entries)]
    if extra:
        raise UsageError(
            f"`{project.relative(folder)}/{extra[0]}` is not named in `{where}`",
            details=tuple(f"nor is `{name}`" for name in extra[1:]),
            hint="add it to the series, or move it out of the folder",
            data={"unlisted": extra},
        )
    return SeriesFiles(sha256_bytes(data), patches)


def _read_patch(project: Project, entry: SeriesEntry) -> PatchSource:
    path = project.patches / entry.name
    try:
        data = path.read_bytes()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        where = project.relative(project.series)
        raise UsageError(
            f"`{where}` line {entry.line} names `{entry.name}`: there is no file "
            f"`{project.relative(path)}`",
            data={"file": where, "line": entry.line, "missing": entry.name},
        ) from None
    return PatchSource(entry, data, sha256_bytes(data))


def read_lock(project: Project) -> SeriesLock | None:
    """The lock, or None if there is none.

    Raises:
        UsageError: it does not parse.
    """
    try:
        data = project.series_lock.read_bytes()
    except FileNotFoundError:
        return None
    return read_series_lock(data, where=project.relative(project.series_lock))


def add_series_line(error: PatchctlError, project: Project, files: SeriesFiles) -> None:
    """Let the error about a patch say which line of the series names it."""
    for patch in files.patches:
        if patch.name == error.data.get("patch"):
            where = project.relative(project.series)
            error.details = (*error.details, f"`{where}` line {patch.entry.line}")
            error.data["series_line"] = patch.entry.line


def add_lock_state(error: PatchctlError, files: SeriesFiles, locked: SeriesLock | None) -> None:
    """Let the error about a patch say whether it is the one that was locked, and so did apply."""
    digests = {patch.name: patch.sha256 for patch in locked.patches} if locked else {}
    for patch in files.patches:
        if patch.name == error.data.get("patch") and patch.name in digests:
            same = digests[patch.name] == patch.sha256
            what = "is the locked one" if same else "has changed since it was locked"
            error.details = (*error.details, f"the patch file {what}")
            error.data["patch_file_is_locked_one"] = same
