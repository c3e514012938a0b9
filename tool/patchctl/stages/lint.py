# SPDX-License-Identifier: Apache-2.0
"""lint: the series, its patches and its locks, by their files alone: no store, no network."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import replace

from patchctl.errors import UsageError
from patchctl.formats.baseline import describes_baseline, read_lock
from patchctl.formats.findings import Severity
from patchctl.formats.lintmodel import Remark, from_error
from patchctl.formats.locklint import lint_baseline, lint_series_lock
from patchctl.formats.patchlint import lint_names, lint_patch
from patchctl.formats.series import SeriesEntry, parse_series, unlisted
from patchctl.formats.serieslock import RELOCK
from patchctl.system.project import DEFAULT_BASELINE, LOCK_SUFFIX, Project

AREAS = ("series", "patches", "locks")


def lint(project: Project, areas: Collection[str] = AREAS) -> list[Remark]:
    """Everything that is wrong, by file and line.

    The series is read whatever `areas` are asked for; what is wrong with it is only said for
    ``series``.
    """
    entries, remarks = _entries(project)
    remarks += lint_names(
        [e.name for e in entries], [e.line for e in entries], series=_series(project)
    )
    digests = {}
    for entry in entries:
        path = project.patches / entry.name
        try:
            data = path.read_bytes()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            text = f"there is no file `{project.relative(path)}`"
            remarks.append(Remark(_series(project), entry.line, "series", "missing", text))
            continue
        digests[entry.name] = hashlib.sha256(data).hexdigest()
        if "patches" in areas:
            remarks += lint_patch(entry.name, data, entry.strip, file=project.relative(path))
    if "locks" in areas:
        remarks += _locks(project, digests)
    return sorted((r for r in remarks if r.area in areas), key=lambda r: (r.file, r.line, r.rule))


def _series(project: Project) -> str:
    return project.relative(project.series)


def _entries(project: Project) -> tuple[tuple[SeriesEntry, ...], list[Remark]]:
    """What the series names; a wrong line is said and left out, and the next is read."""
    where = _series(project)
    if not project.series.is_file():
        return (), [Remark(where, 1, "series", "missing", "there is no series")]
    lines = project.series.read_bytes().split(b"\n")
    remarks: list[Remark] = []
    while True:
        try:
            entries = parse_series(b"\n".join(lines), where=where)
            break
        except UsageError as error:
            remark = from_error(error, where, "series", "series-line")
            remarks.append(remark)
            lines[remark.line - 1] = b""
    folder = project.patches
    there = (path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    for name in unlisted(there, entries):
        text = f"`{where}` does not name it"
        remarks.append(Remark(f"{project.relative(folder)}/{name}", 1, "series", "unlisted", text))
    return entries, remarks


def _locks(project: Project, digests: dict[str, str]) -> Iterator[Remark]:
    """Every baseline's lock, and for each the lock of the series on it."""
    known = set()
    for path in sorted((project.root / "vendor").glob(f"*{LOCK_SUFFIX}")):
        where, text = project.relative(path), path.read_bytes()
        try:
            if not describes_baseline(text, where=where):
                continue
        except UsageError as error:
            yield from_error(error, where, "locks", "baseline-lock")
            continue
        faults = list(lint_baseline(text, file=where))
        yield from faults
        name = path.name.removesuffix(LOCK_SUFFIX)
        on = replace(project, baseline=name)
        known.add(on.series_lock)
        lock = on.series_lock.read_bytes() if on.series_lock.is_file() else None
        tree = "" if faults else read_lock(text, where=where).tree
        option = "" if name == DEFAULT_BASELINE else f" --baseline {name}"
        relock = RELOCK.replace("patchctl", f"patchctl{option}")
        file = project.relative(on.series_lock)
        yield from lint_series_lock(lock, digests, tree, file=file, relock=relock)
    for path in sorted(project.patches.glob(f"series*{LOCK_SUFFIX}")):
        if path not in known:
            what = "a lock of the series on a baseline that is not there"
            yield Remark(project.relative(path), 1, "locks", "orphan", what, Severity.WARNING)
