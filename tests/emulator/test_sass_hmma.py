# SPDX-License-Identifier: Apache-2.0
"""HMMA.884 in four steps against plain matrix products, with the fragments written out here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sassrig import Rig

from patchctl.emulator.findings import Kind

Array = np.ndarray[Any, Any]
LANES = range(32)


def steps(a_layout: str, b_layout: str, c: str = "R8") -> list[str]:
    """D in R16.., A in R2 and R3, B in R4 and R5, C in R8.. or RZ."""
    return [
        f"HMMA.884.F32.F32.STEP{s} R{16 + 2 * s}, R2.reuse.{a_layout}, R4.{b_layout}, "
        + (c if c == "RZ" else f"R{8 + 2 * s}")
        for s in range(4)
    ]


def quad_pair(lane: int) -> int:
    return lane >> 2 & 3


def outer(lane: int) -> int:
    """Row of A (.ROW) or column of B (.COL) of a lane."""
    return (lane & 3) + 4 * (lane >> 4)


def a_place(layout: str, lane: int, i: int) -> tuple[int, int]:
    if layout == "ROW":
        return outer(lane), i
    return i + 4 * (lane >> 4), lane & 3


def b_place(layout: str, lane: int, i: int) -> tuple[int, int]:
    if layout == "COL":
        return i, outer(lane)
    return lane & 3, i + 4 * (lane >> 4)


def c_place(lane: int, i: int) -> tuple[int, int]:
    row = (lane & 1) + 2 * (i >> 1 & 1) + 4 * (lane >> 4)
    return row, (i & 1) + 2 * (lane >> 1 & 1) + 4 * (i >> 2)


def load(rig: Rig, a: Array, b: Array, c: Array | None, layouts: tuple[str, str]) -> Rig:
    """a [4, 8, 4], b [4, 4, 8], c [4, 8, 8], one product a quad pair."""
    left, right = np.zeros((32, 4), np.float16), np.zeros((32, 4), np.float16)
    total = np.zeros((32, 8), np.float32)
    for lane in LANES:
        for i in range(4):
            left[lane, i] = a[quad_pair(lane)][a_place(layouts[0], lane, i)]
            right[lane, i] = b[quad_pair(lane)][b_place(layouts[1], lane, i)]
        for i in range(8):
            total[lane, i] = 0 if c is None else c[quad_pair(lane)][c_place(lane, i)]
    for row in (0, 1):
        rig.set(**{f"R{2 + row}": left.view(np.uint32)[:, row]})
        rig.set(**{f"R{4 + row}": right.view(np.uint32)[:, row]})
    if c is not None:
        for i in range(8):
            rig.set(**{f"R{8 + i}": total.view(np.uint32)[:, i]})
    return rig


def result(rig: Rig) -> Array:
    found = np.full((4, 8, 8), np.nan)
    for lane in LANES:
        for i in range(8):
            found[quad_pair(lane)][c_place(lane, i)] = rig.single(16 + i, lane)
    return found


@pytest.mark.parametrize(
    "layouts", [("ROW", "COL"), ("ROW", "ROW"), ("COL", "COL"), ("COL", "ROW")]
)
@pytest.mark.parametrize("start", ["R8", "RZ"])
def test_four_steps_are_the_product(layouts: tuple[str, str], start: str) -> None:
    rng = np.random.default_rng(1)
    a = rng.integers(-30, 30, (4, 8, 4)).astype(float)
    b = rng.integers(-30, 30, (4, 4, 8)).astype(float)
    c = None if start == "RZ" else rng.integers(-900, 900, (4, 8, 8)).astype(float)
    rig = load(Rig(*steps(*layouts, c=start)), a, b, c, layouts).run()
    np.testing.assert_array_equal(result(rig), a @ b + (0 if c is None else c))
    assert rig.kinds == set()


def one_sum(products: list[float], c: float) -> float:
    """Every element of D is c plus these products (of float16 with 1)."""
    a = np.broadcast_to(np.array(products), (4, 8, 4))
    b = np.ones((4, 4, 8))
    rig = load(Rig(*steps("ROW", "COL")), a, b, np.full((4, 8, 8), c), ("ROW", "COL")).run()
    (value,) = set(result(rig).ravel().tolist())
    return float(value)


@pytest.mark.parametrize(
    ("products", "c", "expected"),
    [
        # addends are cut at the last bit of the largest one: four ones vanish beside 2^24 + 2,
        # whose unit is 2, though their sum is 4
        ([1, 1, 1, 1], 2.0**24 + 2, 2.0**24 + 2),
        ([3, 0, 0, 0], 2.0**24, 2.0**24 + 2),
        ([-1, 0, 0, 0], 2.0**24, 2.0**24),
        # the sum is cut toward zero, never rounded: 2^23 + 2^23 + 1
        ([1, 0, 0, 0], 2.0**24 - 1, 2.0**24),
        ([1, 1, 1, 0], 2.0**24 - 1, 2.0**24 + 2),
        ([-1, -1, -1, 0], -(2.0**24 - 1), -(2.0**24) - 2),
        # subnormal float32 survive
        ([2.0**-24, 0, 0, 0], -(2.0**-24) + 2.0**-47, 2.0**-47),
        ([0, 0, 0, 0], 2.0**-140, 2.0**-140),
    ],
)
def test_sum_is_aligned_and_cut_as_published(
    products: list[float], c: float, expected: float
) -> None:
    assert one_sum(products, c) == expected


def test_nan_born_in_a_product_is_found() -> None:
    a = np.zeros((4, 8, 4))
    b = np.zeros((4, 4, 8))
    b[0, 0, 0] = np.inf
    rig = load(Rig(*steps("ROW", "COL")), a, b, np.zeros((4, 8, 8)), ("ROW", "COL")).run()
    assert rig.kinds == {Kind.NAN_BORN}


def test_operand_that_nobody_wrote_taints_the_result() -> None:
    rig = load(
        Rig(*steps("ROW", "COL"), "FSETP.GT.AND P0, PT, R16, RZ, PT", "@P0 MOV R0, RZ"),
        np.ones((4, 8, 4)),
        np.ones((4, 4, 8)),
        np.ones((4, 8, 8)),
        ("ROW", "COL"),
    )
    rig.cta.valid[3, 5] = False
    rig.cta.all_valid[3] = False
    assert rig.run().kinds == {Kind.UNINITIALISED_REGISTER}
