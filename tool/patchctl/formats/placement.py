# SPDX-License-Identifier: Apache-2.0
"""Where the hunks of one file belong, when they may have moved or been damaged; never a guess.

A hunk fits exactly, but for white space, or with fuzz (up to `MOST_FUZZ` lines of context at its
ends not compared); the first of these that has a place counts. The place must be the only one,
must keep the hunks in order, must not lie in another function than the hunk's header says, and no
place that looks alike may be nearer to where the hunk is expected (the true place may have
changed, and the match be a decoy). Everything else is `AMBIGUOUS`.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field

from patchctl.formats.filelines import FileLines, telling
from patchctl.formats.gitobjects import display
from patchctl.formats.grademodel import Difference, Grade, HunkGrade, Place
from patchctl.formats.patchmodel import Hunk

MOST_FUZZ = 2
_MOST_DIFFERENCES = 40


def core(hunk: Hunk, fuzz: int) -> tuple[int, int]:
    """How many lines of context `fuzz` takes off a hunk's begin and end, as GNU patch does it."""
    context = hunk.marks.strip(b" ")
    before = hunk.marks.index(context)
    after = len(hunk.marks) - before - len(context)
    longer = max(before, after)
    fuzz = min(fuzz, longer)  # only context is ever left out
    return max(fuzz + before - longer, 0), max(fuzz + after - longer, 0)


def differences(wanted: Sequence[bytes], lines: FileLines, place: int) -> tuple[Difference, ...]:
    """The lines of `wanted` that are not in the file from `place` on, beside those that are."""
    start = max(place, 1)
    wanted = wanted[start - place :]
    there = lines.at(start, len(wanted))
    found: list[Difference] = []
    matcher = difflib.SequenceMatcher(None, wanted, there, autojunk=False)
    for tag, a, a_end, b, b_end in matcher.get_opcodes():
        if tag == "equal":
            continue
        for step in range(max(a_end - a, b_end - b)):
            patch = wanted[a + step] if a + step < a_end else None
            tree = there[b + step] if b + step < b_end else None
            found.append(Difference(start + b + step, patch, tree))
    return tuple(found[:_MOST_DIFFERENCES])


def place_hunks(hunks: Sequence[Hunk], lines: Sequence[bytes]) -> tuple[HunkGrade, ...]:
    """Grade the hunks of an edit of the file with `lines`."""
    return _Placement(hunks, FileLines(lines)).grades()


@dataclass
class _Found:
    """Where a hunk fits in the weakest way that was needed, and where its result is already."""

    hunk: Hunk
    number: int
    grade: Grade = Grade.NONE
    fuzz: int = 0
    places: list[int] = field(default_factory=list)
    present: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class _Settled:
    """A hunk with one place only: the lines that it takes, and how far the file moved there."""

    start: int
    end: int
    before: int
    after: int


class _Placement:
    def __init__(self, hunks: Sequence[Hunk], lines: FileLines) -> None:
        self._lines = lines
        self._found = [self._find(hunk, number) for number, hunk in enumerate(hunks, 1)]
        self._settled = [self._settle(found) for found in self._found]

    def grades(self) -> tuple[HunkGrade, ...]:
        return tuple(self._decide(index) for index in range(len(self._found)))

    # -- where it fits

    def _find(self, hunk: Hunk, number: int) -> _Found:
        found = _Found(hunk, number)
        if any(telling(line) for line in hunk.new):
            found.present = [p for p in self._lines.places(hunk.new) if self._ends(hunk, p, 0)]
        attempts = [(Grade.OFFSET, 0), (Grade.WHITESPACE, 0)]
        attempts += [(Grade.FUZZ, fuzz) for fuzz in range(1, MOST_FUZZ + 1)]
        for grade, fuzz in attempts:
            places = self._places(hunk, grade, fuzz)
            if places:
                found.grade, found.fuzz, found.places = grade, fuzz, places
                return found
        return found

    def _places(self, hunk: Hunk, grade: Grade, fuzz: int) -> list[int]:
        if grade is not Grade.FUZZ:
            search = self._lines.places
            search = self._lines.loose_places if grade is Grade.WHITESPACE else search
            return [p for p in search(hunk.old) if self._ends(hunk, p, len(hunk.old))]
        before, after = core(hunk, fuzz)
        inner = hunk.old[before : len(hunk.old) - after]
        if not any(telling(line) for line in inner):
            return []
        return [p - before for p in self._lines.places(inner) if self._ends(hunk, p, len(inner))]

    def _ends(self, hunk: Hunk, place: int, count: int) -> bool:
        """A new last line without newline must become the file's last."""
        if not hunk.new or hunk.new[-1].endswith(b"\n") or not count:
            return True
        return place - 1 + count >= len(self._lines.lines)

    def _settle(self, found: _Found) -> _Settled | None:
        hunk = found.hunk
        if found.grade is Grade.OFFSET and hunk.old_start in found.places:
            start, length = hunk.old_start, len(hunk.old)
        elif len(found.places) == 1 and not found.present:
            start, length = found.places[0], len(hunk.old)
        elif len(found.present) == 1 and not found.places:
            start, length = found.present[0], len(hunk.new)
        else:
            return None
        moved = start - hunk.old_start
        return _Settled(start, start + length, moved, moved + length - len(hunk.old))

    # -- which place is meant

    def _neighbours(self, index: int) -> tuple[_Settled | None, _Settled | None]:
        before = [s for s in self._settled[:index] if s]
        after = [s for s in self._settled[index + 1 :] if s]
        return (before[-1] if before else None), (after[0] if after else None)

    def _decide(self, index: int) -> HunkGrade:
        found = self._found[index]
        hunk = found.hunk
        before, after = self._neighbours(index)
        low = before.end if before else -len(hunk.old)
        high = after.start if after else len(self._lines.lines) + 2
        moved = before.after if before else after.before if after else 0
        expected = hunk.old_start + moved
        places = [p for p in found.places if low <= p and p + len(hunk.old) <= high]
        present = [p for p in found.present if low <= p and p + len(hunk.new) <= high]
        right = [p for p in places if self._lines.contradicts(hunk.heading, p) is None]
        if found.grade is Grade.OFFSET and hunk.old_start in places:
            if hunk.old_start in right or not right:
                return self._fitting(found, hunk.old_start)
            return self._unclear(found, places, "the header names another function")
        nearest = min(present, key=lambda p: abs(p - expected), default=0)
        if nearest:
            here = nearest in (expected, hunk.new_start) or nearest in places
            if here or (not places and not self._rival(found, nearest, expected)):
                return HunkGrade(
                    found.number, Grade.PRESENT, hunk.line, nearest, nearest - hunk.new_start
                )
            return self._unclear(found, [*places, nearest], "it could be there already")
        if not places:
            return self._nowhere(found, expected)
        if not right:
            return self._unclear(found, places, "the header names another function")
        if len(right) > 1:
            firm = before and after and before.after == after.before
            agreed = [p for p in right if p == expected and firm]
            stated = [hunk.old_start] if found.grade is Grade.WHITESPACE else []
            right = agreed or [p for p in right if p in stated] or right
        if len(right) > 1:
            return self._unclear(found, right, "the same lines are at several places")
        rival = self._rival(found, right[0], expected)
        if rival:
            return self._unclear(found, [*right, rival], "a place that looks alike is nearer")
        return self._fitting(found, right[0])

    def _rival(self, found: _Found, place: int, expected: int) -> int:
        """A line nearer to `expected` than `place` where much of the hunk stands, or 0."""
        old = found.hunk.old
        votes = self._lines.likeness(old)
        enough = max(2, (sum(map(telling, old)) + 1) // 2)
        distance = abs(place - expected)
        alike = [p for p, n in votes.items() if n >= enough and abs(p - expected) < distance]
        return max(alike, key=lambda p: (votes[p], -abs(p - expected)), default=0)

    # -- what to say

    def _fitting(self, found: _Found, place: int) -> HunkGrade:
        hunk = found.hunk
        offset = place - hunk.old_start
        exact = found.grade is Grade.OFFSET and not offset
        differ = () if found.grade is Grade.OFFSET else differences(hunk.old, self._lines, place)
        return HunkGrade(
            found.number,
            Grade.EXACT if exact else found.grade,
            hunk.line,
            place,
            offset,
            found.fuzz,
            differences=differ,
        )

    def _nowhere(self, found: _Found, expected: int) -> HunkGrade:
        hunk = found.hunk
        votes = self._lines.likeness(hunk.old)
        like = max(votes, key=lambda p: (votes[p], -abs(p - expected)), default=expected)
        why = "its lines are not in the file" if votes else "none of its lines is in the file"
        differ = differences(hunk.old, self._lines, like)
        return HunkGrade(
            found.number, Grade.NONE, hunk.line, like, like - hunk.old_start, 0, why, differ
        )

    def _unclear(self, found: _Found, places: list[int], why: str) -> HunkGrade:
        hunk = found.hunk
        shown = sorted({*places, *self._stated(hunk)})
        listed = tuple(Place(p, self._evidence(hunk, p)) for p in shown)
        nearest = min(shown, key=lambda p: abs(p - hunk.old_start))
        differ = differences(hunk.old, self._lines, nearest)
        return HunkGrade(found.number, Grade.AMBIGUOUS, hunk.line, 0, 0, 0, why, differ, listed)

    def _stated(self, hunk: Hunk) -> list[int]:
        """The line that the header states, when something of the hunk stands there."""
        return [hunk.old_start] if self._lines.likeness(hunk.old)[hunk.old_start] > 1 else []

    def _evidence(self, hunk: Hunk, place: int) -> str:
        there = self._lines.at(place, len(hunk.old))
        if self._lines.at(place, len(hunk.new)) == list(hunk.new):
            text = "what the hunk makes is here"
        elif there == list(hunk.old):
            text = f"all {len(hunk.old)} lines"
        else:
            same = sum(a == b for a, b in zip(hunk.old, there, strict=False))
            text = f"{same} of {len(hunk.old)} lines"
        other = self._lines.contradicts(hunk.heading, place)
        if other is not None:
            text += f", in `{display(other)}`; the patch names `{display(hunk.heading)}`"
        return text + (", as stated" if place == hunk.old_start else "")
