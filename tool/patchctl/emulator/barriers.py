# SPDX-License-Identifier: Apache-2.0
"""Where threads wait for each other: CTA barriers, and convergence within a warp."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from patchctl.emulator.findings import Kind
from patchctl.emulator.machine import WARP, Active, EmulatorError, Mask

if TYPE_CHECKING:
    from patchctl.emulator.engine import Engine, Group


@dataclass
class _Barrier:
    """A CTA barrier that some threads have reached. `count` is in threads, None for all."""

    count: int | None
    arrived: Mask
    parked: list[Group] = field(default_factory=list)
    how: str = ""
    votes: Mask | None = None


class Barriers:
    """The named barriers of a CTA (BAR, ``bar.sync``)."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._open: dict[int, _Barrier] = {}

    def arrive(
        self, group: Group, active: Active, barrier: int, count: int | None, *, wait: bool = True
    ) -> None:
        """The active threads reach `barrier`; unless `wait`, they go on at once.

        A warp that arrives in part is a finding; so is one of whose threads some have exited.
        """
        engine, cta = self._engine, self._engine.cta
        mask = group.mask if active is None else active
        state = self._open.setdefault(barrier, _Barrier(count, np.zeros(cta.threads, bool)))
        if not state.arrived.any():
            state.count = count
        if state.count != count:
            raise EmulatorError(
                f"barrier {barrier} is used with {state.count} and {count} threads at once"
            )
        full = mask.reshape(-1, WARP)
        expected = np.arange(cta.threads).reshape(-1, WARP) < cta.launch.threads
        partial = full.any(axis=1) & (full != expected).any(axis=1)
        if partial.any():
            cta.note(
                Kind.DIVERGENT_BARRIER,
                (full & partial[:, None]).reshape(-1),
                f"barrier {barrier}: reached by part of a warp",
            )
        state.arrived |= mask
        cta.shared.arrive(barrier, np.flatnonzero(full.any(axis=1)))
        if wait:
            state.parked.append(engine.part(group, group.pc + 1, mask))
        else:
            engine.go(group, group.pc + 1, mask)
        if active is not None:
            engine.go(group, group.pc + 1, group.mask & ~mask)
        self.check()

    def vote(self, barrier: int, how: str, votes: Mask, mask: Mask) -> None:
        """The threads in `mask` bring a predicate along; `how` is or, and, popc."""
        threads = self._engine.cta.threads
        state = self._open.setdefault(barrier, _Barrier(None, np.zeros(threads, bool)))
        state.how = how
        state.votes = (votes & mask) if state.votes is None else state.votes | (votes & mask)

    def check(self) -> None:
        """Release the barriers that are complete. Exited threads are not waited for."""
        engine, cta = self._engine, self._engine.cta
        for barrier, state in list(self._open.items()):
            if state.count is None:
                if (cta.alive & ~state.arrived).any():
                    continue
                gone = (np.arange(cta.threads) < cta.launch.threads) & ~state.arrived
                if gone.any() and state.parked:
                    cta.note(
                        Kind.DIVERGENT_BARRIER,
                        gone,
                        f"barrier {barrier}: threads had ended before it",
                    )
            elif _warp_threads(state.arrived) < state.count:
                continue
            del self._open[barrier]
            waited = np.zeros(cta.threads, bool)
            for group in state.parked:
                waited |= group.mask
            if state.votes is not None:
                yes = int(state.votes.sum())
                result = {
                    "or": int(yes > 0),
                    "and": int(yes == int(state.arrived.sum())),
                    "popc": yes,
                }[state.how]
                np.copyto(cta.reduced, np.uint32(result), where=waited)
            cta.shared.release(barrier, np.flatnonzero(waited.reshape(-1, WARP).any(axis=1)))
            engine.groups += state.parked

    def describe(self) -> list[str]:
        """What is waited for, for the message about a deadlock."""
        cta = self._engine.cta
        return [
            f"barrier {barrier}: {int(state.arrived.sum())} of "
            f"{state.count or int(cta.alive.sum())} threads arrived"
            for barrier, state in self._open.items()
        ]


def _warp_threads(arrived: Mask) -> int:
    """Threads that count at a barrier: whole warps, as the hardware counts."""
    return int(arrived.reshape(-1, WARP).any(axis=1).sum()) * WARP


@dataclass
class _Parked:
    group: Group
    members: NDArray[np.uint32]
    """Per thread: the lanes of its warp that must come together."""
    where: int
    """The step at which they meet."""


class Waiting:
    """Diverged threads of a warp that wait for each other (BSYNC, WARPSYNC)."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._parked: list[_Parked] = []

    def converge(self, group: Group, active: Active, members: NDArray[np.uint32]) -> None:
        """The active threads wait until all lanes in their `members` are at this step, then go
        on to the next one together. Lanes that have ended are not waited for."""
        mask = group.mask if active is None else active
        if active is not None:
            self._engine.go(group, group.pc + 1, group.mask & ~mask)
        parked = self._engine.part(group, group.pc + 1, mask)
        self._parked.append(_Parked(parked, members, group.pc))
        self.check()

    def check(self) -> None:
        """Let those go on whose partners are all there."""
        from patchctl.emulator.engine import ballots

        if not self._parked:
            return
        engine = self._engine
        alive = ballots(engine.cta.alive)
        for where in {parked.where for parked in self._parked}:
            here = [parked for parked in self._parked if parked.where == where]
            present = np.zeros(engine.cta.threads, bool)
            members = np.zeros(engine.cta.threads, np.uint32)
            for parked in here:
                present |= parked.group.mask
                members = np.where(parked.group.mask, parked.members, members)
            wanted = members & np.repeat(alive, WARP)
            ready = present & (wanted & ~np.repeat(ballots(present), WARP) == 0)
            if not ready.any():
                continue
            self._parked = [parked for parked in self._parked if parked.where != where]
            rest = present & ~ready
            if rest.any():
                for parked in here:
                    left = parked.group.mask & rest
                    if left.any():
                        parked.group.mask, parked.group.full = left, False
                        self._parked.append(parked)
            while ready.any():
                # one set of partners per warp at a time: others of the warp stay apart
                lanes = ready.reshape(-1, WARP)
                first = lanes.argmax(axis=1)
                chosen = members.reshape(-1, WARP)[np.arange(lanes.shape[0]), first]
                together = ready & (members == np.repeat(chosen, WARP))
                engine.go(here[0].group, where + 1, together)
                ready = ready & ~together

    def describe(self) -> list[str]:
        """What is waited for, for the message about a deadlock."""
        return [
            f"{int(parked.group.mask.sum())} threads wait at step {parked.where}"
            for parked in self._parked
        ]
