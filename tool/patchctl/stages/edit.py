# SPDX-License-Identifier: Apache-2.0
"""Opening a patch for editing: `build/out/edit` with exactly the patches up to it as commits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from patchctl.errors import LocalChanges, UsageError
from patchctl.formats.patchnames import name_patch, subject_of
from patchctl.formats.trailers import add_trailers, read_trailers
from patchctl.stages.current import Current, current_series
from patchctl.stages.editsession import (
    EDIT_REF,
    EditSession,
    catch_up,
    edit_repo,
    encode_session,
    last_session,
    pending,
    rebase_is_open,
    session_path,
)
from patchctl.system.editrepo import EditRepo
from patchctl.system.files import write_file
from patchctl.system.project import Project
from patchctl.system.report import Reporter

if TYPE_CHECKING:
    from pathlib import Path

    from patchctl.system.gitstore import Store


@dataclass(frozen=True)
class Opened:
    """An edit tree: `subject` of the edited patch, `count` commits, and where edits were moved."""

    session: EditSession
    folder: Path
    subject: str
    discarded: Path | None


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
    if rebase_is_open(project):
        raise LocalChanges(
            "a rebase is open, and its tree is the one to edit in",
            hint="patchctl rebase --status",
        )
    if not repo.exists and not (repo.folder.is_dir() and any(repo.folder.iterdir())):
        return None
    session = last_session(project) if repo.exists else None
    left = "a tree that no edit or rebase of ours belongs to" if session is None else ""
    if session is not None:
        catch_up(session, repo)
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
