# SPDX-License-Identifier: Apache-2.0
"""Values that pass between lanes, and the thread's own coordinates: SHFL, VOTE, MATCH, S2R."""

from __future__ import annotations

import numpy as np

from patchctl.emulator import bits
from patchctl.emulator.engine import ballots
from patchctl.emulator.findings import Kind
from patchctl.emulator.machine import WARP, Active, Cta, EmulatorError, Words
from patchctl.emulator.program import Operation
from patchctl.emulator.sass.build import Build, operation
from patchctl.emulator.sass.operands import PT, RZ, both_known, put, put_pair, put_predicate

_MODES = {"IDX": "idx", "BFLY": "bfly", "UP": "up", "DOWN": "down"}


@operation("SHFL")
def shfl(build: Build) -> Operation:
    """A word from another lane. A lane that does not take part gives nothing."""
    mode = build.choice(_MODES)
    inside = build.predicate_destination()
    row = build.destination()
    a, lane, bounds = build.word(), build.short(), build.short()

    def run(cta: Cta, active: Active) -> None:
        value, by, limits = (np.broadcast_to(v.get(cta), (cta.threads,)) for v in (a, lane, bounds))
        source, valid = bits.shuffle_source(mode, cta.lane, by, limits)
        index = cta.warp_base + source
        cta.need(both_known(lane.known(cta), bounds.known(cta)), active, "the lane of a shuffle")
        if active is not None:
            absent = active & ~active[index]
            if absent.any():
                cta.note(Kind.DIVERGENT_SHUFFLE, absent, "reads a lane that does not take part")
        known = a.known(cta)
        if row != RZ:
            cta.put(row, value[index], active, known if known is True else known[index])
        put_predicate(cta, inside, valid, active)

    return run


@operation("VOTE")
def vote(build: Build) -> Operation:
    """What the active lanes' predicates have in common; the register gets their bits."""
    mode = build.choice({"ANY": "any", "ALL": "all", "EQ": "eq"})
    row = RZ if build.peek().lstrip("!").startswith("P") else build.destination()
    target = build.predicate_destination()
    source = build.condition()

    def run(cta: Cta, active: Active) -> None:
        cta.need(source.known(cta), active, "a vote")
        mask = cta.mask(active)
        yes = ballots(source.get(cta) & mask)
        here = ballots(mask)
        if mode == "any":
            holds = yes != 0
        elif mode == "all":
            holds = yes == here
        else:
            holds = (yes == here) | (yes == 0)
        if row != RZ:
            cta.put(row, np.repeat(yes, WARP), active)
        put_predicate(cta, target, np.repeat(holds, WARP), active)

    return run


@operation("MATCH")
def match(build: Build) -> Operation:
    """The active lanes of the warp that hold the same word."""
    build.require("ANY")
    row = build.destination()
    a = build.word()

    def run(cta: Cta, active: Active) -> None:
        words = np.broadcast_to(a.get(cta), (cta.threads,)).reshape(-1, WARP)
        mask = cta.mask(active).reshape(-1, WARP)
        same = (words[:, :, None] == words[:, None, :]) & mask[:, None, :]
        weights = np.uint32(1) << np.arange(WARP, dtype=np.uint32)
        result = (same * weights).sum(axis=2, dtype=np.uint64).astype(np.uint32)
        put(cta, row, result.reshape(-1), active, a)

    return run


def _special(cta: Cta, name: str) -> Words:
    """The value of a special register."""
    bx, by, _ = cta.launch.block
    tid = cta.tid
    place = dict(zip("XYZ", cta.index, strict=True))
    lane = np.uint32(1) << cta.lane
    table = {
        "SR_TID.X": tid % np.uint32(bx),
        "SR_TID.Y": tid // np.uint32(bx) % np.uint32(by),
        "SR_TID.Z": tid // np.uint32(bx * by),
        "SR_LANEID": cta.lane,
        "SR_EQMASK": lane,
        "SR_LTMASK": lane - np.uint32(1),
        "SR_LEMASK": lane | (lane - np.uint32(1)),
        "SR_GTMASK": ~(lane | (lane - np.uint32(1))),
        "SR_GEMASK": ~(lane - np.uint32(1)),
        **{f"SR_CTAID.{axis}": np.array([n], np.uint32) for axis, n in place.items()},
    }
    if name not in table:
        raise EmulatorError(f"`{cta.site.text}` at 0x{cta.site.address:x}: {name} is not modelled")
    return table[name]


@operation("S2R")
def s2r(build: Build) -> Operation:
    row, name = build.destination(), build.raw()

    def run(cta: Cta, active: Active) -> None:
        put(cta, row, _special(cta, name), active)

    return run


@operation("CS2R")
def cs2r(build: Build) -> Operation:
    """Only from SRZ, which is how ptxas clears a register pair (or one register: `.32`)."""
    single = build.flag("32")
    row = build.destination()
    if build.raw() != "SRZ":
        raise build.error("a special register that depends on time")

    def run(cta: Cta, active: Active) -> None:
        if single:
            put(cta, row, np.zeros(1, np.uint32), active)
        else:
            put_pair(cta, row, np.zeros(1, np.uint64), active, True)

    return run


@operation("B2R")
def b2r(build: Build) -> Operation:
    """The result of the barrier that reduced (BAR.RED)."""
    build.require("RESULT")
    row = build.destination()
    target = build.predicate_destination() if build.left else PT

    def run(cta: Cta, active: Active) -> None:
        put(cta, row, cta.reduced, active)
        put_predicate(cta, target, cta.reduced != 0, active)

    return run
