# SPDX-License-Identifier: Apache-2.0
"""Where tensors lie in memory: strided views, packed sequences, caches, pages; poison elsewhere.

Sequences are [batch, length, heads, D] here, and `rows` say in which (block, row) of the storage
each of their tokens stands: one block for packed sequences, one a batch entry, one a page.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from attention import DEVICE, int32
from torch import Tensor

POISON = 0x7E5A
"""Bits of a half: a NaN that arithmetic does not give, so a write over it shows."""


def poisoned(*shape: int) -> Tensor:
    return torch.full(shape, POISON, dtype=torch.int16, device=DEVICE).view(torch.float16)


def bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int16)


@dataclass(frozen=True)
class Rows:
    """`block` and `row` of each token, [batch, length], and which of them exist (`used`)."""

    block: Tensor
    row: Tensor
    used: Tensor

    def put(self, storage: Tensor, values: Tensor) -> None:
        """Writes the tokens into [blocks, rows, heads, D]."""
        storage[self.block[self.used], self.row[self.used]] = values[self.used]

    def take(self, storage: Tensor) -> Tensor:
        """The tokens, and zeros where there are none."""
        return torch.where(self.used[..., None, None], storage[self.block, self.row], 0)

    def of(self, used: Tensor) -> Rows:
        return Rows(self.block, self.row, used)


def between(length: int, first: list[int], last: list[int]) -> Tensor:
    """True for the tokens from `first` to before `last` of each sequence: [batch, length]."""
    token = torch.arange(length, device=DEVICE)[None]
    start, end = (torch.tensor(x, device=DEVICE)[:, None] for x in (first, last))
    return (token >= start) & (token < end)


def in_turn(starts: list[int], lengths: list[int]) -> Rows:
    """Sequences that follow each other in one block."""
    longest = max(lengths)
    used = between(longest, [0] * len(lengths), lengths)
    row = torch.tensor(starts, device=DEVICE)[:, None] + torch.arange(longest, device=DEVICE)
    row = torch.where(used, row, 0)
    return Rows(torch.zeros_like(row), row, used)


def in_blocks(blocks: list[int], leftpad: list[int], lengths: list[int]) -> Rows:
    """Sequences that have a block each."""
    rows = in_turn(leftpad, lengths)
    block = torch.tensor(blocks, device=DEVICE)[:, None].expand_as(rows.row)
    return Rows(block, rows.row, rows.used)


def in_pages(table: Tensor, page_size: int, lengths: list[int]) -> Rows:
    rows = in_turn([0] * len(lengths), lengths)
    block = torch.gather(table.long(), 1, rows.row // page_size)
    return Rows(torch.where(rows.used, block, 0), rows.row % page_size, rows.used)


@dataclass(frozen=True)
class Pages:
    """`table` is int32 [batch, pages of a sequence]; entries that are not needed name page 0,
    which belongs to no sequence."""

    table: Tensor
    count: int

    @staticmethod
    def shuffled(rng: random.Random, size: int, lengths: list[int], width: int) -> Pages:
        needed = [-(-length // size) for length in lengths]
        order = rng.sample(range(1, 1 + sum(needed)), sum(needed))
        lines = []
        for count in needed:
            line, order = order[:count], order[count:]
            lines.append(line + [0] * (width - count))
        # rows of the table may be longer than what is passed on
        wide = torch.zeros(len(lengths), width + 3, dtype=torch.int32, device=DEVICE)
        wide[:, :width] = int32([entry for line in lines for entry in line]).view(-1, width)
        return Pages(wide[:, :width], 1 + sum(needed))


def key_storage(blocks: int, rows: int, heads: int, dim: int, kind: str) -> tuple[Tensor, ...]:
    """K and V as [blocks, rows, heads, D], and what they lie in, all of it poison.

    `paged`: vLLM's [pages, 2, page size, heads, D]; `interleaved`: the heads of K and V in turn.
    """
    if kind == "separate":
        k, v = poisoned(blocks, rows, heads, dim), poisoned(blocks, rows, heads, dim)
        return k, v, k, v
    if kind == "paged":
        whole = poisoned(blocks, 2, rows, heads, dim)
        return whole[:, 0], whole[:, 1], whole
    whole = poisoned(blocks, rows, 2 * heads, dim)
    return whole[:, :, :heads], whole[:, :, heads:], whole


def query_storage(blocks: int, rows: int, heads: int, dim: int, kind: str) -> tuple[Tensor, Tensor]:
    """Q or an output as [blocks, rows, heads, D], and what it lies in, all of it poison.

    `slice`: the first heads of a packed QKV; `strided`: with a gap after each head;
    `transposed`: heads before tokens.
    """
    if kind == "slice":
        whole = poisoned(blocks, rows, heads + 2, dim)
        return whole[:, :, :heads], whole
    if kind == "strided":
        whole = poisoned(blocks, rows, heads, dim + 24)
        return whole[..., :dim], whole
    if kind == "transposed":
        whole = poisoned(blocks, heads, rows, dim)
        return whole.transpose(1, 2), whole
    whole = poisoned(blocks, rows, heads, dim)
    return whole, whole


def rotate(x: Tensor, cos: Tensor, sin: Tensor, places: Tensor, *, interleaved: bool) -> Tensor:
    """Rotary embedding in float64 of x [batch, length, heads, D] at `places` [batch, length]."""
    half = cos.shape[1]
    x = x.double()
    c, s = (table[places].double()[:, :, None] for table in (cos, sin))
    turned = x[..., : 2 * half]
    pairs = turned.unflatten(-1, (half, 2) if interleaved else (2, half))
    first, second = pairs.unbind(-1 if interleaved else -2)
    result = torch.stack(
        [first * c - second * s, first * s + second * c], dim=-1 if interleaved else -2
    )
    return torch.cat([result.flatten(-2), x[..., 2 * half :]], dim=-1)


def is_rounded(found: Tensor, exact: Tensor, slack: float = 1e-6) -> Tensor:
    """Whether each half is a nearest one to `exact`, which was computed in float32 at best."""
    mantissa, exponent = torch.frexp(exact)
    spacing = torch.ldexp(torch.ones_like(mantissa), exponent.clamp(min=-13) - 11)
    return (found.double() - exact).abs() <= spacing / 2 + slack
