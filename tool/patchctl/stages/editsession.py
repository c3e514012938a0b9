# SPDX-License-Identifier: Apache-2.0
"""The open edit: which patches the tree in `build/out/edit` stands for, and what is in it.

Patch files are the truth; the session only says how the tree belongs to them, and is of no
worth without it.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from patchctl.errors import LocalChanges, UsageError
from patchctl.formats.gitobjects import display
from patchctl.system.editrepo import EditCommit, EditRepo
from patchctl.system.files import write_file
from patchctl.system.project import Project

EDIT_REF = "refs/patchctl/edit"
"""Keeps in the store what the edit tree borrows from it."""


def rebase_is_open(project: Project) -> bool:
    """Whether a rebase session is under way."""
    return (project.out / "session" / "rebase.json").exists()


class Moving(msgspec.Struct, frozen=True):
    """What is to happen in the edit tree after the session is written, should we be killed.

    The tree is then still at commit `head` with files that make `tree`; it goes to commit `to`,
    and `pick` is applied there for people to resolve (empty: the files stay as they are).
    """

    head: str
    tree: str
    to: str
    pick: str = ""


class EditSession(msgspec.Struct, frozen=True, kw_only=True):
    """What is open for editing.

    `covered` are the patches that the branch stands for, `key` identifies their content as it
    was, `base` and `head` are the branch's first and last commit, `patch` is the one that takes
    uncommitted changes. `new` names a patch that is yet to be made, with its `message`. A
    `closed` session only says where the tree stands that is left.
    """

    baseline: str
    patch: str
    covered: tuple[str, ...]
    key: str
    base: str
    head: str
    new: str = ""
    message: str = ""
    closed: bool = False
    moving: Moving | None = None


def session_path(project: Project) -> Path:
    """Where the open edit is remembered."""
    return project.out / "session" / "edit.json"


def edit_repo(project: Project) -> EditRepo:
    """The tree in which people edit."""
    return EditRepo(project.out / "edit", project.store)


def load_session(project: Project) -> EditSession | None:
    """The open edit, or None."""
    session = last_session(project)
    return None if session is None or session.closed else session


def last_session(project: Project) -> EditSession | None:
    """The open edit, or the closed one whose tree is left, or None."""
    try:
        return msgspec.json.decode(session_path(project).read_bytes(), type=EditSession)
    except (OSError, msgspec.DecodeError):
        return None


def encode_session(session: EditSession) -> bytes:
    """The content of its file."""
    return msgspec.json.format(msgspec.json.encode(session), indent=2) + b"\n"


def require_session(project: Project) -> tuple[EditSession, EditRepo]:
    """The open edit and its tree.

    Raises:
        UsageError: none is open, or it is of another baseline.
    """
    session, repo = load_session(project), edit_repo(project)
    if session is None or not repo.exists:
        if rebase_is_open(project):
            raise UsageError(
                "no patch is open for editing, but a rebase is", hint="patchctl rebase --status"
            )
        raise UsageError("no patch is open for editing", hint="patchctl edit PATCH")
    if session.baseline != project.baseline:
        raise UsageError(
            f"`{session.patch}` was opened on baseline `{session.baseline}`, not on "
            f"`{project.baseline}`",
            hint=f"patchctl --baseline {session.baseline} refresh",
        )
    catch_up(session, repo)
    return session, repo


def move_tree(session: EditSession, repo: EditRepo) -> None:
    """Bring the edit tree to where the session says that it is."""
    moving = session.moving
    if moving is not None and moving.pick:
        repo.checkout(session.base, moving.to)
        repo.pick(moving.pick)
    elif moving is not None:
        repo.settle_at(moving.to)


def catch_up(session: EditSession, repo: EditRepo) -> None:
    """Do what a killed run left undone in the edit tree, if nobody worked in it since."""
    moving = session.moving
    if moving is None or repo.under_way() or repo.head != moving.head:
        return
    if repo.snapshot() == moving.tree:
        move_tree(session, repo)


def pending(session: EditSession, repo: EditRepo) -> str:
    """What the edit tree has that the patches have not, in words; empty if nothing."""
    if repo.unmerged() or repo.under_way():
        return f"{repo.under_way() or 'a merge'} is under way"
    if repo.head != session.head:
        return "commits"
    return "uncommitted changes" if repo.snapshot() != repo.tree_of("HEAD") else ""


def release(project: Project, patches: list[str]) -> None:
    """Close an edit that covers one of `patches`, which are about to change otherwise.

    Raises:
        LocalChanges: the edit tree has changes that are in no patch, or a rebase is open: its
            result would be of a series that is no longer there.
    """
    if rebase_is_open(project):
        raise LocalChanges(
            "a rebase is open, and it is of the series as it is",
            hint="patchctl rebase --status, then finish or abort it",
        )
    session, repo = load_session(project), edit_repo(project)
    if session is None or not repo.exists or not set(session.covered) & set(patches):
        return
    catch_up(session, repo)
    left = pending(session, repo)
    if left:
        raise LocalChanges(
            f"`{session.patch}` is open for editing and has {left} that are in no patch",
            hint="patchctl refresh first, or patchctl edit --discard",
        )
    closed = msgspec.structs.replace(session, closed=True)
    write_file(session_path(project), encode_session(closed))


def edit_commits(session: EditSession, repo: EditRepo) -> tuple[EditCommit, ...]:
    """The commits on the branch, each with one parent, oldest first.

    Raises:
        LocalChanges: git is in the middle of something, or the branch is not a line of commits
            on the baseline.
    """
    conflicts = repo.unmerged()
    busy = repo.under_way()
    if busy or conflicts:
        raise LocalChanges(
            f"{busy or 'a merge'} is under way in `{repo.folder.name}`",
            details=tuple(f"conflict: {display(path)}" for path in conflicts),
            hint=f"finish it there with git (git -C {repo.folder} status), then patchctl refresh",
        )
    commits = repo.commits(session.base)
    if commits is None:
        raise LocalChanges(
            f"the checked-out branch in `{repo.folder.name}` does not contain the baseline",
            hint=f"git -C {repo.folder} rebase baseline, or patchctl edit --discard",
        )
    for commit in commits:
        if len(commit.parents) != 1:
            raise LocalChanges(
                f"commit {commit.id[:12]} (`{commit.subject}`) is a merge; a series is a line",
                hint=f"git -C {repo.folder} rebase baseline makes a line of it",
            )
    return commits
