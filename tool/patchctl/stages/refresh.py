# SPDX-License-Identifier: Apache-2.0
"""Reading edits back: commits and uncommitted changes of the edit tree become patch files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from patchctl.errors import LocalChanges, MergeConflict, UsageError
from patchctl.formats.editmatch import Sign, match_commits
from patchctl.formats.gitobjects import display
from patchctl.formats.history import COMMITTER
from patchctl.formats.mail import read_patch_file
from patchctl.formats.patchnames import name_patch
from patchctl.formats.trailers import add_trailers
from patchctl.stages.current import Current, current_series
from patchctl.stages.editsession import (
    EDIT_REF,
    EditSession,
    Moving,
    edit_commits,
    encode_session,
    move_tree,
    require_session,
    session_path,
)
from patchctl.stages.restack import Fate, Restacked, Wanted, restack
from patchctl.stages.seriesedit import plan_series
from patchctl.system.editrepo import EditCommit, EditRepo
from patchctl.system.files import write_file
from patchctl.system.project import Project
from patchctl.system.report import Reporter

if TYPE_CHECKING:
    from patchctl.system.gitstore import Store


@dataclass(frozen=True)
class Refreshed:
    """What became of each patch, bottom first, and which ones went away."""

    patches: tuple[tuple[str, Fate], ...]
    dropped: tuple[str, ...]
    leftovers: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether any file of the series did."""
        return bool(self.dropped) or any(fate is not Fate.KEPT for _, fate in self.patches)


@dataclass(frozen=True)
class _Branch:
    """The branch as patches: its commits, and for each the covered patch that it is."""

    commits: tuple[EditCommit, ...]
    patches: tuple[int | None, ...]


def refresh(
    project: Project,
    report: Reporter,
    *,
    offline: bool = False,
    allow_drop: bool = False,
    sign_off: bool = False,
    resolve: bool = False,
) -> Refreshed:
    """Take the edit tree into the patches; those after it are put on top again.

    Uncommitted changes go into the edited patch. `allow_drop` lets patches go whose commits
    are gone from the branch; `sign_off` adds the user's ``Signed-off-by`` to a new patch. With
    `resolve` a later patch that conflicts is brought into the edit tree, where people merge it.

    Raises:
        UsageError: no edit is open.
        LocalChanges: the edit tree cannot be taken as it is, or a patch changed meanwhile.
        MergeConflict: a later patch does not go on top; nothing was changed.
    """
    from patchctl.system.gitstore import Store

    session, repo = require_session(project)
    with Store(project.store) as store:
        current = current_series(project, report, store, offline=offline)
        _require_unchanged(session, current)
        commits = edit_commits(session, repo)
        branch = _identify(session, current, commits)
        branch = _take_changes(store, session, repo, branch, sign_off=sign_off)
        gone = [n for n in range(len(session.covered)) if n not in branch.patches]
        dropped = tuple(session.covered[n] for n in gone)
        if dropped and not allow_drop:
            raise LocalChanges(
                "no commit of the branch is " + " or ".join(f"`{name}`" for name in dropped),
                hint="if they shall go: patchctl refresh --allow-drop",
                data={"missing": list(dropped)},
            )
        wanted = [*_named(session, current, branch), *_later(session, current)]
        try:
            result = restack(report, store, current, wanted)
        except MergeConflict as error:
            if resolve and "place" in error.data:
                _bring(project, report, store, current, session, repo, wanted, error)
            error.hint = error.hint or (
                f"change the edit so that `{error.data['patch']}` still fits, or merge it by hand: "
                "patchctl refresh --resolve"
            )
            raise
        return _finish(project, report, store, current, session, repo, result)


def _require_unchanged(session: EditSession, current: Current) -> None:
    count = len(session.covered)
    same = current.names[:count] == list(session.covered)
    if same and len(current.names) >= count and current.key(count) == session.key:
        return
    raise LocalChanges(
        f"the patches up to `{session.patch}` changed since it was opened for editing",
        hint="patchctl edit --discard PATCH moves the edits to build/out/discarded and opens "
        "it as it is now",
    )


def _identify(session: EditSession, current: Current, commits: Sequence[EditCommit]) -> _Branch:
    patches = []
    for number, name in enumerate(session.covered):
        header = read_patch_file(name, current.patches[number].data).header
        made = current.prefixes[number]
        author = header.author.line()
        patches.append(Sign(made.commit, author, header.subject, made.tree, number))
    signs = [
        Sign(commit.id, commit.who, commit.subject, commit.tree, number)
        for number, commit in enumerate(commits)
    ]
    return _Branch(tuple(commits), tuple(match_commits(patches, signs)))


def _take_changes(
    store: Store, session: EditSession, repo: EditRepo, branch: _Branch, *, sign_off: bool
) -> _Branch:
    """The branch with the uncommitted changes in the edited patch; all of it in the store."""
    tree = repo.snapshot()
    head = branch.commits[-1] if branch.commits else None
    if head is not None:
        repo.hand_over([head.id, tree], session.base)
    else:
        repo.hand_over([tree], session.base)
    head_tree = head.tree if head is not None else store.tree_of(session.base)
    if tree == head_tree:
        if session.new and None not in branch.patches:
            raise LocalChanges(
                f"nothing was changed yet for the new patch `{session.patch}`",
                hint=f"edit the files in {repo.folder}",
            )
        return branch
    at = branch.patches[-1] if branch.commits else None
    is_edited = at is not None and session.covered[at] == session.patch
    if session.new and None not in branch.patches:
        commit = _commit_new(store, session, repo, head.id if head else session.base, tree,
                             sign_off=sign_off)  # fmt: skip
        return _Branch((*branch.commits, commit), (*branch.patches, None))
    if head is None or not (is_edited or (session.new and at is None)):
        raise LocalChanges(
            f"there are uncommitted changes, and the last commit is not `{session.patch}`",
            hint=f"commit them: git -C {repo.folder} commit -a (or --amend, or --fixup)",
        )
    amended = _amend(store, head, tree)
    return _Branch((*branch.commits[:-1], amended), branch.patches)


def _amend(store: Store, commit: EditCommit, tree: str) -> EditCommit:
    from patchctl.formats.gitobjects import Identity

    who, when, zone = commit.who.rsplit(" ", 2)
    name, _, email = who.removesuffix(">").rpartition(" <")
    author = Identity(name, email, int(when), zone)
    made = store.write_commit(tree, commit.parents, author, COMMITTER, commit.message)
    return replace(commit, id=made, tree=tree)


def _commit_new(
    store: Store, session: EditSession, repo: EditRepo, parent: str, tree: str, *, sign_off: bool
) -> EditCommit:
    who = repo.users_identity()
    if who is None:
        raise UsageError(
            "git does not know who you are, and a new patch needs an author",
            hint='git config --global user.name "NAME"; git config --global user.email ADDRESS',
        )
    message = session.message.encode()
    if sign_off:
        message = add_trailers(message, [("Signed-off-by", who.rsplit(" ", 2)[0])])
    base = EditCommit("", (parent,), tree, who, message)
    return _amend(store, base, tree)


def _named(session: EditSession, current: Current, branch: _Branch) -> list[Wanted]:
    """The branch's patches with their names; new ones get one in house style."""
    taken = list(current.names)
    wanted: list[Wanted] = []
    new_name = session.new
    for commit, at in zip(branch.commits, branch.patches, strict=True):
        if at is not None:
            wanted.append(Wanted(session.covered[at], at, commit.id))
            continue
        after = wanted[-1].name if wanted else None
        name = new_name or name_patch(commit.subject, taken, after=after)
        new_name = ""
        taken.append(name)
        wanted.append(Wanted(name, None, commit.id))
    return wanted


def _later(session: EditSession, current: Current) -> list[Wanted]:
    return [
        Wanted(name, number)
        for number, name in enumerate(current.names)
        if number >= len(session.covered)
    ]


def _bring(
    project: Project,
    report: Reporter,
    store: Store,
    current: Current,
    session: EditSession,
    repo: EditRepo,
    wanted: Sequence[Wanted],
    conflict: MergeConflict,
) -> None:
    """Let the edit tree end in the conflict, with all that goes before it as commits.

    Patch files stay as they are: from here on the branch covers more of them.
    """
    place = conflict.data["place"]
    assert isinstance(place, int)
    item = wanted[place]
    assert item.was is not None
    clean = restack(report, store, current, wanted[:place])
    plan = plan_series(
        project, report, clean.patches, store=store, baseline=current.base, applied=clean.applied
    )
    top = plan.prefixes[-1].commit if place else current.base.commit
    store.set_ref(EDIT_REF, top)
    covered = item.was + 1
    now = msgspec.structs.replace(
        session,
        patch=item.name,
        covered=tuple(current.names[:covered]),
        key=current.key(covered),
        moving=Moving(repo.head, repo.snapshot(), top, current.commit(covered)),
    )
    write_file(session_path(project), encode_session(now))
    move_tree(now, repo)
    where = project.relative(repo.folder)
    conflict.message = conflict.message.replace(
        "; nothing was changed", f"; it waits in `{where}`, no patch file was changed"
    )
    conflict.args = (conflict.message,)
    conflict.hint = (
        f"edit the files there, then: git -C {where} add -u && git -C {where} cherry-pick "
        "--continue && patchctl refresh"
    )


def _finish(
    project: Project,
    report: Reporter,
    store: Store,
    current: Current,
    session: EditSession,
    repo: EditRepo,
    result: Restacked,
) -> Refreshed:
    """Write the series and the session in one step, then let the branch follow."""
    patches = result.patches
    plan = plan_series(
        project, report, patches, store=store, baseline=current.base, applied=result.applied
    )
    count = len(patches) - len(current.names) + len(session.covered)
    names = tuple(patch.name for patch in patches[:count])
    last = names[-1] if names else ""
    head = plan.prefixes[count - 1].commit if count else current.base.commit
    now = msgspec.structs.replace(
        session,
        patch=session.patch if session.patch in names else last,
        covered=names,
        key=plan.prefixes[count - 1].key if count else current.base.commit,
        head=head,
        new="",
        message="",
        moving=Moving(repo.head, repo.snapshot(), head),
    )
    store.set_ref(EDIT_REF, now.head)
    plan.carry_out({session_path(project): encode_session(now)})
    move_tree(now, repo)
    was = {patch.was for patch in patches}
    return Refreshed(
        result.fates,
        tuple(name for name in session.covered if name not in was),
        tuple(display(path) for path in repo.leftovers()),
    )
