# SPDX-License-Identifier: Apache-2.0
"""HMMA.884: one step of the product of 8x4 by 4x8 that each quad pair of a warp computes.

ptxas writes an ``mma.m8n8k4`` with float32 accumulators as four steps. All name the same A and B
registers; step s reads and writes the accumulators 2s and 2s+1 of each lane, which are the
elements of row ``l0 + 2(s & 1) + 4 hi``, columns ``2 l1 + 4(s >> 1)`` and the next. A step adds
the four products to the accumulator at once (`mma.Accumulation.VOLTA`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from patchctl.emulator import fp, mma
from patchctl.emulator.findings import Kind
from patchctl.emulator.machine import WARP, Active, Cta, EmulatorError
from patchctl.emulator.program import Operation
from patchctl.emulator.sass.build import Build, operation
from patchctl.emulator.sass.operands import RZ, both_known

_STEPS = {"STEP0": 0, "STEP1": 1, "STEP2": 2, "STEP3": 3}


@operation("HMMA")
def hmma(build: Build) -> Operation:
    build.require("884", "F32", "F32")
    step = build.choice(_STEPS)
    row = build.destination()
    a_row, a_layout = _fragment(build)
    b_row, b_layout = _fragment(build)
    c_row = build.destination()
    layouts, elements = (a_layout, b_layout), (2 * step, 2 * step + 1)
    sources = [a_row, a_row + 1, b_row, b_row + 1]
    c_rows = [] if c_row == RZ else [c_row, c_row + 1]

    def run(cta: Cta, active: Active) -> None:
        if active is not None:
            _whole_warps(cta, active)
        a, b = _halves(cta, a_row), _halves(cta, b_row)
        if c_rows:
            c = cta.regs[c_row : c_row + 2].view(np.float32)
        else:
            c = np.zeros((2, cta.threads), np.float32)
        result = fp.canonical(
            mma.fragment_product(a, b, c, layouts, "f32", elements, mma.Accumulation.VOLTA)
        )
        if (result != result).any():
            _watch(cta, active, result, a, b, c)
        known = both_known(cta.known(*sources), cta.known(*c_rows))
        if known is not True:
            # a product spans the quad pair, so one lane's hole is everybody's
            known = np.repeat(known.reshape(-1, WARP).all(axis=1), WARP)
        for j in (0, 1):
            cta.put(row + j, result[j], active, known)

    return run


def _whole_warps(cta: Cta, active: NDArray[np.bool_]) -> None:
    lanes = (active | ~cta.alive).reshape(-1, WARP)
    some = active.reshape(-1, WARP).any(axis=1)
    if (some & ~lanes.all(axis=1)).any():
        raise EmulatorError(f"`{cta.site.text}` at 0x{cta.site.address:x}: part of a warp")


def _watch(cta: Cta, active: Active, result: NDArray[Any], *sources: NDArray[Any]) -> None:
    """A NaN is born where the warp's operands had none. (The quad pair is not looked at.)"""
    old = np.zeros(cta.warps, bool)
    for source in sources[:2]:
        old |= np.isnan(source).reshape(cta.warps, -1).any(axis=1)
    accumulators = np.isnan(sources[2])
    born = np.isnan(result) & ~accumulators & ~np.repeat(old, WARP)
    mask = born.any(axis=0) & cta.mask(active)
    if mask.any():
        cta.note(Kind.NAN_BORN, mask, "NaN from operands that are none")


def _halves(cta: Cta, row: int) -> NDArray[np.float16]:
    """Half 4 t + i of thread t, from the two registers of a fragment."""
    return np.ascontiguousarray(cta.regs[row : row + 2].T).view(np.float16).reshape(-1)


def _fragment(build: Build) -> tuple[int, str]:
    register, _, layout = build.raw().partition(".")
    if layout not in ("ROW", "COL") or not register[1:].isdigit():
        raise build.error(f"fragment `{register}.{layout}`")
    return int(register[1:]), layout.lower()
