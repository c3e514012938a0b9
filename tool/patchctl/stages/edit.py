# SPDX-License-Identifier: Apache-2.0
"""Opening a patch for editing: `build/out/edit` with exactly the patches up to it as commits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from patchctl.errors import LocalChanges, UsageError
from patchctl.formats.patchnames import name_patch, subject_of
from patchctl.formats.trailers import add_trailers, read_trailers
from patchctl.stages.current import Current, current_series
from patchctl.system.editrepo import EditCommit, EditRepo
from patchctl.system.files import write_file
from patchctl.system.project import Project
from patchctl.system.report import Reporter

if TYPE_CHECKING:
    from pathlib import Path

    from patchctl.system.gitstore import Store

EDIT_REF = "refs/patchctl/edit"
"""Keeps in the store what the edit tree borrows from it."""


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


@dataclass(frozen=True)
class Opened:
    """An edit tree: `subject` of the edited patch, `count` commits, and where edits were moved."""

    session: EditSession
    folder: Path
    subject: str
    discarded: Path | None


def session_path(project: Project) -> Path:
    """Where the open edit is remembered."""
    return project.out / "session" / "edit.json"


def edit_repo(project: Project) -> EditRepo:
    """The tree in which people edit."""
    return EditRepo(project.out / "edit", project.store)


def load_session(project: Project) -> EditSession | None:
    """The open edit, or None."""
    session = _last_session(project)
    return None if session is None or session.closed else session


def _last_session(project: Project) -> EditSession | None:
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
        raise UsageError("no patch is open for editing", hint="patchctl edit PATCH")
    if session.baseline != project.baseline:
        raise UsageError(
            f"`{session.patch}` was opened on baseline `{session.baseline}`, not on "
            f"`{project.baseline}`",
            hint=f"patchctl --baseline {session.baseline} refresh",
        )
    return session, repo


def pending(session: EditSession, repo: EditRepo) -> str:
    """What the edit tree has that the patches have not, in words; empty if nothing."""
    if repo.unmerged() or repo.under_way():
        return f"{repo.under_way() or 'a merge'} is under way"
    if repo.head != session.head:
        return "commits"
    return "uncommitted changes" if repo.snapshot() != repo.tree_of("HEAD") else ""


def open_edit(
    project: Project,
    report: Reporter,
    typed: str | None,
    *,
    offline: bool = False,
    discard: bool = False,
) -> Opened:
    """Make the edit tree hold exactly the patches up to `typed` (None: the last).

    `discard` moves an edit tree with changes elsewhere first.

    Raises:
        UsageError: there is no such patch.
        LocalChanges: the edit tree has changes that are in no patch.
    """
    from patchctl.system.gitstore import Store

    with Store(project.store) as store:
        current = current_series(project, report, store, offline=offline)
        if typed is None and not current.patches:
            raise UsageError("the series is empty", hint="patchctl new NAME")
        last = len(current.patches) - 1
        at = last if typed is None else current.index(project, typed)
        session = _session(project, current, at + 1, current.names[at])
        return _open(project, report, store, current, session, discard=discard)


def open_new(
    project: Project,
    report: Reporter,
    text: str,
    *,
    after: str | None = None,
    message: str = "",
    offline: bool = False,
    discard: bool = False,
) -> Opened:
    """Make the edit tree ready for a patch that does not exist yet, on top or behind `after`.

    `text` is its name or subject; the commit message is `message`, or a subject from the name.

    Raises:
        UsageError: the name is taken or none, or there is no patch `after`.
        LocalChanges: the edit tree has changes that are in no patch.
    """
    from patchctl.system.gitstore import Store

    with Store(project.store) as store:
        current = current_series(project, report, store, offline=offline)
        count = len(current.patches)
        if after is not None:
            count = current.index(project, after) + 1
        below = current.names[count - 1] if count else None
        name = name_patch(text, current.names, after=below)
        session = _session(project, current, count, name, message=_message(message, text, name))
        return _open(project, report, store, current, session, discard=discard)


def _message(message: str, text: str, name: str) -> str:
    subject = text if ": " in text else subject_of(name)
    wanted = (message or subject).strip() + "\n"
    if any(t.key.lower() == "upstream-status" for t in read_trailers(wanted.encode())):
        return wanted
    return add_trailers(wanted.encode(), [("Upstream-Status", "Pending")]).decode()


def _session(
    project: Project, current: Current, count: int, patch: str, *, message: str = ""
) -> EditSession:
    return EditSession(
        baseline=project.baseline,
        patch=patch,
        covered=tuple(current.names[:count]),
        key=current.key(count),
        base=current.base.commit,
        head=current.commit(count),
        new=patch if message else "",
        message=message,
    )


def _open(
    project: Project,
    report: Reporter,
    store: Store,
    current: Current,
    session: EditSession,
    *,
    discard: bool,
) -> Opened:
    repo = edit_repo(project)
    discarded = _clear(project, report, repo, discard=discard)
    store.set_ref(EDIT_REF, session.head)
    if repo.exists:
        repo.checkout(session.base, session.head)
    else:
        repo.create(session.base, session.head)
    write_file(session_path(project), encode_session(session))
    count = len(session.covered)
    subject = session.message.split("\n", 1)[0] or current.prefixes[count - 1].subject
    return Opened(session, repo.folder, subject, discarded)


def _clear(project: Project, report: Reporter, repo: EditRepo, *, discard: bool) -> Path | None:
    """Let go of an earlier edit, if everything of it is in the patches."""
    where = project.relative(repo.folder)
    if (project.out / "session" / "rebase.json").exists():
        raise LocalChanges(
            "a rebase is open, and its tree is the one to edit in",
            hint="patchctl rebase --status",
        )
    if not repo.exists:
        return None
    session = _last_session(project)
    left = "a tree that no edit or rebase of ours belongs to" if session is None else ""
    if session is not None:
        left = pending(session, repo)
    if not left:
        return None
    if not discard:
        patch = f" of `{session.patch}`" if session else ""
        raise LocalChanges(
            f"`{where}` has changes{patch} that are in no patch: {left}",
            hint="patchctl refresh takes them into the patch; --discard moves the tree to "
            "build/out/discarded",
        )
    kept = repo.move_aside(project.out / "discarded")
    session_path(project).unlink(missing_ok=True)
    report.info(f"the earlier edit is saved in `{project.relative(kept)}`")
    return kept


def release(project: Project, patches: list[str]) -> None:
    """Close an edit that covers one of `patches`, which are about to change otherwise.

    Raises:
        LocalChanges: the edit tree has changes that are in no patch.
    """
    session, repo = load_session(project), edit_repo(project)
    if session is None or not repo.exists or not set(session.covered) & set(patches):
        return
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
        from patchctl.formats.gitobjects import display

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
