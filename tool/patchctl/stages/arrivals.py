# SPDX-License-Identifier: Apache-2.0
"""The patches in a file, a mailbox or a folder that somebody sent."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from patchctl.errors import PatchDoesNotApply, UsageError
from patchctl.formats.mail import read_patch_file
from patchctl.formats.patchtext import plain_text, split_mails
from patchctl.formats.series import PATCH_SUFFIXES, parse_series

_NUMBERED = re.compile(r"(\d+)\D")


@dataclass(frozen=True)
class Arrival:
    """One patch as it came: its bytes from line `first` of `path` on.

    `label` names it to people, `strip` is the level that its series or the user declared;
    `reasons` say what the whole file needed before it could be read, `notes` what else to know.
    """

    path: Path
    label: str
    data: bytes
    first: int
    strip: int | None
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """The file's name, for messages."""
        return self.path.name


def gather(path: Path, strip: int | None) -> list[Arrival]:
    """The patches in `path`, in order; `strip` is the level that the user declared.

    A folder's order is that of its `series` file, or of the numbers that its patches begin with.

    Raises:
        UsageError: nothing there, no order, or a wrong `series`. Names the line.
        PatchDoesNotApply: a file without any diff.
    """
    if not path.exists():
        raise UsageError(f"there is no `{path}`")
    files = _in_folder(path, strip) if path.is_dir() else [(path, strip)]
    arrivals = [arrival for file, level in files for arrival in _in_file(file, level)]
    with_diff = [a for a in arrivals if a.data.strip() and _has_diff(a)]
    if not with_diff:
        raise PatchDoesNotApply(
            f"`{path}` holds no diff",
            hint="a patch is a mail or a file with lines `---`, `+++` and `@@`",
            data={"path": str(path)},
        )
    return with_diff


def _has_diff(arrival: Arrival) -> bool:
    """Cover letters have none; what cannot be split is for the reader to refuse."""
    try:
        diff = read_patch_file(arrival.label, arrival.data).diff
    except PatchDoesNotApply:
        return True
    return any(line.startswith((b"@@ ", b"diff -", b"rename ", b"GIT binary")) for line in diff)


def _in_folder(folder: Path, strip: int | None) -> list[tuple[Path, int | None]]:
    series = folder / "series"
    if series.is_file():
        entries = parse_series(series.read_bytes(), where=str(series))
        missing = [entry for entry in entries if not (folder / entry.name).is_file()]
        if missing:
            line, name = missing[0].line, missing[0].name
            raise UsageError(f"`{series}` line {line} names `{name}`: there is no such file")
        # -p1 is what quilt means when nothing is said, and then it is no declaration
        return [(folder / e.name, strip if e.strip == 1 else e.strip) for e in entries]
    found = sorted(p for p in folder.iterdir() if p.name.endswith((*PATCH_SUFFIXES, ".mbox")))
    if not found:
        raise UsageError(
            f"`{folder}` holds no `series` file and no patch",
            hint="patches end in .patch, .diff or .mbox",
        )
    numbers = [_NUMBERED.match(p.name) for p in found]
    values = [int(match[1]) for match in numbers if match]
    if len(found) > 1 and len(set(values)) != len(found):
        raise UsageError(
            f"nothing tells the order of the {len(found)} patches in `{folder}`",
            details=tuple(p.name for p in found[:10]),
            hint="name them in a file `series` in that folder, or number them: 0001-..., 0002-...",
        )
    if len(found) == 1:
        return [(found[0], strip)]
    return [(p, strip) for _, p in sorted(zip(values, found, strict=True))]


def _in_file(path: Path, strip: int | None) -> list[Arrival]:
    data, reasons = plain_text(path.read_bytes())
    mails = split_mails(data)
    many = len(mails) > 1
    return [
        Arrival(
            path,
            f"{path.name}, mail {number} of {len(mails)}" if many else path.name,
            mail,
            first,
            strip,
            tuple(f"patch file: {reason}" for reason in reasons),
        )
        for number, (first, mail) in enumerate(mails, 1)
    ]
