# SPDX-License-Identifier: Apache-2.0
"""What the user's tree has that the series has not."""

from __future__ import annotations

from dataclasses import dataclass

from patchctl.errors import UsageError
from patchctl.formats.gitobjects import display
from patchctl.stages.editsession import load_session, require_session
from patchctl.stages.sourceedits import source_edits
from patchctl.system.editrepo import show_difference
from patchctl.system.gitrun import GitRepo
from patchctl.system.project import Project


@dataclass(frozen=True)
class Difference:
    """A diff in git's form, of the tree in `where` against what the series makes of it."""

    where: str
    patch: str
    text: bytes
    files: tuple[str, ...]


def difference(project: Project, *, source: bool | None = None, stat: bool = False) -> Difference:
    """The diff of the edit tree if one is open, else of the source tree; `source` chooses.

    Raises:
        UsageError: there is no such tree.
    """
    if source is None:
        source = load_session(project) is None
    options = ("--stat",) if stat else ()
    if source:
        return _of_source(project, options)
    session, repo = require_session(project)
    now = repo.snapshot()
    text = repo.difference(session.head, now, *options)
    names = repo.difference(session.head, now, "--name-only", "-z")
    return Difference(project.relative(repo.folder), session.patch, text, _listed(names))


def _of_source(project: Project, options: tuple[str, ...]) -> Difference:
    from patchctl.system.gitstore import Store

    if not project.store.exists():
        raise UsageError("there is no tree yet to compare", hint="patchctl replay")
    with Store(project.store) as store:
        edits = source_edits(project, store)
    repo = GitRepo(project.store)
    text = show_difference(repo, edits.before, edits.after, *options)
    names = show_difference(repo, edits.before, edits.after, "--name-only", "-z")
    return Difference(project.relative(project.source), "", text, _listed(names))


def _listed(names: bytes) -> tuple[str, ...]:
    return tuple(display(name) for name in names.split(b"\0") if name)
