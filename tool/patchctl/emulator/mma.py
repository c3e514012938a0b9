# SPDX-License-Identifier: Apache-2.0
"""Volta's matrix instruction: who holds which element, and in which order it adds.

One warp instruction is four products of 8x4 by 4x8, one a quad pair: quad pair p is the lanes
{4p..4p+3} and {16+4p..16+4p+3}. Fragments: PTX ISA, "Matrix fragments for mma.m8n8k4".
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from patchctl.emulator import fp

Array = npt.NDArray[Any]

_LANE = np.arange(32)
_PAIR = _LANE >> 2 & 3
_HALF = _LANE >> 4


class Accumulation(StrEnum):
    """How the four products and the accumulator are added.

    VOLTA: products exact, the five terms aligned to the largest exponent and cut off below its 24
    bits, added, cut off again: what Fasi, Higham, Mikaitis and Pranesh found by experiment
    ("Numerical behavior of NVIDIA tensor cores", 2021). CHAIN: ``c + fma(a3, b3, fma(a2, b2,
    fma(a1, b1, a0 * b0)))``, the instructions that ptxas emits for this PTX from sm_80 on, where
    the matrix instruction no longer exists.
    """

    VOLTA = "volta"
    CHAIN = "chain"


@cache
def a_map(layout: str) -> tuple[Array, Array]:
    """Row and k of every (lane, half) of A."""
    lane, i = np.meshgrid(_LANE, np.arange(4), indexing="ij")
    inner, outer = lane & 3, 4 * (lane >> 4)
    return (inner + outer, i) if layout == "row" else (i + outer, inner)


@cache
def b_map(layout: str) -> tuple[Array, Array]:
    """k and column of every (lane, half) of B."""
    m, k = a_map("row" if layout == "col" else "col")
    return k, m


@cache
def c_map(kind: str) -> tuple[Array, Array]:
    """Row and column of every (lane, element) of C and D."""
    lane, i = np.meshgrid(_LANE, np.arange(8), indexing="ij")
    if kind == "f16":
        return (lane & 3) + 4 * (lane >> 4), i
    row = (lane & 1) + 2 * (i >> 1 & 1) + 4 * (lane >> 4)
    return row, (i & 1) + 2 * (lane >> 1 & 1) + 4 * (i >> 2)


def m8n8k4(
    a: Array,
    b: Array,
    c: Array,
    *,
    layouts: tuple[str, str],
    kinds: tuple[str, str],
    model: Accumulation,
) -> Array:
    """D = A B + C for whole warps.

    Args:
        a: float16 [warps, 32, 4], the halves of each lane's two registers.
        b: likewise.
        c: float32 or float16 [warps, 32, 8].
        layouts: of A and B, ``row`` or ``col``.
        kinds: of D and C, ``f32`` or ``f16``.
        model: how it adds.

    Returns:
        D like C, of the type that `kinds` says.
    """
    warps = a.shape[0]
    pair = _PAIR[:, None]
    left = np.empty((warps, 4, 8, 4), np.float32)
    right = np.empty((warps, 4, 4, 8), np.float32)
    total = np.empty((warps, 4, 8, 8), np.float32)
    row, k = a_map(layouts[0])
    left[:, pair, row, k] = a
    k, column = b_map(layouts[1])
    right[:, pair, k, column] = b
    total[:, pair, *c_map(kinds[1])] = c
    result = dot4(left[..., :, None, :], np.moveaxis(right, 2, 3)[..., None, :, :], total, model)
    out = result[:, pair, *c_map(kinds[0])]
    return fp.canonical(out.astype(np.float16) if kinds[0] == "f16" else out)


def dot4(a: Array, b: Array, c: Array, model: Accumulation) -> Array:
    """Sum of a * b over the last axis (four values that float16 can hold) plus c, in float32."""
    if model is Accumulation.CHAIN:
        total = a[..., 0] * b[..., 0] + np.float32(0)
        for k in (1, 2, 3):
            total = fp.fma(a[..., k], b[..., k], total)
        return c + total
    return _volta(a, b, c)


def _volta(a: Array, b: Array, c: Array) -> Array:
    terms = np.empty((5, *c.shape))
    np.multiply(np.moveaxis(a, -1, 0), np.moveaxis(b, -1, 0), out=terms[:4], dtype=np.float64)
    terms[4] = c
    plain = terms.sum(axis=0)
    # the exponent of a product is the sum of its factors' exponents: it is not normalised before
    power = np.empty(terms.shape, np.int32)
    power[:4] = np.moveaxis(_exponent(a) + _exponent(b), -1, 0)
    power[4] = _exponent(c)
    power[terms == 0] = -1000
    largest = power.max(axis=0)
    aligned = np.trunc(np.ldexp(terms, 23 - largest)).sum(axis=0)
    exact = np.ldexp(aligned, largest - 23)
    finite = np.isfinite(plain)
    if not finite.all():
        exact = np.where(finite, exact, plain)
    result = fp.round_to(exact, np.zeros_like(exact), np.float32, fp.Round.ZERO)
    zero = exact == 0
    if zero.any():
        # -0 only from zeros that are all negative
        negative = (plain == 0) & np.signbit(plain)
        result = np.where(zero, np.where(negative, np.float32(-0.0), np.float32(0)), result)
    return result


def _exponent(x: Array) -> Array:
    """floor(log2 |x|)."""
    return np.frexp(x)[1] - 1
