# SPDX-License-Identifier: Apache-2.0
"""How well a patch fits a tree, as data: a grade a hunk, a file, a patch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from patchctl.formats.gitobjects import display
from patchctl.formats.patchmodel import Action


class Grade(StrEnum):
    """How well, from best to worst; `PRESENT` stands apart: there is nothing left to do."""

    EXACT = "exact"
    OFFSET = "offset"
    WHITESPACE = "whitespace"
    FUZZ = "fuzz"
    THREE_WAY = "three-way"
    PRESENT = "already-present"
    AMBIGUOUS = "ambiguous"
    GONE = "target-gone"
    CONFLICT = "conflict"
    NONE = "none"

    @property
    def fits(self) -> bool:
        """Whether the tree has one place for it, be it after a repair."""
        return _ORDER.index(self) <= _ORDER.index(Grade.PRESENT)


_ORDER = list(Grade)


def worst(grades: Iterable[Grade]) -> Grade:
    """The worst of some grades. What is present already counts only where all of it is."""
    todo = list(grades)
    left = [grade for grade in todo if grade is not Grade.PRESENT]
    if todo and not left:
        return Grade.PRESENT
    return max(left, key=_ORDER.index, default=Grade.EXACT)


@dataclass(frozen=True)
class Difference:
    """A line of the tree (`line` counts from 1) beside what the patch has there.

    `patch` is None where the patch has no such line, `tree` None where the tree has none.
    """

    line: int
    patch: bytes | None
    tree: bytes | None

    @property
    def blanks_only(self) -> bool:
        """Whether the two differ in white space, line ends or the final newline alone."""
        return (self.patch or b"").split() == (self.tree or b"").split()

    def as_json(self) -> dict[str, object]:
        """The line for ``--json``."""
        sides = (self.patch, self.tree)
        patch, tree = (None if s is None else display(s.removesuffix(b"\n")) for s in sides)
        return {"line": self.line, "patch": patch, "tree": tree, "blanks_only": self.blanks_only}


@dataclass(frozen=True)
class Place:
    """A line of the tree (from 1) at which a hunk could be meant, and what speaks for it."""

    line: int
    why: str


@dataclass(frozen=True)
class HunkGrade:
    """How one hunk (`number` from 1) fits.

    `place` is the tree's line (from 1) at which it begins, 0 where there is none; `offset` is
    how far that is from the line that the hunk states; `fuzz` how many lines of context at its
    ends were not compared; `places` are all that could be meant where that is not clear.
    """

    number: int
    grade: Grade
    patch_line: int
    place: int = 0
    offset: int = 0
    fuzz: int = 0
    why: str = ""
    differences: tuple[Difference, ...] = ()
    places: tuple[Place, ...] = ()

    @property
    def text(self) -> str:
        """``offset +9``, ``fuzz 1, offset -2``, ``whitespace``."""
        parts = [f"fuzz {self.fuzz}" if self.fuzz else ""]
        if self.grade not in (Grade.FUZZ, Grade.OFFSET):
            parts.append(str(self.grade))
        parts.append(f"offset {self.offset:+d}" if self.offset else "")
        return ", ".join(part for part in parts if part)

    def as_json(self) -> dict[str, object]:
        """The hunk for ``--json``."""
        return {
            "hunk": self.number,
            "grade": str(self.grade),
            "patch_line": self.patch_line,
            "line": self.place or None,
            "offset": self.offset,
            "fuzz": self.fuzz,
            "why": self.why,
            "differences": [d.as_json() for d in self.differences],
            "places": [{"line": p.line, "why": p.why} for p in self.places],
        }


@dataclass(frozen=True)
class FileGrade:
    """How one file's change fits.

    `own` is the grade of what concerns the file as a whole (that it is there, its mode, binary
    content), `why` and `differences` explain it; `merged` is the content that a three-way merge
    gave.
    """

    path: bytes
    action: Action
    patch_line: int
    own: Grade = Grade.EXACT
    why: str = ""
    differences: tuple[Difference, ...] = ()
    hunks: tuple[HunkGrade, ...] = ()
    merged: bytes | None = None

    @property
    def grade(self) -> Grade:
        """The file's grade."""
        if self.own is not Grade.EXACT:
            return self.own
        return worst(hunk.grade for hunk in self.hunks)

    @property
    def is_exact(self) -> bool:
        """Whether the strict engine takes it as it is."""
        return self.own is Grade.EXACT and all(h.grade is Grade.EXACT for h in self.hunks)

    @property
    def fits(self) -> bool:
        """Whether the tree has one place for all of it, be it after a repair."""
        if self.own is not Grade.EXACT:
            return self.own.fits
        return all(hunk.grade.fits for hunk in self.hunks)

    def as_json(self) -> dict[str, object]:
        """The file for ``--json``."""
        return {
            "file": display(self.path),
            "action": str(self.action),
            "grade": str(self.grade),
            "why": self.why,
            "patch_line": self.patch_line,
            "differences": [d.as_json() for d in self.differences],
            "hunks": [hunk.as_json() for hunk in self.hunks],
        }


@dataclass(frozen=True)
class PatchGrade:
    """How a whole patch fits."""

    name: str
    files: tuple[FileGrade, ...]

    @property
    def grade(self) -> Grade:
        """The worst of its files; that a file went away long ago proves nothing by itself."""
        graded = worst(file.grade for file in self.files)
        if graded is Grade.PRESENT and all(f.action is Action.DELETE for f in self.files):
            return Grade.GONE
        return graded

    @property
    def is_exact(self) -> bool:
        """Whether the strict engine takes it as it is."""
        return all(file.is_exact for file in self.files)

    @property
    def partly_present(self) -> bool:
        """Whether some of it, but not all, is in the tree already."""
        parts = [h.grade for f in self.files for h in f.hunks] + [f.own for f in self.files]
        return self.grade is not Grade.PRESENT and Grade.PRESENT in parts

    def as_json(self) -> dict[str, object]:
        """The patch for ``--json``."""
        return {
            "patch": self.name,
            "grade": str(self.grade),
            "exact": self.is_exact,
            "partly_present": self.partly_present,
            "files": [file.as_json() for file in self.files],
        }
