# SPDX-License-Identifier: Apache-2.0
"""Packed float16: HADD2, HMUL2, HFMA2, HSETP2, and HADD2.F32 that widens one half."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patchctl.emulator import fp
from patchctl.emulator.machine import Active, Cta, Known, Words
from patchctl.emulator.program import Operation
from patchctl.emulator.sass.build import Build, operation
from patchctl.emulator.sass.compare import COMBINE
from patchctl.emulator.sass.operands import RZ, Value, both_known, put_predicate
from patchctl.emulator.sass.real import FLOAT_COMPARE

Halves = NDArray[np.float16]
_OPERAND = re.compile(r"(-?)(\|?)(R\d+|RZ|c\[[^]]*\]\[[^]]*\])(?:\.(H0_H0|H1_H1|H1_H0))?(\|?)")
_PICK = {"H0_H0": (0, 0), "H1_H1": (1, 1), "H1_H0": (0, 1)}


@dataclass(frozen=True)
class Packed:
    """Two halves a thread: the low one first."""

    value: Value
    pick: tuple[int, int]
    absolute: bool
    negative: bool

    def known(self, cta: Cta) -> Known:
        """Where the halves that are picked were written."""
        bits = self.value.bits(cta)
        if bits is True:
            return True
        mask = np.uint32(sum(0xFFFF << 16 * half for half in set(self.pick)))
        return np.broadcast_to(bits & mask == mask, (cta.threads,))

    def get(self, cta: Cta) -> Halves:
        """[thread, 2]"""
        word = np.broadcast_to(self.value.get(cta), (cta.threads,))
        pair = np.ascontiguousarray(word).view(np.float16).reshape(-1, 2)[:, self.pick]
        bits = pair.view(np.uint16)
        if self.absolute:
            bits = bits & np.uint16(0x7FFF)
        if self.negative:
            bits = bits ^ np.uint16(0x8000)
        return bits.view(np.float16)


def packed(build: Build) -> Packed:
    """The next operand; an immediate is printed as two numbers."""
    text = build.peek()
    match = _OPERAND.fullmatch(text)
    if match:
        build.raw()
        negative, absolute, register, pick, _ = match.groups()
        value = build.named(register)
        return Packed(value, _PICK[pick or "H1_H0"], bool(absolute), bool(negative))
    build.raw(), build.raw()
    word = np.array([build.inst.immediate], np.uint32)
    return Packed(Value(lambda cta: word), (0, 1), False, False)


def _join(result: Halves) -> Words:
    return np.ascontiguousarray(result).view(np.uint32).reshape(-1)


def _arithmetic(build: Build, count: int, compute: Callable[..., NDArray[Any]]) -> Operation:
    flush, saturate = build.flag("FTZ"), build.flag("SAT")
    row = build.destination()
    sources = [packed(build) for _ in range(count)]

    def run(cta: Cta, active: Active) -> None:
        operands = [source.get(cta) for source in sources]
        if flush:
            operands = [fp.flush(x) for x in operands]
        result = compute(*operands, fp.Round.NEAREST)
        if flush:
            result = fp.flush(result)
        if saturate:
            result = fp.saturate(result)
        result = fp.canonical(result)
        for half in (0, 1):
            cta.watch_nan(result[:, half], active, *(x[:, half] for x in operands))
        if row != RZ:
            cta.put(row, _join(result), active, both_known(*(s.known(cta) for s in sources)))

    return run


@operation("HADD2")
def hadd2(build: Build) -> Operation:
    if build.flag("F32"):
        return _widening_add(build)
    return _arithmetic(build, 2, fp.add)


@operation("HMUL2")
def hmul2(build: Build) -> Operation:
    return _arithmetic(build, 2, fp.mul)


@operation("HFMA2")
def hfma2(build: Build) -> Operation:
    return _arithmetic(build, 3, fp.fma)


def _widening_add(build: Build) -> Operation:
    """The low halves of the picked operands, added in float32."""
    row = build.destination()
    a, b = packed(build), packed(build)

    def run(cta: Cta, active: Active) -> None:
        x, y = (v.get(cta)[:, 0].astype(np.float32) for v in (a, b))
        result = fp.canonical(x + y)
        cta.watch_nan(result, active, x, y)
        if row != RZ:
            cta.put(row, result, active, both_known(a.known(cta), b.known(cta)))

    return run


@operation("HSETP2")
def hsetp2(build: Build) -> Operation:
    """Compares the low halves into one predicate and the high halves into another."""
    compare = build.choice(FLOAT_COMPARE)
    flush = build.flag("FTZ")
    combine = build.choice(COMBINE)
    first, second = build.predicate_destination(), build.predicate_destination()
    a, b = packed(build), packed(build)
    other = build.condition()

    def run(cta: Cta, active: Active) -> None:
        x, y = a.get(cta).astype(np.float32), b.get(cta).astype(np.float32)
        if flush:
            x, y = fp.flush(x.astype(np.float16)), fp.flush(y.astype(np.float16))
        mask = other.get(cta)
        known = both_known(a.known(cta), b.known(cta), other.known(cta))
        result = compare(x.astype(np.float32), y.astype(np.float32))
        put_predicate(cta, first, combine(result[:, 0], mask), active, known)
        put_predicate(cta, second, combine(result[:, 1], mask), active, known)

    return run
