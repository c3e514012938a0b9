# SPDX-License-Identifier: Apache-2.0
"""Errors by remedy: each class owns its exit code; each message says what, where, got, expected."""

from __future__ import annotations

from typing import ClassVar


class PatchctlError(Exception):
    """Base of every error a user can meet.

    Args:
        message: what is wrong, where, what was found and what was expected.
        hint: the command to run, or the step to take, next.
        details: further lines for people (a child's last output, a list of findings).
        data: the same facts for scripts; shown under ``error.data`` by ``--json``.
    """

    exit_code: ClassVar[int] = 70
    kind: ClassVar[str] = "bug"

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        details: tuple[str, ...] = (),
        data: dict[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details
        self.data = data or {}


class GateFailed(PatchctlError):
    """A gate says no: resources, architectures, schemas or symbols."""

    exit_code = 1
    kind = "gate"


class UsageError(PatchctlError):
    """The input is wrong: an option, a TOML key, a line of the series."""

    exit_code = 2
    kind = "usage"


class LockMismatch(PatchctlError):
    """Something no longer equals its lock."""

    exit_code = 3
    kind = "lock"


class PatchDoesNotApply(PatchctlError):
    """A patch is malformed or does not fit the tree exactly."""

    exit_code = 4
    kind = "patch"


class AlreadyApplied(PatchDoesNotApply):
    """Everything that a patch does is in the tree already."""

    kind = "already-applied"


class MergeConflict(PatchDoesNotApply):
    """A patch and what it is put on top of change the same lines."""

    kind = "conflict"


class LocalChanges(PatchctlError):
    """A file that patchctl would replace was edited by somebody else."""

    exit_code = 5
    kind = "local-changes"


class ToolMissing(PatchctlError):
    """A program or header that a stage needs is not there, or cannot serve."""

    exit_code = 6
    kind = "tool"


class BuildFailed(PatchctlError):
    """A compiler, the linker or ninja failed."""

    exit_code = 7
    kind = "build"


class Unavailable(PatchctlError):
    """The surroundings failed: network, package index, disk space, permissions."""

    exit_code = 8
    kind = "unavailable"


class Interrupted(PatchctlError):
    """Stopped by the user."""

    exit_code = 130
    kind = "interrupted"
