# SPDX-License-Identifier: Apache-2.0
"""Saying how a hunk differs from the file that it is meant for."""

from __future__ import annotations

from patchctl.errors import PatchDoesNotApply
from patchctl.formats.gitobjects import display
from patchctl.formats.patchmodel import Change, Patch
from patchctl.formats.wording import counted

_REFRESH = "an offset is drift and is never applied: refresh the patch against this tree"


def hunk_mismatch(
    patch: Patch, change: Change, number: int, lines: list[bytes]
) -> PatchDoesNotApply:
    """The error for hunk `number` (from 1) of `change`, which is not in `lines` where it says."""
    hunk = change.hunks[number - 1]
    path = display(change.path)
    line, expected, found = _first_difference(hunk.old, hunk.old_start, lines)
    details = [f"expected: {expected}", f"found:    {found}"]
    note = _difference_in_blanks(hunk.old, hunk.old_start, lines)
    details += [note] if note else []
    places = _places(hunk.old, hunk.old_start, lines)
    hint = "look at what the baseline or an earlier patch has there now"
    if places:
        place = min(places, key=lambda p: abs(p - hunk.old_start))
        offset = place - hunk.old_start
        details.append(f"the same lines are at line {place} (offset {offset:+d})")
        hint = _REFRESH
    details.append(f"patch line {hunk.line}")
    return PatchDoesNotApply(
        f"patch `{patch.name}` does not apply: `{path}`, hunk {number} of {len(change.hunks)}, "
        f"line {line}",
        details=tuple(details),
        hint=hint,
        data={
            "patch": patch.name,
            "file": path,
            "hunk": number,
            "hunks": len(change.hunks),
            "line": line,
            "expected": expected,
            "found": found,
            "elsewhere": places,
            "patch_line": hunk.line,
        },
    )


def _first_difference(
    old: tuple[bytes, ...], start: int, lines: list[bytes]
) -> tuple[int, str, str]:
    """The first line (from 1) that differs, what the hunk has there, what the file has."""
    for line, expected in enumerate(old, start):
        if line > len(lines):
            return line, _show(expected), _end_of(lines)
        if lines[line - 1] != expected:
            return line, _show(expected), _show(lines[line - 1])
    after = start + len(old)
    rest = _show(lines[after - 1]) if after <= len(lines) else _end_of(lines)
    return after, "the end of the file", rest


def _end_of(lines: list[bytes]) -> str:
    return f"the end of the file (it has {counted(len(lines), 'line')})"


def _show(line: bytes) -> str:
    whole = line.removesuffix(b"\n")
    text = f"`{display(whole)}`"
    return text if line.endswith(b"\n") else f"{text} without a newline at the end"


def _difference_in_blanks(old: tuple[bytes, ...], start: int, lines: list[bytes]) -> str:
    there = lines[start - 1 : start - 1 + len(old)]
    if len(there) != len(old) or [x.split() for x in there] != [x.split() for x in old]:
        return ""
    ends = {x.endswith(b"\r\n") for x in there} != {x.endswith(b"\r\n") for x in old}
    return "they differ only in " + ("line ends (CR LF and LF)" if ends else "white space")


def _places(old: tuple[bytes, ...], start: int, lines: list[bytes]) -> list[int]:
    """Every other line than `start` (from 1) at which the hunk's old side stands."""
    if not old:
        return []
    wanted = list(old)
    return [
        at
        for at, line in enumerate(lines, 1)
        if line == wanted[0] and at != start and lines[at - 1 : at - 1 + len(wanted)] == wanted
    ]
