# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of sm_70 on arrays: rounding modes, flushing, conversions, the tensor-core sum.

Everything here takes and returns NumPy arrays of one value per thread and knows no instruction.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
U32 = NDArray[np.uint32]

_TINY = np.float32(2.0**-126)


class Rounding(StrEnum):
    """How a result that does not fit is rounded: nearest even, to zero, down, up."""

    NEAREST = "rn"
    ZERO = "rz"
    DOWN = "rm"
    UP = "rp"


def flush(x: F32) -> F32:
    """Subnormal numbers become zero of the same sign (``.FTZ``)."""
    return np.where(np.abs(x) < _TINY, np.copysign(np.float32(0), x), x).astype(np.float32)


def saturate(x: F32) -> F32:
    """Clamp to [0, 1]; NaN becomes 0 (``.SAT``)."""
    return np.where(np.isnan(x), np.float32(0), np.clip(x, 0, 1)).astype(np.float32)


def fma32(a: F32, b: F32, c: F32, rounding: Rounding = Rounding.NEAREST) -> F32:
    """a * b + c, rounded once. The product is exact in float64; the sum there may be inexact,
    so its error is folded into the last bit (round to odd) before the one rounding to float32."""
    product = a.astype(np.float64) * b.astype(np.float64)
    return round32(*_two_sum(product, c.astype(np.float64)), rounding)


def add32(a: F32, b: F32, rounding: Rounding = Rounding.NEAREST) -> F32:
    """a + b, rounded once."""
    if rounding is Rounding.NEAREST:
        return (a + b).astype(np.float32)
    return round32(*_two_sum(a.astype(np.float64), b.astype(np.float64)), rounding)


def mul32(a: F32, b: F32, rounding: Rounding = Rounding.NEAREST) -> F32:
    """a * b, rounded once."""
    if rounding is Rounding.NEAREST:
        return (a * b).astype(np.float32)
    product = a.astype(np.float64) * b.astype(np.float64)
    return round32(product, np.zeros_like(product), rounding)


def round32(value: F64, error: F64, rounding: Rounding = Rounding.NEAREST) -> F32:
    """The exact number value + error (error far below value) as float32."""
    odd = _round_to_odd(value, error)
    nearest: F32 = odd.astype(np.float32)
    if rounding is Rounding.NEAREST:
        return nearest
    return _direct(nearest, odd, rounding)


def round16(value: F64, rounding: Rounding = Rounding.NEAREST) -> NDArray[np.float16]:
    """float64 as float16, rounded once (NumPy converts float64 to float16 directly)."""
    nearest: NDArray[np.float16] = value.astype(np.float16)
    if rounding is Rounding.NEAREST:
        return nearest
    moved: NDArray[np.float16] = _direct(nearest, value, rounding)
    return moved


def _direct(nearest: NDArray[np.floating], exact: F64, rounding: Rounding) -> NDArray[np.floating]:
    """Move a value that was rounded to nearest to the side that `rounding` asks for."""
    got = nearest.astype(np.float64)
    kind = nearest.dtype.type
    down = np.nextafter(nearest, kind(-np.inf))
    up = np.nextafter(nearest, kind(np.inf))
    above, below = got > exact, got < exact
    if rounding is Rounding.DOWN:
        return np.where(above, down, nearest)
    if rounding is Rounding.UP:
        return np.where(below, up, nearest)
    away = np.where(exact > 0, above, below)
    return np.where(away, np.where(exact > 0, down, up), nearest)


def _two_sum(a: F64, b: F64) -> tuple[F64, F64]:
    """a + b in float64 and what that rounding lost (Knuth)."""
    total = a + b
    part = total - a
    error = (a - (total - part)) + (b - part)
    return total, np.where(np.isfinite(total), error, 0.0)


def _round_to_odd(value: F64, error: F64) -> F64:
    """`value` with its last bit set where bits were lost, on the right side."""
    lost = error != 0
    if not lost.any():
        return value
    # truncate toward zero first: where the error points to zero, step down one
    toward = (error < 0) == (value > 0)
    base = np.where(lost & toward, np.nextafter(value, 0.0), value)
    bits = np.ascontiguousarray(base).view(np.uint64)
    return np.where(lost, bits | np.uint64(1), bits).astype(np.uint64).view(np.float64)


def to_integer(x: F64, low: int, high: int) -> NDArray[np.int64]:
    """A rounded float as an integer of [low, high]; NaN is 0, others are clamped (F2I)."""
    return np.where(np.isnan(x), 0.0, np.clip(x, low, high)).astype(np.int64)


def round_integral(x: F64, rounding: Rounding) -> F64:
    """To a whole number."""
    whole = {
        Rounding.NEAREST: np.rint,
        Rounding.ZERO: np.trunc,
        Rounding.DOWN: np.floor,
        Rounding.UP: np.ceil,
    }
    return np.asarray(whole[rounding](x), np.float64)


def halves(words: U32) -> tuple[NDArray[np.float16], NDArray[np.float16]]:
    """The low and the high half of each word."""
    pair = np.ascontiguousarray(words).view(np.float16).reshape(*words.shape, 2)
    return pair[..., 0], pair[..., 1]


def pack(low: NDArray[np.float16], high: NDArray[np.float16]) -> U32:
    """Two halves in one word."""
    low, high = np.broadcast_arrays(low, high)
    return np.stack([low, high], axis=-1).astype(np.float16).view(np.uint32).reshape(low.shape)


def approximate(name: str, x: F32) -> F32:
    """MUFU: subnormal operands and results count as zero; otherwise the correctly rounded value.

    The hardware's tables err by up to 2 units in the last place; they are not modelled.
    """
    wide = flush(x).astype(np.float64)
    if name == "EX2":
        exact = np.exp2(wide)
    elif name == "RCP":
        exact = 1.0 / wide
    elif name == "RSQ":
        exact = 1.0 / np.sqrt(wide)
    elif name == "LG2":
        exact = np.log2(wide)
    elif name == "SQRT":
        exact = np.sqrt(wide)
    elif name == "SIN":
        exact = np.sin(wide)
    elif name == "COS":
        exact = np.cos(wide)
    else:
        raise KeyError(name)
    return flush(exact.astype(np.float32))


def dot_accumulate(products: F32, c: F32) -> F32:
    """c + the sum of products[..., k], as Volta's tensor cores sum: in one step.

    The addends are aligned to the largest exponent, cut (not rounded) to 24 significant bits
    there, added exactly, and the sum is cut to float32: Fasi, Higham, Mikaitis, Pranesh,
    "Numerical behavior of NVIDIA tensor cores" (2021), measured on a V100. The products of two
    halves are exact in float32. Infinities and NaN act as IEEE says.
    """
    addends = np.concatenate([products, c[..., None]], axis=-1)
    exponents = (addends.view(np.uint32) >> np.uint32(23)) & np.uint32(0xFF)
    top = np.maximum(exponents.max(axis=-1), 1).astype(np.int32)
    quantum = np.ldexp(1.0, top - 150)
    cut = np.trunc(addends.astype(np.float64) / quantum[..., None]).sum(axis=-1) * quantum
    bits = np.ascontiguousarray(cut).view(np.uint64) & ~np.uint64((1 << 29) - 1)
    result: F32 = bits.view(np.float64).astype(np.float32)
    special = top == 255
    if special.any():
        plain = addends[special].astype(np.float64).sum(axis=-1)
        result[special] = plain.astype(np.float32)
    return result
