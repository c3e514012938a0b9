# SPDX-License-Identifier: Apache-2.0
"""Edits that were made directly in `build/out/src`: as a tree, and taken into a patch."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from patchctl.errors import LocalChanges, MergeConflict, UsageError
from patchctl.formats.gitobjects import Entry, blob_id, display
from patchctl.formats.history import COMMITTER
from patchctl.formats.mail import read_patch_file
from patchctl.stages.current import Current, current_series
from patchctl.stages.editsession import release
from patchctl.stages.refresh import Refreshed
from patchctl.stages.restack import Wanted, restack
from patchctl.stages.seriesedit import replace_series
from patchctl.system.editrepo import LEFTOVERS
from patchctl.system.project import Project
from patchctl.system.report import Reporter
from patchctl.system.sourcestate import mode_of, read_entry
from patchctl.system.worktree import Worktree

if TYPE_CHECKING:
    from patchctl.system.gitstore import Store


@dataclass(frozen=True)
class SourceEdits:
    """The source tree against what replay put there: two trees, and files taken for leftovers."""

    before: str
    after: str
    leftovers: tuple[str, ...]

    def __bool__(self) -> bool:
        return self.before != self.after


def source_edits(project: Project, store: Store) -> SourceEdits:
    """What the source tree holds now; changed and new files are written into the store.

    Raises:
        UsageError: replay never put a tree there, or was interrupted.
    """
    where = project.relative(project.source)
    worktree = Worktree(project.source, project.records)
    tree = worktree.manifest.tree
    if not tree:
        raise UsageError(f"`{where}` holds no replayed tree", hint="patchctl replay")
    replayed = store.read_tree(tree)
    survey = worktree.survey(replayed)
    leftovers = tuple(display(path) for path in survey.untracked if _is_leftover(path))
    now: dict[bytes, Entry] = {}
    for path in {*survey.current, *survey.untracked}:
        if path in survey.untracked and _is_leftover(path):
            continue
        file = project.source / path.decode("utf-8", "surrogateescape")
        mode = mode_of(file.lstat())
        if mode is None:
            raise LocalChanges(f"`{where}/{display(path)}` is neither a file nor a link")
        known = survey.current.get(path)
        if known is not None and known == replayed.get(path):
            now[path] = known
            continue
        data = read_entry(file, mode)
        now[path] = Entry(mode, blob_id(data))
        store.write_blob(data)
    return SourceEdits(tree, store.write_tree(now), leftovers)


def _is_leftover(path: bytes) -> bool:
    name = display(path.rpartition(b"/")[2])
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in LEFTOVERS)


def refresh_from_source(
    project: Project, report: Reporter, typed: str, *, offline: bool = False
) -> Refreshed:
    """Take the edits of the source tree into the patch `typed`.

    Where it is not the last, they are merged into its tree first; the patches after it must
    then make exactly the source tree.

    Raises:
        UsageError: there is no such patch.
        LocalChanges: there are no edits, the tree is of another series, or an edit is open.
        MergeConflict: the edits touch what a later patch does; nothing was changed.
    """
    from patchctl.system.gitstore import Store

    where = project.relative(project.source)
    with Store(project.store) as store:
        current = current_series(project, report, store, offline=offline)
        at = current.index(project, typed)
        edits = source_edits(project, store)
        if edits.before != current.tree(len(current.patches)):
            raise LocalChanges(
                f"`{where}` is not what the whole series makes", hint="patchctl replay"
            )
        if not edits:
            raise LocalChanges(f"nothing was edited in `{where}`")
        release(project, current.names[at:])
        commit = _edited_commit(store, current, at, edits)
        wanted = [Wanted(name, n) for n, name in enumerate(current.names)]
        wanted[at] = replace(wanted[at], commit=commit)
        try:
            result = restack(report, store, current, wanted)
        except MergeConflict as error:
            error.hint = error.hint or _other_way(current, at, str(error.data["patch"]))
            raise
        if result.applied.prefixes[-1].tree != edits.after:
            raise MergeConflict(
                f"with the edits in `{current.names[at]}` the later patches do not make what is "
                f"in `{where}`; nothing was changed",
                hint=f"patchctl edit {current.names[at]}, and make the change there",
            )
        replace_series(
            project,
            report,
            result.patches,
            store=store,
            baseline=current.base,
            applied=result.applied,
        )
    return Refreshed(result.fates, (), edits.leftovers)


def _edited_commit(store: Store, current: Current, at: int, edits: SourceEdits) -> str:
    """The patch's commit with the edits in it."""
    from patchctl.system.mergetree import merge_trees

    tree = edits.after
    if at + 1 < len(current.patches):
        merge = merge_trees(store, edits.before, current.tree(at + 1), edits.after)
        if not merge.clean:
            files = [display(path) for path in merge.conflicts]
            raise MergeConflict(
                f"the edits do not fit patch `{current.names[at]}`, in "
                + ", ".join(f"`{file}`" for file in files)
                + ": a later patch changes these lines; nothing was changed",
                hint="name that patch instead, or split the edits between them",
                data={"patch": current.names[at], "files": files},
            )
        tree = merge.tree
    name = current.names[at]
    header = read_patch_file(name, current.patches[at].data).header
    return store.write_commit(tree, (current.commit(at),), header.author, COMMITTER, header.message)


def _other_way(current: Current, at: int, conflicting: str) -> str:
    return (
        f"take the edits into `{conflicting}` instead, or: patchctl edit {current.names[at]}, "
        "and make the change there"
    )
