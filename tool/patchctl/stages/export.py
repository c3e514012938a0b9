# SPDX-License-Identifier: Apache-2.0
"""Commits to patch files in house style, changing no byte of a file without need."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from patchctl.errors import PatchDoesNotApply, UsageError
from patchctl.formats.gitobjects import display
from patchctl.formats.mail import read_patch_file
from patchctl.formats.patchmodel import Action, Change, Header, Patch
from patchctl.system.gitrun import EMPTY_TREE, GitRepo

if TYPE_CHECKING:
    from patchctl.formats.edittree import EditTree
    from patchctl.system.gitstore import Store

# Everything that a configuration, or another version of git, could decide otherwise.
_FORMAT = (
    "format-patch", "-1", "--stdout", "--zero-commit", "--no-signature", "--full-index", "-N",
    "--keep-subject", "--encode-email-headers", "--stat=72", "--summary", "--binary", "--no-attach",
    "--no-thread", "--no-notes", "--no-cover-letter", "--no-base", "--no-color", "--no-ext-diff",
    "--no-textconv", "--diff-algorithm=myers", "--indent-heuristic",
    "--inter-hunk-context=0", "-O/dev/null", "--submodule=short", "--ignore-submodules=none",
)  # fmt: skip
_DEFAULT_CONTEXT = 3


def export_patch(
    store: Store, commit: str, old: bytes | None, *, name: str, strip: int = 1
) -> bytes:
    """The patch file `name` of a commit with one parent, both in `store`.

    `old` is the file as it was, if there is one; paths in it lose `strip` folders. If it has
    the same effect and the same header it is returned byte for byte, else its header, style and
    unchanged parts are kept.

    Raises:
        UsageError: the message cannot be written into a patch file.
        PatchDoesNotApply: the commit changes nothing, or what no patch of ours may hold.
    """
    from patchctl.formats.edittree import EditTree
    from patchctl.formats.export import renew
    from patchctl.formats.patch import parse_patch

    try:
        was = None if old is None else parse_patch(name, old, strip)
    except PatchDoesNotApply:
        was = None  # it cannot be read, so there is nothing in it to keep
    data = _format(store, commit, strip, _options(was))
    _require_message(store, commit, read_patch_file(name, data).header)
    new = parse_patch(name, data, strip)
    if was is None or old is None:
        return data
    before, after = store.read_tree(f"{commit}^"), EditTree(store.read_tree(commit))

    def is_same(change: Change) -> bool:
        return _does(replace(was, changes=(change,)), EditTree(before), after, store)

    if was.header == new.header and _makes(was, EditTree(before), after, store):
        return old
    return renew(was, old, new, data, is_same)


def _makes(patch: Patch, tree: EditTree, wanted: EditTree, store: Store) -> bool:
    """Whether `patch` turns `tree` into `wanted`."""
    from patchctl.formats.apply import apply_patch

    try:
        apply_patch(patch, tree, store.read_blob)
    except PatchDoesNotApply:
        return False
    return tree.flat() == wanted.flat()


def _does(patch: Patch, tree: EditTree, wanted: EditTree, store: Store) -> bool:
    """Whether `patch`, of one change, applies to `tree` and leaves its paths as in `wanted`."""
    from patchctl.formats.apply import apply_patch

    try:
        effects = apply_patch(patch, tree, store.read_blob)
    except PatchDoesNotApply:
        return False
    return all(
        wanted.get(path) == (None if content is None else content.entry)
        for path, content in effects.items()
    )


def _format(store: Store, commit: str, strip: int, options: tuple[str, ...]) -> bytes:
    prefixes = ("--no-prefix",) if strip == 0 else ("--src-prefix=a/", "--dst-prefix=b/")
    done = GitRepo(store.path).git(
        "-c", "i18n.logOutputEncoding=UTF-8", "-c", "diff.suppressBlankEmpty=false",
        "-c", "format.forceInBodyFrom=false",
        *_FORMAT, *options, *prefixes, commit,
        env={"GIT_ATTR_SOURCE": EMPTY_TREE},
    )  # fmt: skip
    return done.stdout


def _options(old: Patch | None) -> tuple[str, ...]:
    """How the old file was made, where that shows: context, and files removed and added apart."""
    actions = {change.action for change in old.changes} if old else set()
    apart = Action.DELETE in actions and not actions & {Action.RENAME, Action.COPY}
    return (f"-U{_context(old)}", "--no-renames" if apart else "--find-renames=50%")


def _context(old: Patch | None) -> int:
    """The lines of context that the old file was made with, as far as its hunks show."""
    hunks = [hunk for change in old.changes for hunk in change.hunks] if old else []
    seen = 0
    for hunk in hunks:
        ahead = 0
        for a, b in zip(hunk.old, hunk.new, strict=False):
            if a != b:
                break
            ahead += 1
        if 0 < ahead < min(len(hunk.old), len(hunk.new)):
            seen = max(seen, ahead)
    return max(seen, _DEFAULT_CONTEXT)


def _require_message(store: Store, commit: str, exported: Header) -> None:
    """A message with a line that ends it in a patch file would come back shorter."""
    raw = GitRepo(store.path).git("cat-file", "commit", commit).stdout
    message = raw.partition(b"\n\n")[2]
    if exported.message.split() != message.split():
        subject = display(message.split(b"\n", 1)[0])
        raise UsageError(
            f"the message of commit {commit[:12]} (`{subject}`) does not survive in a patch file: "
            "a line of it is `---`, or begins a diff or a mail header",
            hint="indent or reword that line: git commit --amend",
            data={"commit": commit},
        )
