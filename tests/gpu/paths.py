# SPDX-License-Identifier: Apache-2.0
"""One sequence through each kind of kernel, for what has to hold on all of them."""

from __future__ import annotations

import random
from dataclasses import dataclass

import storage
import torch
from attention import Scoring, kvcache
from torch import Tensor


@dataclass(frozen=True)
class Path:
    """`rows`: how many of the last queries are taken (0: all). `bounded`: with a left window that
    hides nothing, which the kernels without one do not serve."""

    name: str
    rows: int = 0
    page: int = 0
    num_splits: int = 1
    bounded: bool = False

    def __str__(self) -> str:
        return self.name


PREFILL = (
    Path("prefill"),
    Path("paged prefill", page=48),
    Path("general prefill", bounded=True),
    Path("split prefill", num_splits=3, page=16),
)
DECODE = (
    Path("decode", rows=1, bounded=True),
    Path("split decode", rows=2, num_splits=3),
    Path("paged split decode", rows=3, num_splits=5, page=64),
)
PATHS = PREFILL + DECODE


def attend(
    path: Path, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The queries [1, rows, Hq, D] that were taken, and out and LSE of them, from `fwd_kvcache`.

    q, k and v are [S, heads, D].
    """
    scoring = scoring or Scoring()
    q = q[-path.rows :][None]
    length = k.shape[0]
    arguments = scoring.arguments() | {"num_splits": path.num_splits}
    if path.bounded and scoring.window[0] < 0:
        arguments["window_size_left"] = length - 1
        if arguments["window_size_right"] < 0 and not scoring.causal:
            # no query is left of the first key here, so this hides nothing either
            assert q.shape[1] <= length
    if path.page:
        pages = storage.Pages.shuffled(
            random.Random(1), path.page, [length], -(-length // path.page)
        )
        rows = storage.in_pages(pages.table, path.page, [length])
        keys = storage.key_storage(pages.count, path.page, *k.shape[1:], "paged")
        for memory, values in zip(keys[:2], (k, v), strict=True):
            rows.put(memory, values[None])
        arguments["block_table"] = pages.table
        arguments["seqlens_k"] = torch.tensor([length], dtype=torch.int32, device=q.device)
    else:
        keys = (k[None], v[None])
    out, lse = kvcache(q, *keys[:2], out=storage.poisoned(*q.shape), **arguments)
    return q, out, lse
