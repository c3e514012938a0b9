# SPDX-License-Identifier: Apache-2.0
"""The work of a rebase, patch by patch. Killed at any moment, it goes on from what is recorded.

A merge is made in the store and repeats with the same result. Only a conflict touches the work
tree: before that the step is recorded as moving, after it as stopped. A tree that was left half
way is put aside and made anew; one that is as git leaves it for people is kept, edits and all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from patchctl.errors import LocalChanges, PatchctlError, PatchDoesNotApply
from patchctl.formats.gitobjects import display
from patchctl.formats.history import COMMITTER
from patchctl.formats.patchmodel import Header, Patch
from patchctl.formats.rebasesession import Outcome, Session, Step, write_session
from patchctl.system.conflicttree import ConflictTree
from patchctl.system.editrepo import EditCommit
from patchctl.system.files import write_file
from patchctl.system.mergetree import merge_trees
from patchctl.system.project import Project, cache_folder
from patchctl.system.report import Reporter

if TYPE_CHECKING:
    from patchctl.system.gitstore import Store

CONTINUE = "patchctl rebase --continue"
SKIP = "patchctl rebase --skip"
ABORT = "patchctl rebase --abort"


def conflict_tree(project: Project) -> ConflictTree:
    """Where conflicts are resolved; what people resolved outlives `build/out`."""
    memory = cache_folder() / "rerere"
    return ConflictTree(project.out / "edit", project.store, memory, COMMITTER)


class RebaseWork:
    """A session at work; `session` is always what is recorded."""

    def __init__(
        self,
        project: Project,
        report: Reporter,
        store: Store,
        session: Session,
        patches: Mapping[str, Patch],
    ) -> None:
        self._project, self._report, self._store = project, report, store
        self._patches = patches
        self._tree = conflict_tree(project)
        self._where = project.relative(self._tree.folder)
        self.session = session

    def run(self) -> None:
        """Go on until every patch is done.

        Raises:
            PatchDoesNotApply: stopped at a conflict; people resolve it and say --continue.
            LocalChanges: the work tree is not as it can be taken.
        """
        total = len(self.session.steps)
        with self._report.task("rebasing", total, unit="patch") as task:
            task.advance(self.session.position)
            while (step := self.session.current) is not None:
                task.note(step.patch)
                if step.outcome is Outcome.PENDING:
                    self._merge(step)
                elif step.outcome is Outcome.MOVING or not self._tree.exists:
                    self._place(step)
                else:
                    self._stop(step)
                if step is not self.session.current:
                    task.advance()
        if not self.session.shown:
            self._tree.settle(self._report)
            self._bring()
            self.session = self.session.as_shown()
            save_session(self._project, self.session)

    def resume(self) -> None:
        """Take what people made of the conflict, then go on.

        Raises:
            PatchDoesNotApply: it is not resolved, or another patch stopped.
            LocalChanges: the work tree is not as it can be taken.
        """
        step = self.session.current
        if step is not None and step.outcome is Outcome.STOPPED and self._tree.exists:
            self._take(step, Outcome.RESOLVED)
        self.run()

    def skip(self) -> None:
        """Leave the current patch out, with what was made of its conflict; then go on."""
        step = self.session.current
        if step is None:
            raise LocalChanges(
                "no patch is being worked on: all are through", hint="patchctl rebase --accept"
            )
        if self._tree.exists:
            self._tree.settle(self._report)
            self._checkout()
        self._record(Outcome.SKIPPED)
        self.run()

    def _record(
        self, outcome: Outcome, *, new: str = "", conflicts: tuple[str, ...] | None = None
    ) -> None:
        self.session = self.session.with_current(outcome, new=new, conflicts=conflicts)
        save_session(self._project, self.session)

    def _parent(self) -> str:
        """The commit before the current patch on the old base."""
        position = self.session.position
        return self.session.steps[position - 1].old if position else self.session.old_base

    def _merge(self, step: Step) -> None:
        trees = (self._parent(), self.session.head, step.old)
        base, ours, theirs = (self._store.tree_of(commit) for commit in trees)
        merge = merge_trees(self._store, base, ours, theirs)
        if not merge.clean:
            self._record(Outcome.MOVING, conflicts=tuple(display(p) for p in merge.conflicts))
        elif merge.tree == ours:
            self._record(Outcome.UPSTREAM)
        else:
            header = self._patches[step.patch].header
            self._record(Outcome.APPLIED, new=self._commit(merge.tree, header))

    def _commit(self, tree: str, header: Header) -> str:
        author = header.author
        committer = replace(COMMITTER, when=author.when, zone=author.zone)
        head = self.session.head
        return self._store.write_commit(tree, (head,), author, committer, header.message)

    def _place(self, step: Step) -> None:
        """Set the conflict up for people, unless it is there already."""
        tree, head = self._tree, self.session.head
        tree.settle(self._report)
        if not (tree.exists and tree.is_picking(step.old) and tree.head == head):
            self._bring()
            if tree.set_up(step.old):
                # somebody's files are in the way, or those of a pick that was killed
                self._put_aside()
                self._bring()
                refused = tree.set_up(step.old)
                if refused:
                    raise PatchctlError(
                        f"git cannot set up the conflict of `{step.patch}`", details=refused
                    )
        tree.remember()
        unmerged = {display(path) for path in tree.unmerged()}
        reused = [path for path in step.conflicts if path not in unmerged]
        if unmerged or not reused:
            self._record(Outcome.STOPPED)
            for path in reused:
                self._report.info(f"{step.patch}: the remembered resolution of `{path}` was used")
            return
        self._take(step, Outcome.REUSED)
        shown = ", ".join(f"`{path}`" for path in reused)
        self._report.info(f"{step.patch}: the remembered resolution of {shown} was used")

    def _bring(self) -> None:
        """Bring the work tree to the head. What is in it and not recorded is put aside first."""
        tree, head = self._tree, self.session.head
        if tree.exists and tree.differs_from(head):
            ours = {self.session.new_base, *(step.new for step in self.session.steps)}
            if tree.head not in ours or tree.differs_from("HEAD"):
                self._put_aside()
        if tree.exists:
            self._checkout()
        else:
            tree.create(self.session.new_base, head)

    def _checkout(self) -> None:
        self._tree.checkout(self.session.new_base, self.session.head)

    def _put_aside(self) -> None:
        kept = self._tree.move_aside(self._project.out / "discarded")
        self._report.warn(
            f"`{self._where}` is not as patchctl left it; it was moved to "
            f"`{self._project.relative(kept)}`"
        )

    def _stop(self, step: Step) -> NoReturn:
        files = [display(path) for path in self._tree.unmerged()]
        done = "; all conflicts are resolved, but not taken yet" if not files else ""
        count = f"{self.session.position + 1} of {len(self.session.steps)}"
        raise PatchDoesNotApply(
            f"patch `{step.patch}` ({count}) conflicts with {self.session.source}{done}",
            details=tuple(f"conflict: {path}" for path in files),
            hint=f"resolve it in {self._where} (git status, git add), then {CONTINUE}; "
            f"or {SKIP}, or {ABORT}",
            data={"patch": step.patch, "files": files, "work_tree": self._where},
        )

    def _take(self, step: Step, outcome: Outcome) -> None:
        """Make a commit of the work tree's state, in the store."""
        tree, head = self._tree, self.session.head
        tree.settle(self._report)
        if tree.unmerged():
            self._stop(step)
        commits = self._own_commits(step)
        self._refuse_leftovers(step)
        tree.remember()
        header = self._patches[step.patch].header
        taken = tree.write_tree()
        tree.hand_over([taken], head)
        if taken == self._store.tree_of(head):
            if not commits and not tree.is_picking(step.old):
                self._place(step)  # the conflict itself was undone
                return
            raise PatchDoesNotApply(
                f"nothing is left of patch `{step.patch}` after the resolution",
                hint=f"{SKIP} leaves it out",
                data={"patch": step.patch},
            )
        if commits:
            header = replace(header, message=_own_message(commits[0].message))
        self._record(outcome, new=self._commit(taken, header))
        self._checkout()

    def _own_commits(self, step: Step) -> tuple[EditCommit, ...]:
        """The commit that people made of the conflict, or none."""
        tree, head = self._tree, self.session.head
        commits = tree.commits(head)
        if commits is not None and len(commits) <= 1:
            return commits
        found = "is not on top of it" if commits is None else f"is {len(commits)} commits after it"
        raise LocalChanges(
            f"`{self._where}` is at {tree.head[:12]}, which {found}: expected {head[:12]}, or one "
            f"commit on it for `{step.patch}`",
            hint=f"git -C {self._where} reset --soft {head[:12]}, then {CONTINUE}",
            data={"patch": step.patch, "head": tree.head, "expected": head},
        )

    def _refuse_leftovers(self, step: Step) -> None:
        tree = self._tree
        unstaged = [display(path) for path in tree.unstaged()]
        if unstaged:
            raise LocalChanges(
                f"changes in `{self._where}` are not staged, so it is not clear whether they "
                f"belong to `{step.patch}`",
                details=tuple(unstaged),
                hint=f"git add them, or git restore them, then {CONTINUE}",
                data={"patch": step.patch, "files": unstaged},
            )
        if tree.head != self.session.head and tree.differs_from("HEAD"):
            raise LocalChanges(
                f"changes in `{self._where}` are staged but not in the commit of `{step.patch}`",
                hint=f"git commit --amend --no-edit, then {CONTINUE}",
                data={"patch": step.patch},
            )
        left = tree.markers(path.encode() for path in step.conflicts)
        if left:
            places = [f"{display(path)}:{line}" for path, line in left]
            raise PatchDoesNotApply(
                f"conflict markers are left in patch `{step.patch}`",
                details=tuple(places),
                hint=f"resolve them in {self._where}, git add the files, then {CONTINUE}",
                data={"patch": step.patch, "places": places},
            )


def _own_message(message: bytes) -> bytes:
    """A commit's message without the list of conflicts that git appends as a comment."""
    return message.split(b"\n# Conflicts:\n", 1)[0].rstrip() + b"\n"


def save_session(project: Project, session: Session) -> None:
    """Record where the session is; everything that it speaks of is in place by then."""
    write_file(project.out / "session" / "rebase.json", write_session(session))
