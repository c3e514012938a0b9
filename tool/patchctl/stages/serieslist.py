# SPDX-License-Identifier: Apache-2.0
"""The series for people: each patch with its state. Looks only, and lists what is wrong too."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from patchctl.errors import PatchctlError, PatchDoesNotApply, UsageError
from patchctl.formats.gitobjects import display
from patchctl.formats.patchmodel import Patch
from patchctl.formats.series import SeriesEntry, parse_series, unlisted
from patchctl.formats.serieslock import LockedPatch, SeriesLock
from patchctl.formats.trailers import read_trailers
from patchctl.stages.editsession import load_session
from patchctl.system.files import sha256_bytes
from patchctl.system.project import Project
from patchctl.system.records import load_record
from patchctl.system.seriesfiles import read_lock
from patchctl.system.seriesjournal import require_settled


class State(StrEnum):
    """How a patch stands, seen from the lock and the last replay."""

    APPLIED = "applied"
    """As locked, and in the source tree."""
    LOCKED = "locked"
    """As locked; the last replay did not have it so."""
    CHANGED = "changed"
    """The file, or the order of the series, is not the locked one."""
    NEW = "new"
    """The lock does not have it."""
    MALFORMED = "malformed"
    MISSING = "missing"
    """The series names it; there is no such file."""
    UNLISTED = "unlisted"
    """A patch file that the series does not name."""


@dataclass(frozen=True)
class Row:
    """One patch. `added` and `removed` count lines; `date` is ISO 8601.

    `open` says that the patch is open for editing.
    """

    name: str
    state: State
    subject: str = ""
    author: str = ""
    email: str = ""
    date: str = ""
    files: tuple[str, ...] = ()
    added: int = 0
    removed: int = 0
    upstream_status: str = ""
    problem: str = ""
    open: bool = False


def list_series(project: Project) -> list[Row]:
    """Every patch in order, then the files that the series does not name.

    Raises:
        UsageError: no series, or a line of it is wrong.
    """
    require_settled(project)
    where = project.relative(project.series)
    try:
        entries = parse_series(project.series.read_bytes(), where=where)
    except FileNotFoundError:
        raise UsageError(f"`{where}` is missing", hint=f"touch {where}") from None
    try:
        lock = read_lock(project)
    except PatchctlError:
        lock = None
    replayed = _replayed(project)
    session = load_session(project)
    rows = []
    for number, entry in enumerate(entries):
        row = _row(project, entry, _locked(lock, number), lock, replayed)
        is_open = session is not None and session.patch == entry.name
        rows.append(replace(row, open=True) if is_open else row)
    folder = project.patches
    there = (path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    rows += [Row(name, State.UNLISTED) for name in unlisted(there, entries)]
    return rows


def _locked(lock: SeriesLock | None, number: int) -> LockedPatch | None:
    return lock.patches[number] if lock is not None and number < len(lock.patches) else None


def _replayed(project: Project) -> dict[str, str]:
    """The sha256 of each patch file as the last replay had it."""
    record = load_record(project, "replay")
    if record is None or record.inputs.get("last patch") != "of the series":
        return {}
    prefix = "patch "
    return {k.removeprefix(prefix): v for k, v in record.inputs.items() if k.startswith(prefix)}


def _row(
    project: Project,
    entry: SeriesEntry,
    locked: LockedPatch | None,
    lock: SeriesLock | None,
    replayed: dict[str, str],
) -> Row:
    from patchctl.formats.patch import parse_patch

    try:
        data = (project.patches / entry.name).read_bytes()
    except OSError:
        return Row(entry.name, State.MISSING, problem=f"line {entry.line} of the series names it")
    try:
        patch = parse_patch(entry.name, data, entry.strip)
    except PatchDoesNotApply as error:
        return Row(entry.name, State.MALFORMED, problem=error.message)
    digest = sha256_bytes(data)
    known = {p.name for p in lock.patches} if lock else set()
    if locked is not None and (locked.name, locked.sha256) == (entry.name, digest):
        state = State.APPLIED if replayed.get(entry.name) == digest else State.LOCKED
    else:
        state = State.CHANGED if entry.name in known else State.NEW
    return _described(entry.name, state, patch)


def _described(name: str, state: State, patch: Patch) -> Row:
    from datetime import UTC, datetime

    author = patch.header.author
    hunks = [hunk for change in patch.changes for hunk in change.hunks]
    status = (
        t.value for t in read_trailers(patch.header.message) if t.key.lower() == "upstream-status"
    )
    return Row(
        name,
        state,
        patch.header.subject,
        author.name,
        author.email,
        datetime.fromtimestamp(author.when, UTC).isoformat(),
        tuple(dict.fromkeys(display(change.path) for change in patch.changes)),
        sum(hunk.marks.count(b"+") for hunk in hunks),
        sum(hunk.marks.count(b"-") for hunk in hunks),
        next(status, ""),
    )
