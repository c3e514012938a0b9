# SPDX-License-Identifier: Apache-2.0
"""What the lanes of a warp do together: shuffles, votes, matches, the matrix instruction."""

from __future__ import annotations

from typing import Any

import numpy as np

from patchctl.emulator import bits, mma
from patchctl.emulator.engine import ballots, warps_of
from patchctl.emulator.findings import Kind
from patchctl.emulator.machine import WARP, Active, Cta, Known
from patchctl.emulator.program import Operation
from patchctl.emulator.ptx.arithmetic import modifiers, type_of
from patchctl.emulator.ptx.module import Instruction, Operand, Pair, Vector
from patchctl.emulator.ptx.operands import (
    TYPES,
    Array,
    Layout,
    Source,
    Target,
    UnknownInstruction,
    full,
    known_of,
)

_U32 = TYPES["u32"]
_PRED = TYPES["pred"]


def _two(operand: Operand, layout: Layout, instruction: Instruction) -> tuple[Target, Target]:
    if isinstance(operand, Pair):
        return layout.target(operand.first, instruction), layout.target(operand.second, instruction)
    return layout.target(operand, instruction), Target(None, 0)


def shuffle(instruction: Instruction, layout: Layout) -> Operation:
    """shfl.sync, after its lanes have come together."""
    found = modifiers(instruction, {"sync", "up", "down", "bfly", "idx"})
    mode = next(iter(found - {"sync"}))
    destination, a, b, c, d = instruction.operands
    members = layout.source(d, _U32, instruction)
    target, inside = _two(destination, layout, instruction)
    value, lane, clamp = (layout.source(o, TYPES["b32"], instruction) for o in (a, b, c))

    def run(cta: Cta, active: Active) -> None:
        source, valid = bits.shuffle_source(
            mode, cta.lane, full(cta, lane.read(cta)), full(cta, clamp.read(cta))
        )
        source = source + cta.warp_base
        present = cta.mask(active)
        named = full(cta, members.read(cta))
        there = present & (named >> cta.lane & np.uint32(1) == 1)
        if not there.all():
            absent = present & valid & ~there[source]
            if absent.any():
                cta.note(
                    Kind.DIVERGENT_SHUFFLE, absent, "takes a value from a lane that is not there"
                )
        known = known_of(cta, (value,))
        if known is not True:
            known = np.broadcast_to(known, (cta.threads,))[source]
        cta.need(known_of(cta, (lane, clamp)), active, "the lane to read from")
        target.write(cta, full(cta, value.read(cta))[source], active, known)
        inside.write(cta, valid, active)

    return run


def vote(instruction: Instruction, layout: Layout) -> Operation:
    """vote.sync.{all,any,uni,ballot}."""
    found = modifiers(instruction, {"sync", "all", "any", "uni", "ballot"})
    mode = next(iter(found - {"sync"}))
    destination, operand, _members = instruction.operands
    target = layout.target(destination, instruction)
    condition = layout.source(operand, _PRED, instruction)

    def run(cta: Cta, active: Active) -> None:
        present = cta.mask(active)
        yes = np.broadcast_to(condition.read(cta), (cta.threads,)) & present
        cta.need(known_of(cta, (condition,)), active, "the condition of a vote")
        votes, voters = ballots(yes), ballots(present)
        if mode == "ballot":
            target.write(cta, np.repeat(votes, WARP), active)
            return
        every = votes == voters
        result = {"all": every, "any": votes != 0, "uni": every | (votes == 0)}[mode]
        target.write(cta, np.repeat(result, WARP), active)

    return run


def match(instruction: Instruction, layout: Layout) -> Operation:
    """match.{any,all}.sync: the lanes with an equal value."""
    found = modifiers(instruction, {"any", "all", "sync"})
    kind = type_of(instruction)
    destination, operand, _members = instruction.operands
    target, agree = _two(destination, layout, instruction)
    value = layout.source(operand, kind, instruction)

    def run(cta: Cta, active: Active) -> None:
        present = cta.mask(active).reshape(-1, WARP)
        rows = full(cta, value.read(cta)).reshape(-1, WARP)
        equal = (rows[:, :, None] == rows[:, None, :]) & present[:, None, :]
        known = known_of(cta, (value,))
        if "any" in found:
            target.write(cta, _lanes(equal), active, known)
            return
        everywhere = (equal | ~present[:, None, :]).all(axis=2)
        lanes = np.where(everywhere.reshape(-1), np.repeat(ballots(present.reshape(-1)), WARP), 0)
        target.write(cta, lanes.astype(np.uint32), active, known)
        agree.write(cta, everywhere.reshape(-1), active, known)

    return run


def _lanes(flags: Array) -> Array:
    return np.packbits(flags, axis=-1, bitorder="little").view(np.uint32).reshape(-1)


def active_mask(instruction: Instruction, layout: Layout) -> Operation:
    """activemask."""
    target = layout.target(instruction.operands[0], instruction)

    def run(cta: Cta, active: Active) -> None:
        target.write(cta, np.repeat(ballots(cta.mask(active)), WARP), active)

    return run


def warp_barrier(instruction: Instruction, layout: Layout) -> Operation:
    """bar.warp.sync, after its lanes have come together: orders their memory accesses."""

    def run(cta: Cta, active: Active) -> None:
        cta.shared.warp_sync(warps_of(cta.mask(active)))

    return run


def matrix(instruction: Instruction, layout: Layout, model: mma.Accumulation) -> Operation:
    """mma.sync.aligned.m8n8k4."""
    opcode = instruction.opcode
    if (
        opcode[1:4] != ("sync", "aligned", "m8n8k4")
        or len(opcode) != 10
        or opcode[7:9] != ("f16", "f16")
    ):
        raise UnknownInstruction(instruction, "not modelled")
    layouts, kinds = (opcode[4], opcode[5]), (opcode[6], opcode[9])
    parts: list[tuple[Operand, ...]] = [
        o.items if isinstance(o, Vector) else (o,) for o in instruction.operands
    ]
    word = TYPES["b32"]
    targets = [layout.target(item, instruction) for item in parts[0]]
    a, b, c = ([layout.source(item, word, instruction) for item in p] for p in parts[1:])
    everything = (*a, *b, *c)

    def run(cta: Cta, active: Active) -> None:
        if active is not None:
            _whole_warps(cta, active)
        left, right = _halves(cta, a), _halves(cta, b)
        addend = _halves(cta, c) if kinds[1] == "f16" else _floats(cta, c)
        result = mma.m8n8k4(left, right, addend, layouts=layouts, kinds=kinds, model=model)
        known = _of_warp(known_of(cta, everything))
        if np.isnan(result).any():
            _watch(cta, active, result, (left, right, addend))
        columns = np.ascontiguousarray(result).reshape(cta.threads, -1).view(np.uint32)
        for i, target in enumerate(targets):
            target.write(cta, np.ascontiguousarray(columns[:, i]), active, known)

    return run


def _halves(cta: Cta, sources: list[Source]) -> Array:
    words = np.stack([full(cta, s.read(cta)) for s in sources], axis=1)
    return words.view(np.float16).reshape(-1, WARP, 2 * len(sources))


def _floats(cta: Cta, sources: list[Source]) -> Array:
    words = np.stack([full(cta, s.read(cta)) for s in sources], axis=1)
    return words.view(np.float32).reshape(-1, WARP, len(sources))


def _of_warp(known: Known) -> Known:
    """A result depends on every lane of the warp."""
    if known is True:
        return True
    return np.repeat(np.asarray(known).reshape(-1, WARP).all(axis=1), WARP)


def _whole_warps(cta: Cta, active: Array) -> None:
    lanes = active.reshape(-1, WARP)
    partial = lanes.any(axis=1, keepdims=True) & ~lanes.all(axis=1, keepdims=True) & lanes
    if partial.any():
        cta.note(Kind.DIVERGENT_SHUFFLE, partial.reshape(-1), "only part of a warp is here")


def _watch(cta: Cta, active: Active, result: Array, operands: tuple[Array, ...]) -> None:
    born: Any = np.isnan(result).any(axis=2)
    for operand in operands:
        in_warp: Any = np.isnan(operand).any(axis=(1, 2))
        born &= ~in_warp[:, None]
    threads = born.reshape(-1) & cta.mask(active)
    if threads.any():
        cta.note(Kind.NAN_BORN, threads, "NaN from operands that are none")
