# SPDX-License-Identifier: Apache-2.0
"""What a patch file says, as data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from patchctl.errors import PatchDoesNotApply
from patchctl.formats.gitobjects import Identity, Mode


class Action(StrEnum):
    """What happens to a path."""

    EDIT = "edit"
    CREATE = "create"
    DELETE = "delete"
    RENAME = "rename"
    COPY = "copy"


class BinaryMethod(StrEnum):
    """How git writes binary content: all of it, or as a delta to the old content."""

    LITERAL = "literal"
    DELTA = "delta"


@dataclass(frozen=True)
class Hunk:
    """One ``@@`` block. Lines keep their newline; a file's last line may have none.

    `line` is where it starts in the patch file; `old_start` and `new_start` count lines of the
    target from 1, as written in the header. `marks` has a byte for each line of the body: a blank,
    ``-`` or ``+``; `heading` is what the header says after the second ``@@``.
    """

    line: int
    old_start: int
    new_start: int
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]
    marks: bytes = b""
    heading: bytes = b""


@dataclass(frozen=True)
class Binary:
    """A ``GIT binary patch``: `data` is inflated, the ids are of the old and new content."""

    method: BinaryMethod
    data: bytes
    old_id: str
    new_id: str


@dataclass(frozen=True)
class Change:
    """What a patch does to one file.

    `old` is the path that is read (empty when the file is created), `new` the one that is
    written (empty when it is deleted). Modes are None where the patch does not say. `ids` are
    the blobs that an ``index`` line names, before and after; they may be abbreviated.
    """

    action: Action
    old: bytes
    new: bytes
    line: int
    old_mode: Mode | None = None
    new_mode: Mode | None = None
    hunks: tuple[Hunk, ...] = ()
    binary: Binary | None = None
    ids: tuple[str, str] | None = None

    @property
    def path(self) -> bytes:
        """The path to name to people."""
        return self.new or self.old


@dataclass(frozen=True)
class Header:
    """Who made a patch, and what for. `message` is the whole commit message."""

    author: Identity
    subject: str
    message: bytes


@dataclass(frozen=True)
class Patch:
    """A whole patch file."""

    name: str
    header: Header
    changes: tuple[Change, ...]


def malformed(name: str, line: int, what: str, hint: str = "") -> PatchDoesNotApply:
    """The error for a patch file that cannot be read; `line` is a line of that file."""
    return PatchDoesNotApply(
        f"patch `{name}` is malformed: line {line}: {what}",
        hint=hint,
        data={"patch": name, "patch_line": line},
    )


def lines_of(data: bytes) -> list[bytes]:
    """Split after each newline, and nowhere else (CR and form feed are content)."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines
