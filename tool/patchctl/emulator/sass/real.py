# SPDX-License-Identifier: Apache-2.0
"""float32: FADD, FMUL, FFMA, FMNMX, FSEL, FSETP, MUFU, FCHK."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patchctl.emulator import fp
from patchctl.emulator.machine import Active, Cta, Mask
from patchctl.emulator.program import Operation
from patchctl.emulator.sass.build import Build, operation
from patchctl.emulator.sass.compare import COMBINE
from patchctl.emulator.sass.operands import RZ, Value, both_known, put, put_predicate

Singles = NDArray[np.float32]
_ROUNDING = {
    "RN": fp.Round.NEAREST,
    "RZ": fp.Round.ZERO,
    "RM": fp.Round.DOWN,
    "RP": fp.Round.UP,
}
_TWO_PI = 2 * np.pi


def rounding(build: Build) -> fp.Round:
    return build.choice(_ROUNDING, fp.Round.NEAREST)


def singles(cta: Cta, *sources: Value) -> list[Singles]:
    """The operands as float32, one per thread."""
    words = np.broadcast_arrays(*(source.get(cta) for source in sources))
    return [np.ascontiguousarray(word).view(np.float32) for word in words]


def _arithmetic(build: Build, count: int, compute: Callable[..., NDArray[Any]]) -> Operation:
    """`compute(*operands, mode)` with the modifiers that FADD, FMUL and FFMA share."""
    flush, saturate, mode = build.flag("FTZ"), build.flag("SAT"), rounding(build)
    row = build.destination()
    sources = [build.single() for _ in range(count)]

    def run(cta: Cta, active: Active) -> None:
        operands = singles(cta, *sources)
        if flush:
            operands = [fp.flush(x) for x in operands]
        result = compute(*operands, mode)
        if flush:
            result = fp.flush(result)
        if saturate:
            result = fp.saturate(result)
        result = fp.canonical(result)
        cta.watch_nan(result, active, *operands)
        put(cta, row, result, active, *sources)

    return run


@operation("FADD")
def fadd(build: Build) -> Operation:
    return _arithmetic(build, 2, fp.add)


@operation("FMUL")
def fmul(build: Build) -> Operation:
    return _arithmetic(build, 2, fp.mul)


@operation("FFMA")
def ffma(build: Build) -> Operation:
    return _arithmetic(build, 3, fp.fma)


@operation("FMNMX")
def fmnmx(build: Build) -> Operation:
    """The smaller where the predicate holds, else the larger; a NaN loses against a number."""
    flush = build.flag("FTZ")
    row = build.destination()
    a, b = build.single(), build.single()
    condition = build.condition()

    def run(cta: Cta, active: Active) -> None:
        x, y = singles(cta, a, b)
        if flush:
            x, y = fp.flush(x), fp.flush(y)
        choose = condition.get(cta)
        if choose.all():
            result = fp.minimum(x, y)
        elif not choose.any():
            result = fp.maximum(x, y)
        else:
            result = np.where(choose, fp.minimum(x, y), fp.maximum(x, y))
        known = both_known(a.known(cta), b.known(cta), condition.known(cta))
        if row != RZ:
            cta.put(row, result, active, known)

    return run


@operation("FSEL")
def fsel(build: Build) -> Operation:
    """One of two floats, by a predicate; bits are kept."""
    flush = build.flag("FTZ")
    row = build.destination()
    a, b = build.single(), build.single()
    condition = build.condition()

    def run(cta: Cta, active: Active) -> None:
        x, y = singles(cta, a, b)
        choose = condition.get(cta)
        result = np.where(choose, x, y)
        known = condition.known(cta)
        one, two = a.known(cta), b.known(cta)
        if one is not True or two is not True:
            known = both_known(known, np.where(choose, one, two))
        if row != RZ:
            cta.put(row, fp.flush(result) if flush else result, active, known)

    return run


def _ordered(compare: Callable[..., Mask]) -> Callable[[Singles, Singles], Mask]:
    return lambda x, y: compare(x, y) & ~(np.isnan(x) | np.isnan(y))


def _unordered(compare: Callable[..., Mask]) -> Callable[[Singles, Singles], Mask]:
    return lambda x, y: compare(x, y) | np.isnan(x) | np.isnan(y)


_PLAIN = {
    "LT": np.less,
    "EQ": np.equal,
    "LE": np.less_equal,
    "GT": np.greater,
    "NE": np.not_equal,
    "GE": np.greater_equal,
}
FLOAT_COMPARE: dict[str, Callable[[Singles, Singles], Mask]] = {
    **{name: _ordered(compare) for name, compare in _PLAIN.items()},
    **{name + "U": _unordered(compare) for name, compare in _PLAIN.items()},
    "NUM": lambda x, y: ~(np.isnan(x) | np.isnan(y)),
    "NAN": lambda x, y: np.isnan(x) | np.isnan(y),
}


@operation("FSETP")
def fsetp(build: Build) -> Operation:
    """A comparison, combined with a predicate; U forms hold for NaN."""
    compare = build.choice(FLOAT_COMPARE)
    flush = build.flag("FTZ")
    combine = build.choice(COMBINE)
    first, second = build.predicate_destination(), build.predicate_destination()
    a, b = build.single(), build.single()
    other = build.condition()

    def run(cta: Cta, active: Active) -> None:
        x, y = singles(cta, a, b)
        if flush:
            x, y = fp.flush(x), fp.flush(y)
        result = compare(x, y)
        mask = other.get(cta)
        known = both_known(a.known(cta), b.known(cta), other.known(cta))
        put_predicate(cta, first, combine(result, mask), active, known)
        put_predicate(cta, second, combine(~result, mask), active, known)

    return run


_FUNCTIONS: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "EX2": np.exp2,
    "RCP": lambda x: 1.0 / x,
    "RSQ": lambda x: 1.0 / np.sqrt(x),
    "LG2": np.log2,
    "SQRT": np.sqrt,
    "SIN": lambda x: np.sin(x * _TWO_PI),
    "COS": lambda x: np.cos(x * _TWO_PI),
}


@operation("MUFU")
def mufu(build: Build) -> Operation:
    """An approximation. Subnormal operands and results count as zero (ptxas scales around that).

    The correctly rounded value is taken; the hardware's tables err by up to 2 units in the last
    place. SIN and COS take revolutions.
    """
    function = build.choice(_FUNCTIONS)
    row = build.destination()
    a = build.single()

    def run(cta: Cta, active: Active) -> None:
        (x,) = singles(cta, a)
        result = fp.canonical(fp.flush(fp.approximate(function, fp.flush(x))))
        cta.watch_nan(result, active, x)
        put(cta, row, result, active, a)

    return run


@operation("FCHK")
def fchk(build: Build) -> Operation:
    """Whether a / b needs the slow path: exponents where the quick one would lose bits."""
    target = build.predicate_destination()
    a, b = build.single(), build.single()

    def run(cta: Cta, active: Active) -> None:
        x, y = (np.ascontiguousarray(np.broadcast_to(v.get(cta), (cta.threads,))) for v in (a, b))
        p = (x >> np.uint32(23) & np.uint32(0xFF)).astype(np.int64)
        q = (y >> np.uint32(23) & np.uint32(0xFF)).astype(np.int64)
        slow = (p == 255) | (q == 255) | (q == 0) | (p - q > 126) | (p - q < -125) | (q > 252)
        slow |= p < 24
        put_predicate(cta, target, slow, active, both_known(a.known(cta), b.known(cta)))

    return run
