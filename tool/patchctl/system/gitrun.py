# SPDX-License-Identifier: Apache-2.0
"""Running the git program hermetically, for what is easier asked of it than of a library.

No inherited ``GIT_*``, no system or user configuration, no hooks, no signing, ``LC_ALL=C``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from patchctl.errors import ToolMissing
from patchctl.system.process import Completed, run

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
HERMETIC = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    # no template: the user's could carry hooks
    "GIT_TEMPLATE_DIR": "",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
    # a baseline or store owned by another user is read, never executed
    "GIT_CONFIG_COUNT": "6",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
    "GIT_CONFIG_KEY_1": "core.hooksPath",
    "GIT_CONFIG_VALUE_1": os.devnull,
    "GIT_CONFIG_KEY_2": "gc.auto",
    "GIT_CONFIG_VALUE_2": "0",
    # these two are read from the home folder even without a global configuration
    "GIT_CONFIG_KEY_3": "core.attributesFile",
    "GIT_CONFIG_VALUE_3": os.devnull,
    "GIT_CONFIG_KEY_4": "core.excludesFile",
    "GIT_CONFIG_VALUE_4": os.devnull,
    # a pack is there as a whole or not at all; loose objects of a cut fetch look like a whole one
    "GIT_CONFIG_KEY_5": "fetch.unpackLimit",
    "GIT_CONFIG_VALUE_5": "1",
}

_STARTED_WITH = dict(os.environ)  # before anything in this process makes it hermetic
_PLACES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR")


@dataclass(frozen=True)
class GitRepo:
    """A repository to run git in: its git directory, and its work tree if it has one."""

    git_dir: Path
    work_tree: Path | None = None

    def git(
        self,
        *arguments: str,
        input: bytes = b"",
        check: bool = True,
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        """Run ``git ARGUMENTS``; `env` is added to the hermetic environment.

        Raises:
            ToolMissing: no git program.
            ProcessFailed: `check` is true and git's exit code is not 0.
        """
        place = [f"--git-dir={self.git_dir}"]
        if self.work_tree is not None:
            place.append(f"--work-tree={self.work_tree}")
        try:
            return run(
                ["git", *place, *arguments],
                cwd=self.work_tree,
                env={**hermetic_environment(), **(env or {})},
                input=input,
                check=check,
            )
        except ToolMissing as error:
            error.hint = error.hint or "apt install git"
            raise


def hermetic_environment() -> dict[str, str]:
    """The process's environment without anything that would change what git does."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {**kept, **HERMETIC}


def users_environment() -> dict[str, str]:
    """The environment of the user's own git, whatever repository they called us from."""
    return {name: value for name, value in _STARTED_WITH.items() if name not in _PLACES}
