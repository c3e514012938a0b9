# SPDX-License-Identifier: Apache-2.0
"""A graded patch made exact: what each hunk becomes, and the reason, to be written down.

Context and removed lines take the tree's form. Added lines are the patch's, except where the
patch shows that its own white space is not the tree's: then line ends, indentation and the final
newline follow the tree, and the reason says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from patchctl.formats.gitobjects import display
from patchctl.formats.grade import ReadFile, whole_hunk
from patchctl.formats.grademodel import FileGrade, Grade, HunkGrade, PatchGrade
from patchctl.formats.patchmodel import Change, Hunk, Patch, lines_of
from patchctl.formats.placement import core


@dataclass(frozen=True)
class Repaired:
    """The patch that the strict engine takes, and why it is not the one that came.

    Each reason is one line: ``hunks 1-3 of csrc/x.h: offset +9``.
    """

    patch: Patch
    reasons: tuple[str, ...]


def repair(patch: Patch, grade: PatchGrade, read: ReadFile) -> Repaired:
    """Make `patch` exact for the tree that it was graded against, every part of which fits."""
    changes: list[Change] = []
    reasons: list[str] = []
    for change, file in zip(patch.changes, grade.files, strict=True):
        made: Change | None = change
        if not file.is_exact:
            made, why = _repaired_change(change, file, read)
            reasons += why
        if made is not None:
            changes.append(made)
    return Repaired(replace(patch, changes=tuple(changes)), tuple(reasons))


def _repaired_change(
    change: Change, file: FileGrade, read: ReadFile
) -> tuple[Change | None, list[str]]:
    path = display(change.path)
    if file.grade is Grade.PRESENT:
        return None, [f"{path}: left out, {file.why or 'what it does is there already'}"]
    source = read(change.old)
    old = source.data if source else b""
    if file.merged is not None:
        whole = whole_hunk(old, file.merged, change.line)
        return replace(change, hunks=(whole,)), [f"{path}: three-way merge with its old base"]
    hunks, notes = repaired_hunks(change.hunks, file.hunks, lines_of(old))
    return replace(change, hunks=hunks), [f"{where} of {path}: {what}" for where, what in notes]


def repaired_hunks(
    hunks: Sequence[Hunk], grades: Sequence[HunkGrade], lines: Sequence[bytes]
) -> tuple[tuple[Hunk, ...], list[tuple[str, str]]]:
    """The hunks for a file with `lines`, and (which hunks, what was done) for those that changed.

    A hunk whose result is there already, or that has nothing left to change, is left out.
    """
    made: list[Hunk] = []
    done: list[tuple[int, str]] = []
    shift = 0
    for hunk, grade in zip(hunks, grades, strict=True):
        if grade.grade is Grade.PRESENT:
            done.append((grade.number, "left out, what it does is there already"))
            continue
        fitted, notes = _fitted(hunk, grade, lines)
        if fitted.old == fitted.new:
            done.append((grade.number, "left out, it changes white space that is not there"))
            continue
        if grade.grade is not Grade.EXACT:
            done.append((grade.number, "; ".join([grade.text, *notes])))
        new_start = fitted.old_start + (not fitted.old) + shift - (not fitted.new)
        made.append(replace(fitted, new_start=new_start))
        shift += len(fitted.new) - len(fitted.old)
    return tuple(made), _together(done)


def _together(done: list[tuple[int, str]]) -> list[tuple[str, str]]:
    """Neighbouring hunks with the same reason share a line."""
    runs: list[tuple[int, int, str]] = []
    for number, what in done:
        if runs and runs[-1][1:] == (number - 1, what):
            runs[-1] = (runs[-1][0], number, what)
        else:
            runs.append((number, number, what))
    return [(f"hunk {a}" if a == b else f"hunks {a}-{b}", what) for a, b, what in runs]


def _fitted(hunk: Hunk, grade: HunkGrade, lines: Sequence[bytes]) -> tuple[Hunk, list[str]]:
    before, after = core(hunk, grade.fuzz)
    start = grade.place - 1 + before
    stated = hunk.old[before : len(hunk.old) - after]
    there = tuple(lines[start : start + len(stated)])
    marks = hunk.marks[before : len(hunk.marks) - after]
    added = list(hunk.new[before : len(hunk.new) - after])
    added = _added(marks, added)
    notes: list[str] = []
    if grade.grade is Grade.WHITESPACE:
        added, notes = _as_in_the_file(added, stated, there)
    new: list[bytes] = []
    old, fresh = iter(there), iter(added)
    for mark in marks:
        line = next(fresh) if mark == ord("+") else next(old)
        if mark != ord("-"):
            new.append(line)
    if grade.grade is Grade.WHITESPACE:
        notes += _final_newline(new, hunk, at_end=start + len(stated) == len(lines), there=there)
    place = start + 1 if there else grade.place
    return replace(hunk, old_start=place, old=there, new=tuple(new), marks=marks), notes


def _added(marks: bytes, new: list[bytes]) -> list[bytes]:
    kinds = [mark for mark in marks if mark != ord("-")]
    return [line for mark, line in zip(kinds, new, strict=True) if mark == ord("+")]


def _as_in_the_file(
    added: list[bytes], stated: Sequence[bytes], there: Sequence[bytes]
) -> tuple[list[bytes], list[str]]:
    """Added lines with the line ends and the indentation that the file has and the patch lost."""
    notes = []
    ends = {line.endswith(b"\r\n") for line in there}
    claimed = {line.endswith(b"\r\n") for line in stated}
    if added and (ends, claimed) == ({True}, {False}):
        added = [line.removesuffix(b"\n") + b"\r\n" for line in added]
        notes.append("added lines end in CR LF, as the file's do")
    elif added and (ends, claimed) == ({False}, {True}):
        added = [line.removesuffix(b"\r\n") + b"\n" for line in added]
        notes.append("added lines end in LF, as the file's do")
    found: dict[bytes, set[bytes]] = {}
    for was, now in zip(stated, there, strict=True):
        if was.strip():
            found.setdefault(_indent(was), set()).add(_indent(now))
    moves = {was: now for was, (now, *more) in found.items() if not more and was != now}
    indented = [moves.get(_indent(line), _indent(line)) + _behind(line) for line in added]
    count = sum(a != b for a, b in zip(added, indented, strict=True))
    if count:
        lines = "1 added line" if count == 1 else f"{count} added lines"
        notes.append(f"{lines} indented as the file is")
    return indented, notes


def _indent(line: bytes) -> bytes:
    return line[: len(line) - len(_behind(line))]


def _behind(line: bytes) -> bytes:
    return line.lstrip(b" \t") if line.strip() else line


def _final_newline(
    new: list[bytes], hunk: Hunk, *, at_end: bool, there: Sequence[bytes]
) -> list[str]:
    """Let the last line end as the file does, unless the patch says that it changes that."""
    if not (at_end and new and there):
        return []
    # a context line in front of added ones came from the end of the file
    new[:-1] = [line if line.endswith(b"\n") else line + b"\n" for line in new[:-1]]
    says_change = hunk.new[-1].endswith(b"\n") != hunk.old[-1].endswith(b"\n")
    wanted = hunk.new[-1].endswith(b"\n") if says_change else there[-1].endswith(b"\n")
    new[-1] = new[-1].removesuffix(b"\n") + (b"\n" if wanted else b"")
    if there[-1].endswith(b"\n") == hunk.old[-1].endswith(b"\n"):
        return []
    return ["final newline as in the file"]
