# SPDX-License-Identifier: Apache-2.0
"""Dense forward, head size 256, against float64 and against PyTorch's fp16 attention."""

from __future__ import annotations

import math

import pytest
import torch
from attention import (
    HEAD_DIM,
    assert_close,
    assert_lse_close,
    cumulative,
    errors,
    kvcache,
    randn,
    reference,
    torch_attention,
    varlen,
)

pytestmark = pytest.mark.gpu

HEADS = [(6, 1), (8, 8), (8, 2)]
LENGTHS = [(1, 1), (113, 113), (239, 239), (799, 799), (4096, 4096), (4096, 8192)]


def inputs(seqlen_q: int, seqlen_k: int, heads: int, heads_k: int, seed: int = 0):
    return (
        randn(seqlen_q, heads, HEAD_DIM, seed=seed),
        randn(seqlen_k, heads_k, HEAD_DIM, seed=seed + 1),
        randn(seqlen_k, heads_k, HEAD_DIM, seed=seed + 2),
    )


def poisoned(like: torch.Tensor) -> torch.Tensor:
    return torch.full_like(like, math.nan)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("heads", HEADS, ids=lambda h: f"h{h[0]}k{h[1]}")
@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda s: f"{s[0]}x{s[1]}")
def test_both_operators_match_float64(lengths, heads, causal):
    q, k, v = inputs(*lengths, *heads)
    expected, expected_lse = reference(q, k, v, causal=causal)
    theirs = errors(torch_attention(q, k, v, causal=causal), expected)

    out = poisoned(q)
    cu_seqlens = (cumulative([length]) for length in lengths)
    returned, lse = varlen(q, k, v, *cu_seqlens, *lengths, causal=causal, out=out)
    assert returned.data_ptr() == out.data_ptr()
    assert_close(out, expected)
    assert_lse_close(lse, expected_lse)
    ours = errors(out, expected)
    assert ours.relative_l2 <= 2 * theirs.relative_l2 + 1e-6
    assert ours.worst <= 2 * theirs.worst + 1e-6

    cache_out, cache_lse = kvcache(q[None], k[None], v[None], causal=causal, out=poisoned(q[None]))
    assert torch.equal(cache_out[0], out), "both operators run the same kernel"
    assert torch.equal(cache_lse[0], lse)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_output_is_allocated_when_not_given(causal):
    q, k, v = inputs(50, 70, 4, 2)
    out, lse = kvcache(q[None], k[None], v[None], causal=causal)
    assert out.shape == (1, 50, 4, HEAD_DIM) and lse.shape == (1, 4, 50)
    assert_close(out[0], reference(q, k, v, causal=causal)[0])


@pytest.mark.parametrize("lengths", [(7, 5), (300, 64), (129, 1), (40, 0)])
def test_causal_rows_without_keys_are_zero_when_queries_outnumber_keys(lengths):
    q, k, v = inputs(*lengths, 6, 2)
    out, lse = kvcache(q[None], k[None], v[None], causal=True, out=poisoned(q[None]))
    expected, expected_lse = reference(q, k, v, causal=True)
    empty = lengths[0] - lengths[1]
    assert bool((out[0, :empty] == 0).all()) and bool((lse[0, :, :empty] == -math.inf).all())
    assert_close(out[0], expected)
    assert_lse_close(lse[0], expected_lse)


@pytest.mark.parametrize("seqlen_k", [1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 191, 192])
@pytest.mark.parametrize("seqlen_q", [1, 2, 21, 22, 43, 128, 129])
def test_every_tail_is_exact_around_tile_borders(seqlen_q, seqlen_k):
    for causal in (False, True):
        q, k, v = inputs(seqlen_q, seqlen_k, 6, 1)
        out, lse = kvcache(q[None], k[None], v[None], causal=causal, out=poisoned(q[None]))
        expected, expected_lse = reference(q, k, v, causal=causal)
        assert_close(out[0], expected)
        assert_lse_close(lse[0], expected_lse)


def test_batch_uses_each_sequence_length():
    lengths = [0, 1, 77, 128, 300, 999]
    batch, capacity = len(lengths), 300
    q = randn(batch, 19, 8, HEAD_DIM)
    k, v = (randn(batch, capacity, 2, HEAD_DIM, seed=seed) for seed in (1, 2))
    seqlens_k = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    for causal in (False, True):
        out, lse = kvcache(q, k, v, causal=causal, seqlens_k=seqlens_k, out=poisoned(q))
        for i, length in enumerate(lengths):
            used = min(length, capacity)  # a length past the cache's end is cut to it
            expected, expected_lse = reference(q[i], k[i, :used], v[i, :used], causal=causal)
            assert_close(out[i], expected)
            assert_lse_close(lse[i], expected_lse)


@pytest.mark.parametrize("scale", [1e-3, 0.3, 1.0, 4.0])
def test_any_scale_is_applied(scale):
    q, k, v = inputs(130, 200, 3, 1)
    out, lse = kvcache(q[None], k[None], v[None], scale=scale, causal=True)
    expected, expected_lse = reference(q, k, v, scale=scale, causal=True)
    assert_close(out[0], expected)
    assert_lse_close(lse[0], expected_lse)


def test_window_right_zero_means_causal():
    q, k, v = inputs(100, 150, 2, 1)
    causal, _ = kvcache(q[None], k[None], v[None], causal=True)
    window, _ = kvcache(q[None], k[None], v[None], window_size_right=0)
    assert torch.equal(causal, window)


def test_empty_inputs_return_empty_outputs():
    q, k, v = inputs(0, 5, 2, 1)
    out, lse = varlen(q, k, v, cumulative([0]), cumulative([5]), 0, 5)
    assert out.shape == (0, 2, HEAD_DIM) and lse.shape == (2, 0)
    out, lse = varlen(q, k, v, cumulative([]), cumulative([]), 0, 0)
    assert out.shape == (0, 2, HEAD_DIM)
