# SPDX-License-Identifier: Apache-2.0
"""Dense forward at every tile and around its borders, against float64 and PyTorch's fp16."""

from __future__ import annotations

import math

import pytest
import torch
from attention import TILES, Scoring, cumulative, kvcache, randn, reference, torch_attention, varlen
from errors import assert_close, assert_lse_close
from storage import poisoned

pytestmark = pytest.mark.gpu

FULL, CAUSAL = Scoring(), Scoring(causal=True)
HEADS = [(6, 1), (8, 8), (8, 2)]
LENGTHS = [(1, 1), (113, 113), (799, 799), (1024, 4096)]
TAILS_K = [1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 95, 97, 127, 128, 129, 191, 192, 257]
TAILS_Q = [1, 2, 3, 5, 8, 16, 21, 22, 43, 64, 65, 128, 129]


def inputs(seqlen_q: int, seqlen_k: int, heads: int, heads_k: int, head_dim: int):
    """With a batch dimension of 1."""
    q = randn(1, seqlen_q, heads, head_dim)
    return q, *(randn(1, seqlen_k, heads_k, head_dim, seed=seed) for seed in (1, 2))


@pytest.mark.parametrize("head_dim", [*TILES, 8, 40, 80, 160, 248])
@pytest.mark.parametrize("scoring", [FULL, CAUSAL], ids=["full", "causal"])
@pytest.mark.parametrize("heads", HEADS, ids=lambda h: f"h{h[0]}k{h[1]}")
@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda s: f"{s[0]}x{s[1]}")
def test_both_operators_match_float64(lengths, heads, scoring, head_dim):
    q, k, v = inputs(*lengths, *heads, head_dim)
    expected, expected_lse = reference(q, k, v, scoring)
    theirs = torch_attention(q, k, v, scoring)

    out = poisoned(*q.shape)
    starts = (cumulative([length]) for length in lengths)
    returned, lse = varlen(
        q[0], k[0], v[0], *starts, *lengths, out=out[0], num_splits=1, **scoring.arguments()
    )
    assert returned.data_ptr() == out.data_ptr()
    assert_close(out, expected, theirs)
    assert_lse_close(lse[None], expected_lse)

    out, cache_lse = kvcache(q, k, v, num_splits=1, **scoring.arguments())
    assert torch.equal(out[0], returned), "both operators run the same kernel"
    assert torch.equal(cache_lse[0], lse)


@pytest.mark.parametrize("head_dim", [*TILES, 72, 136])
@pytest.mark.parametrize("seqlen_k", TAILS_K)
def test_every_tail_is_exact_around_tile_borders(seqlen_k, head_dim):
    for seqlen_q in TAILS_Q:
        for scoring in (FULL, CAUSAL):
            q, k, v = inputs(seqlen_q, seqlen_k, 6, 1, head_dim)
            out, lse = kvcache(q, k, v, causal=scoring.causal, out=poisoned(*q.shape))
            expected, expected_lse = reference(q, k, v, scoring)
            assert_close(out, expected)
            assert_lse_close(lse, expected_lse)


@pytest.mark.parametrize("lengths", [(7, 5), (300, 64), (129, 1), (40, 0)])
@pytest.mark.parametrize("head_dim", TILES)
def test_causal_rows_without_keys_are_zero_when_queries_outnumber_keys(lengths, head_dim):
    q, k, v = inputs(*lengths, 6, 2, head_dim)
    out, lse = kvcache(q, k, v, causal=True, out=poisoned(*q.shape))
    expected, expected_lse = reference(q, k, v, CAUSAL)
    empty = lengths[0] - lengths[1]
    assert bool((out[0, :empty] == 0).all()) and bool((lse[0, :, :empty] == -math.inf).all())
    assert_close(out, expected)
    assert_lse_close(lse, expected_lse)


@pytest.mark.parametrize("scale", [1e-3, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("head_dim", TILES)
def test_any_scale_is_applied(scale, head_dim):
    q, k, v = inputs(130, 200, 3, 1, head_dim)
    scoring = Scoring(causal=True, scale=scale)
    out, lse = kvcache(q, k, v, **scoring.arguments())
    expected, expected_lse = reference(q, k, v, scoring)
    assert_close(out, expected)
    assert_lse_close(lse, expected_lse)


@pytest.mark.parametrize("head_dim", TILES)
def test_window_right_zero_means_causal(head_dim):
    q, k, v = inputs(100, 150, 2, 1, head_dim)
    causal, _ = kvcache(q, k, v, causal=True)
    window, _ = kvcache(q, k, v, window_size_right=0)
    assert torch.equal(causal, window)


def test_window_past_the_longest_key_means_no_bound():
    """As in FlashAttention-2, which matters where queries outnumber keys."""
    q, k, v = inputs(100, 20, 2, 1, 128)
    full, _ = kvcache(q, k, v)
    for sizes in ({"window_size_right": 20}, {"window_size_left": 20}):
        out, _ = kvcache(q, k, v, **sizes)
        assert_close(out, full.double())


@pytest.mark.parametrize("head_dim", range(8, 257, 8))
def test_columns_past_the_head_size_are_neither_read_nor_written(head_dim):
    whole = [torch.full((1, n, 4, head_dim + 16), math.nan).half() for n in (40, 70, 70)]
    values = inputs(40, 70, 4, 4, head_dim)
    for tensor, value in zip(whole, values, strict=True):
        tensor[..., :head_dim] = value.cpu()
    q, k, v = (tensor.to(values[0].device)[..., :head_dim] for tensor in whole)
    memory = torch.full((1, 40, 4, head_dim + 16), 7.0, dtype=torch.float16, device=q.device)
    kvcache(q, k, v, causal=True, out=memory[..., :head_dim])
    assert bool((memory[..., head_dim:] == 7).all())
    assert_close(memory[..., :head_dim], reference(*values, CAUSAL)[0])
