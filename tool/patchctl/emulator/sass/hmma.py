# SPDX-License-Identifier: Apache-2.0
"""HMMA.884: one step of the product of 8x4 by 4x8 that each quad pair of a warp computes.

ptxas writes an ``mma.m8n8k4`` with float32 accumulators as four steps. All name the same A and B
registers; step s reads and writes the accumulators 2s and 2s+1 of each lane, which are the
elements of row ``l0 + 2(s & 1) + 4 hi``, columns ``2 l1 + 4(s >> 1)`` and the next. A step adds
the four products to the accumulator at once (`mma.dot4`).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import fp, mma
from ..findings import Kind
from ..machine import WARP, Active, Cta, EmulatorError
from ..program import Operation
from .build import Build, operation
from .operands import RZ, both_known

_STEPS = {"STEP0": 0, "STEP1": 1, "STEP2": 2, "STEP3": 3}
Index = NDArray[np.int64]


@cache
def _sources(a_layout: str, b_layout: str, step: int) -> tuple[Index, Index]:
    """Where a lane's row of A and its two columns of B are among the 128 halves of the warp.

    [lane, k] and [lane, column, k]; half i of lane l is 4 l + i.
    """
    lanes = np.arange(WARP)
    pair = lanes >> 2 & 3
    where_a = np.zeros((4, 8, 4), np.int64)
    where_b = np.zeros((4, 4, 8), np.int64)
    half = np.arange(4)
    place = 4 * lanes[:, None] + half
    row, k = mma.a_map(a_layout)
    where_a[pair[:, None], row, k] = place
    k, column = mma.b_map(b_layout)
    where_b[pair[:, None], k, column] = place
    c_row, c_column = mma.c_map("f32")
    first, second = c_column[:, 2 * step], c_column[:, 2 * step + 1]
    b = np.stack([where_b[pair, :, first], where_b[pair, :, second]], axis=1)
    return where_a[pair, c_row[:, 2 * step]], b


@operation("HMMA")
def hmma(build: Build) -> Operation:
    build.require("884", "F32", "F32")
    step = build.choice(_STEPS)
    row = build.destination()
    a_row, a_layout = _fragment(build)
    b_row, b_layout = _fragment(build)
    c_row = build.destination()
    a_index, b_index = _sources(a_layout, b_layout, step)
    sources = [a_row, a_row + 1, b_row, b_row + 1]
    c_rows = [] if c_row == RZ else [c_row, c_row + 1]

    def run(cta: Cta, active: Active) -> None:
        if (
            active is not None
            and (active.reshape(-1, WARP).any(1) != active.reshape(-1, WARP).all(1)).any()
        ):
            raise EmulatorError(f"`{cta.site.text}` at 0x{cta.site.address:x}: part of a warp")
        a = _halves(cta, a_row)
        b = _halves(cta, b_row)
        left = a[:, a_index][:, :, None, :]
        right = b[:, b_index]
        total: NDArray[Any] = np.zeros((cta.warps, WARP, 2), np.float32)
        if c_rows:
            pair = cta.regs[c_row : c_row + 2].view(np.float32)
            total = np.ascontiguousarray(pair.reshape(2, cta.warps, WARP).transpose(1, 2, 0))
        result = fp.canonical(mma.dot4(left, right, total, mma.Accumulation.VOLTA))
        bad = np.isnan(result)
        if bad.any():
            clean = bad & ~np.isnan(total) & ~(np.isnan(left) | np.isnan(right)).any(axis=-1)
            for j in (0, 1):
                mask = clean[..., j].reshape(-1) & cta.mask(active)
                if mask.any():
                    cta.note(Kind.NAN_BORN, mask, "NaN from operands that are none")
        known = both_known(cta.known(*sources), cta.known(*c_rows) if c_rows else True)
        if known is not True:
            # a product spans the quad pair, so one lane's hole is everybody's
            known = np.repeat(known.reshape(-1, WARP).all(axis=1), WARP)
        for j in (0, 1):
            cta.put(row + j, np.ascontiguousarray(result[..., j]).reshape(-1), active, known)

    return run


def _halves(cta: Cta, row: int) -> NDArray[np.float32]:
    """[warp, 4 * lane + half] of the two registers of a fragment."""
    pair = np.ascontiguousarray(cta.regs[row : row + 2].T)
    return pair.view(np.float16).astype(np.float32).reshape(cta.warps, WARP * 4)


def _fragment(build: Build) -> tuple[int, str]:
    register, _, layout = build.raw().partition(".")
    if layout not in ("ROW", "COL") or not register[1:].isdigit():
        raise build.error(f"fragment `{register}.{layout}`")
    return int(register[1:]), layout.lower()
