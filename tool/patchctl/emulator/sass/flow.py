# SPDX-License-Identifier: Apache-2.0
"""Where threads go: branches, calls, convergence, barriers, the end."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from patchctl.emulator.engine import Engine, Group, ballots
from patchctl.emulator.findings import Kind
from patchctl.emulator.machine import WARP, Active, Cta, EmulatorError
from patchctl.emulator.program import Control, Operation
from patchctl.emulator.sass.build import Build, control, operation
from patchctl.emulator.sass.operands import RZ

INSTRUCTION = 16
"""Bytes of an instruction."""


def nothing(cta: Cta, active: Active) -> None:
    """No effect on what is computed."""


@operation("NOP", "MEMBAR", "ERRBAR", "CCTL", "DEPBAR", "NANOSLEEP")
def no_effect(build: Build) -> Operation:
    """Fences and cache control: one CTA runs at a time and in order."""
    for modifier in build.inst.opcode[1:]:
        build.flag(modifier)
    while build.left:
        build.raw()
    return nothing


def _index(build: Build, address: int) -> int:
    if address % INSTRUCTION or address < 0:
        raise build.error(f"target {address:#x} is no instruction")
    return address // INSTRUCTION


@control("BRA")
def bra(build: Build) -> Control:
    """To the target where the guard and the optional condition hold.

    `.DIV` and `.CONV`: where some living lane of the warp is elsewhere, or none is; ptxas leads
    diverged lanes to a WARPSYNC that way. `.U`: all active lanes of a warp decide alike.
    """
    wants_divergence, wants_convergence = build.flag("DIV"), build.flag("CONV")
    uniform = build.flag("U")
    condition = build.condition() if build.left == 2 else None
    target = _index(build, build.number())

    def steer(engine: Engine, group: Group, active: Active) -> None:
        cta = engine.cta
        taken = active
        if condition is not None:
            cta.need(condition.known(cta), active, "the condition")
            taken = condition.get(cta) & (group.mask if active is None else active)
        if wants_divergence or wants_convergence:
            apart = np.repeat(ballots(group.mask) != ballots(cta.alive), WARP)
            taken = (apart == wants_divergence) & (group.mask if taken is None else taken)
        if uniform and taken is not None:
            lanes = ballots(taken)
            split = np.repeat((lanes != 0) & (lanes != ballots(group.mask)), WARP)
            if split.any():
                cta.note(Kind.DIVERGENT_BRANCH, split & group.mask, "lanes of a warp disagree")
        engine.split(group, taken, target)

    return steer


@control("BPT")
def bpt(build: Build) -> Control:
    """A trap: the kernel gives up."""
    build.require("TRAP")
    build.number()

    def steer(engine: Engine, group: Group, active: Active) -> None:
        site = engine.cta.site
        raise EmulatorError(f"{site.kernel}: trap at 0x{site.address:x}")

    return steer


def _jump_to(engine: Engine, group: Group, active: Active, addresses: NDArray[np.int64]) -> None:
    """Each active thread goes to its own address."""
    mask = group.mask if active is None else active
    engine.go(group, group.pc + 1, group.mask & ~mask)
    for address in np.unique(addresses[mask]):
        if address % INSTRUCTION or not 0 <= address // INSTRUCTION < len(engine.program.steps):
            raise EmulatorError(
                f"`{engine.cta.site.text}` at 0x{engine.cta.site.address:x} goes to "
                f"{int(address):#x}, which is no instruction"
            )
        engine.go(group, int(address) // INSTRUCTION, mask & (addresses == address))


def _register_target(cta: Cta, row: int, offset: int) -> NDArray[np.int64]:
    low = cta.regs[row].astype(np.uint64)
    high = cta.regs[row + 1].astype(np.uint64)
    target: NDArray[np.int64] = ((high << np.uint64(32)) | low).view(np.int64) + offset
    return target


@control("BRX")
def brx(build: Build) -> Control:
    """A jump table: the register pair plus the offset, from the next instruction on."""
    text = build.raw()
    register, _, offset_text = text.partition(" ")
    if not register[1:].isdigit():
        raise build.error(f"target `{text}`")
    row, offset = int(register[1:]), int(offset_text, 16)
    following = build.inst.address + INSTRUCTION

    def steer(engine: Engine, group: Group, active: Active) -> None:
        cta = engine.cta
        cta.need(cta.known(row, row + 1), active, "the target")
        _jump_to(engine, group, active, _register_target(cta, row, following + offset))

    return steer


@control("CALL")
def call(build: Build) -> Control:
    """The return address is in registers already."""
    build.require("REL", "NOINC")
    target = _index(build, build.number())
    return lambda engine, group, active: engine.split(group, active, target)


@control("RET")
def ret(build: Build) -> Control:
    """To the address in a register pair."""
    build.require("REL", "NODEC")
    register, _, offset = build.raw().partition(" ")
    row, plus = int(register[1:]), int(offset, 16)

    def steer(engine: Engine, group: Group, active: Active) -> None:
        cta = engine.cta
        cta.need(cta.known(row, row + 1), active, "the return address")
        _jump_to(engine, group, active, _register_target(cta, row, plus))

    return steer


@control("EXIT")
def exit_(build: Build) -> Control:
    return lambda engine, group, active: engine.leave(group, active)


@operation("BSSY")
def bssy(build: Build) -> Operation:
    """Notes which lanes are together now; BSYNC waits for them. (The target is where that is.)"""
    barrier = _barrier(build)
    build.number()

    def run(cta: Cta, active: Active) -> None:
        lanes = np.repeat(ballots(cta.mask(active)), WARP)
        np.copyto(cta.convergence[barrier], lanes, where=cta.mask(active))

    return run


@control("BSYNC")
def bsync(build: Build) -> Control:
    barrier = _barrier(build)

    def steer(engine: Engine, group: Group, active: Active) -> None:
        engine.waiting.converge(group, active, engine.cta.convergence[barrier])

    return steer


@operation("BREAK")
def break_(build: Build) -> Operation:
    """The active lanes will not come to the BSYNC."""
    if build.left == 2:
        raise build.error("a condition")
    barrier = _barrier(build)

    def run(cta: Cta, active: Active) -> None:
        gone = np.repeat(ballots(cta.mask(active)), WARP)
        # a new array: lanes that wait already look at it, too
        cta.convergence[barrier] &= ~gone

    return run


@operation("BMOV")
def bmov(build: Build) -> Operation:
    """Saves a convergence barrier in a register (CLEAR: and empties it), or restores it."""
    build.require("32")
    clear = build.flag("CLEAR")
    if build.peek().startswith("B"):
        barrier = _barrier(build)
        source = build.word()

        def restore(cta: Cta, active: Active) -> None:
            cta.need(source.known(cta), active, "the saved barrier")
            value = np.broadcast_to(source.get(cta), (cta.threads,))
            np.copyto(cta.convergence[barrier], value, where=cta.mask(active))

        return restore
    row = build.destination()
    barrier = _barrier(build)

    def save(cta: Cta, active: Active) -> None:
        if row != RZ:
            cta.put(row, cta.convergence[barrier].copy(), active)
        if clear:
            np.copyto(cta.convergence[barrier], np.uint32(0), where=cta.mask(active))

    return save


@control("WARPSYNC")
def warpsync(build: Build) -> Control:
    """Waits for the lanes in a mask."""
    members = build.word()

    def steer(engine: Engine, group: Group, active: Active) -> None:
        cta = engine.cta
        cta.need(members.known(cta), active, "the mask")
        lanes = np.broadcast_to(members.get(cta), (cta.threads,)).copy()
        engine.waiting.converge(group, active, lanes)

    return steer


@control("YIELD")
def yield_(build: Build) -> Control:
    """Lets other threads of the warp go first."""
    if build.left:
        build.condition()

    def steer(engine: Engine, group: Group, active: Active) -> None:
        group.turns += 1
        engine.go(group, group.pc + 1, group.mask)

    return steer


@control("BAR")
def bar(build: Build) -> Control:
    """A barrier of the CTA, with a number and maybe a count of threads."""
    kind = build.choice({"SYNC": "sync", "ARV": "arrive", "RED": "reduce"})
    build.flag("DEFER_BLOCKING")
    how = build.choice({"OR": "or", "AND": "and", "POPC": "popc"}) if kind == "reduce" else ""
    number = build.number()
    condition = None
    count: int | None = None
    if build.left and not build.peek().lstrip("!").startswith("P"):
        count = build.number()
    if kind == "reduce":
        condition = build.condition()

    def steer(engine: Engine, group: Group, active: Active) -> None:
        if condition is not None:
            cta = engine.cta
            cta.need(condition.known(cta), active, "the condition")
            engine.barriers.vote(
                number, how, condition.get(cta), group.mask if active is None else active
            )
        engine.barriers.arrive(group, active, number, count, wait=kind != "arrive")

    return steer


def _barrier(build: Build) -> int:
    text = build.raw()
    if not (text[:1] == "B" and text[1:].isdigit()):
        raise build.error(f"`{text}` is no convergence barrier")
    return int(text[1:])
