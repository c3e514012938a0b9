# SPDX-License-Identifier: Apache-2.0
"""Source operands of machine code, and how results are written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patchctl.emulator.machine import Active, Bits, Cta, EmulatorError, Known, Mask, Words

RZ = 255
PT = 7


@dataclass(frozen=True)
class Value:
    """A source operand: `get` gives one 32-bit word per thread (or one for all)."""

    get: Callable[[Cta], Words]
    rows: tuple[int, ...] = ()

    def known(self, cta: Cta) -> Known:
        return cta.known(*self.rows) if self.rows else True

    def bits(self, cta: Cta) -> Bits:
        """The bits that were written. (A sign or complement in front changes no bit's origin.)"""
        return cta.known_bits(self.rows[0]) if self.rows else True


@dataclass(frozen=True)
class Wide:
    """A 64-bit source operand as uint64."""

    get: Callable[[Cta], NDArray[np.uint64]]
    rows: tuple[int, ...] = ()


@dataclass(frozen=True)
class Condition:
    """A predicate operand."""

    row: int
    negated: bool

    def get(self, cta: Cta) -> Mask:
        value: Mask = cta.preds[self.row]
        return np.logical_not(value) if self.negated else value

    def known(self, cta: Cta) -> Known:
        return cta.pred_known(self.row)


@dataclass(frozen=True)
class Address:
    """A memory operand: base register (32 or 64 bits) times a scale, plus an offset."""

    row: int | None
    wide: bool
    scale: int
    offset: int

    @property
    def rows(self) -> tuple[int, ...]:
        if self.row is None:
            return ()
        return (self.row, self.row + 1) if self.wide else (self.row,)

    def get64(self, cta: Cta) -> NDArray[np.uint64]:
        base = np.zeros(cta.threads, np.uint64)
        if self.row is not None:
            base = cta.regs[self.row].astype(np.uint64)
            if self.wide:
                base |= cta.regs[self.row + 1].astype(np.uint64) << np.uint64(32)
        return base + np.uint64(self.offset & 0xFFFFFFFFFFFFFFFF)

    def get32(self, cta: Cta) -> NDArray[np.int64]:
        """An address in shared or local memory; it wraps at 32 bits."""
        base = np.zeros(cta.threads, np.int64)
        if self.row is not None:
            base = cta.regs[self.row].astype(np.int64) * self.scale
        return (base + self.offset) & 0xFFFFFFFF


def literal(value: int) -> Value:
    word = np.array([value], np.uint32)
    return Value(lambda cta: word)


def constant(cta: Cta, bank: int, offset: int, size: int) -> NDArray[np.unsignedinteger]:
    """One value of a constant bank."""
    data = cta.launch.constants.get(bank)
    if data is None or offset < 0 or offset + size > len(data):
        have = "is not there" if data is None else f"has {len(data)} bytes"
        raise EmulatorError(
            f"`{cta.site.text}` at 0x{cta.site.address:x}: "
            f"c[{bank:#x}][{offset:#x}], but bank {bank} {have}"
        )
    kind = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[size]
    return np.frombuffer(data, kind, 1, offset)


def put(cta: Cta, row: int, value: NDArray[np.generic], active: Active, *sources: Value) -> None:
    """Write a register; it counts as written where all `sources` are."""
    if row == RZ:
        return
    known: Known = True
    for source in sources:
        one = source.known(cta)
        if one is not True:
            known = one if known is True else known & one
    cta.put(row, value, active, known)


def put_pair(cta: Cta, row: int, value: NDArray[np.uint64], active: Active, known: Known) -> None:
    """Write a register pair."""
    if row == RZ:
        return
    low = (value & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    high = (value >> np.uint64(32)).astype(np.uint32)
    cta.put(row, low, active, known)
    cta.put(row + 1, high, active, known)


def put_predicate(cta: Cta, row: int, value: Mask, active: Active, known: Known = True) -> None:
    if row != PT:
        cta.put_pred(row, value, active, known)


def both_known(*parts: Known) -> Known:
    """Where everything is written."""
    known: Known = True
    for part in parts:
        if part is not True:
            known = part if known is True else known & part
    return known


def as_bits(bits: Bits) -> Words:
    """As an array: all ones where everything was written."""
    return np.full(1, 0xFFFFFFFF, np.uint32) if bits is True else bits


def put_bits(cta: Cta, row: int, value: Words, active: Active, bits: Bits) -> None:
    """Write a register of which only `bits` are known."""
    if row != RZ:
        cta.put_bits(row, value, active, bits)


def low_known(cta: Cta, row: int, count: int) -> Known:
    """Where the lowest `count` bits of a register were written."""
    found = cta.known_bits(row)
    if found is True:
        return True
    mask = np.uint32((1 << count) - 1)
    return np.broadcast_to(found & mask == mask, (cta.threads,))
