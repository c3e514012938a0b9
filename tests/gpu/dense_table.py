# SPDX-License-Identifier: Apache-2.0
"""Plain attention at longer lengths, for each tile."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from attention import (
    DEVICE,
    TILES,
    Scoring,
    cumulative,
    kvcache,
    randn,
    reference,
    torch_attention,
    varlen,
)
from errors import complaints, errors, lse_error
from markdown import table

LENGTHS = [(1, 1), (113, 113), (799, 799), (4096, 4096), (4096, 8192), (1, 8192)]
HEADS = [(6, 1), (8, 8)]
COLUMNS = [
    "head size", "Q", "KV", "Hq/Hkv", "causal", "relative L2", "worst error",
    "PyTorch: relative L2", "worst error", "LSE error", "same bits twice", "graph = eager",
]  # fmt: skip


def measure() -> tuple[list[str], bool]:
    rows, good = [], True
    for head_dim in TILES:
        for lengths in LENGTHS if DEVICE == "cuda" else LENGTHS[:3]:
            for heads in HEADS:
                for causal in (False, True):
                    row, row_good = _measure(lengths, heads, head_dim, causal)
                    rows.append(row)
                    good &= row_good
    return table(COLUMNS, rows), good


def _measure(
    lengths: tuple[int, int], heads: tuple[int, int], head_dim: int, causal: bool
) -> tuple[list[str], bool]:
    q = randn(1, lengths[0], heads[0], head_dim)
    k, v = (randn(1, lengths[1], heads[1], head_dim, seed=seed) for seed in (1, 2))
    starts = [cumulative([length]) for length in lengths]
    scoring = Scoring(causal)
    expected, expected_lse = reference(q, k, v, scoring)

    def call() -> tuple[torch.Tensor, torch.Tensor]:
        return varlen(q[0], k[0], v[0], *starts, *lengths, causal=causal)

    out, lse = call()
    ours = errors(out[None], expected)
    theirs = errors(torch_attention(q, k, v, scoring), expected)
    lse_found, lse_complaints = lse_error(lse[None], expected_lse)
    same = torch.equal(call()[0], out)
    cache_out, _ = kvcache(q, k, v, causal=causal)
    found = complaints(errors(cache_out, expected), theirs, head_dim)
    graph = _graph_equals(call, out) if DEVICE == "cuda" else True
    found += complaints(ours, theirs, head_dim) + lse_complaints
    row = [
        str(head_dim), str(lengths[0]), str(lengths[1]), f"{heads[0]}/{heads[1]}",
        "yes" if causal else "no", f"{ours.relative_l2:.2e}", f"{ours.worst:.2e}",
        f"{theirs.relative_l2:.2e}", f"{theirs.worst:.2e}", f"{lse_found:.1e}",
        "yes" if same else "**no**", "yes" if graph else "**no**",
    ]  # fmt: skip
    if found:
        row[0] = f"**{row[0]}: {'; '.join(found)}**"
    return row, not found and same and graph


def _graph_equals(
    call: Callable[[], tuple[torch.Tensor, torch.Tensor]], eager: torch.Tensor
) -> bool:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured, _ = call()
    captured.fill_(math.nan)
    graph.replay()
    torch.cuda.synchronize()
    return torch.equal(captured, eager)
