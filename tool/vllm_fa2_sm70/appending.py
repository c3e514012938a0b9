# SPDX-License-Identifier: Apache-2.0
"""Appending to the cache and rotary embedding, in torch's own operations.

The library does this in kernels of its own. A traced graph holds these instead: torch then knows
what is written where, and can keep reads of the cache before or after it in their places.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Cache:
    """Where the rows of each sequence are: `kcache` and `vcache` as `fwd_kvcache` takes them."""

    kcache: Tensor
    vcache: Tensor
    block_table: Tensor | None = None
    batch_idx: Tensor | None = None

    @property
    def capacity(self) -> int:
        """How many rows a sequence can have."""
        rows = self.kcache.shape[1]
        return rows if self.block_table is None else rows * self.block_table.shape[1]

    def places(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The entries of the caches and the rows in them, for int64 rows (batch, new)."""
        if self.block_table is not None:
            page_rows = self.kcache.shape[1]
            pages = self.block_table.long().gather(1, rows // page_rows)
            return pages, rows % page_rows
        if self.batch_idx is not None:
            return self.batch_idx.long()[:, None].expand_as(rows), rows
        entries = torch.arange(rows.shape[0], device=rows.device)
        return entries[:, None].expand_as(rows), rows


@dataclass(frozen=True)
class Rotary:
    """Tables of cosines and sines, (positions, half of the dimensions that turn)."""

    cos: Tensor
    sin: Tensor
    interleaved: bool

    def apply(self, x: Tensor, positions: Tensor) -> Tensor:
        """x (batch, tokens, heads, head dimension), turned by positions (batch, tokens).

        Positions past the end of the tables use their last row. Computed in float32.
        """
        half = self.cos.shape[1]
        positions = positions.clamp(0, self.cos.shape[0] - 1)
        cos, sin = (table[positions].float()[:, :, None] for table in (self.cos, self.sin))
        turned, rest = x[..., : 2 * half].float(), x[..., 2 * half :]
        if self.interleaved:
            a, b = turned[..., 0::2], turned[..., 1::2]
        else:
            a, b = turned[..., :half], turned[..., half:]
        pair = (a * cos - b * sin, a * sin + b * cos)
        turned = torch.stack(pair, -1).flatten(-2) if self.interleaved else torch.cat(pair, -1)
        return torch.cat((turned.to(x.dtype), rest), -1)


def append(
    cache: Cache,
    k: Tensor,
    v: Tensor,
    lengths: Tensor,
    leftpad: Tensor | None,
    rotary: Rotary | None,
) -> None:
    """Write k and v (batch, new, KV heads, head dimension) behind the rows that are there.

    `lengths` says how many rows each sequence has in the cache. Rows past its end are dropped.
    """
    new = min(k.shape[1], cache.capacity)
    rows = lengths.long()[:, None] + torch.arange(new, device=k.device)
    first = 0 if leftpad is None else leftpad.long()[:, None]
    kept = ((rows >= first) & (rows < cache.capacity))[:, :, None, None]
    k, v = k[:, :new], v[:, :new]
    if rotary is not None:
        k = rotary.apply(k, rows)
    # A row that is dropped writes what is there to a place that no other row writes.
    places = cache.places(rows % cache.capacity)
    for stored, added in ((cache.kcache, k), (cache.vcache, v)):
        stored.index_put_(places, torch.where(kept, added, stored[places]))
