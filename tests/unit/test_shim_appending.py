# SPDX-License-Identifier: Apache-2.0
"""Appending in torch's operations against one element at a time."""

from __future__ import annotations

import pytest
import torch

from vllm_fa2_sm70.appending import Cache, Rotary, append

HEADS, DIM, CAPACITY, PAGE = 2, 40, 32, 16


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).half()


def turned(x: torch.Tensor, position: int, rotary: Rotary) -> torch.Tensor:
    """One token's heads, one pair of dimensions at a time."""
    out, size = x.clone(), rotary.cos.shape[1]
    for i in range(size):
        a, b = (2 * i, 2 * i + 1) if rotary.interleaved else (i, i + size)
        cos, sin = rotary.cos[position, i].float(), rotary.sin[position, i].float()
        out[:, a] = (x[:, a].float() * cos - x[:, b].float() * sin).half()
        out[:, b] = (x[:, a].float() * sin + x[:, b].float() * cos).half()
    return out


@pytest.mark.parametrize("rotary", ["none", "interleaved", "halves"])
@pytest.mark.parametrize("kind", ["plain", "indices", "left padding", "pages"])
@pytest.mark.parametrize("new", [1, 5, 40])
def test_rows_stand_where_they_belong_and_the_rest_is_unchanged(
    new: int, kind: str, rotary: str
) -> None:
    torch.manual_seed(0)
    lengths = torch.tensor([0, 15, 30, 32], dtype=torch.int32)
    batch = len(lengths)
    table = torch.randperm(9)[: 2 * batch].reshape(batch, 2).int() if kind == "pages" else None
    index = torch.tensor([5, 0, 3, 1], dtype=torch.int32) if kind == "indices" else None
    leftpad = torch.tensor([2, 3, 0, 9], dtype=torch.int32) if kind == "left padding" else None
    shape = (9, PAGE, HEADS, DIM) if kind == "pages" else (6, CAPACITY, HEADS, DIM)
    k, v = half(batch, new, HEADS, DIM), half(batch, new, HEADS, DIM)
    turn = None
    if rotary != "none":
        turn = Rotary(half(CAPACITY, 8), half(CAPACITY, 8), rotary == "interleaved")

    cache = Cache(half(*shape), half(*shape), table, index)
    expected_k, expected_v = cache.kcache.clone(), cache.vcache.clone()
    for i in range(batch):
        for token in range(new):
            row = int(lengths[i]) + token
            if row >= CAPACITY or (leftpad is not None and row < int(leftpad[i])):
                continue
            entry = i if index is None else int(index[i])
            place = row
            if table is not None:
                entry, place = int(table[i, row // PAGE]), row % PAGE
            expected_k[entry, place] = turned(k[i, token], row, turn) if turn else k[i, token]
            expected_v[entry, place] = v[i, token]

    append(cache, k, v, lengths, leftpad, turn)
    assert torch.equal(cache.kcache, expected_k)
    assert torch.equal(cache.vcache, expected_v)


def test_positions_past_the_tables_use_their_last_row() -> None:
    rotary = Rotary(half(4, 8), half(4, 8), True)
    x = half(1, 2, HEADS, DIM)
    given = rotary.apply(x, torch.tensor([[2, 9]]))
    assert torch.equal(given[0, 1], turned(x[0, 1], 3, rotary))
    assert torch.equal(given[0, 0], turned(x[0, 0], 2, rotary))
