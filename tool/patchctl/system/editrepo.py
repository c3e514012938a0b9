# SPDX-License-Identifier: Apache-2.0
"""The repository in which people edit patches with their own git: one commit a patch.

An ordinary repository with a work tree, on branch ``series``; tag ``baseline`` is the pristine
source. It borrows the store's objects. The user's own configuration and hooks count in it when
they run git; what patchctl runs in it is hermetic.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from patchctl.errors import LocalChanges
from patchctl.system.files import TEMP_PREFIX, write_file
from patchctl.system.gitrun import GitRepo, users_environment
from patchctl.system.process import Completed, ProcessFailed, run

BRANCH = "series"
BASELINE_TAG = "baseline"
LEFTOVERS = ("*.orig", "*.rej", "*~", ".*.sw?", "#*#")
"""What tools leave beside the files that they edit; never a part of a patch."""

_CONFIG = {
    # what is in a patch is what is on the disk, whatever the user's configuration says
    "core.autocrlf": "false",
    "core.safecrlf": "false",
    "core.fileMode": "true",
    "core.symlinks": "true",
    "gc.auto": "0",
}
_ATTRIBUTES = "* -text -ident -filter -working-tree-encoding\n"
_UNDER_WAY = {
    "rebase-merge": "a rebase",
    "rebase-apply": "a rebase or `git am`",
    "MERGE_HEAD": "a merge",
    "CHERRY_PICK_HEAD": "a cherry-pick",
    "REVERT_HEAD": "a revert",
}


@dataclass(frozen=True)
class EditCommit:
    """A commit of the branch; `who` is its author as ``Name <email> seconds zone``."""

    id: str
    parents: tuple[str, ...]
    tree: str
    who: str
    message: bytes

    @property
    def subject(self) -> str:
        """The first line of the message."""
        return self.message.split(b"\n", 1)[0].decode("utf-8", "replace")


class EditRepo:
    """The folder `folder`; `store` is the project's repository."""

    def __init__(self, folder: Path, store: Path) -> None:
        self.folder, self._store = folder, store
        self._repo = GitRepo(folder / ".git", folder)

    @property
    def exists(self) -> bool:
        """Whether it is there."""
        return self._repo.git_dir.is_dir()

    def _git(self, *arguments: str, check: bool = True) -> Completed:
        return self._repo.git(*arguments, check=check)

    def create(self, baseline: str, head: str) -> None:
        """Make it with branch ``series`` at `head`: there as a whole or not at all."""
        self._sweep()
        temp = self.folder.with_name(f"{TEMP_PREFIX}{self.folder.name}.{secrets.token_hex(4)}")
        made = EditRepo(temp, self._store)
        try:
            temp.mkdir(parents=True)
            git_dir = made._repo.git_dir
            GitRepo(git_dir).git("init", "--quiet", f"--initial-branch={BRANCH}", str(temp))
            borrowed = os.path.relpath(self._store / "objects", git_dir / "objects")
            write_file(git_dir / "objects" / "info" / "alternates", f"{borrowed}\n", sync=False)
            write_file(git_dir / "info" / "attributes", _ATTRIBUTES, sync=False)
            write_file(git_dir / "info" / "exclude", "\n".join(LEFTOVERS) + "\n", sync=False)
            for key, value in _CONFIG.items():
                made._git("config", key, value)
            made.checkout(baseline, head)
            temp.rename(self.folder)
        except BaseException:
            shutil.rmtree(temp, ignore_errors=True)
            raise

    def checkout(self, baseline: str, head: str) -> None:
        """Bring branch, index and files to `head`; edits are lost, untracked files stay."""
        self._git("tag", "--force", BASELINE_TAG, baseline)
        self._git("checkout", "--quiet", "--force", "-B", BRANCH, head)

    def settle_at(self, head: str) -> None:
        """Let the branch name `head`, whose tree is what the files are; no file is touched."""
        self._git("symbolic-ref", "HEAD", f"refs/heads/{BRANCH}")
        self._git("update-ref", f"refs/heads/{BRANCH}", head)
        self._git("reset", "--quiet", "--mixed", head)

    def pick(self, commit: str) -> bool:
        """Apply `commit` as a cherry-pick, left for people to resolve; True if it went through."""
        ident = {"GIT_COMMITTER_NAME": "patchctl", "GIT_COMMITTER_EMAIL": "patchctl@localhost"}
        done = self._repo.git("cherry-pick", commit, check=False, env=ident)
        if done.code not in (0, 1):
            raise ProcessFailed(done)
        return done.code == 0

    def move_aside(self, to: Path) -> Path:
        """Move all of it into the folder `to`, under a name of its own."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        kept = to / f"{self.folder.name}-{stamp}-{secrets.token_hex(2)}"
        kept.parent.mkdir(parents=True, exist_ok=True)
        # it is one folder deeper there
        if self.exists:
            borrowed = os.path.relpath(self._store / "objects", kept / ".git" / "objects")
            write_file(self._repo.git_dir / "objects" / "info" / "alternates", f"{borrowed}\n")
        self.folder.rename(kept)
        return kept

    def _sweep(self) -> None:
        for left in self.folder.parent.glob(f"{TEMP_PREFIX}{self.folder.name}.*"):
            shutil.rmtree(left, ignore_errors=True)

    # -- what people did in it

    def under_way(self) -> str:
        """What git is in the middle of; empty if nothing."""
        for name, what in _UNDER_WAY.items():
            if (self._repo.git_dir / name).exists():
                return what
        if (self._repo.git_dir / "index.lock").exists():
            return "another git command"
        return ""

    def unmerged(self) -> tuple[bytes, ...]:
        """The files with a conflict."""
        listed = self._git("diff", "--name-only", "--diff-filter=U", "-z").stdout
        return tuple(dict.fromkeys(name for name in listed.split(b"\0") if name))

    @property
    def head(self) -> str:
        """The commit that is checked out."""
        return self._git("rev-parse", "--verify", "HEAD^{commit}").out.strip()

    def tree_of(self, commit: str) -> str:
        """The id of a commit's tree."""
        return self._git("rev-parse", "--verify", f"{commit}^{{tree}}").out.strip()

    def snapshot(self) -> str:
        """The id of the tree that the files make: staged, changed and new ones.

        What ``.gitignore`` names, and what editors leave behind, is not a part of it. The
        user's index stays as it is.

        Raises:
            LocalChanges: a repository without a commit lies in it, of which git takes nothing.
        """
        index = self._repo.git_dir / "index"
        mine = self._repo.git_dir / "patchctl-index"
        shutil.copyfile(index, mine)
        env = {"GIT_INDEX_FILE": str(mine)}
        try:
            self._repo.git("add", "--all", ".", env=env)
            return self._repo.git("write-tree", env=env).out.strip()
        except ProcessFailed as error:
            if b"does not have a commit checked out" not in error.completed.stderr:
                raise
            raise LocalChanges(
                f"a repository of its own lies in `{self.folder.name}`; its files cannot be taken",
                hint="move it out of there, or remove its .git",
                details=error.details,
            ) from None
        finally:
            mine.unlink(missing_ok=True)

    def leftovers(self) -> tuple[bytes, ...]:
        """Untracked files that are taken for leftovers, so that people can be told."""
        listed = self._git("ls-files", "--others", "--exclude-from=.git/info/exclude", "--ignored",
                           "-z").stdout  # fmt: skip
        return tuple(name for name in listed.split(b"\0") if name)

    def commits(self, baseline: str) -> tuple[EditCommit, ...] | None:
        """The commits from the baseline to the head, oldest first; None if they do not meet."""
        if self._git("merge-base", "--is-ancestor", baseline, "HEAD", check=False).code:
            return None
        form = "%H%x00%P%x00%T%x00%an <%ae> %ad%x00%B%x00"
        out = self._git("-c", "i18n.logOutputEncoding=UTF-8", "log", "--reverse", "--topo-order",
                        "--date=raw", "--no-show-signature", "--no-mailmap", "-z",
                        f"--format={form}", f"{baseline}..HEAD").stdout  # fmt: skip
        fields = out.split(b"\0")
        found = []
        # each record ends in an empty field, because of -z
        for at in range(0, len(fields) - 5, 6):
            hex_id, parents, tree, who, message = fields[at : at + 5]
            found.append(
                EditCommit(
                    hex_id.decode(),
                    tuple(parents.decode().split()),
                    tree.decode(),
                    who.decode("utf-8", "replace"),
                    message,
                )
            )
        return tuple(found)

    def difference(self, old: str, new: str, *options: str) -> bytes:
        """The diff between two commits or trees, as git shows it."""
        return show_difference(self._repo, old, new, *options)

    def hand_over(self, wanted: Iterable[str], known: str) -> None:
        """Copy commits and trees into the store, which has `known` and all that it names."""
        ids = [*wanted, f"^{known}"]
        packed = self._repo.git(
            "pack-objects", "--revs", "--stdout", "--local", "--quiet",
            input="".join(f"{item}\n" for item in ids).encode(),
        ).stdout  # fmt: skip
        GitRepo(self._store).git("unpack-objects", "-q", input=packed)

    def users_identity(self) -> str | None:
        """The author that the user's own git would record, as a commit has it; None if none."""
        done = run(
            ["git", "var", "GIT_AUTHOR_IDENT"],
            cwd=self.folder,
            env=users_environment(),
            check=False,
        )
        return done.out.strip() if done.code == 0 else None


def show_difference(repo: GitRepo, old: str, new: str, *options: str) -> bytes:
    """The diff between two commits or trees, which depends on nobody's configuration."""
    fixed = ("--no-ext-diff", "--no-textconv", "--find-renames", "--src-prefix=a/",
             "--dst-prefix=b/", "--no-color")  # fmt: skip
    return repo.git("diff", *fixed, *(options or ("--binary",)), old, new).stdout
