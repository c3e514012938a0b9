# SPDX-License-Identifier: Apache-2.0
"""import: patches that somebody sent become patches of the series, exact, or nothing does."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from patchctl.errors import AlreadyApplied, PatchDoesNotApply
from patchctl.formats.gitobjects import Identity
from patchctl.formats.grademodel import Grade
from patchctl.formats.mail import TOOL_EMAIL
from patchctl.formats.patchnames import name_patch, subject_of
from patchctl.stages.arrivals import Arrival, gather
from patchctl.stages.current import Current, current_series
from patchctl.stages.editsession import release
from patchctl.stages.judge import Judged, Verdict, judge, refusal
from patchctl.stages.restack import Fate, Wanted, restack
from patchctl.stages.seriesedit import replace_series
from patchctl.system.project import Project
from patchctl.system.report import Reporter

if TYPE_CHECKING:
    from patchctl.formats.edittree import EditTree
    from patchctl.formats.patchmodel import Header
    from patchctl.system.gitstore import Store

REPAIRED = "Repaired"
"""The trailer that says what a repair did."""


@dataclass(frozen=True)
class ImportResult:
    """What came, patch by patch; the names of those that are in the series now.

    `names` has one item for each of `judged`, empty where the patch was left out; `merged` are
    patches behind them that had to be merged on top; `dry_run`: nothing was written.
    """

    judged: tuple[Judged, ...]
    names: tuple[str, ...]
    merged: tuple[str, ...] = ()
    dry_run: bool = False

    def as_json(self) -> dict[str, object]:
        """Everything, for ``--json``."""
        return {
            "dry_run": self.dry_run,
            "patches": [
                {**judged.as_json(), "name": name or None}
                for judged, name in zip(self.judged, self.names, strict=True)
            ],
            "merged": list(self.merged),
        }


class ImportRefused(PatchDoesNotApply):
    """At least one patch is not taken; `judged` says how each fits. Nothing was changed."""

    kind = "import"

    def __init__(self, message: str, judged: Sequence[Judged], hint: str) -> None:
        super().__init__(message, hint=hint)
        self.judged = tuple(judged)
        self.data = {"patches": [j.as_json() for j in judged]}


def import_patches(
    project: Project,
    report: Reporter,
    source: Path,
    *,
    after: str | None = None,
    strip: int | None = None,
    with_repair: bool = False,
    author: tuple[str, str] | None = None,
    dry_run: bool = False,
    offline: bool = False,
) -> ImportResult:
    """Take the patches in `source` into the series behind `after` (default: the last).

    `with_repair` makes those exact that have one place only; `author` is for a patch that is no
    mail; `strip` is how many folders the paths lose.

    Raises:
        ImportRefused: a patch cannot be read, does not fit, or fits only after a repair that
            was not asked for.
        AlreadyApplied: all that the patches do is in the tree.
        MergeConflict: a patch behind `after` does not go on top of them.
        LocalChanges: an edit of a patch behind `after` is open.
        UsageError: no such file, no order, or no patch `after`.
    """
    arrivals = gather(source, strip)
    from patchctl.system.gitstore import Store

    with Store(project.store) as store:
        current = current_series(project, report, store, offline=offline)
        count = len(current.patches) if after is None else current.index(project, after) + 1
        stack = _Stack(store, current, count, author)
        with report.task("grading", len(arrivals), unit="patch") as task:
            for arrival in arrivals:
                task.note(arrival.label)
                if not stack.take(arrival):
                    break
                task.advance()
        _require_taken(stack.judged, len(arrivals), source, with_repair=with_repair)
        new = [Wanted(name, commit=commit) for name, commit in stack.commits if commit]
        kept = [Wanted(name, was=index) for index, name in enumerate(current.names)]
        result = restack(report, store, current, [*kept[:count], *new, *kept[count:]])
        if not dry_run:
            release(project, current.names[count:])
            replace_series(
                project,
                report,
                result.patches,
                store=store,
                baseline=current.base,
                applied=result.applied,
            )
    return ImportResult(
        tuple(stack.judged),
        tuple(name for name, _ in stack.commits),
        tuple(name for name, fate in result.fates if fate is Fate.MERGED),
        dry_run,
    )


def _require_taken(judged: list[Judged], count: int, source: Path, *, with_repair: bool) -> None:
    first = judged[0]
    if all(j.verdict is Verdict.PRESENT for j in judged):
        raise AlreadyApplied(
            f"`{first.arrival.label}` is already applied: all that it does is in the tree",
            hint="patchctl series lists the patches",
            data={"patches": [j.as_json() for j in judged]},
        )
    refused = [j for j in judged if j.verdict is Verdict.REFUSED]
    inexact = [j for j in judged if j.verdict is not Verdict.EXACT]
    whole = "the patch" if count == 1 else f"{len(refused) or len(inexact)} of {count} patches"
    if refused:
        what = refusal(refused[0])
        raise ImportRefused(f"{whole} cannot be imported: {what}", judged, _remedy(refused[0]))
    if inexact and not with_repair:
        verb = "does" if count == 1 else "do"
        raise ImportRefused(
            f"{whole} {verb} not fit exactly; nothing was imported",
            judged,
            "look at the differences; if they are harmless: "
            f"patchctl import --repair {shlex.quote(str(source))}",
        )


def _remedy(judged: Judged) -> str:
    if judged.error is not None and judged.error.hint:
        return judged.error.hint
    hunks = [h for f in judged.grade.files for h in f.hunks] if judged.grade else []
    if any(hunk.grade is Grade.AMBIGUOUS for hunk in hunks):
        return "to say which place is meant, write its line into the hunk's header: @@ -LINE,..."
    return "mend the patch by hand, or ask its author for one on this baseline"


class _Stack:
    """The patches that came, each judged on top of those before it."""

    def __init__(
        self, store: Store, current: Current, count: int, author: tuple[str, str] | None
    ) -> None:
        from patchctl.formats.edittree import EditTree

        self._store, self._author = store, author
        self._tree: EditTree = EditTree(store.read_tree(current.tree(count)))
        for _ in self._tree.new_objects():
            pass  # they are in the store
        self._parent = current.commit(count)
        self._after = current.names[count - 1] if count else None
        self._names = list(current.names)
        self.judged: list[Judged] = []
        self.commits: list[tuple[str, str]] = []  # name and commit; empty where left out

    def take(self, arrival: Arrival) -> bool:
        """Judge one patch, and go on from what it makes; False if nothing can follow it."""
        judged = judge(self._store, arrival, self._tree)
        self.judged.append(judged)
        if judged.exact is None:
            self.commits.append(("", ""))
            return judged.verdict is Verdict.PRESENT
        from patchctl.formats.apply import apply_patch

        for content in apply_patch(judged.exact, self._tree, self._store.read_blob).values():
            if content is not None:
                self._store.write_blob(content.data)
        for _, data in self._tree.new_objects():
            self._store.write_object("tree", data)
        name, commit = self._commit(judged)
        self.commits.append((name, commit))
        self._parent, self._after = commit, name
        self._names.append(name)
        return True

    def _commit(self, judged: Judged) -> tuple[str, str]:
        from patchctl.formats.history import COMMITTER
        from patchctl.formats.trailers import add_trailers

        assert judged.exact is not None
        header = judged.exact.header
        is_mail = header.author.email != TOOL_EMAIL
        name = self._name(header, judged.arrival, is_mail=is_mail)
        message, author = header.message, header.author
        if not is_mail:
            if header.subject == judged.arrival.where:
                message = subject_of(name).encode() + b"\n"
            if self._author is not None:
                author = Identity(*self._author, int(time.time()))
        message = add_trailers(message, [(REPAIRED, reason) for reason in judged.reasons])
        committer = replace(COMMITTER, when=author.when, zone=author.zone)
        made = self._store.write_commit(self._tree.id, (self._parent,), author, committer, message)
        return name, made

    def _name(self, header: Header, arrival: Arrival, *, is_mail: bool) -> str:
        text = header.subject if is_mail and header.subject != arrival.where else arrival.path.stem
        return name_patch(text, self._names, after=self._after)
