# SPDX-License-Identifier: Apache-2.0
"""A rebase as data: what it goes from and to, and what became of each patch so far.

The session is one value that is replaced as a whole; whoever reads it knows all that was done.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from patchctl.errors import UsageError

FORMAT = 1


class Fit(StrEnum):
    """How a patch fits the new base, from best to worst."""

    CLEAN = "clean"
    OFFSET = "offset"
    WHITESPACE = "whitespace"
    FUZZ = "fuzz"
    THREE_WAY = "three-way"
    UPSTREAM = "already upstream"
    CONFLICT = "conflict"
    GONE = "target gone"

    @property
    def needs_people(self) -> bool:
        """Whether the rebase stops here unless a resolution is remembered."""
        return self in (Fit.CONFLICT, Fit.GONE)


class Outcome(StrEnum):
    """What became of a patch in the session."""

    PENDING = "pending"
    MOVING = "moving"
    """The work tree is being brought to this patch's conflict."""
    STOPPED = "stopped"
    APPLIED = "applied"
    RESOLVED = "resolved"
    REUSED = "resolution reused"
    UPSTREAM = "dropped: already upstream"
    SKIPPED = "skipped"

    @property
    def has_commit(self) -> bool:
        """Whether the patch is a commit on the new base."""
        return self in (Outcome.APPLIED, Outcome.RESOLVED, Outcome.REUSED)

    @property
    def is_open(self) -> bool:
        """Whether there is still work to do."""
        return self in (Outcome.PENDING, Outcome.MOVING, Outcome.STOPPED)


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One patch: its commit on the old base, and on the new one when it is there.

    `fit` is the classification before the work began; `note` explains it; `conflicts` are the
    files that git could not merge.
    """

    patch: str
    subject: str
    old: str
    fit: Fit
    note: str = ""
    outcome: Outcome = Outcome.PENDING
    new: str = ""
    conflicts: tuple[str, ...] = ()


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A rebase that is under way.

    `baseline` names the lock that changes; `onto` is what the user asked for, `source` what was
    found; `lock` is the text of the new baseline lock. `before` maps each file that accepting
    replaces to the sha256 that it had at the start (empty for no file). `shown` is true once all
    patches are through and the work tree was brought to the last one: what differs from then on
    is somebody's.
    """

    format: int = FORMAT
    baseline: str
    onto: str
    source: str
    old_source: str
    old_base: str
    old_head: str
    new_base: str
    lock: str
    steps: tuple[Step, ...]
    before: dict[str, str]
    shown: bool = False

    @property
    def position(self) -> int:
        """The index of the first patch with work to do; the number of patches when all is done."""
        for number, step in enumerate(self.steps):
            if step.outcome.is_open:
                return number
        return len(self.steps)

    @property
    def current(self) -> Step | None:
        """The first patch with work to do."""
        return self.steps[self.position] if self.position < len(self.steps) else None

    @property
    def head(self) -> str:
        """The last commit that is done: where the current patch goes."""
        made = [step.new for step in self.steps[: self.position] if step.outcome.has_commit]
        return made[-1] if made else self.new_base

    def with_current(
        self, outcome: Outcome, *, new: str = "", conflicts: tuple[str, ...] | None = None
    ) -> Session:
        """The session after something became of the current patch.

        Raises:
            ValueError: nothing is left to do, or a commit is missing.
        """
        step = self.current
        if step is None or outcome.has_commit != bool(new):
            raise ValueError(f"no such step: {outcome} at {self.position}")
        files = step.conflicts if conflicts is None else conflicts
        done = msgspec.structs.replace(step, outcome=outcome, new=new, conflicts=files)
        steps = (*self.steps[: self.position], done, *self.steps[self.position + 1 :])
        return msgspec.structs.replace(self, steps=steps)

    def as_shown(self) -> Session:
        """The session once the work tree is at the last patch."""
        return msgspec.structs.replace(self, shown=True)


def write_session(session: Session) -> bytes:
    """The session as JSON."""
    return msgspec.json.format(msgspec.json.encode(session), indent=2) + b"\n"


def read_session(data: bytes, *, where: str) -> Session:
    """Parse a session.

    Raises:
        UsageError: the file is damaged, or of another version of patchctl.
    """
    try:
        session = msgspec.json.decode(data, type=Session)
        known = session.format == FORMAT
    except msgspec.DecodeError as error:
        raise _unreadable(where, str(error)) from error
    if not known:
        raise _unreadable(where, f"format {session.format}, expected {FORMAT}")
    return session


def _unreadable(where: str, why: str) -> UsageError:
    return UsageError(
        f"`{where}` cannot be read: {why}",
        hint="patchctl rebase --abort (nothing outside the session has changed)",
        data={"file": where},
    )
