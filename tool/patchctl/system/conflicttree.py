# SPDX-License-Identifier: Apache-2.0
"""The edit tree during a rebase: conflicts set up as git leaves them, and taken from there.

Nothing in it is needed to go on: it can be made anew at any time, at the price of what was
resolved but not yet taken.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path

from patchctl.formats.gitobjects import Identity
from patchctl.system.editrepo import EditRepo
from patchctl.system.files import TEMP_PREFIX
from patchctl.system.process import wait_for_others
from patchctl.system.report import Reporter

_RERERE = {
    # people's resolutions are remembered, and used again without asking
    "rerere.enabled": "true",
    "rerere.autoUpdate": "true",
    "gc.rerereResolved": "never",
}


class ConflictTree(EditRepo):
    """The folder; `store` is the project's repository, `memory` where resolutions are kept."""

    def __init__(self, folder: Path, store: Path, memory: Path, committer: Identity) -> None:
        super().__init__(folder, store)
        self._memory = memory
        self._identity = {
            f"GIT_{who}_{what}": value
            for who in ("AUTHOR", "COMMITTER")
            for what, value in (("NAME", committer.name), ("EMAIL", committer.email))
        }

    def settle(self, report: Reporter) -> None:
        """Wait until no git works in it: one that a killed run started is still busy."""
        for folder in (self.folder, *self._halves()):
            wait_for_others("git", folder, report)

    def _halves(self) -> list[Path]:
        """What a killed run had begun to make, or to remove."""
        return list(self.folder.parent.glob(f"{TEMP_PREFIX}{self.folder.name}.*"))

    def checkout(self, baseline: str, head: str) -> None:
        """Bring branch, index and files to `head`, and end what git is in the middle of."""
        (self._repo.git_dir / "index.lock").unlink(missing_ok=True)
        super().checkout(baseline, head)
        self._git("reset", "--quiet", "--hard", head)

    def set_up(self, commit: str) -> tuple[str, ...]:
        """Apply `commit` as git does, conflicts and all; what git said if it would not begin."""
        before = self.head
        self._memory.mkdir(parents=True, exist_ok=True)
        place = self._repo.git_dir / "rr-cache"
        if not place.is_symlink():
            shutil.rmtree(place, ignore_errors=True)
            place.symlink_to(self._memory)
        for key, value in _RERERE.items():
            self._git("config", key, value)
        style = ("-c", "merge.conflictStyle=diff3", "-c", "advice.mergeConflict=false")
        picked = ("cherry-pick", "--allow-empty", commit)
        done = self._repo.git(*style, *picked, check=False, env=self._identity)
        begun = self.is_picking(commit) or self.head != before
        return () if begun else (done.how_it_ended(), *done.tail())

    def is_picking(self, commit: str) -> bool:
        """Whether `commit` is being applied: conflicts and files are all in place."""
        name = ("rev-parse", "--verify", "--quiet", "CHERRY_PICK_HEAD")
        return self._git(*name, check=False).out.strip() == commit

    def remember(self) -> None:
        """Note conflicts that are new and resolutions of known ones."""
        self._git("rerere", check=False)

    def unstaged(self) -> tuple[bytes, ...]:
        """The files whose content is not the staged one."""
        listed = self._git("diff", "--name-only", "-z").stdout
        return tuple(name for name in listed.split(b"\0") if name)

    def differs_from(self, commit: str) -> bool:
        """Whether index or files are not those of `commit`; untracked files do not count."""
        staged = self._git("diff", "--quiet", "--cached", commit, check=False).code
        return bool(staged or self._git("diff", "--quiet", check=False).code)

    def markers(self, paths: Iterable[bytes]) -> list[tuple[bytes, int]]:
        """Where conflict markers are left in files, as (path, line from 1)."""
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

    def remove(self) -> None:
        """Take it away: at once, then its files one by one."""
        if self.folder.exists():
            trash = self.folder.with_name(f"{TEMP_PREFIX}{self.folder.name}.{secrets.token_hex(4)}")
            self.folder.rename(trash)
        for half in self._halves():
            shutil.rmtree(half, ignore_errors=True)
