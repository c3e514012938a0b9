# SPDX-License-Identifier: Apache-2.0
"""More than 2^31 elements, no memory left, lengths and pages that are wrong."""

from __future__ import annotations

import math

import pytest
import torch
from attention import Scoring, cumulative, int32, kvcache, randn, reference, varlen
from errors import assert_close, assert_lse_close

pytestmark = [pytest.mark.gpu, pytest.mark.cuda]
CAUSAL = Scoring(causal=True)


@pytest.fixture(autouse=True)
def give_memory_back():
    yield
    torch.cuda.empty_cache()


def need(gib: int) -> None:
    if torch.cuda.mem_get_info()[0] < gib * 2**30:
        pytest.skip(f"less than {gib} GiB of free GPU memory")


@pytest.mark.parametrize("rows", [1, 40], ids=["decode", "prefill"])
@pytest.mark.parametrize("head_dim", [128, 256])
def test_offsets_past_2_31_elements_to_a_sequence(head_dim, rows):
    need(8)
    capacity, heads_k = 2**26 // head_dim, 8
    both = torch.empty(3, 2 * capacity, heads_k, head_dim, dtype=torch.float16, device="cuda")
    k, v = both[:, :capacity], both[:, capacity:]
    assert k[-1].storage_offset() >= 2**31
    for seed, memory in enumerate((k, v), start=1):
        memory[:, :500] = randn(3, 500, heads_k, head_dim, seed=seed)
    q = randn(3, rows, heads_k, head_dim)
    out, lse = kvcache(q, k, v, causal=True, seqlens_k=int32([500] * 3))
    expected, expected_lse = reference(q, k[:, :500], v[:, :500], CAUSAL)
    assert_close(out, expected)
    assert_lse_close(lse, expected_lse)


@pytest.mark.parametrize("rows", [1, 40], ids=["decode", "prefill"])
@pytest.mark.parametrize("head_dim", [64, 256])
def test_offsets_past_2_31_elements_within_a_sequence(head_dim, rows):
    need(8)
    tokens = torch.empty(600, 2**22, dtype=torch.float16, device="cuda")  # far from each other
    tokens[:, : 4 * head_dim] = randn(600, 4 * head_dim, seed=1)
    k, v = (
        tokens[:, i * 2 * head_dim :][:, : 2 * head_dim].view(1, 600, 2, head_dim) for i in (0, 1)
    )
    q = randn(1, rows, 4, head_dim)
    for num_splits in (1, 3):
        out, lse = kvcache(q, k, v, causal=True, num_splits=num_splits)
        expected, expected_lse = reference(q, k, v, CAUSAL)
        assert_close(out, expected)
        assert_lse_close(lse, expected_lse)


def test_offsets_past_2_31_elements_to_a_page():
    need(8)
    page, heads_k, head_dim, count = 1056, 8, 128, 1100
    pages = torch.empty(count, 2, page, heads_k, head_dim, dtype=torch.float16, device="cuda")
    table = int32([count - 1, 0, count - 3, 1, count - 2, 2]).view(2, 3)
    assert pages[count - 3].storage_offset() > 2**31
    tokens = [randn(2, 3 * page, heads_k, head_dim, seed=seed) for seed in (1, 2)]
    for side, values in enumerate(tokens):
        pages[table.long(), side] = values.view(2, 3, page, heads_k, head_dim)
    for rows, num_splits in ((2, 1), (2, 4), (50, 1)):
        q = randn(2, rows, 16, head_dim)
        out, lse = kvcache(
            q, pages[:, 0], pages[:, 1], block_table=table, causal=True, num_splits=num_splits
        )
        expected, expected_lse = reference(q, *tokens, CAUSAL)
        assert_close(out, expected)
        assert_lse_close(lse, expected_lse)


def test_offsets_past_2_31_elements_to_packed_queries():
    need(16)
    heads, head_dim = 64, 256
    total = 2**31 // (heads * head_dim) + 100
    q = torch.empty(total, heads, head_dim, dtype=torch.float16, device="cuda")
    q[-30:] = randn(30, heads, head_dim)
    k, v = (randn(200, 4, head_dim, seed=seed) for seed in (1, 2))
    at = cumulative([total - 30, 30])
    out, lse = varlen(q, k, v, at, cumulative([0, 200]), total, 200, causal=True)
    expected, expected_lse = reference(q[None, -30:], k[None], v[None], CAUSAL)
    assert bool((out[:-30] == 0).all()), "the first sequence has no keys"
    assert_close(out[None, -30:], expected)
    assert_lse_close(lse[None, :, -30:], expected_lse)


def test_no_memory_for_the_workspace_is_said_and_the_next_call_works():
    q = randn(64, 4, 32, 256)
    k, v = (randn(64, 512, 4, 256, seed=seed) for seed in (1, 2))
    expected, _ = kvcache(q, k, v, num_splits=1)
    out = torch.empty_like(q)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    used, total = torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((used + 32 * 2**20) / total)
    try:  # 128 splits need 1 GiB
        with pytest.raises(RuntimeError, match=r"(?i)out of memory|workspace"):
            kvcache(q, k, v, num_splits=128, out=out)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    again, _ = kvcache(q, k, v, num_splits=1)
    torch.cuda.synchronize()
    assert torch.equal(again, expected)
    assert kvcache(q, k, v, num_splits=128)[0].isfinite().all()


@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("rows", [1, 60], ids=["decode", "prefill"])
def test_entries_of_the_table_past_the_keys_are_not_looked_up(rows, num_splits):
    lengths, page = [1, 16, 17, 100], 16
    pages = randn(20, 2, page, 2, 128, seed=1)
    table = torch.full((4, 12), 2**30, dtype=torch.int32, device="cuda")
    order, first = torch.randperm(20, device="cuda").int(), 0
    tokens = torch.zeros(2, 4, 112, 2, 128, dtype=torch.float16, device="cuda")
    for i, length in enumerate(lengths):
        count = -(-length // page)
        table[i, :count] = order[first : first + count]
        tokens[:, i, : count * page] = pages[table[i, :count].long()].transpose(0, 1).flatten(1, 2)
        first += count
    q = randn(4, rows, 6, 128)
    out, lse = kvcache(
        q, pages[:, 0], pages[:, 1], block_table=table, seqlens_k=int32(lengths), causal=True,
        num_splits=num_splits,
    )  # fmt: skip
    sizes = torch.tensor([[rows, length] for length in lengths], device="cuda")
    expected, expected_lse = reference(q, *tokens, CAUSAL, sizes)
    assert_close(out, expected)
    assert_lse_close(lse, expected_lse)


def test_lengths_past_the_end_of_a_cache_are_cut_to_it():
    q = randn(3, 2, 4, 128)
    k, v = (randn(3, 70, 2, 128, seed=seed) for seed in (1, 2))
    out, _ = kvcache(q, k, v, seqlens_k=int32([70, 71, 2**30]), causal=True)
    assert_close(out, reference(q, k, v, CAUSAL)[0])


def test_empty_batches_and_lengths_return_empty_outputs():
    q, k = randn(0, 2, 64), randn(5, 1, 64)
    out, lse = varlen(q, k, k, cumulative([0]), cumulative([5]), 0, 5)
    assert out.shape == (0, 2, 64) and lse.shape == (2, 0)
    out, lse = varlen(q, k, k, cumulative([]), cumulative([]), 0, 0)
    assert out.shape == (0, 2, 64)
    q, k = randn(2, 3, 4, 64), randn(2, 0, 2, 64)
    out, lse = kvcache(q, k, k, num_splits=2)
    assert bool((out == 0).all()) and bool((lse == -math.inf).all())
