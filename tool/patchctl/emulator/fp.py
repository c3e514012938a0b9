# SPDX-License-Identifier: Apache-2.0
"""Floating point as the GPU does it, over arrays: rounding modes, flushing, NaN, conversions.

NumPy rounds to nearest even and keeps subnormals, as the GPU does by default. What NumPy lacks is
here: the fused multiply-add (exact in spite of double rounding), directed rounding, flush to zero,
the GPU's one NaN, and its minimum and maximum.

Approximations (`ex2` and its kin) return the float64 result rounded to float32, which lies within
the error bounds that the PTX ISA gives (2 ulp for ex2 and so on). A GPU's table may differ in the
last bits, so results that depend on them are compared with a tolerance.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

NAN_BITS = {2: 0x7FFF, 4: 0x7FFFFFFF, 8: 0x7FF8000000000000}
"""The NaN that arithmetic returns, by size in bytes."""

_UINT = {2: np.uint16, 4: np.uint32, 8: np.uint64}
_TINY = {2: 2.0**-14, 4: 2.0**-126, 8: 2.0**-1022}


class Round(StrEnum):
    """To nearest even, towards zero, down, up."""

    NEAREST = "rn"
    ZERO = "rz"
    DOWN = "rm"
    UP = "rp"


def canonical(x: Array) -> Array:
    """`x` with the GPU's NaN in place of each NaN."""
    nan = x != x
    if not nan.any():
        return x
    bits = x.view(_UINT[x.itemsize]).copy()
    bits[nan] = NAN_BITS[x.itemsize]
    return bits.view(x.dtype)


def flush(x: Array) -> Array:
    """Subnormals become zeros of the same sign."""
    small = np.abs(x) < x.dtype.type(_TINY[x.itemsize])
    return np.where(small, np.copysign(x.dtype.type(0), x), x) if small.any() else x


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b in float64, rounded, and what rounding took away (0 where the sum is not finite)."""
    s = a + b
    t = s - a
    error = (a - (s - t)) + (b - t)
    return s, np.where(np.isfinite(s), error, 0.0)


def to_odd(value: Array, error: Array) -> Array:
    """Whichever float64 beside value + error ends with a one: a second rounding is then right."""
    bits = value.view(np.uint64)
    move = (error != 0) & (bits & np.uint64(1) == 0)
    return (
        np.where(move, np.nextafter(value, np.copysign(np.inf, error)), value)
        if move.any()
        else value
    )


def round_to(value: Array, error: Array, dtype: npt.DTypeLike, mode: Round) -> Array:
    """value + error (the error less than half a float64 ulp) rounded once to float32 or float16."""
    if mode is Round.NEAREST:
        return to_odd(value, error).astype(dtype)
    result = value.astype(dtype)
    excess = result.astype(np.float64) - value
    above = (excess > 0) | ((excess == 0) & (error < 0))
    below = (excess < 0) | ((excess == 0) & (error > 0))
    zero = result.dtype.type(0)
    inf = result.dtype.type(np.inf)
    down = above & ((mode is Round.DOWN) | ((mode is Round.ZERO) & (value > 0)))
    up = below & ((mode is Round.UP) | ((mode is Round.ZERO) & (value < 0)))
    # towards zero a result must not step over it
    result = np.where(down, np.nextafter(result, zero if mode is Round.ZERO else -inf), result)
    return np.where(up, np.nextafter(result, zero if mode is Round.ZERO else inf), result)


def fma(a: Array, b: Array, c: Array, mode: Round = Round.NEAREST) -> Array:
    """a * b + c rounded once; all of one type."""
    if a.dtype == np.float64:
        return _fma64(a, b, c, mode)
    product = a.astype(np.float64) * b.astype(np.float64)  # exact: 48 bits
    addend = c.astype(np.float64)
    if mode is Round.NEAREST and a.dtype == np.float32:
        s: Array = product + addend
        # two roundings differ from one only where the first lands on a tie of the second
        tie = s.view(np.uint64) & np.uint64(0x1FFFFFFF) == np.uint64(0x10000000)
        if not (tie | (np.abs(s) < _TINY[4])).any():
            return s.astype(np.float32)
    return round_to(*two_sum(product, addend), a.dtype, mode)


def _fma64(a: Array, b: Array, c: Array, mode: Round) -> Array:
    if mode is not Round.NEAREST:
        raise NotImplementedError(f"fma.{mode}.f64")
    result: Array = a * b + c
    for i in np.flatnonzero(np.isfinite(a) & np.isfinite(b) & np.isfinite(c)):
        exact = Fraction(float(a.flat[i])) * Fraction(float(b.flat[i])) + Fraction(float(c.flat[i]))
        if exact:
            try:
                result.flat[i] = float(exact)
            except OverflowError:
                result.flat[i] = np.inf if exact > 0 else -np.inf
    return result


def add(a: Array, b: Array, mode: Round = Round.NEAREST) -> Array:
    """a + b."""
    if mode is Round.NEAREST:
        return a + b
    return round_to(*two_sum(a.astype(np.float64), b.astype(np.float64)), a.dtype, mode)


def mul(a: Array, b: Array, mode: Round = Round.NEAREST) -> Array:
    """a * b."""
    if mode is Round.NEAREST:
        return a * b
    product = a.astype(np.float64) * b.astype(np.float64)
    return round_to(product, np.zeros_like(product), a.dtype, mode)


def minimum(a: Array, b: Array) -> Array:
    """The smaller; -0 is below +0; a NaN loses against a number."""
    return _extreme(np.fmin, np.bitwise_or, a, b)


def maximum(a: Array, b: Array) -> Array:
    """The larger; +0 is above -0; a NaN loses against a number."""
    return _extreme(np.fmax, np.bitwise_and, a, b)


def _extreme(pick: Callable[..., Any], zeros: Callable[..., Any], a: Array, b: Array) -> Array:
    result: Array = pick(a, b)
    tie = (a == 0) & (b == 0)
    if tie.any():
        uint = _UINT[a.itemsize]
        signed: Array = zeros(a.view(uint), b.view(uint)).view(a.dtype)
        result = np.where(tie, signed, result)
    return canonical(result)


def saturate(x: Array) -> Array:
    """Clamped to [0, 1]; NaN becomes +0."""
    zero, one = x.dtype.type(0), x.dtype.type(1)
    clamped: Array = np.where(x > zero, np.minimum(x, one), zero)
    return clamped


def integral(x: Array, mode: str) -> Array:
    """Rounded to an integer of the same type: ``rni``, ``rzi``, ``rmi`` or ``rpi``."""
    function: dict[str, Callable[..., Any]] = {
        "rni": np.rint,
        "rzi": np.trunc,
        "rmi": np.floor,
        "rpi": np.ceil,
    }
    result: Array = function[mode](x)
    return result


def to_integer(x: Array, mode: str, dtype: npt.DTypeLike) -> Array:
    """Rounded and clamped to the integer type. NaN: 0, for 64 bits the sign bit alone."""
    target = np.dtype(dtype)
    info = np.iinfo(target)
    rounded = integral(x.astype(np.float64), mode)
    high = rounded >= float(info.max)
    low = rounded <= float(info.min)
    nan = np.isnan(rounded)
    plain = np.where(high | low | nan, 0.0, rounded).astype(target)
    plain[high] = info.max
    plain[low] = info.min
    plain[nan] = np.uint64(1 << 63).astype(target) if target.itemsize == 8 else 0
    return plain


def from_integer(x: Array, dtype: npt.DTypeLike, mode: Round = Round.NEAREST) -> Array:
    """An integer as a floating-point number, rounded once."""
    target = np.dtype(dtype)
    if target == np.float64 or (mode is Round.NEAREST and x.itemsize <= 4 and target != np.float16):
        return x.astype(target)
    value = x.astype(np.float64)
    back = np.zeros(x.shape)
    if x.itemsize == 8:
        # float64 has no room for all 64 bits: what the upper ones leave is the error
        low = (x & x.dtype.type(0x7FF)).astype(np.float64)
        high = (x & ~x.dtype.type(0x7FF)).astype(np.float64)
        value, back = two_sum(high, low)
    return round_to(value, back, target, mode)


def narrow(x: Array, dtype: npt.DTypeLike, mode: Round = Round.NEAREST) -> Array:
    """To a floating-point type with fewer bits."""
    if mode is Round.NEAREST:
        return canonical(x.astype(dtype))
    value = x.astype(np.float64)
    return canonical(round_to(value, np.zeros_like(value), dtype, mode))


def approximate(function: Callable[[Array], Any], x: Array) -> Array:
    """`function` in float64, rounded to the type of `x`."""
    result: Array = np.asarray(function(x.astype(np.float64))).astype(x.dtype)
    return result


def ex2(x: Array) -> Array:
    """2 to the x."""
    return approximate(np.exp2, x)


def lg2(x: Array) -> Array:
    """The logarithm to base 2; of a negative number NaN."""
    return approximate(np.log2, x)


def rsqrt(x: Array) -> Array:
    """1 / sqrt(x)."""
    return approximate(lambda v: 1.0 / np.sqrt(v), x)
