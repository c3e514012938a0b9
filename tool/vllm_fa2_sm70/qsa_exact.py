# SPDX-License-Identifier: Apache-2.0
"""QSA without kernels of its own: selected tokens are looked up by torch, then gathered.

Everything here is exact, works on any device, and never waits for one: shapes depend on the
arguments' shapes alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

GATHERED_BYTES = 256 << 20
"""Of K and V that are gathered at a time; rows are taken in parts."""


@dataclass(frozen=True)
class Selection:
    """The tokens that rows attend to, each once, in their logical order.

    `pages` and `tokens` (of a page) are int64 (rows, selected); from `counts` (rows) on they repeat
    something that exists and may be read, but does not count. `counts` is 0 where nothing is seen.
    """

    pages: Tensor
    tokens: Tensor
    counts: Tensor

    @property
    def visible(self) -> Tensor:
        """(rows, selected): which of them count."""
        order = torch.arange(self.pages.shape[1], device=self.pages.device)
        return order < self.counts[:, None]

    def part(self, rows: slice) -> Selection:
        return Selection(self.pages[rows], self.tokens[rows], self.counts[rows])


def derive_rows(query_start_loc: Tensor, seq_lens: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """`row_to_request` and `positions` of rows that follow each other by request.

    The last row of a request stands at its last token. Rows outside of all requests get request -1.
    """
    row = torch.arange(rows, device=query_start_loc.device)
    starts = query_start_loc.long()
    request = torch.searchsorted(starts[1:].contiguous(), row, right=True)
    requests = seq_lens.shape[0]
    exists = (request < requests) & (row >= starts[:1])
    nearest = request.clamp(max=max(requests - 1, 0))
    if requests == 0:
        return torch.full_like(row, -1).int(), torch.full_like(row, -1).int()
    position = seq_lens.long()[nearest] - (starts[nearest + 1] - row)
    return request.where(exists, -1).int(), position.where(exists, -1).int()


def select(
    indices: Tensor,
    row_to_request: Tensor,
    positions: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    pages: int,
    page_tokens: int,
) -> Selection:
    """What the table kernel makes of `indices`: padding, duplicates, tokens past the live length or
    past the row's own position, rows of no request and pages outside of the cache are dropped."""
    requests, max_pages = block_table.shape
    token = indices.long()
    if not (requests and max_pages and pages and token.shape[1]):
        nothing = torch.zeros_like(token)
        return Selection(nothing, nothing, nothing.new_zeros(token.shape[0]))
    request = row_to_request.long()
    exists = (request >= 0) & (request < requests)
    request = request.where(exists, 0)
    live = seq_lens.long().clamp(0, max_pages * page_tokens)[request]
    end = torch.minimum(live, positions.long() + 1).where(exists, 0)[:, None]
    token = token.where((token >= 0) & (token < end), -1)
    page = block_table[request[:, None], (token.clamp(min=0) // page_tokens)].long()
    token = token.where((page >= 0) & (page < pages), -1)
    # what is dropped sorts behind all tokens, and of equal tokens the first one stays
    last = torch.iinfo(torch.int64).max
    token = token.where(token >= 0, last).sort(dim=1).values
    again = torch.zeros_like(token, dtype=torch.bool)
    again[:, 1:] = token[:, 1:] == token[:, :-1]
    token = token.masked_fill(again, last).sort(dim=1).values
    seen = token != last
    token = token.where(seen, 0)
    page = block_table[request[:, None], token // page_tokens].long()
    return Selection(page.where(seen, 0), token % page_tokens, seen.sum(dim=1))


def rows_at_a_time(k_cache: Tensor, selected: int) -> int:
    """How many rows' tokens are gathered at a time."""
    row = 2 * max(1, selected) * k_cache.shape[2] * k_cache.shape[3] * k_cache.element_size()
    return max(1, GATHERED_BYTES // row)


def attend_torch(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, selection: Selection, scale: float, out: Tensor
) -> None:
    """In float32; what does not count never contributes, not even a NaN."""
    rows, heads, head_dim = q.shape
    kv_heads = k_cache.shape[2]
    step = rows_at_a_time(k_cache, selection.pages.shape[1])
    for start in range(0, rows, step):
        part = slice(start, start + step)
        chosen = selection.part(part)
        visible = chosen.visible[:, None, :, None]
        # (rows, KV heads, selected, head dimension)
        k, v = (
            cache[chosen.pages, chosen.tokens].transpose(1, 2).float().where(visible, 0)
            for cache in (k_cache, v_cache)
        )
        grouped = q[part].float().reshape(-1, kv_heads, heads // kv_heads, head_dim)
        scores = (grouped @ k.transpose(2, 3)) * scale
        scores = scores.masked_fill(~visible.transpose(2, 3), -torch.inf)
        # a row that sees nothing: softmax gives NaN, and zeros are meant
        weights = scores.softmax(dim=-1)
        weights = weights.where(chosen.counts[:, None, None, None] > 0, 0)
        out[part] = (weights @ v).reshape(-1, heads, head_dim).to(out.dtype)


def attend_paged(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    selection: Selection,
    scale: float,
    out: Tensor,
    page_rows: int,
) -> None:
    """The series' paged forward: a row is a sequence whose pages hold what it selected."""
    rows, selected = selection.pages.shape
    kv_heads, head_dim = k_cache.shape[2:]
    length = -(-selected // page_rows) * page_rows
    pad = (0, length - selected)
    step = rows_at_a_time(k_cache, length)
    for start in range(0, rows, step):
        chosen = selection.part(slice(start, start + step))
        count = chosen.pages.shape[0]
        places = [torch.nn.functional.pad(x, pad) for x in (chosen.pages, chosen.tokens)]
        k, v = (
            cache[places[0], places[1]].reshape(-1, page_rows, kv_heads, head_dim)
            for cache in (k_cache, v_cache)
        )
        table = torch.arange(k.shape[0], dtype=torch.int32, device=q.device).reshape(count, -1)
        attended = torch.ops._vllm_fa2_C.fwd_kvcache(
            q[start : start + step, None].contiguous(),
            k,
            v,
            None,
            None,
            chosen.counts.int(),
            None,
            None,
            None,
            None,
            table,
            None,
            None,
            scale,
            False,
            -1,
            -1,
            0.0,
            False,
            0,
        )
        out[start : start + step] = attended[0][:, 0]
