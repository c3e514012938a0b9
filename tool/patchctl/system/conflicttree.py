# SPDX-License-Identifier: Apache-2.0
"""The repository in which people resolve the conflicts of a rebase with their own git.

It borrows the store's objects. Nothing in it is needed to go on: it can be made anew at any
time, at the price of what was resolved but not yet taken.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from patchctl.formats.gitobjects import Identity
from patchctl.system.files import TEMP_PREFIX, write_file
from patchctl.system.gitrun import GitRepo
from patchctl.system.process import Completed, ProcessFailed, wait_for_others
from patchctl.system.report import Reporter

BRANCH = "rebase"
_CONFIG = {
    # people's resolutions are remembered, and used again without asking
    "rerere.enabled": "true",
    "rerere.autoUpdate": "true",
    "gc.auto": "0",
    "gc.rerereResolved": "never",
    # what is in a patch is what is on the disk
    "core.autocrlf": "false",
    "core.safecrlf": "false",
}
_ATTRIBUTES = "* -text -ident -filter -working-tree-encoding\n"


class ConflictTree:
    """The folder; `store` is the project's repository, `memory` where resolutions are kept."""

    def __init__(self, folder: Path, store: Path, memory: Path, committer: Identity) -> None:
        self.folder, self._store, self._memory = folder, store, memory
        self._repo = GitRepo(folder / ".git", folder)
        self._identity = {
            "GIT_COMMITTER_NAME": committer.name,
            "GIT_COMMITTER_EMAIL": committer.email,
            "GIT_AUTHOR_NAME": committer.name,
            "GIT_AUTHOR_EMAIL": committer.email,
        }

    def _git(self, *arguments: str, check: bool = True) -> Completed:
        return self._repo.git(*arguments, check=check, env=self._identity)

    def _lines(self, *arguments: str) -> tuple[bytes, ...]:
        return tuple(item for item in self._git(*arguments).stdout.split(b"\0") if item)

    @property
    def exists(self) -> bool:
        """Whether it is there."""
        return self._repo.git_dir.is_dir()

    @property
    def git_dir(self) -> Path:
        """Its git directory."""
        return self._repo.git_dir

    def settle(self, report: Reporter) -> None:
        """Wait until no git works in it: one that a killed run started is still busy."""
        for folder in (self.folder, *self._halves()):
            wait_for_others("git", folder, report)

    def _halves(self) -> list[Path]:
        """What a killed run had begun to make, or to remove."""
        return list(self.folder.parent.glob(f"{TEMP_PREFIX}{self.folder.name}.*"))

    def create(self, head: str) -> None:
        """Make it, on branch ``rebase`` at `head`: there as a whole or not at all."""
        temp = self.folder.with_name(f"{TEMP_PREFIX}{self.folder.name}.{secrets.token_hex(4)}")
        made = ConflictTree(temp, self._store, self._memory, Identity("", "", 0))
        try:
            temp.mkdir(parents=True)
            git_dir = made.git_dir
            GitRepo(git_dir).git("init", "--quiet", f"--initial-branch={BRANCH}", str(temp))
            borrowed = os.path.relpath(self._store / "objects", git_dir / "objects")
            write_file(git_dir / "objects" / "info" / "alternates", borrowed + "\n")
            write_file(git_dir / "info" / "attributes", _ATTRIBUTES)
            self._memory.mkdir(parents=True, exist_ok=True)
            (git_dir / "rr-cache").symlink_to(self._memory)
            for key, value in _CONFIG.items():
                made._repo.git("config", key, value)
            made._repo.git("reset", "--quiet", "--hard", head)
            temp.rename(self.folder)
        except BaseException:
            shutil.rmtree(temp, ignore_errors=True)
            raise

    def checkout(self, head: str) -> None:
        """Bring branch, index and files to `head`; edits are lost, other files stay."""
        (self.git_dir / "index.lock").unlink(missing_ok=True)
        self._git("checkout", "--quiet", "--force", "-B", BRANCH, head)
        self._git("reset", "--quiet", "--hard", head)

    def pick(self, commit: str) -> bool:
        """Apply `commit` as git does; whether it left what people expect to see of that."""
        before = self.head
        style = ("-c", "merge.conflictStyle=diff3", "-c", "advice.mergeConflict=false")
        done = self._git(*style, "cherry-pick", "--allow-empty", commit, check=False)
        if done.code not in (0, 1):
            raise ProcessFailed(done)
        return self.is_picking(commit) or self.head != before

    def is_picking(self, commit: str) -> bool:
        """Whether `commit` is being applied: conflicts and files are all in place."""
        return self._revision("CHERRY_PICK_HEAD") == commit

    def remember(self) -> None:
        """Note conflicts that are new and resolutions of known ones."""
        self._git("rerere", check=False)

    @property
    def head(self) -> str:
        """The commit that is checked out; empty if there is no work tree."""
        return self._revision("HEAD") if self.exists else ""

    def _revision(self, name: str) -> str:
        done = self._git("rev-parse", "--verify", "--quiet", name, check=False)
        return done.out.strip()

    def commits_since(self, commit: str) -> tuple[str, ...] | None:
        """The commits from `commit` (excluded) to the head; None if it is not behind the head."""
        if self._git("merge-base", "--is-ancestor", commit, "HEAD", check=False).code:
            return None
        return tuple(self._git("rev-list", "--reverse", f"{commit}..HEAD").out.split())

    def message(self, commit: str) -> bytes:
        """A commit's message."""
        return self._git("log", "-1", "--no-show-signature", "--format=%B", commit).stdout

    def unmerged(self) -> tuple[bytes, ...]:
        """The files with a conflict that nobody declared resolved."""
        return tuple(dict.fromkeys(self._lines("diff", "--name-only", "--diff-filter=U", "-z")))

    def unstaged(self) -> tuple[bytes, ...]:
        """The files whose content is not the staged one."""
        return self._lines("diff", "--name-only", "-z")

    def differs_from(self, commit: str) -> bool:
        """Whether index or files are not those of `commit`; files that git ignores do not count."""
        staged = self._git("diff", "--quiet", "--cached", commit, check=False).code
        return bool(staged or self._git("diff", "--quiet", check=False).code)

    def markers(self, paths: Iterable[bytes]) -> list[tuple[bytes, int]]:
        """Where conflict markers are left in staged files, as (path, line from 1)."""
        found = []
        for path in paths:
            file = self.folder / os.fsdecode(path)
            if file.is_symlink() or not file.is_file():
                continue
            for number, line in enumerate(file.read_bytes().split(b"\n"), 1):
                if line.startswith((b"<<<<<<< HEAD", b">>>>>>> ")):
                    found.append((path, number))
        return found

    def write_tree(self) -> str:
        """The id of the staged tree."""
        return self._git("write-tree").out.strip()

    def move_aside(self, to: Path) -> Path:
        """Move all of it into the folder `to`, under a name of its own."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        kept = to / f"{self.folder.name}-{stamp}-{secrets.token_hex(2)}"
        kept.parent.mkdir(parents=True, exist_ok=True)
        self.folder.rename(kept)
        return kept

    def remove(self) -> None:
        """Take it away: at once, then its files one by one."""
        if self.folder.exists():
            trash = self.folder.with_name(f"{TEMP_PREFIX}{self.folder.name}.{secrets.token_hex(4)}")
            self.folder.rename(trash)
        for half in self._halves():
            shutil.rmtree(half, ignore_errors=True)
