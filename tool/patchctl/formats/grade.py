# SPDX-License-Identifier: Apache-2.0
"""How well a patch fits a tree that it may not have been made for: a grade for each hunk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from patchctl.formats.apply import Content
from patchctl.formats.filelines import FileLines, loose
from patchctl.formats.gitobjects import blob_id, display
from patchctl.formats.grademodel import Difference, FileGrade, Grade, HunkGrade, PatchGrade, worst
from patchctl.formats.patchmodel import Action, Change, Hunk, Patch, lines_of
from patchctl.formats.placement import differences, place_hunks

ReadFile = Callable[[bytes], Content | None]
"""Gives the file at a path of the tree, or None."""


def grade_patch(patch: Patch, read: ReadFile) -> PatchGrade:
    """Grade every change of `patch` against the tree that `read` reads."""
    return PatchGrade(patch.name, tuple(grade_change(change, read) for change in patch.changes))


def grade_change(change: Change, read: ReadFile) -> FileGrade:
    """Grade one file's change, and each of its hunks."""
    return {
        Action.CREATE: _created,
        Action.DELETE: _deleted,
        Action.EDIT: _edited,
        Action.RENAME: _moved,
        Action.COPY: _moved,
    }[change.action](change, read)


def _grade(change: Change, own: Grade = Grade.EXACT, why: str = "") -> FileGrade:
    return FileGrade(change.path, change.action, change.line, own, why)


def _created(change: Change, read: ReadFile) -> FileGrade:
    there = read(change.new)
    if there is None:
        if any(hunk.old for hunk in change.hunks):
            return _grade(change, Grade.GONE, "it is to be created, but out of lines of a file")
        exact = (HunkGrade(n, Grade.EXACT, h.line, 1) for n, h in enumerate(change.hunks, 1))
        return replace(_grade(change), hunks=tuple(exact))
    mode_fits = change.new_mode in (None, there.mode)
    differ: tuple[Difference, ...] = ()
    if change.binary is not None:
        same = blob_id(there.data) == change.binary.new_id
    else:
        wanted = [line for hunk in change.hunks for line in hunk.new]
        differ = differences(wanted, FileLines(lines_of(there.data)), 1)
        same = wanted == lines_of(there.data)
    if same and mode_fits:
        return _grade(change, Grade.PRESENT, "the file is there, with this content")
    if same:
        return _grade(change, Grade.NONE, f"the file is there, with mode {there.mode}")
    blanks = bool(differ) and all(d.blanks_only for d in differ)
    what = "differs in white space" if blanks else "has other content"
    return replace(_grade(change, Grade.NONE, f"the file exists and {what}"), differences=differ)


def _deleted(change: Change, read: ReadFile) -> FileGrade:
    there = read(change.old)
    if there is None:
        return _grade(change, Grade.PRESENT, "there is no such file (any more)")
    if any(hunk.new for hunk in change.hunks):
        return _grade(change, Grade.NONE, "it is to be deleted, but the patch leaves lines in it")
    if change.binary is not None or (change.old_mode or there.mode) != there.mode:
        return _whole(change, there)
    wanted = [line for hunk in change.hunks for line in hunk.old]
    lines = lines_of(there.data)
    if not wanted and not lines:
        return _grade(change)
    differ = differences(wanted, FileLines(lines), 1)
    if [loose(x) for x in wanted] == [loose(x) for x in lines] and len(change.hunks) == 1:
        hunk = change.hunks[0]
        offset = 1 - hunk.old_start
        found = Grade.WHITESPACE if differ else Grade.OFFSET if offset else Grade.EXACT
        one = HunkGrade(1, found, hunk.line, 1, offset, differences=differ)
        return replace(_grade(change), hunks=(one,))
    why = "the file to delete has other content"
    return replace(_grade(change, Grade.NONE, why), differences=differ)


def _edited(change: Change, read: ReadFile) -> FileGrade:
    there = read(change.old)
    if there is None:
        return _grade(change, Grade.GONE, "there is no such file")
    graded = _whole(change, there)
    mode_is_there = change.old_mode != change.new_mode and there.mode == change.new_mode
    if mode_is_there:
        graded = _grade(change) if change.hunks else _grade(change, Grade.PRESENT, "has the mode")
    if graded.own is not Grade.EXACT or not change.hunks:
        return graded
    hunks = place_hunks(change.hunks, lines_of(there.data))
    is_done = worst(h.grade for h in hunks) is Grade.PRESENT
    if change.old_mode != change.new_mode and is_done != mode_is_there:
        what = (
            "mode is there already, its content"
            if mode_is_there
            else "content is there already, its mode"
        )
        return replace(_grade(change, Grade.NONE, f"its {what} is not"), hunks=hunks)
    return replace(graded, hunks=hunks)


def _moved(change: Change, read: ReadFile) -> FileGrade:
    """A rename or a copy."""
    source, target = read(change.old), read(change.new)
    done = "copied" if change.action is Action.COPY else "renamed"
    if target is not None:
        hunks = place_hunks(change.hunks, lines_of(target.data))
        copied = change.action is Action.COPY and source is not None
        same = source is not None and source.data == target.data
        is_result = worst(h.grade for h in hunks) is Grade.PRESENT if hunks else same
        if (source is None and not hunks) or (is_result and (source is None or copied)):
            return _grade(change, Grade.PRESENT, f"it is {done} already")
        if source is not None:
            return _grade(change, Grade.NONE, "the new name is taken by another file")
        why = f"it is {done} already, with other content"
        return replace(_grade(change, Grade.NONE, why), hunks=hunks)
    if source is None:
        return _grade(change, Grade.GONE, f"there is no `{display(change.old)}`")
    graded = _whole(change, source)
    if graded.own is not Grade.EXACT:
        return graded
    hunks = place_hunks(change.hunks, lines_of(source.data))
    if hunks and worst(h.grade for h in hunks) is Grade.PRESENT:
        graded = _grade(change, Grade.NONE, f"its new content is there, but it is not {done}")
    return replace(graded, hunks=hunks)


def _whole(change: Change, there: Content) -> FileGrade:
    """What must fit of the file as a whole: its mode, and its content where that is binary."""
    if change.binary is not None:
        found = blob_id(there.data)
        if found == change.binary.new_id and change.action is not Action.DELETE:
            return _grade(change, Grade.PRESENT, "the file has this content")
        if found != change.binary.old_id:
            expected = change.binary.old_id
            why = f"its content is {found[:12]}, the binary patch expects {expected[:12]}"
            return _grade(change, Grade.NONE, why)
    if change.old_mode is not None and there.mode != change.old_mode:
        why = f"its mode is {there.mode}, the patch expects {change.old_mode}"
        return _grade(change, Grade.NONE, why)
    return _grade(change)


def whole_hunk(old: bytes, new: bytes, line: int) -> Hunk:
    """One hunk that replaces all of a file; `line` is of the patch file."""
    before, after = tuple(lines_of(old)), tuple(lines_of(new))
    marks = b"-" * len(before) + b"+" * len(after)
    return Hunk(line, int(bool(before)), int(bool(after)), before, after, marks)
