# SPDX-License-Identifier: Apache-2.0
"""Packed sequences: lengths that are cut, garbage beside the data, rows of no sequence."""

from __future__ import annotations

import math

import pytest
import torch
from attention import (
    TILES,
    Scoring,
    cumulative,
    int32,
    kvcache,
    randn,
    reference,
    torch_attention,
    varlen,
)
from errors import assert_close, assert_lse_close
from storage import in_turn

pytestmark = pytest.mark.gpu

BATCHES = {
    "odd": ([1, 33, 7, 129, 64], [5, 100, 7, 257, 63]),
    "empty": ([0, 17, 0, 5, 40], [9, 0, 0, 31, 64]),
    "longer-q": ([200, 64, 3], [130, 1, 2]),
    "single": ([1] * 6, [1, 2, 63, 64, 65, 500]),
    "many": ([2] * 300, [5] * 300),
}
causal = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


def check(q, k, v, lengths_q, lengths_k, used, out, lse, scoring) -> None:
    """Everything is packed; `used` is how many keys of a sequence count."""
    rows = in_turn(cumulative(lengths_q).tolist()[:-1], lengths_q)
    keys = in_turn(cumulative(lengths_k).tolist()[:-1], used)
    tokens = rows.take(q[None]), keys.take(k[None]), keys.take(v[None])
    lengths = torch.tensor([lengths_q, used], device=q.device).T
    expected, expected_lse = reference(*tokens, scoring, lengths)
    theirs = torch_attention(*tokens, scoring, lengths)
    seen = (rows.used & (expected_lse > -math.inf).any(dim=1))[..., None, None]
    assert_close(rows.take(out[None]), expected, torch.where(seen, theirs, 0))
    lse = rows.take(lse.T[None, :, :, None])[..., 0].transpose(1, 2)
    assert_lse_close(lse.masked_fill(~rows.used[:, None], -math.inf), expected_lse)


@causal
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES.keys())
@pytest.mark.parametrize("heads", [(6, 1), (4, 4), (8, 2)], ids=lambda h: f"h{h[0]}k{h[1]}")
@pytest.mark.parametrize("head_dim", TILES)
def test_packed_sequences_match_float64(heads, batch, causal, head_dim):
    lengths_q, lengths_k = batch
    q = randn(sum(lengths_q), heads[0], head_dim)
    k, v = (randn(sum(lengths_k), heads[1], head_dim, seed=seed) for seed in (1, 2))
    out, lse = varlen(
        q, k, v, cumulative(lengths_q), cumulative(lengths_k), max(lengths_q), max(lengths_k),
        causal=causal, out=torch.full_like(q, math.nan),
    )  # fmt: skip
    check(q, k, v, lengths_q, lengths_k, lengths_k, out, lse, Scoring(causal))


@causal
@pytest.mark.parametrize("head_dim", TILES)
def test_seqused_k_hides_the_rest_of_each_sequence_and_is_cut_to_it(causal, head_dim):
    lengths_q, lengths_k, used = [3, 50, 9, 20], [70, 140, 64, 10], [65, 0, 1, 4000]
    q = randn(sum(lengths_q), 6, head_dim)
    k, v = (randn(sum(lengths_k), 2, head_dim, seed=seed) for seed in (1, 2))
    for i, start in enumerate(cumulative(lengths_k).tolist()[:-1]):
        k[start + used[i] : start + lengths_k[i]] = math.nan
        v[start + used[i] : start + lengths_k[i]] = math.nan
    out, lse = varlen(
        q, k, v, cumulative(lengths_q), cumulative(lengths_k), max(lengths_q), max(lengths_k),
        causal=causal, seqused_k=int32(used),
    )  # fmt: skip
    check(q, k, v, lengths_q, lengths_k, [65, 0, 1, 10], out, lse, Scoring(causal))


@causal
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("head_dim", TILES)
def test_garbage_past_the_end_does_not_leak(garbage, causal, head_dim):
    capacity, lengths = 400, [1, 64, 65, 333]
    k, v = (randn(len(lengths), capacity, 1, head_dim, seed=seed) for seed in (1, 2))
    clean_k, clean_v = k.clone(), v.clone()
    for i, length in enumerate(lengths):
        k[i, length:] = garbage
        v[i, length:] = garbage
    for rows in (1, 21):
        q = randn(len(lengths), rows, 6, head_dim)
        out, lse = kvcache(q, k, v, causal=causal, seqlens_k=int32(lengths))
        sizes = torch.tensor([[rows, length] for length in lengths], device=q.device)
        expected, expected_lse = reference(q, clean_k, clean_v, Scoring(causal), sizes)
        assert_close(out, expected)
        assert_lse_close(lse, expected_lse)


@pytest.mark.parametrize("num_splits", [1, 3])
def test_zero_tensors_clears_rows_of_no_sequence(num_splits):
    q = randn(12, 2, 128)
    k = randn(5, 1, 128, seed=1)
    at = cumulative([5])
    out, lse = varlen(
        q, k, k, at, at, 5, 5, zero_tensors=True, out=torch.full_like(q, math.nan),
        num_splits=num_splits,
    )  # fmt: skip
    assert bool((out[5:] == 0).all()) and bool((lse[:, 5:] == -math.inf).all())
    assert_close(out[None, :5], reference(q[None, :5], k[None], k[None])[0])


def test_max_seqlen_may_be_more_than_the_longest():
    lengths_q, lengths_k = [5, 130, 1], [9, 200, 33]
    q = randn(sum(lengths_q), 4, 96)
    k, v = (randn(sum(lengths_k), 2, 96, seed=seed) for seed in (1, 2))
    out, lse = varlen(
        q, k, v, cumulative(lengths_q), cumulative(lengths_k), 4096, 100_000, causal=True
    )
    check(q, k, v, lengths_q, lengths_k, lengths_k, out, lse, Scoring(causal=True))


def test_transposed_and_sliced_batches_are_read_in_place():
    q = randn(6, 4, 33, 128).transpose(1, 2)[::2]  # heads before positions, every other batch
    k = randn(70, 3, 2, 128, seed=1).transpose(0, 1)  # positions before batch
    v = randn(3, 2, 140, 128 + 8, seed=2)[..., :128].transpose(1, 2)[:, ::2]
    out = torch.full((4, 3, 33, 128), math.nan, dtype=torch.float16, device=q.device)
    out = out.permute(1, 2, 0, 3)
    kvcache(q, k, v, causal=True, out=out)
    assert_close(out, reference(q, k, v, Scoring(causal=True))[0])
