# SPDX-License-Identifier: Apache-2.0
"""How far a result is from the reference, and how far it may be."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

RELATIVE_L2_BOUND = 4e-4
WORST_BOUND = 1.5e-3
# Where PyTorch is exact by chance, one rounding may still go the other way.
RELATIVE_L2_FLOOR, WORST_FLOOR = 2e-5, 2.5e-4
LSE_BOUND = 2e-5


@dataclass(frozen=True)
class Errors:
    """`relative_l2`: of the whole tensor. `worst`: the largest |error| / max(1, |reference|).
    `worst_row`: the largest relative L2 of a row, which no larger rows can hide."""

    relative_l2: float
    worst: float
    worst_row: float = 0.0

    def finite(self) -> bool:
        return all(map(math.isfinite, (self.relative_l2, self.worst, self.worst_row)))


def errors(out: Tensor, expected: Tensor) -> Errors:
    if out.numel() == 0:
        return Errors(0.0, 0.0)
    difference = (out.double() - expected).abs()
    rows = difference.norm(dim=-1) / expected.norm(dim=-1)
    norm = expected.norm()
    found = torch.stack([
        difference.norm() / torch.where(norm > 0, norm, 1),
        (difference / expected.abs().clamp(min=1)).max(),
        torch.where(difference.sum(dim=-1) == 0, 0, rows).max(),
    ])  # fmt: skip
    return Errors(*found.tolist())


def row_bound(head_dim: int) -> float:
    """For unit-normal V. The fewer columns a row has, the more of them can cancel out."""
    return 1e-3 * (1 + 24 / head_dim)


def complaints(ours: Errors, theirs: Errors | None, head_dim: int) -> list[str]:
    """Which bounds the errors break; `theirs` are those of PyTorch's fp16 attention."""
    found = []
    if not ours.finite():
        return [f"NaN or infinity in the output: {ours}"]
    if ours.relative_l2 > RELATIVE_L2_BOUND:
        found.append(f"relative L2 {ours.relative_l2:.2e} > {RELATIVE_L2_BOUND:.0e}")
    if ours.worst > WORST_BOUND:
        found.append(f"worst error {ours.worst:.2e} > {WORST_BOUND:.1e}")
    if ours.worst_row > row_bound(head_dim):
        found.append(f"relative L2 of a row {ours.worst_row:.2e} > {row_bound(head_dim):.1e}")
    if theirs is None:
        return found
    if ours.relative_l2 > 2 * theirs.relative_l2 + RELATIVE_L2_FLOOR:
        found.append(
            f"relative L2 {ours.relative_l2:.2e}, over twice PyTorch's {theirs.relative_l2:.2e}"
        )
    if ours.worst > 2 * theirs.worst + WORST_FLOOR:
        found.append(f"worst error {ours.worst:.2e}, over twice PyTorch's {theirs.worst:.2e}")
    return found


def lse_error(lse: Tensor, expected: Tensor, softcap: float = 0.0) -> tuple[float, list[str]]:
    """The largest |error| / max(1, |reference|), and what is wrong."""
    if lse.dtype != torch.float32 or lse.shape != expected.shape:
        return math.inf, [f"LSE is {lse.dtype}{list(lse.shape)}, not float32{list(expected.shape)}"]
    if lse.numel() == 0:
        return 0.0, []
    empty = expected == -math.inf
    difference = (lse.double() - expected).abs() / expected.abs().clamp(min=1)
    difference = torch.where(empty, torch.where(lse == -math.inf, 0, math.inf), difference)
    worst = difference.max().item()
    bound = LSE_BOUND + 2e-6 * softcap
    return worst, [] if worst <= bound else [f"LSE error {worst:.1e} > {bound:.0e}"]


def assert_close(out: Tensor, expected: Tensor, theirs: Tensor | None = None) -> None:
    """`theirs`: what PyTorch's fp16 attention gives."""
    assert out.dtype == torch.float16
    assert out.shape == expected.shape
    bound = None if theirs is None else errors(theirs, expected)
    assert not complaints(errors(out, expected), bound, out.shape[-1])


def assert_lse_close(lse: Tensor, expected: Tensor, softcap: float = 0.0) -> None:
    assert not lse_error(lse, expected, softcap)[1]
