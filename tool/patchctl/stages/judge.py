# SPDX-License-Identifier: Apache-2.0
"""Reading a patch that somebody sent, and grading it against the tree that it shall go on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum

from patchctl.errors import PatchDoesNotApply
from patchctl.formats.apply import apply_patch
from patchctl.formats.edittree import EditTree
from patchctl.formats.gitobjects import Tree, display
from patchctl.formats.grademodel import Grade, HunkGrade, PatchGrade
from patchctl.formats.mend import mend
from patchctl.formats.patch import parse_patch
from patchctl.formats.patchmodel import Patch
from patchctl.formats.repairs import Repaired, repair
from patchctl.stages.arrivals import Arrival
from patchctl.stages.grade import grade, reader
from patchctl.system.gitstore import Store


class Verdict(StrEnum):
    """What can become of a patch."""

    EXACT = "exact"
    REPAIRABLE = "repairable"
    PRESENT = "already-present"
    REFUSED = "refused"


@dataclass(frozen=True)
class Judged:
    """A patch that came, as it was read and graded.

    `patch` is None where it cannot be read; then `error` says why. `reasons` are why it is not
    taken as it is, each one line; `exact` is what the strict engine takes.
    """

    arrival: Arrival
    verdict: Verdict
    patch: Patch | None = None
    grade: PatchGrade | None = None
    exact: Patch | None = None
    reasons: tuple[str, ...] = ()
    error: PatchDoesNotApply | None = None

    def as_json(self) -> dict[str, object]:
        """The patch for ``--json``."""
        graded = self.grade.as_json() if self.grade else {}
        problem = {"error": self.error.message} if self.error else {}
        return {
            **graded,
            **problem,
            "source": self.arrival.label,
            "subject": self.patch.header.subject if self.patch else None,
            "verdict": str(self.verdict),
            "reasons": list(self.reasons),
        }


def judge(store: Store, arrival: Arrival, tree: EditTree) -> Judged:
    """Read and grade one patch against `tree`, whose blobs are in the store."""
    try:
        patch, origin, reasons = _read(arrival, tree)
    except PatchDoesNotApply as error:
        return Judged(arrival, Verdict.REFUSED, reasons=arrival.reasons, error=error)
    reasons = (*arrival.reasons, *reasons)
    files = tree.flat()
    read = reader(store, files)
    judged = Judged(arrival, Verdict.REFUSED, patch, reasons=reasons)
    if max(Counter(c.path for c in patch.changes).values()) > 1:
        # the grades look at each change by itself, and cannot tell
        return _accepted(judged, patch, store, files)
    graded = _renumbered(grade(store, patch, read), origin)
    judged = replace(judged, grade=graded)
    if graded.grade is Grade.PRESENT:
        return replace(judged, verdict=Verdict.PRESENT)
    if not all(file.fits for file in graded.files):
        return judged
    made: Repaired = repair(patch, graded, read)
    judged = replace(judged, reasons=(*reasons, *made.reasons))
    return _accepted(judged, made.patch, store, files)


def _accepted(judged: Judged, exact: Patch, store: Store, files: Tree) -> Judged:
    """The strict engine has the last word: it knows of links, folders and modes, too."""
    try:
        apply_patch(exact, EditTree(files), store.read_blob)
    except PatchDoesNotApply as error:
        return replace(judged, error=error)
    verdict = Verdict.REPAIRABLE if judged.reasons else Verdict.EXACT
    return replace(judged, verdict=verdict, exact=exact)


def _read(arrival: Arrival, tree: EditTree) -> tuple[Patch, tuple[int, ...], tuple[str, ...]]:
    """The patch, the line of the file for each line of what was parsed, and what was mended."""
    first: PatchDoesNotApply | None = None
    mended = mend(arrival.data, arrival.first, lambda p: tree.get(p) is not None, arrival.strip)
    if arrival.strip in (None, 0, 1) and not mended.headless:
        level = 1 if arrival.strip is None else arrival.strip
        lines = arrival.data.count(b"\n") + 1
        origin = tuple(range(arrival.first, arrival.first + lines))
        try:
            return parse_patch(arrival.where, arrival.data, level), origin, ()
        except PatchDoesNotApply as error:
            first = error
    if len(mended.readings) > 1:
        raise _several_readings(arrival, mended.readings)
    try:
        patch = parse_patch(arrival.where, mended.data)
    except PatchDoesNotApply as error:
        raise (first or error) from None
    # silent help would be a guess: name what the strict reader stumbled over
    reasons = mended.reasons or ((first.message,) if first else ())
    return patch, mended.origin, reasons


def _several_readings(arrival: Arrival, levels: tuple[int, ...]) -> PatchDoesNotApply:
    shown = " and ".join(f"-p{level}" for level in levels)
    return PatchDoesNotApply(
        f"patch `{arrival.label}`: its paths do not begin with a/ and b/, and {shown} each name "
        "files that exist",
        hint=f"say which is meant: -p{levels[0]} or -p{levels[1]}",
        data={"patch": arrival.label, "readings": list(levels)},
    )


def _renumbered(graded: PatchGrade, origin: tuple[int, ...]) -> PatchGrade:
    """The grades with lines of the file that came, not of what was made of it."""

    def line(of: int) -> int:
        return origin[of - 1] if 0 < of <= len(origin) else of

    def hunk(h: HunkGrade) -> HunkGrade:
        return replace(h, patch_line=line(h.patch_line))

    files = (
        replace(f, patch_line=line(f.patch_line), hunks=tuple(map(hunk, f.hunks)))
        for f in graded.files
    )
    return replace(graded, files=tuple(files))


def refusal(judged: Judged) -> str:
    """Why a patch cannot be taken, in a line."""
    if judged.error is not None:
        return judged.error.message
    assert judged.grade is not None
    file = next(f for f in judged.grade.files if not f.fits)
    path = display(file.path)
    if not file.own.fits:
        return f"`{path}`: {file.own}: {file.why}"
    hunk = next(h for h in file.hunks if not h.grade.fits)
    return f"`{path}`, hunk {hunk.number}: {hunk.grade}: {hunk.why}"
