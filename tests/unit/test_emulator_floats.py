# SPDX-License-Identifier: Apache-2.0
"""Rounding in the emulator, against exact fractions; the matrix instruction's sums, by hand."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from patchctl.emulator import fp
from patchctl.emulator.mma import Accumulation, m8n8k4

LIMITS = {np.float32: (24, -149, 128), np.float16: (11, -24, 16)}


def rounded(exact: Fraction, kind: type, mode: fp.Round) -> float:
    """The number of the type that a rounding mode picks: the definition, done slowly."""
    digits, lowest, top = LIMITS[kind]
    if exact == 0:
        return 0.0
    size = abs(exact)
    exponent = math.floor(math.log2(size))
    while Fraction(2) ** exponent > size:
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= size:
        exponent += 1
    step = Fraction(2) ** max(exponent - digits + 1, lowest)
    down, rest = divmod(exact, step)
    up = rest > 0
    if mode is fp.Round.NEAREST:
        up = rest * 2 > step or (rest * 2 == step and down % 2 == 1)
    elif mode is fp.Round.ZERO:
        up = rest > 0 and exact < 0
    elif mode is fp.Round.DOWN:
        up = False
    result = (down + up) * step
    largest = (2 - Fraction(2) ** (1 - digits)) * Fraction(2) ** (top - 1)
    if abs(result) <= largest:
        return float(result)
    outward = mode is fp.Round.NEAREST or (mode is fp.Round.UP) == (exact > 0)
    if mode is fp.Round.ZERO or not outward:
        return math.copysign(float(largest), exact)
    return math.copysign(math.inf, exact)


def numbers(kind: type, count: int, seed: int) -> np.ndarray:
    """All sizes, many with few digits set, so that sums cancel and land on ties."""
    rng = np.random.default_rng(seed)
    few = rng.integers(-7, 8, count) * 2.0 ** rng.integers(-14, 12, count)
    wide = rng.standard_normal(count) * 2.0 ** rng.integers(-14, 12, count)
    tiny = rng.integers(-3, 4, count) * 2.0 ** -(24.0 if kind is np.float16 else 140.0)
    pick = rng.integers(0, 3, count)
    return np.choose(pick, [few, wide, tiny]).astype(kind)


@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize("mode", list(fp.Round))
@pytest.mark.filterwarnings("ignore:overflow")
def test_arithmetic_rounds_once(kind: type, mode: fp.Round) -> None:
    a, b, c = (numbers(kind, 600, seed) for seed in (1, 2, 3))
    b[:50] = a[:50]  # squares
    with np.errstate(over="ignore"):
        product = a[50:100] * b[50:100]
    c[50:100] = np.where(np.isfinite(product), -product, 1)  # all but the rounding error cancels
    for got, exact in (
        (fp.fma(a, b, c, mode), lambda x, y, z: x * y + z),
        (fp.add(a, c, mode), lambda x, y, z: x + z),
        (fp.mul(a, b, mode), lambda x, y, z: x * y),
    ):
        for x, y, z, result in zip(a, b, c, got, strict=True):
            want = rounded(exact(*(Fraction(float(v)) for v in (x, y, z))), kind, mode)
            assert float(result) == want, (float(x), float(y), float(z), mode)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
@pytest.mark.parametrize("mode", list(fp.Round))
def test_integers_become_floats_with_one_rounding(dtype: type, mode: fp.Round) -> None:
    rng = np.random.default_rng(5)
    info = np.iinfo(dtype)
    values = rng.integers(info.min, info.max, 300, dtype, endpoint=True)
    values >>= rng.integers(0, info.bits - 2, 300).astype(dtype)
    got = fp.from_integer(values, np.float32, mode)
    for value, result in zip(values.tolist(), got.tolist(), strict=True):
        assert result == rounded(Fraction(value), np.float32, mode)


@pytest.mark.parametrize("mode", list(fp.Round))
@pytest.mark.filterwarnings("ignore:overflow")
def test_float32_becomes_float16_with_one_rounding(mode: fp.Round) -> None:
    values = numbers(np.float32, 2000, 7) * np.float32(16)
    got = fp.narrow(values, np.float16, mode)
    for value, result in zip(values.tolist(), got.tolist(), strict=True):
        assert result == rounded(Fraction(value), np.float16, mode)


def test_flush_keeps_signs_and_normal_numbers() -> None:
    values = np.array([1e-40, -1e-40, 2.0**-126, -0.0, np.nan, np.inf], np.float32)
    flushed = fp.flush(values)
    assert flushed.view(np.uint32).tolist()[:4] == [0, 0x80000000, 0x00800000, 0x80000000]
    assert np.isnan(flushed[4]) and flushed[5] == np.inf


def dot(a: list[float], b: list[float], c: float, model: Accumulation) -> float:
    """a . b + c by the matrix instruction; all its rows and columns are the same."""
    left, right = (np.tile(np.array(x, np.float16), (1, 32, 1)) for x in (a, b))
    start = np.full((1, 32, 8), c, np.float32)
    d = m8n8k4(left, right, start, layouts=("row", "col"), kinds=("f32", "f32"), model=model)
    assert np.unique(d.view(np.uint32)).size == 1
    return float(d[0, 0, 0])


@pytest.mark.parametrize(
    "a,b,c,volta,chain",
    [
        # exact either way
        ([1, 2, 3, 4], [1, 1, 1, 1], 5, 15, 15),
        # 2^24 + 1: no digit for the 1, which is cut off; the chain rounds 2^24 + 1 to even, too
        ([2**12, 1, 0, 0], [2**12, 1, 0, 0], 0, 2**24, 2**24),
        # 2^24 + 3 is cut to 2^24 + 2 and rounded to 2^24 + 4
        ([2**12, 3, 0, 0], [2**12, 1, 0, 0], 0, 2**24 + 2, 2**24 + 4),
        # each small term is cut off on its own before the sum: four times 3/4 of a digit is lost
        ([0.75] * 4, [1] * 4, 2**23, 2**23, 2**23 + 3),
        # negative terms are cut towards zero
        ([-0.75] * 4, [1] * 4, -(2**23), -(2**23), -(2**23) - 3),
        # the accumulator cancels the largest product after the others were aligned to it
        ([2**12, 1, 0, 0], [2**12, 2**-10, 0, 0], -(2**24), 0, 0),
        ([2**12, 3, 0, 0], [2**12, 1, 0, 0], -(2**24), 2, 4),
    ],
)
def test_matrix_sum_cuts_as_published_or_rounds_as_a_chain(
    a: list[float], b: list[float], c: float, volta: float, chain: float
) -> None:
    assert dot(a, b, c, Accumulation.VOLTA) == volta
    assert dot(a, b, c, Accumulation.CHAIN) == chain


@pytest.mark.filterwarnings("ignore:invalid")
def test_matrix_sum_treats_infinities_and_nan_as_addition_does() -> None:
    inf = np.inf
    for a, c, want in (
        ([inf, 1, 1, 1], 0, inf),
        ([inf, -inf, 0, 0], 0, None),
        ([1] * 4, -inf, -inf),
    ):
        for model in Accumulation:
            got = dot(a, [1] * 4, c, model)
            assert math.isnan(got) if want is None else got == want
