# SPDX-License-Identifier: Apache-2.0
"""Reading a patch file: git's extended format, and plain unified diffs.

Strict: the counts in ``@@`` decide where a hunk ends, positions must be consistent, and text
that is part of no diff is an error once the first diff has begun (the mail signature apart).
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime

from patchctl.formats.gitobjects import Mode, blob_id, display
from patchctl.formats.mail import read_patch_file
from patchctl.formats.patchlines import HUNK, INDEX, Cursor, read_binary, read_hunks
from patchctl.formats.patchmodel import Action, Change, Patch, malformed
from patchctl.formats.patchpaths import DEV_NULL, git_names, strip_prefix, unquote, why_unsafe

_STAMP = re.compile(rb"(?<!\d)(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.0+)? ([+-]\d{4})$")
_NOTE = re.compile(r"(dis)?similarity index \d+%$")
_LOST = re.compile(rb"(old|new|new file|deleted file) mode \d|(rename|copy) (from|to) ")
_EMPTY = blob_id(b"")
# What happens to a file as a whole: one of them, or none.
_KINDS = ("rename from", "copy from", "new file mode", "deleted file mode")
# What tools write between two diffs.
_FILLER = (b"diff -", b"Index: ", b"=====")


def parse_patch(name: str, data: bytes, strip: int = 1) -> Patch:
    """Read the patch file `name`; paths lose `strip` folders (0, or 1: ``a/`` and ``b/``).

    Raises:
        PatchDoesNotApply: the file is not a well-formed patch, or names a path that no patch
            may name. Says which line, and shows the path.
    """
    file = read_patch_file(name, data)
    note = f" (after decoding {file.encoding})" if file.encoding else ""
    cursor = Cursor(name, file.diff, file.diff_line, note)
    changes = _Reader(cursor, strip).changes()
    if not changes:
        what = "is empty" if not data.strip() else "holds no diff"
        raise malformed(name, 1, f"the file {what}")
    return Patch(name, file.header, changes)


class _Reader:
    def __init__(self, cursor: Cursor, strip: int) -> None:
        self._cursor, self._strip = cursor, strip

    def _at_plain_diff(self) -> bool:
        return (
            self._cursor.peek().startswith(b"--- ")
            and self._cursor.peek(1).startswith(b"+++ ")
            and self._cursor.peek(2).startswith(b"@@ ")
        )

    # -- the whole file

    def changes(self) -> tuple[Change, ...]:
        found: list[Change] = []
        signed = False
        while line := self._cursor.peek():
            if line.startswith(b"diff --git ") or self._at_plain_diff():
                if signed:
                    self._cursor.fail("a diff after the mail's signature")
                found.append(self._git() if line.startswith(b"diff") else self._plain())
                continue
            if line.rstrip() == b"--" and found:
                signed = True
            elif line.startswith((b"diff --cc ", b"diff --combined ")):
                self._cursor.fail("a diff of a merge; make one against its first parent")
            elif line.startswith((b"Binary files ", b"GIT binary patch")) and not signed:
                self._cursor.fail("a binary file without a `diff --git` header")
            elif HUNK.match(line):
                self._cursor.fail("a hunk that belongs to no file")
            elif _LOST.match(line) and not signed:
                self._cursor.fail(
                    f"`{display(line.strip())}` without a `diff --git` line before it"
                )
            elif line.strip() and found and not signed and not line.startswith(_FILLER):
                self._cursor.fail(self._stray(line))
            self._cursor.at += 1
        return tuple(found)

    def _stray(self, line: bytes) -> str:
        if line[:1] in b" +-\\":
            return "more lines than the hunk's header announces"
        return f"text between diffs: `{display(line.strip())[:60]}`"

    def _safe(self, path: bytes) -> bytes:
        reason = why_unsafe(path)
        if reason:
            self._cursor.fail(f"the path `{display(path)}` {reason}; refused")
        return path

    def _file_name(self, line: bytes, prefix: bytes) -> bytes:
        """The path of a ``---`` or ``+++`` line; empty for /dev/null."""
        try:
            raw = line[4:]
            raw = unquote(raw)[0] if raw.startswith(b'"') else raw.split(b"\t", 1)[0]
            if raw == DEV_NULL:
                return b""
            self._safe(raw)
            return self._safe(strip_prefix(raw, self._strip, prefix))
        except ValueError as error:
            self._cursor.fail(f"`{display(line)}`: {error}")

    # -- plain unified diffs

    def _plain(self) -> Change:
        start = self._cursor.at
        old_line = self._cursor.text()
        old = self._file_name(old_line, b"a/")
        self._cursor.at += 1
        new_line = self._cursor.text()
        new = self._file_name(new_line, b"b/")
        self._cursor.at += 1
        if old and new and old not in (new, new + b".orig"):
            self._cursor.fail(
                f"two different files: `{display(old)}` and `{display(new)}`",
                at=start,
                hint="renames need git's format: git diff -M",
            )
        hunks = read_hunks(self._cursor, new or old)
        path, line = new or old, self._cursor.number(start)
        if not (old or new):
            self._cursor.fail("both files are /dev/null", at=start)
        leaves_nothing = not any(h.new for h in hunks) and hunks[-1].new_start == 0
        if not old or (_is_epoch(old_line) and hunks[0].old_start == 0):
            return Change(Action.CREATE, b"", path, line, None, Mode.FILE, hunks)
        if not new or (_is_epoch(new_line) and leaves_nothing):
            return Change(Action.DELETE, path, b"", line, hunks=hunks)
        if leaves_nothing:
            self._cursor.fail(
                f"`{display(path)}` is left empty: to delete it, name /dev/null",
                at=start,
                hint="make the patch with git diff, which says which is meant",
            )
        return Change(Action.EDIT, path, path, line, hunks=hunks)

    # -- git's format

    def _git(self) -> Change:
        start = self._cursor.at
        fields, named = self._git_header()
        change = self._git_change(start, fields, named)
        if self._cursor.peek().startswith(b"GIT binary patch"):
            return replace(change, binary=read_binary(self._cursor, fields.get("index", b"")))
        if self._cursor.peek().startswith((b"Binary files ", b"Files ")):
            self._cursor.fail(
                f"binary file `{display(change.path)}` without its data",
                hint="make the patch with git diff --binary",
            )
        hunks = read_hunks(self._cursor, change.path) if named else ()
        ids = INDEX.match(fields.get("index", b""))
        whole = change.action in (Action.CREATE, Action.DELETE)
        empty = (
            ids is not None
            and whole
            and any(_EMPTY.startswith(i.decode()) for i in ids.group(1, 2))
        )
        # git names the empty blob where a whole file is empty: without it, something was cut off
        missing = not empty if whole else ids is not None and ids[1] != ids[2]
        if missing and not hunks:
            self._cursor.fail(
                f"`{display(change.path)}` changes, but the diff is missing", at=start
            )
        if change.action is Action.EDIT and not hunks and change.old_mode == change.new_mode:
            self._cursor.fail(f"`{display(change.path)}` is named, but nothing changes", at=start)
        return replace(change, hunks=hunks)

    def _git_header(self) -> tuple[dict[str, bytes], list[bytes]]:
        """The extended header's fields, and the ``---`` and ``+++`` lines if there are any."""
        known = (
            "old mode", "new mode", "new file mode", "deleted file mode",
            "rename from", "rename to", "copy from", "copy to", "index",
        )  # fmt: skip
        fields: dict[str, bytes] = {"diff": self._cursor.text().removeprefix(b"diff --git ")}
        self._cursor.at += 1
        while self._cursor.peek():
            if self._cursor.peek().startswith(b"--- ") and self._cursor.peek(1).startswith(b"+++ "):
                old = self._cursor.text()
                self._cursor.at += 1
                new = self._cursor.text()
                self._cursor.at += 1
                return fields, [old, new]
            text = self._cursor.peek().decode("latin-1").rstrip("\n")
            key = next((k for k in known if text.startswith(f"{k} ")), None)
            if key is not None:
                if key in fields:
                    self._cursor.fail(f"`{key}` twice")
                fields[key] = self._cursor.text()[len(key) + 1 :]
            elif not _NOTE.match(text):
                break
            self._cursor.at += 1
        return fields, []

    def _git_change(self, start: int, fields: dict[str, bytes], named: list[bytes]) -> Change:
        old, new = self._git_paths(start, fields, named)
        kinds = [k for k in _KINDS if k in fields]
        if len(kinds) > 1:
            self._cursor.fail(f"both `{kinds[0]}` and `{kinds[1]}`", at=start)
        if ("old mode" in fields) != ("new mode" in fields):
            self._cursor.fail("`old mode` and `new mode` come together", at=start)
        action = Action.EDIT
        if "rename from" in fields:
            action = Action.RENAME
        elif "copy from" in fields:
            action = Action.COPY
        elif "new file mode" in fields:
            action, old = Action.CREATE, b""
        elif "deleted file mode" in fields:
            action, new = Action.DELETE, b""
        elif not (old and new):
            which = "deleted" if old else "new"
            self._cursor.fail(f"/dev/null without a line `{which} file mode`", at=start)
        ids = INDEX.match(fields.get("index", b""))
        if "index" in fields and ids is None:
            self._cursor.fail(f"`index {display(fields['index'])}` cannot be read", at=start)
        both = ids[3] if ids else None
        old_mode = fields.get("old mode", fields.get("deleted file mode", both))
        new_mode = fields.get("new mode", fields.get("new file mode", both))
        if action is Action.CREATE:
            old_mode, new_mode = None, new_mode or Mode.FILE.encode()
        line = self._cursor.number(start)
        modes = (self._mode(old_mode), self._mode(new_mode))
        blobs = (ids[1].decode(), ids[2].decode()) if ids else None
        return Change(action, old, new, line, *modes, ids=blobs)

    def _mode(self, raw: bytes | None) -> Mode | None:
        try:
            return None if raw is None else Mode(raw.decode())
        except ValueError:
            known = ", ".join(Mode)
            self._cursor.fail(f"mode `{display(raw or b'')}` is not supported (only {known})")

    def _git_paths(
        self, start: int, fields: dict[str, bytes], named: list[bytes]
    ) -> tuple[bytes, bytes]:
        """Old and new path, from every line that gives them; they must agree."""
        pairs: list[tuple[bytes, bytes]] = []
        try:
            for kind in ("rename", "copy"):
                ends = [fields.get(f"{kind} {end}") for end in ("from", "to")]
                if None in ends and ends != [None, None]:
                    self._cursor.fail(f"`{kind} from` and `{kind} to` come together", at=start)
                names = [unquote(e)[0] if e.startswith(b'"') else e for e in ends if e is not None]
                if names:
                    pairs.append((self._safe(names[0]), self._safe(names[1])))
            if named:
                pairs.append((self._file_name(named[0], b"a/"), self._file_name(named[1], b"b/")))
            both = git_names(fields["diff"])
            if both is not None:
                old, new = self._safe(both[0]), self._safe(both[1])
                old = self._safe(strip_prefix(old, self._strip, b"a/"))
                new = self._safe(strip_prefix(new, self._strip, b"b/"))
                pairs.append((old, new))
        except ValueError as error:
            self._cursor.fail(f"`diff --git {display(fields['diff'])}`: {error}", at=start)
        if not pairs or pairs[0] == (b"", b""):
            shown = display(fields["diff"])
            self._cursor.fail(f"cannot tell the paths of `diff --git {shown}`", at=start)
        first = pairs[0]
        for pair in pairs[1:]:
            if any(a and b and a != b for a, b in zip(first, pair, strict=True)):
                both_shown = f"{_arrow(first)} and {_arrow(pair)}"
                self._cursor.fail(f"the header names both {both_shown}", at=start)
        old, new = first
        if old and new and old != new and not {"rename from", "copy from"} & fields.keys():
            self._cursor.fail(f"{_arrow(first)} is neither a rename nor a copy", at=start)
        return first


def _arrow(pair: tuple[bytes, bytes]) -> str:
    return f"`{display(pair[0])}` -> `{display(pair[1])}`"


def _is_epoch(line: bytes) -> bool:
    """Whether a ``---`` line's time stamp is 1970-01-01 UTC: diff's mark for "no such file"."""
    match = _STAMP.search(line)
    if match is None:
        return False
    text = f"{match[1].decode()} {match[2].decode()}"
    try:
        moment = datetime.strptime(text, "%Y-%m-%d %H:%M:%S %z")
    except ValueError:  # no such day or hour: only a name that looks like it
        return False
    return moment == datetime.fromtimestamp(0, UTC)
