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
    if kinds[0] != kinds[1]:
        total = np.empty((warps, 4, 8, 8), c.dtype)
        total[:, _PAIR[:, None], *c_map(kinds[1])] = c
        c = total[:, _PAIR[:, None], *c_map(kinds[0])]
    start = np.ascontiguousarray(c.reshape(-1, 8).T, np.float32)
    found = fragment_product(
        a.reshape(-1), b.reshape(-1), start, layouts, kinds[0], tuple(range(8)), model
    )
    out = np.ascontiguousarray(found.T).reshape(warps, 32, 8)
    return fp.canonical(out.astype(np.float16) if kinds[0] == "f16" else out)


@cache
def _exponents() -> Array:
    """By the bits of a float16: the exponent of its value; 0 far below, infinity far above all."""
    values = np.arange(1 << 16).astype(np.uint16).view(np.float16).astype(np.float64)
    table = np.frexp(values)[1] - 1
    table[values == 0] = _NONE
    table[~np.isfinite(values)] = _SPECIAL
    return table.astype(np.int32)


_NONE = -2000
_SPECIAL = 4000


@cache
def _gather(
    layouts: tuple[str, str], kind: str, elements: tuple[int, ...], warps: int
) -> tuple[Array, Array]:
    """Where the row of A and the column of B of each thread's elements are among all halves.

    [k, 1, thread] and [k, element, thread]; half i of thread t is 4 t + i.
    """
    place_a = np.zeros((4, 8, 4), np.int64)
    place_b = np.zeros((4, 4, 8), np.int64)
    place = 4 * _LANE[:, None] + np.arange(4)
    row, k = a_map(layouts[0])
    place_a[_PAIR[:, None], row, k] = place
    k, column = b_map(layouts[1])
    place_b[_PAIR[:, None], k, column] = place
    rows, columns = (m[:, list(elements)] for m in c_map(kind))
    a = place_a[_PAIR[:, None], rows]  # [lane, element, k]
    b = place_b[_PAIR[:, None], :, columns]
    base = 128 * np.arange(warps)[:, None, None, None]
    a, b = (np.moveaxis((base + x).reshape(warps * 32, len(elements), 4), 0, 2) for x in (a, b))
    return np.ascontiguousarray(np.moveaxis(a, 1, 0)), np.ascontiguousarray(np.moveaxis(b, 1, 0))


def fragment_product(
    a: Array,
    b: Array,
    c: Array,
    layouts: tuple[str, str],
    kind: str,
    elements: tuple[int, ...],
    model: Accumulation,
) -> Array:
    """Some elements of D = A B + C for whole warps, added as `model` says.

    Args:
        a: float16 [4 * threads], four halves a thread.
        b: likewise.
        c: float32 [elements, threads].
        layouts: of A and B, ``row`` or ``col``.
        kind: of the layout of C and D, ``f32`` or ``f16``.
        elements: which of a thread's eight.
    """
    a_index, b_index = _gather(layouts, kind, elements, a.size // 128)
    left, right = a.astype(np.float32)[a_index], b.astype(np.float32)[b_index]
    if model is Accumulation.CHAIN:
        return _chain(left, right, c)
    exponents = _exponents()
    # the exponent of a product is the sum of its factors' exponents: it is not normalised before
    power = exponents[a.view(np.uint16)][a_index] + exponents[b.view(np.uint16)][b_index]
    return _volta(left * right, power, c)  # the products are exact


def _chain(left: Array, right: Array, c: Array) -> Array:
    total = left[0] * right[0] + np.float32(0)
    for k in (1, 2, 3):
        total = fp.fma(left[k], right[k], total)
    result: Array = c + total
    return result


def _volta(products: Array, power: Array, c: Array) -> Array:
    power_c = (np.ascontiguousarray(c).view(np.int32) >> 23 & 255) - 127
    largest = np.maximum(power.max(axis=0), power_c)
    ordinary = largest < 127  # no infinity, no NaN, nothing that could overflow
    if not ordinary.all():
        largest = np.where(ordinary, largest, 0)
    shift = largest.astype(np.int64)
    to_units = (np.int64(1023 + 23) - shift << 52).view(np.float64)
    from_units = (np.int64(1023 - 23) + shift << 52).view(np.float64)
    cut = np.trunc(products * to_units).sum(axis=0) + np.trunc(c * to_units)
    exact = cut * from_units
    result: Array = (exact.view(np.int64) & _FLOAT32_BITS).view(np.float64).astype(np.float32)
    unusual = (cut == 0) | ~ordinary
    if unusual.any():
        plain = (products.astype(np.float64).sum(axis=0) + c).astype(np.float32)
        # an exact zero has the sign that plain addition gives it
        zero = (cut == 0) & ordinary
        result[zero] = np.copysign(np.float32(0), plain[zero])
        result[~ordinary] = plain[~ordinary]
    return result


_FLOAT32_BITS = ~np.int64((1 << 29) - 1)
