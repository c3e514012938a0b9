# SPDX-License-Identifier: Apache-2.0
"""Loads and stores: global, shared, local, constant.

LD and ST take generic addresses. Only those in global memory are known here: another one is a
finding (out of bounds of all tensors).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from patchctl.emulator.machine import Active, Cta, Known, Words
from patchctl.emulator.program import Operation
from patchctl.emulator.sass.build import Build, operation
from patchctl.emulator.sass.operands import RZ, Address, constant, low_known

_SIZES = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "32": 4, "64": 8, "128": 16}
_SIGNED = {"S8": 8, "S16": 16}

Load = Callable[[Cta, Address, int, Active], Words]
Store = Callable[[Cta, Address, int, Words, Active, Known], None]


def caching(build: Build) -> None:
    """Modifiers that say how to cache and order: a CTA runs alone here, so none matters."""
    for name in ("CONSTANT", "CI", "EF", "EL", "LU", "EU", "NA", "SYS", "GPU", "CTA"):
        build.flag(name)
    for name in ("STRONG", "WEAK", "CONSTANT"):
        build.flag(name)


def _load(build: Build, load: Load) -> Operation:
    sign = next((m for m in build.inst.opcode if m in _SIGNED), "")
    size = build.choice(_SIZES, 4)
    row = build.destination()
    address = build.memory()

    def run(cta: Cta, active: Active) -> None:
        cta.need(cta.known(*address.rows), active, "the address")
        words = load(cta, address, size, active)
        if sign:
            shift = np.int32(32 - _SIGNED[sign])
            words = (words.view(np.int32) << shift >> shift).view(np.uint32)
        if row == RZ:
            return
        for i in range(words.shape[0]):
            cta.put(row + i, words[i], active)

    return run


def _store(build: Build, store: Store) -> Operation:
    size = build.choice(_SIZES, 4)
    address = build.memory()
    row = build.destination()
    rows = [] if row == RZ else list(range(row, row + max(1, size // 4)))

    def run(cta: Cta, active: Active) -> None:
        cta.need(cta.known(*address.rows), active, "the address")
        if rows:
            words = cta.regs[row : row + len(rows)]
        else:
            words = np.zeros((max(1, size // 4), cta.threads), np.uint32)
        known: Known = True
        if size < 4 and rows:
            known = low_known(cta, row, 8 * size)
        elif rows:
            known = cta.known(*rows)
        store(cta, address, size, words, active, known)

    return run


@operation("LDG", "LD")
def ldg(build: Build) -> Operation:
    build.require("E")
    caching(build)
    return _load(build, lambda cta, at, size, on: cta.memory.load(cta, at.get64(cta), size, on))


@operation("STG", "ST")
def stg(build: Build) -> Operation:
    build.require("E")
    caching(build)

    def store(cta: Cta, at: Address, size: int, words: Words, active: Active, known: Known) -> None:
        cta.need(known, active, "the value stored")
        cta.memory.store(cta, at.get64(cta), size, words, active)

    return _store(build, store)


@operation("LDS")
def lds(build: Build) -> Operation:
    build.flag("U")
    return _load(build, lambda cta, at, size, on: cta.shared.load(cta, at.get32(cta), size, on))


@operation("STS")
def sts(build: Build) -> Operation:
    return _store(
        build,
        lambda cta, at, size, words, on, known: cta.shared.store(
            cta, at.get32(cta), size, words, on, known
        ),
    )


@operation("LDL")
def ldl(build: Build) -> Operation:
    build.flag("LU")  # the line will not be used again
    return _load(build, lambda cta, at, size, on: cta.local.load(cta, at.get32(cta), size, on))


@operation("STL")
def stl(build: Build) -> Operation:
    return _store(
        build,
        lambda cta, at, size, words, on, known: cta.local.store(
            cta, at.get32(cta), size, words, on, known
        ),
    )


@operation("LDC")
def ldc(build: Build) -> Operation:
    """From a constant bank, by a register's offset."""
    sign = next((m for m in build.inst.opcode if m in _SIGNED), "")
    size = build.choice(_SIZES, 4)
    row = build.destination()
    bank, index, offset = build.constant_address()
    unit = min(size, 4)

    def run(cta: Cta, active: Active) -> None:
        if row == RZ:
            return
        where = np.array([offset])
        if index is not None:
            cta.need(cta.known(index), active, "the offset")
            lanes = cta.regs[index].view(np.int32).astype(np.int64)
            where = np.where(cta.mask(active), lanes, lanes[cta.mask(active)][:1]) + offset
        for i in range(max(1, size // 4)):
            places, back = np.unique(where + 4 * i, return_inverse=True)
            values = np.array(
                [int(constant(cta, bank, int(p), unit)[0]) for p in places], np.uint32
            )
            word = values[back]
            if sign:
                shift = np.int32(32 - _SIGNED[sign])
                word = (word.view(np.int32) << shift >> shift).view(np.uint32)
            cta.put(row + i, word, active, True if index is None else cta.known(index))

    return run
