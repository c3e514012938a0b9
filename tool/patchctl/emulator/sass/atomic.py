# SPDX-License-Identifier: Apache-2.0
"""Atomic operations on global and shared memory: ATOMG, RED, ATOMS.

Threads take their turns in order of their numbers; the hardware promises no order.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from patchctl.emulator import fp
from patchctl.emulator.machine import Active, Cta
from patchctl.emulator.program import Operation
from patchctl.emulator.sass.access import caching
from patchctl.emulator.sass.build import Build, operation
from patchctl.emulator.sass.operands import PT, RZ

Change = Callable[[int, int], int]
_MASK = 0xFFFFFFFF


def _signed(x: int) -> int:
    return x - (1 << 32) if x & 0x80000000 else x


def _add_single(old: int, new: int) -> int:
    a, b = (np.array([x], np.uint32).view(np.float32) for x in (old, new))
    return int(fp.canonical(fp.flush(fp.add(fp.flush(a), fp.flush(b)))).view(np.uint32)[0])


def _change(build: Build) -> Change:
    """What the modifiers say: the new content from the old one and the operand."""
    if build.flag("F32"):
        build.require("ADD", "FTZ", "RN")
        return _add_single
    number: Callable[[int], int] = _signed if build.flag("S32") else int
    return build.choice(
        {
            "ADD": lambda old, new: (old + new) & _MASK,
            "MIN": lambda old, new: min(old, new, key=number),
            "MAX": lambda old, new: max(old, new, key=number),
            "AND": lambda old, new: old & new,
            "OR": lambda old, new: old | new,
            "XOR": lambda old, new: old ^ new,
            "EXCH": lambda old, new: new,
            "INC": lambda old, new: 0 if old >= new else old + 1,
            "DEC": lambda old, new: new if old == 0 or old > new else old - 1,
        }
    )


@operation("ATOMG", "RED")
def atomg(build: Build) -> Operation:
    """32-bit operations; CAS and 64 bits are not modelled."""
    returns = build.inst.base == "ATOMG"
    build.require("E")
    caching(build)
    change = _change(build)
    if returns and build.predicate_destination() != PT:
        raise build.error("a predicate to write")
    row = build.destination() if returns else RZ
    address = build.memory()
    source = build.word()

    def run(cta: Cta, active: Active) -> None:
        cta.need(cta.known(*address.rows), active, "the address")
        cta.need(source.known(cta), active, "the operand")
        operand = np.broadcast_to(source.get(cta), (cta.threads,))
        result = np.full(cta.threads, _MASK, np.uint32)
        for tensor, threads, offsets in cta.memory.update(cta, address.get64(cta), 4, active):
            words = tensor.units(4)
            for thread, index in zip(threads.tolist(), (offsets // 4).tolist(), strict=True):
                result[thread] = words[index]
                words[index] = change(int(words[index]), int(operand[thread]))
        if row != RZ:
            cta.put(row, result, active)

    return run


@operation("ATOMS")
def atoms(build: Build) -> Operation:
    """32-bit operations on shared memory."""
    change = _change(build)
    row = build.destination()
    address = build.memory()
    source = build.word()

    def run(cta: Cta, active: Active) -> None:
        cta.need(cta.known(*address.rows), active, "the address")
        cta.need(source.known(cta), active, "the operand")
        operand = np.broadcast_to(source.get(cta), (cta.threads,))
        result = np.full(cta.threads, _MASK, np.uint32)
        threads, places, words = cta.shared.atomic(cta, address.get32(cta), 4, active)
        for thread, index in zip(threads.tolist(), places.tolist(), strict=True):
            result[thread] = words[index]
            words[index] = change(int(words[index]), int(operand[thread]))
        if row != RZ:
            cta.put(row, result, active)

    return run
