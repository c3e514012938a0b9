# SPDX-License-Identifier: Apache-2.0
"""Applying one patch to a tree: every line where the patch says it is, or not at all.

Renames and copies read the tree as it was before the patch, whatever the order of the file's
diffs; further diffs of the same path read the running result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from patchctl.errors import AlreadyApplied, PatchDoesNotApply
from patchctl.formats.binarypatch import apply_delta
from patchctl.formats.edittree import EditTree
from patchctl.formats.gitobjects import Entry, Mode, blob_id, display
from patchctl.formats.mismatch import hunk_mismatch
from patchctl.formats.patchmodel import Action, BinaryMethod, Change, Hunk, Patch, lines_of
from patchctl.formats.patchpaths import why_unsafe_link
from patchctl.formats.wording import counted

ReadBlob = Callable[[str], bytes]


@dataclass(frozen=True)
class Content:
    """A file that a patch writes."""

    mode: Mode
    data: bytes

    @property
    def entry(self) -> Entry:
        """The file as a tree names it."""
        return Entry(self.mode, blob_id(self.data))


Effects = dict[bytes, Content | None]
"""What a patch does: path to new content, or None where the file goes away."""


def apply_patch(patch: Patch, tree: EditTree, read: ReadBlob) -> Effects:
    """Apply `patch` to `tree` (edited in place; of no use after an error), return what it did.

    `read` gives the content of a blob by its id.

    Raises:
        AlreadyApplied: all that the patch does is there already.
        PatchDoesNotApply: a hunk's lines are not exactly where it says, a file is or is not
            there, a path changes nothing, or would be written through a link.
    """
    try:
        effects = _Application(patch, tree, read).effects()
    except PatchDoesNotApply as error:
        # that a file is not there proves nothing: it may never have been
        proof = any(change.action is not Action.DELETE for change in patch.changes)
        if proof and all(_is_there(change, tree, read) for change in patch.changes):
            raise AlreadyApplied(
                f"patch `{patch.name}` is already applied: all that it does is in the tree",
                details=(f"first: `{display(patch.changes[0].path)}`",),
                hint=f"remove `{patch.name}` from the series",
                data={"patch": patch.name},
            ) from error
        raise
    _edit(patch, tree, effects)
    return effects


def _failure(patch: Patch, change: Change, what: str, path: bytes = b"") -> PatchDoesNotApply:
    shown = display(path or change.path)
    return PatchDoesNotApply(
        f"patch `{patch.name}` does not apply: `{shown}` {what}",
        details=(f"patch line {change.line}",),
        data={"patch": patch.name, "file": shown, "patch_line": change.line},
    )


class _Application:
    def __init__(self, patch: Patch, tree: EditTree, read: ReadBlob) -> None:
        self._patch, self._tree, self._read = patch, tree, read
        self._written: dict[bytes, Content] = {}
        self._gone: set[bytes] = set()
        self._going = {
            change.old
            for change in patch.changes
            if change.action in (Action.DELETE, Action.RENAME)
        }

    def effects(self) -> Effects:
        for change in self._patch.changes:
            self._apply(change)
        effects: Effects = {path: None for path in self._gone - self._written.keys()}
        effects |= self._written
        for change in self._patch.changes:
            named = {change.new} if change.action is Action.COPY else {change.old, change.new}
            for path in named - {b""}:
                new, old = effects.get(path), self._tree.get(path)
                if (new.entry if new else None) == old:
                    raise _failure(self._patch, change, "is named, but does not change", path)
        return effects

    def _apply(self, change: Change) -> None:
        if change.action is Action.CREATE:
            old = Content(change.new_mode or Mode.FILE, b"")
        else:
            old = self._source(change)
        data = self._content(change, old.data)
        if change.action in (Action.DELETE, Action.RENAME):
            self._gone.add(change.old)
        if change.action is Action.DELETE:
            if data:
                left = counted(len(lines_of(data)), "line")
                what = f"has content left after delete: {left} that the patch does not remove"
                raise _failure(self._patch, change, what)
            self._written.pop(change.old, None)
            return
        if change.action is not Action.EDIT:
            self._must_be_free(change)
        mode = change.new_mode or old.mode
        if mode is Mode.SYMLINK:
            reason = why_unsafe_link(change.new, data)
            if reason:
                what = f"would be a link to `{display(data)}`, which {reason}; refused"
                raise _failure(self._patch, change, what)
        self._written[change.new] = Content(mode, data)

    def _source(self, change: Change) -> Content:
        running = self._written.get(change.old)
        if running is None or change.action in (Action.RENAME, Action.COPY):
            entry = self._tree.get(change.old)
            if entry is None or (change.action is Action.EDIT and change.old in self._gone):
                raise _failure(self._patch, change, "does not exist", change.old)
            running = Content(entry.mode, self._read(entry.id))
        if change.old_mode is not None and running.mode != change.old_mode:
            what = f"has mode {running.mode}, the patch expects {change.old_mode}"
            raise _failure(self._patch, change, what, change.old)
        return running

    def _must_be_free(self, change: Change) -> None:
        in_tree = self._tree.get(change.new) is not None and change.new not in self._going
        if in_tree or change.new in self._written:
            raise _failure(self._patch, change, "already exists")

    def _content(self, change: Change, old: bytes) -> bytes:
        if change.binary is None:
            return self._replace_hunks(change, old)
        binary = change.binary
        if old or change.action is not Action.CREATE:
            found = blob_id(old)
            if found != binary.old_id:
                what = f"has content {found[:12]}, the binary patch expects {binary.old_id[:12]}"
                raise _failure(self._patch, change, what)
        try:
            whole = binary.method is BinaryMethod.LITERAL
            new = binary.data if whole else apply_delta(old, binary.data)
        except ValueError as error:
            raise _failure(self._patch, change, f"cannot be made: {error}") from None
        if change.action is not Action.DELETE and blob_id(new) != binary.new_id:
            raise _failure(self._patch, change, "does not get the content that the patch names")
        return new

    def _replace_hunks(self, change: Change, old: bytes) -> bytes:
        if not change.hunks:
            return old
        lines = lines_of(old)
        result: list[bytes] = []
        position = 0
        for number, hunk in enumerate(change.hunks, 1):
            start = _index(hunk.old_start, hunk.old)
            end = start + len(hunk.old)
            fits = lines[start:end] == list(hunk.old) and (hunk.old or not lines)
            # a new last line without newline must really be the last
            if not fits or (hunk.new and not hunk.new[-1].endswith(b"\n") and end < len(lines)):
                raise hunk_mismatch(self._patch, change, number, lines)
            result += lines[position:start]
            result += hunk.new
            position = end
        return b"".join(result + lines[position:])


def _index(start: int, side: tuple[bytes, ...]) -> int:
    """Where a hunk's side begins, from 0; the header of an empty side names the line before."""
    return start - 1 if side else start


def _is_there(change: Change, tree: EditTree, read: ReadBlob) -> bool:
    """Whether the tree already looks as `change` leaves it."""
    if change.action in (Action.DELETE, Action.RENAME) and tree.get(change.old) is not None:
        return False
    if change.action is Action.DELETE:
        return True
    entry = tree.get(change.new)
    if entry is None or (change.new_mode is not None and entry.mode != change.new_mode):
        return False
    if change.binary is not None:
        return entry.id == change.binary.new_id
    lines = lines_of(read(entry.id))
    if change.action is Action.CREATE:
        return lines == [line for hunk in change.hunks for line in hunk.new]
    return all(_new_side_is_at(hunk, lines) for hunk in change.hunks)


def _new_side_is_at(hunk: Hunk, lines: list[bytes]) -> bool:
    start = _index(hunk.new_start, hunk.new)
    return lines[start : start + len(hunk.new)] == list(hunk.new)


def _edit(patch: Patch, tree: EditTree, effects: Effects) -> None:
    """Carry the effects into the tree: first what goes, then what comes."""
    removed = [path for path, content in effects.items() if content is None]
    for path in removed:
        tree.remove(path)
    for path, content in effects.items():
        if content is None:
            continue
        clash = tree.blocker(path)
        if clash is not None:
            change = next(c for c in patch.changes if c.path == path)
            if clash.entry is None:
                raise _failure(patch, change, "is a folder")
            kind = "the link" if clash.entry.mode is Mode.SYMLINK else "the file"
            what = f"would be written through {kind} `{display(clash.path)}`; refused"
            raise _failure(patch, change, what)
        tree.set(path, content.entry)
