# SPDX-License-Identifier: Apache-2.0
"""Attention in float64, and how far a kernel's results are from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from patchctl.emulator.memory import GlobalMemory
from patchctl.emulator.problem import Inputs, Problem

Array = npt.NDArray[Any]

NO_WEIGHT_LSE = -float(np.finfo(np.float32).max)
"""Of a part that has keys, none of which has a weight (params.h: kNoWeightLse)."""


def attention(problem: Problem, data: Inputs) -> list[tuple[Array, Array]]:
    """(O [tokens, heads, d], LSE [heads, tokens]) of each sequence.

    A row that sees no key has O = 0 and LSE = -inf. A value that is no number changes the rows that
    see its key, whatever its weight, and no others.
    """
    results = []
    left, right = problem.bounds
    for q16, k16, v16 in zip(data.q, data.k, data.v, strict=True):
        q, k, v = (x.astype(np.float64) for x in (q16, k16, v16))
        tokens, keys = len(q), len(k)
        kv_head = np.arange(problem.heads) // problem.ratio
        scores = np.einsum("ihd,jhd->hij", q, k[:, kv_head]) * problem.softmax_scale
        if problem.softcap:
            scores = problem.softcap * np.tanh(scores / problem.softcap)
        # keys relative to the query's own position, both counted from the end
        away = np.arange(keys)[None, :] - (np.arange(tokens)[:, None] + keys - tokens)
        if data.slopes is not None:
            scores = scores - data.slopes.astype(np.float64)[:, None, None] * np.abs(away)
        seen = (away >= -left) & (away <= right)
        scores = np.where(seen, scores, -np.inf)
        peak = scores.max(axis=2, initial=-np.inf, keepdims=True)
        weights = np.exp(scores - np.where(np.isfinite(peak), peak, 0.0))
        total = weights.sum(axis=2, keepdims=True)
        with np.errstate(divide="ignore"):
            lse = np.where(total > 0, np.log(total) + peak, -np.inf)[..., 0]
        lse = np.where(np.isnan(total[..., 0]), np.nan, lse)
        weights = weights / np.where(total > 0, total, 1.0)
        out = np.einsum("hij,jhd->ihd", weights, np.where(np.isfinite(v), v, 0.0)[:, kv_head])
        for key, head, column in np.argwhere(~np.isfinite(v)):
            heads = np.flatnonzero(kv_head == head)
            with np.errstate(invalid="ignore"):  # +infinity and -infinity
                out[np.ix_(seen[:, key], heads, [column])] += v[key, head, column]
        results.append((out, lse))
    return results


@dataclass(frozen=True)
class Accuracy:
    """Against float64: the largest error, and the root mean square error by the reference's.

    `missing`: values that are NaN or infinite where the reference is not, or the reverse.
    """

    largest: float
    relative: float
    largest_lse: float
    missing: int
    values: int

    @property
    def good(self) -> bool:
        """Within what fp16 rounding of P and O explains."""
        return not self.missing and self.relative < 2e-3 and self.largest_lse < 2e-3

    def __str__(self) -> str:
        return (
            f"max error {self.largest:.2e}, rms relative {self.relative:.2e}, "
            f"LSE {self.largest_lse:.2e}, {self.missing} of {self.values} values missing"
        )


def results(p: Problem, memory: GlobalMemory) -> list[tuple[Array, Array]]:
    """O and LSE of each sequence out of memory."""
    tensors = memory.tensors
    longest = max(p.q_lengths)
    tokens = sum(p.q_lengths) if p.packed else p.batch * longest
    out = tensors["out"].array(np.float16, (tokens, p.heads, p.head_dim))
    return _by_sequence(p, out, tensors["lse"].array(np.float32, (p.rows,)))


def merged(p: Problem, memory: GlobalMemory) -> list[tuple[Array, Array]]:
    """O and LSE of each sequence from the partial results of its splits, in float64."""
    tensors = memory.tensors
    shape = (p.splits, p.rows)
    lse = tensors["lse_parts"].array(np.float32, shape).astype(np.float64)
    parts = tensors["out_parts"].array(np.float32, (*shape, p.head_dim)).astype(np.float64)
    seen = lse != -np.inf
    peak = np.where(seen, lse, -np.inf).max(axis=0)
    weights = np.where(seen, np.exp(lse - np.where(np.isfinite(peak), peak, 0.0)), 0.0)
    total = weights.sum(axis=0)
    with np.errstate(invalid="ignore"):  # what a kernel wrote may be anything
        merged = (np.where(seen[..., None], parts, 0.0) * weights[..., None]).sum(axis=0)
    merged = merged / np.where(total > 0, total, 1.0)[:, None]
    with np.errstate(divide="ignore"):
        whole = np.where(total > 0, np.log(total) + peak, -np.inf)
    whole = np.where(whole <= NO_WEIGHT_LSE / 2, -np.inf, whole)
    if p.packed:
        rows = merged.reshape(p.heads, -1, p.head_dim).transpose(1, 0, 2)
    else:
        rows = merged.reshape(p.batch, p.heads, -1, p.head_dim).transpose(0, 2, 1, 3)
        rows = rows.reshape(-1, p.heads, p.head_dim)
    return _by_sequence(p, rows, whole)


def _by_sequence(p: Problem, out: Array, lse: Array) -> list[tuple[Array, Array]]:
    found, start = [], 0
    longest = max(p.q_lengths)
    for i, n in enumerate(p.q_lengths):
        first = start if p.packed else i * longest
        rows = (
            lse.reshape(p.heads, -1)[:, first : first + n]
            if p.packed
            else lse.reshape(p.batch, p.heads, longest)[i, :, :n]
        )
        found.append((out[first : first + n], rows))
        start += n
    return found


def judge(got: list[tuple[Array, Array]], expected: list[tuple[Array, Array]]) -> Accuracy:
    """Compare all sequences."""
    error = square = reference = largest_lse = 0.0
    missing = values = 0
    for (o, lse), (want, want_lse) in zip(got, expected, strict=True):
        o, lse = o.astype(np.float64), lse.astype(np.float64)
        missing += _other_kind(o, want) + _other_kind(lse, want_lse)
        finite = np.isfinite(o) & np.isfinite(want)
        difference = np.where(finite, o, 0.0) - np.where(finite, want, 0.0)
        values += o.size
        error = max(error, float(np.abs(difference).max(initial=0.0)))
        square += float((difference**2).sum())
        reference += float((np.where(np.isfinite(want), want, 0.0) ** 2).sum())
        both = np.isfinite(lse) & np.isfinite(want_lse)
        gap = np.abs(np.where(both, lse, 0.0) - np.where(both, want_lse, 0.0))
        largest_lse = max(largest_lse, float(gap.max(initial=0.0)))
    relative = float(np.sqrt(square / reference)) if reference else float(np.sqrt(square))
    return Accuracy(error, relative, largest_lse, missing, values)


def _other_kind(got: Array, want: Array) -> int:
    """Values of which one is a number, an infinity or NaN and the other is not."""
    same = (np.isnan(got) & np.isnan(want)) | (np.isfinite(got) & np.isfinite(want)) | (got == want)
    return int((~same).sum())
