# SPDX-License-Identifier: Apache-2.0
"""Moves, bits and predicates: MOV, LOP3, PRMT, POPC, FLO, PLOP3, R2P, VOTE's cousins."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from patchctl.emulator import bits
from patchctl.emulator.machine import Active, Bits, Cta, Mask, Words
from patchctl.emulator.program import Operation
from patchctl.emulator.sass.build import Build, operation
from patchctl.emulator.sass.operands import (
    PT,
    RZ,
    Value,
    as_bits,
    both_known,
    put,
    put_bits,
    put_predicate,
)


@operation("MOV")
def mov(build: Build) -> Operation:
    row = build.destination()
    a = build.word()
    if build.left and build.number() != 0xF:
        raise build.error("a byte mask")

    def run(cta: Cta, active: Active) -> None:
        put_bits(cta, row, a.get(cta), active, a.bits(cta))

    return run


@operation("LOP3")
def lop3(build: Build) -> Operation:
    """Any function of three bits; the predicate says whether the result is not zero."""
    build.require("LUT")
    conjunction = build.flag("PAND")
    target = build.optional_predicate_destination()
    row = build.destination()
    a, b, c = build.integer(), build.integer(), build.integer()
    table = build.number()
    other = build.condition()

    def run(cta: Cta, active: Active) -> None:
        words = a.get(cta), b.get(cta), c.get(cta)
        result = _lop3(*words, table)
        bits = _lop3_bits(words, (a.bits(cta), b.bits(cta), c.bits(cta)), table)
        put_bits(cta, row, result, active, bits)
        if target != PT:
            some: Mask = result != 0
            known = other.known(cta)
            if bits is not True:
                # one bit that is known to be set settles it
                known = both_known(known, (bits == 0xFFFFFFFF) | (result & bits != 0))
            holds = some & other.get(cta) if conjunction else some | other.get(cta)
            put_predicate(cta, target, holds, active, known)

    return run


_QUICK = {
    0xC0: lambda a, b, c: a & b,
    0x3C: lambda a, b, c: a ^ b,
    0xFC: lambda a, b, c: a | b,
    0xFE: lambda a, b, c: a | b | c,
    0xF8: lambda a, b, c: a | (b & c),
    0x78: lambda a, b, c: a ^ (b & c),
    0x33: lambda a, b, c: ~b,
    0x0F: lambda a, b, c: ~a,
}
"""Common tables, which NumPy does in one step."""


def _lop3(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], table: int) -> NDArray[Any]:
    quick = _QUICK.get(table)
    a, b, c = np.broadcast_arrays(a, b, c)
    return bits.lop3(a, b, c, table) if quick is None else quick(a, b, c)


def _lop3_bits(words: tuple[Words, ...], bits: tuple[Bits, ...], table: int) -> Bits:
    """The bits of the result that do not depend on what nobody wrote."""
    if all(b is True for b in bits):
        return True
    masks = [as_bits(b) for b in bits]
    same = np.full(1, 0xFFFFFFFF, np.uint32)
    first = None
    for guess in range(8):
        filled = [
            np.asarray(w & m | (~m if guess >> i & 1 else np.uint32(0)), np.uint32)
            for i, (w, m) in enumerate(zip(words, masks, strict=True))
        ]
        result = _lop3(filled[0], filled[1], filled[2], table)
        first = result if first is None else first
        same = same & ~(first ^ result)
    return same


@operation("PLOP3")
def plop3(build: Build) -> Operation:
    """Two functions of three predicates."""
    build.require("LUT")
    first, second = build.predicate_destination(), build.predicate_destination()
    a, b, c = build.condition(), build.condition(), build.condition()
    tables = build.number(), build.number()

    def run(cta: Cta, active: Active) -> None:
        index = (
            a.get(cta).astype(np.int64) * 4
            + b.get(cta).astype(np.int64) * 2
            + c.get(cta).astype(np.int64)
        )
        known = both_known(a.known(cta), b.known(cta), c.known(cta))
        for target, table in zip((first, second), tables, strict=True):
            put_predicate(cta, target, (table >> index) & 1 == 1, active, known)

    return run


@operation("PRMT")
def prmt(build: Build) -> Operation:
    """Four bytes out of eight."""
    row = build.destination()
    a, selector, b = build.word(), build.word(), build.word()

    def run(cta: Cta, active: Active) -> None:
        x, y, s = np.broadcast_arrays(a.get(cta), b.get(cta), selector.get(cta))
        result = bits.prmt(x, y, s)
        written = a.bits(cta), b.bits(cta)
        if (written[0] is True and written[1] is True) or selector.known(cta) is not True:
            put(cta, row, result, active, a, selector, b)
            return
        # a byte comes with its bits; a spread sign, with that of its byte
        m, n, s = np.broadcast_arrays(as_bits(written[0]), as_bits(written[1]), selector.get(cta))
        put_bits(cta, row, result, active, bits.prmt(m, n, s))

    return run


def _unary(build: Build, row: int, a: Value, function: object) -> Operation:
    assert callable(function)

    def run(cta: Cta, active: Active) -> None:
        x = np.ascontiguousarray(np.broadcast_to(a.get(cta), (cta.threads,)))
        put(cta, row, function(x), active, a)

    return run


@operation("POPC")
def popc(build: Build) -> Operation:
    row = build.destination()
    return _unary(build, row, build.integer(), bits.popc)


@operation("BREV")
def brev(build: Build) -> Operation:
    row = build.destination()
    return _unary(build, row, build.integer(), bits.brev)


@operation("FLO")
def flo(build: Build) -> Operation:
    """The highest bit that is set (SH: how far to shift it to the top); all ones if none is."""
    unsigned = build.flag("U32")
    amount = build.flag("SH")
    row = build.destination()
    a = build.integer()

    def find(x: NDArray[Any]) -> NDArray[Any]:
        return bits.find_highest(x if unsigned else x.view(np.int32), shift_amount=amount)

    return _unary(build, row, a, find)


@operation("R2P")
def r2p(build: Build) -> Operation:
    """Bits of a register become predicates P0.. where the mask has a one."""
    if build.raw() != "PR":
        raise build.error("R2P of something else than PR")
    a, mask = build.word(), build.number()

    def run(cta: Cta, active: Active) -> None:
        word = np.broadcast_to(a.get(cta), (cta.threads,))
        for bit in range(7):
            if mask >> bit & 1:
                put_predicate(cta, bit, word >> np.uint32(bit) & 1 == 1, active, a.known(cta))

    return run


@operation("P2R")
def p2r(build: Build) -> Operation:
    """Predicates become the bits of a register, the other bits come from a."""
    row = build.destination()
    if build.raw() != "PR":
        raise build.error("P2R of something else than PR")
    a, mask = build.word(), build.number()

    def run(cta: Cta, active: Active) -> None:
        word = np.broadcast_to(a.get(cta), (cta.threads,)) & np.uint32(~mask & 0xFFFFFFFF)
        for bit in range(7):
            if mask >> bit & 1:
                word = word | cta.preds[bit].astype(np.uint32) << np.uint32(bit)
        known = both_known(a.known(cta), cta.pred_known(*(i for i in range(7) if mask >> i & 1)))
        if row != RZ:
            cta.put(row, word, active, known)

    return run
