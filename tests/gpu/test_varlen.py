# SPDX-License-Identifier: Apache-2.0
"""Packed sequences, strided inputs, garbage beside the data."""

from __future__ import annotations

import math

import pytest
import torch
from attention import (
    HEAD_DIM,
    assert_close,
    assert_lse_close,
    cumulative,
    kvcache,
    randn,
    reference,
    split_reference,
    varlen,
)

pytestmark = pytest.mark.gpu

BATCHES = {
    "odd": ([1, 33, 7, 129, 64], [5, 100, 7, 257, 63]),
    "empty": ([0, 17, 0, 5, 40], [9, 0, 0, 31, 64]),
    "longer-q": ([200, 64, 3], [130, 1, 2]),
    "single": ([1] * 6, [1, 2, 63, 64, 65, 500]),
}


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES.keys())
@pytest.mark.parametrize("heads", [(6, 1), (4, 4), (8, 2)], ids=lambda h: f"h{h[0]}k{h[1]}")
def test_packed_sequences_match_float64(heads, batch, causal):
    lengths_q, lengths_k = batch
    q = randn(sum(lengths_q), heads[0], HEAD_DIM)
    k, v = (randn(sum(lengths_k), heads[1], HEAD_DIM, seed=seed) for seed in (1, 2))
    out, lse = varlen(
        q, k, v, cumulative(lengths_q), cumulative(lengths_k), max(lengths_q), max(lengths_k),
        causal=causal, out=torch.full_like(q, math.nan),
    )  # fmt: skip
    expected, expected_lse = split_reference(q, k, v, lengths_q, lengths_k, causal=causal)
    assert_close(out, expected)
    assert_lse_close(lse, expected_lse)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_seqused_k_hides_the_rest_of_each_sequence(causal):
    lengths_q, lengths_k, used = [3, 50, 9, 20], [70, 140, 64, 10], [65, 0, 1, 4000]
    q = randn(sum(lengths_q), 6, HEAD_DIM)
    k, v = (randn(sum(lengths_k), 2, HEAD_DIM, seed=seed) for seed in (1, 2))
    expected, expected_lse = split_reference(q, k, v, lengths_q, lengths_k, used, causal=causal)
    for i, start in enumerate(cumulative(lengths_k).tolist()[:-1]):
        k[start + used[i] : start + lengths_k[i]] = math.nan
        v[start + used[i] : start + lengths_k[i]] = math.nan
    out, lse = varlen(
        q, k, v, cumulative(lengths_q), cumulative(lengths_k), max(lengths_q), max(lengths_k),
        causal=causal, seqused_k=torch.tensor(used, dtype=torch.int32, device="cuda"),
    )  # fmt: skip
    assert_close(out, expected)
    assert_lse_close(lse, expected_lse)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf])
def test_garbage_past_the_end_does_not_leak(garbage, causal):
    capacity, lengths = 400, [1, 64, 65, 333]
    q = randn(len(lengths), 21, 6, HEAD_DIM)
    k, v = (randn(len(lengths), capacity, 1, HEAD_DIM, seed=seed) for seed in (1, 2))
    for i, length in enumerate(lengths):
        k[i, length:] = garbage
        v[i, length:] = garbage
    seqlens_k = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    out, lse = kvcache(q, k, v, causal=causal, seqlens_k=seqlens_k)
    for i, length in enumerate(lengths):
        expected, expected_lse = reference(q[i], k[i, :length], v[i, :length], causal=causal)
        assert_close(out[i], expected)
        assert_lse_close(lse[i], expected_lse)


def test_memory_outside_the_output_rows_is_not_written():
    lengths = [5, 130, 1]
    q = randn(sum(lengths) + 9, 4, HEAD_DIM)  # 9 rows belong to no sequence
    k, v = (randn(sum(lengths), 2, HEAD_DIM, seed=seed) for seed in (1, 2))
    out = torch.full((q.shape[0], 4, 2 * HEAD_DIM), 7.0, dtype=torch.float16, device="cuda")
    cu_seqlens = cumulative(lengths)
    varlen(q, k, v, cu_seqlens, cu_seqlens, 130, 130, causal=True, out=out[..., :HEAD_DIM])
    assert bool((out[..., HEAD_DIM:] == 7).all()) and bool((out[sum(lengths) :] == 7).all())
    assert_close(
        out[: sum(lengths), :, :HEAD_DIM],
        split_reference(q[: sum(lengths)], k, v, lengths, lengths, causal=True)[0],
    )


def test_zero_tensors_clears_rows_of_no_sequence():
    q = randn(12, 2, HEAD_DIM)
    k = randn(5, 1, HEAD_DIM, seed=1)
    cu_seqlens = cumulative([5])
    out, lse = varlen(
        q, k, k, cu_seqlens, cu_seqlens, 5, 5, zero_tensors=True, out=torch.full_like(q, math.nan)
    )
    assert bool((out[5:] == 0).all()) and bool((lse[:, 5:] == -math.inf).all())
    assert_close(out[:5], reference(q[:5], k, k)[0])


def test_slices_of_one_fused_tensor_are_read_in_place():
    heads, heads_k, tokens = 6, 2, 300
    fused = randn(tokens, heads + 2 * heads_k, HEAD_DIM)
    q, k, v = fused.split([heads, heads_k, heads_k], dim=1)
    assert not q.is_contiguous()
    cu_seqlens = cumulative([100, 200])
    out, _ = varlen(q, k, v, cu_seqlens, cu_seqlens, 200, 200, causal=True)
    assert_close(out, split_reference(q, k, v, [100, 200], [100, 200], causal=True)[0])


def test_transposed_and_sliced_batches_are_read_in_place():
    q = randn(6, 4, 33, HEAD_DIM).transpose(1, 2)[::2]  # heads before positions, every other batch
    k = randn(70, 3, 2, HEAD_DIM, seed=1).transpose(0, 1)  # positions before batch
    v = randn(3, 2, 140, HEAD_DIM + 8, seed=2)[..., :HEAD_DIM].transpose(1, 2)[:, ::2]
    out = torch.full((4, 3, 33, HEAD_DIM), math.nan, dtype=torch.float16, device="cuda")
    out = out.permute(1, 2, 0, 3)
    kvcache(q, k, v, causal=True, out=out)
    for i in range(3):
        assert_close(out[i], reference(q[i], k[i], v[i], causal=True)[0])
