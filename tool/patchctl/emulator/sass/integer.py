# SPDX-License-Identifier: Apache-2.0
"""Integer arithmetic: IADD3, IMAD, LEA, shifts, comparisons, minimum, absolute value."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from patchctl.emulator.machine import Active, Cta, Words
from patchctl.emulator.program import Operation
from patchctl.emulator.sass.build import Build, operation
from patchctl.emulator.sass.operands import (
    PT,
    RZ,
    Condition,
    both_known,
    put,
    put_bits,
    put_pair,
    put_predicate,
)

_LOW = np.uint64(0xFFFFFFFF)


def wide(value: Words) -> NDArray[np.uint64]:
    return value.astype(np.uint64)


def signed(value: Words) -> NDArray[np.int64]:
    return value.view(np.int32).astype(np.int64)


def carry_in(build: Build) -> Condition | None:
    """The carry operand of an `.X` form."""
    return build.condition() if build.left else None


@operation("IADD3")
def iadd3(build: Build) -> Operation:
    """a + b + c; carries out to up to two predicates; `.X` adds up to two carries."""
    extended = build.flag("X")
    row = build.destination()
    carries = [build.optional_predicate_destination(), build.optional_predicate_destination()]
    terms = []
    for _ in range(3):
        value, negative = build.negatable()
        if negative and extended:
            raise build.error("a negated operand of .X")
        terms.append((value, negative))
    conditions: list[Condition] = []
    while extended and build.left:
        conditions.append(build.condition())

    def run(cta: Cta, active: Active) -> None:
        total = np.zeros(1, np.uint64)
        for value, negative in terms:
            one = wide(value.get(cta))
            # minus as the adder sees it: complement plus one, so that -0 carries
            total = total + ((one ^ _LOW) + np.uint64(1) if negative else one)
        for condition in conditions:
            total = total + condition.get(cta)
        known = both_known(
            *(value.known(cta) for value, _ in terms), *(c.known(cta) for c in conditions)
        )
        if row != RZ:
            cta.put(row, total.astype(np.uint32), active, known)
        count = total >> np.uint64(32)
        for level, carry in enumerate(carries, start=1):
            if carry != PT:
                cta.put_pred(carry, count >= level, active, known)

    return run


@operation("IMAD")
def imad(build: Build) -> Operation:
    """a * b + c. MOV, IADD, SHL name what ptxas uses it for; WIDE has 64 bits, HI the upper 32."""
    if build.flag("WIDE"):
        return _imad_wide(build)
    if build.flag("HI"):
        return _imad_high(build)
    if build.flag("MOV") and build.inst.operands[1:3] == ("RZ", "RZ"):
        return _imad_mov(build)
    for name in ("IADD", "SHL"):
        build.flag(name)
    build.flag("U32")  # the lower half is the same
    extended = build.flag("X")
    row = build.destination()
    a, b, c = build.integer(), build.integer(), build.integer()
    condition = build.condition() if extended else None

    def run(cta: Cta, active: Active) -> None:
        result = a.get(cta) * b.get(cta) + c.get(cta)
        known = both_known(a.known(cta), b.known(cta), c.known(cta))
        if condition is not None:
            result = result + condition.get(cta)
            known = both_known(known, condition.known(cta))
        if row != RZ:
            cta.put(row, result, active, known)

    return run


def _imad_mov(build: Build) -> Operation:
    """A move; `-` makes it a negation."""
    build.flag("U32")
    row = build.destination()
    build.raw(), build.raw()
    plain = not build.peek().startswith("-R")
    a = build.integer()

    def run(cta: Cta, active: Active) -> None:
        if plain:
            put_bits(cta, row, a.get(cta), active, a.bits(cta))
        else:
            put(cta, row, a.get(cta), active, a)

    return run


def _product(a: Words, b: Words, unsigned: bool) -> NDArray[np.uint64]:
    if unsigned:
        return wide(a) * wide(b)
    return (signed(a) * signed(b)).view(np.uint64)


def _imad_wide(build: Build) -> Operation:
    unsigned = build.flag("U32")
    extended = build.flag("X")
    row = build.destination()
    carry = build.optional_predicate_destination()
    a, b, c = build.integer(), build.integer(), build.pair()
    condition = build.condition() if extended else None
    if (carry != PT or extended) and not unsigned:
        raise build.error("a carry of a signed product")

    def run(cta: Cta, active: Active) -> None:
        product = _product(a.get(cta), b.get(cta), unsigned)
        total = product + c.get(cta)
        over = total < product
        known = both_known(a.known(cta), b.known(cta), cta.known(*c.rows))
        if condition is not None:
            more = total + condition.get(cta)
            over = over | (more < total)
            total = more
            known = both_known(known, condition.known(cta))
        put_pair(cta, row, total, active, known)
        put_predicate(cta, carry, over, active, known)

    return run


def _imad_high(build: Build) -> Operation:
    """The upper half of a * b + c; c is a pair."""
    unsigned = build.flag("U32")
    row = build.destination()
    a, b, c = build.integer(), build.integer(), build.pair()

    def run(cta: Cta, active: Active) -> None:
        total = _product(a.get(cta), b.get(cta), unsigned) + c.get(cta)
        known = both_known(a.known(cta), b.known(cta), cta.known(*c.rows))
        if row != RZ:
            cta.put(row, (total >> np.uint64(32)).astype(np.uint32), active, known)

    return run


@operation("LEA")
def lea(build: Build) -> Operation:
    """(a << shift) + b. HI takes the upper half of the shifted c:a, or of a's sign (SX32) and a."""
    high, extended, sign = build.flag("HI"), build.flag("X"), build.flag("SX32")
    row = build.destination()
    carry = build.optional_predicate_destination()
    a, b = build.word(), build.integer()
    c = build.word() if high and not sign else None
    shift = np.uint64(build.number())
    condition = build.condition() if extended else None

    def run(cta: Cta, active: Active) -> None:
        low = a.get(cta)
        if sign:
            source = signed(low).view(np.uint64)
        else:
            source = wide(low)
            if c is not None:
                source = source | wide(c.get(cta)) << np.uint64(32)
        shifted = source << shift
        part = shifted >> np.uint64(32) if high else shifted & _LOW
        total = part + wide(b.get(cta))
        known = both_known(a.known(cta), b.known(cta), True if c is None else c.known(cta))
        if condition is not None:
            total = total + condition.get(cta)
            known = both_known(known, condition.known(cta))
        if row != RZ:
            cta.put(row, total.astype(np.uint32), active, known)
        put_predicate(cta, carry, total > _LOW, active, known)

    return run


@operation("SHF")
def shf(build: Build) -> Operation:
    """high:low shifted; HI takes the upper word. W wraps the count, else it is clamped."""
    left = build.choice({"L": True, "R": False})
    wrap = build.flag("W")
    bits, arithmetic = build.choice(
        {"U32": (32, False), "S32": (32, True), "U64": (64, False), "S64": (64, True)}
    )
    high = build.flag("HI")
    row = build.destination()
    low_word, count, high_word = build.word(), build.word(), build.word()
    if wrap and bits == 64:
        raise build.error(".W of 64 bits")

    def run(cta: Cta, active: Active) -> None:
        amount = wide(count.get(cta))
        amount = amount & np.uint64(31) if wrap else np.minimum(amount, np.uint64(bits))
        source = wide(low_word.get(cta)) | wide(high_word.get(cta)) << np.uint64(32)
        out = amount >= 64  # NumPy leaves such shifts undefined
        some = np.where(out, np.uint64(0), amount)
        if left:
            result = np.where(out, np.uint64(0), source << some)
        elif arithmetic:
            sign = source.view(np.int64) >> np.where(out, np.uint64(63), amount).view(np.int64)
            result = sign.view(np.uint64)
        else:
            result = np.where(out, np.uint64(0), source >> some)
        word = result >> np.uint64(32) if high else result & _LOW
        put(cta, row, word.astype(np.uint32), active, low_word, count, high_word)

    return run


@operation("IDP")
def idp(build: Build) -> Operation:
    """Dot product of four bytes plus c."""
    build.require("4A")
    kinds = []
    for _ in range(2):
        kinds.append(build.choice({"S8": np.int8, "U8": np.uint8}))
    row = build.destination()
    a, b, c = build.word(), build.word(), build.word()

    def run(cta: Cta, active: Active) -> None:
        parts = []
        for value, kind in ((a, kinds[0]), (b, kinds[1])):
            full = np.broadcast_to(value.get(cta), (cta.threads,))
            parts.append(np.ascontiguousarray(full).view(kind).reshape(-1, 4).astype(np.int64))
        total = (parts[0] * parts[1]).sum(axis=1) + c.get(cta)
        put(cta, row, (total & 0xFFFFFFFF).astype(np.uint32), active, a, b, c)

    return run
