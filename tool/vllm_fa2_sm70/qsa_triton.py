# SPDX-License-Identifier: Apache-2.0
"""QSA as a Triton kernel: where the series' forward does not fit, such as for bfloat16.

Imported only when it is called. It has run on later GPUs only: whether a Triton of today still
compiles for sm_70 is for the caller's version to say.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_fa2_sm70.qsa_exact import Selection

BLOCK = 32
LOG2E = 1.4426950408889634


@triton.jit
def _attend(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, out_ptr, pages_ptr, tokens_ptr, counts_ptr,
    q_row, q_head, k_page, k_token, k_head, v_page, v_token, v_head, out_row, out_head,
    selected, scale_log2,
    HEADS: tl.constexpr, PADDED: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    head = tl.arange(0, PADDED)
    dim = tl.arange(0, DIM)
    heads_exist = head[:, None] < HEADS
    at_head = kv_head * HEADS + head[:, None]
    q = tl.load(q_ptr + row * q_row + at_head * q_head + dim, mask=heads_exist, other=0.0)
    count = tl.load(counts_ptr + row)
    maximum = tl.full([PADDED], -1e30, tl.float32)
    total = tl.zeros([PADDED], tl.float32)
    acc = tl.zeros([PADDED, DIM], tl.float32)
    for start in range(0, count, BLOCK):
        at = start + tl.arange(0, BLOCK)
        seen = at < count
        page = tl.load(pages_ptr + row * selected + at, mask=seen, other=0)
        token = tl.load(tokens_ptr + row * selected + at, mask=seen, other=0)
        k_at = page * k_page + token * k_token + kv_head * k_head
        v_at = page * v_page + token * v_token + kv_head * v_head
        k = tl.load(k_ptr + k_at[:, None] + dim, mask=seen[:, None], other=0.0)
        v = tl.load(v_ptr + v_at[:, None] + dim, mask=seen[:, None], other=0.0)
        score = tl.dot(q, tl.trans(k)) * scale_log2
        score = tl.where(seen[None, :], score, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(score, 1))
        factor = tl.exp2(maximum - new_maximum)
        p = tl.exp2(score - new_maximum[:, None])
        total = total * factor + tl.sum(p, 1)
        # scaled as in the kernels: less of it underflows in 16 bits
        acc = acc * factor[:, None] + tl.dot((p * 2048.0).to(v.dtype), v)
        maximum = new_maximum
    out = acc / tl.where(total == 0.0, 1.0, total * 2048.0)[:, None]
    place = out_ptr + row * out_row + at_head * out_head + dim
    tl.store(place, out.to(out_ptr.dtype.element_ty), mask=heads_exist)


def attend_triton(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, selection: Selection, scale: float, out: Tensor
) -> None:
    """As `qsa_exact.attend_torch`, without gathering."""
    rows, heads, head_dim = q.shape
    kv_heads, selected = k_cache.shape[2], selection.pages.shape[1]
    if rows == 0:
        return
    q, k_cache, v_cache = (
        x if x.stride(-1) == 1 else x.contiguous() for x in (q, k_cache, v_cache)
    )
    result = out if out.stride(-1) == 1 else torch.empty_like(q)
    _attend[(rows, kv_heads)](
        q, k_cache, v_cache, result,
        selection.pages.contiguous(), selection.tokens.contiguous(), selection.counts,
        q.stride(0), q.stride(1), k_cache.stride(0), k_cache.stride(1), k_cache.stride(2),
        v_cache.stride(0), v_cache.stride(1), v_cache.stride(2), result.stride(0),
        result.stride(1), selected, scale * LOG2E,
        HEADS=heads // kv_heads, PADDED=16, DIM=head_dim, BLOCK=BLOCK,
    )  # fmt: skip
    if result is not out:
        out.copy_(result)
