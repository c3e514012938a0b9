# SPDX-License-Identifier: Apache-2.0
"""The tensors of an attention problem, and the parameters that point to them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from patchctl.emulator.memory import GlobalMemory
from patchctl.emulator.params import pack
from patchctl.emulator.problem import Inputs, Problem

Array = npt.NDArray[Any]

_LOG2E = math.log2(math.e)
_SPARE = 17
"""Rows behind the keys where not all of K and V is used."""


class Placement:
    """The tensors of a problem in global memory, and the parameters that point to them.

    Outputs are NaN at the start. What the kernel may not read (rows past a length, pages of
    nobody) is NaN and forbidden.
    """

    def __init__(self, problem: Problem, data: Inputs, memory: GlobalMemory) -> None:
        self.problem, self.memory = problem, memory
        self.values: dict[str, int | float | bool] = {}
        self._place_q(data)
        if problem.page_size:
            self._place_pages(data, problem.page_size)
        else:
            self._place_k(data)
        self._place_outputs()
        self._numbers(data)

    @property
    def parameters(self) -> bytes:
        return pack(self.values)

    def _add(
        self, name: str, data: Array, *, writable: bool = False, readable: Array | None = None
    ) -> int:
        return self.memory.add(name, data, writable=writable, readable=readable).address

    def _strides(self, name: str, array: Array) -> None:
        """Of [batch, row, head, d] or [row, head, d], in elements."""
        strides = [s // array.itemsize for s in array.strides]
        self.values[f"{name}_row_stride"], self.values[f"{name}_head_stride"] = (
            strides[-3],
            strides[-2],
        )
        self.values[f"{name}_batch_stride"] = strides[0] if array.ndim == 4 else 0

    def _place_q(self, data: Inputs) -> None:
        p = self.problem
        if p.packed:
            q = np.concatenate(data.q)
            starts = np.concatenate([[0], np.cumsum(p.q_lengths)]).astype(np.int32)
            self.values["cu_seqlens_q"] = self._add("cu_seqlens_q", starts)
        else:
            q = np.stack(data.q)
        self.values["q_ptr"] = self._add("q", q)
        self._strides("q", q)
        self._strides("o", q)
        self._o_shape = q.shape

    def _place_k(self, data: Inputs) -> None:
        p = self.problem
        spare = _SPARE if p.used else 0
        rows = [pad + n + spare for pad, n in zip(p.pads, p.k_lengths, strict=True)]
        ends = np.array([pad + n for pad, n in zip(p.pads, p.k_lengths, strict=True)], np.int32)
        if p.packed:
            self._lengths(np.array(rows, np.int32), ends)
            self.values["seqlen_k"] = max(rows)
            starts = [sum(rows[:i]) for i in range(p.batch)]
            # with no key at all a tensor has a row, too
            shape: tuple[int, ...] = (max(1, sum(rows)), p.kv_heads, p.head_dim)
        else:
            capacity = max(rows)
            if spare or set(ends) != {capacity}:
                self._list(ends)
            self.values["seqlen_k"] = capacity
            entries = np.arange(p.batch)
            if p.indexed:
                entries = np.random.default_rng(p.seed + 1).permutation(p.batch + 2)[: p.batch]
                index = entries.astype(np.int32)
                self.values["cache_batch_idx"] = self._add("cache_batch_idx", index)
            starts = [int(entry) * capacity for entry in entries]
            entry_count = p.batch + 2 if p.indexed else p.batch
            shape = (entry_count, capacity, p.kv_heads, p.head_dim)
        if p.leftpad:
            self.values["leftpad_k"] = self._add("leftpad_k", np.array(p.pads, np.int32))
        for name, parts in (("k", data.k), ("v", data.v)):
            array = np.full(shape, np.nan, np.float16)
            readable = np.zeros(shape, bool)
            flat, flags = (x.reshape(-1, p.kv_heads, p.head_dim) for x in (array, readable))
            for start, pad, part in zip(starts, p.pads, parts, strict=True):
                flat[start + pad : start + pad + len(part)] = part
                flags[start + pad : start + pad + len(part)] = True
            self.values[f"{name}_ptr"] = self._add(name, array, readable=readable)
            self._strides(name, array)

    def _lengths(self, rows: Array, ends: Array) -> None:
        """As ``varlen_fwd`` tells them."""
        starts = np.concatenate([[0], np.cumsum(rows)]).astype(np.int32)
        self.values["cu_seqlens_k"] = self._add("cu_seqlens_k", starts)
        self.values["is_seqlens_k_cumulative"] = True
        if self.problem.used:
            self.values["seqused_k"] = self._add("seqused_k", ends)

    def _list(self, ends: Array) -> None:
        """As ``fwd_kvcache`` tells them: the lengths themselves."""
        self.values["cu_seqlens_k"] = self._add("lengths_k", ends)

    def _place_pages(self, data: Inputs, size: int) -> None:
        p = self.problem
        pages = [-(-n // size) for n in p.k_lengths]
        width = max(1, *pages) + 1
        total = sum(pages) + 2
        order = np.random.default_rng(p.seed + 1).permutation(total)
        table = np.full((p.batch, width), 0x7FFFFFF0, np.int32)  # entries of nobody: far outside
        named = np.zeros(table.shape, bool)
        shape = (total, size, p.kv_heads, p.head_dim)
        arrays = {name: np.full(shape, np.nan, np.float16) for name in ("k", "v")}
        readable = np.zeros(shape, bool)
        taken = 0
        for i, count in enumerate(pages):
            for page in range(count):
                place = int(order[taken])
                taken += 1
                table[i, page], named[i, page] = place, True
                rows = slice(page * size, min((page + 1) * size, p.k_lengths[i]))
                filled = rows.stop - rows.start
                arrays["k"][place, :filled] = data.k[i][rows]
                arrays["v"][place, :filled] = data.v[i][rows]
                readable[place, :filled] = True
        self.values["block_table"] = self._add("block_table", table, readable=named)
        self.values["block_table_batch_stride"] = width
        self.values["page_block_size"] = size
        self.values["seqlen_k"] = width * size
        lengths = np.array(p.k_lengths, np.int32)
        if p.packed:
            # callers that say what is used leave the cumulative lengths empty
            self._lengths(np.zeros_like(lengths) if p.used else lengths, lengths)
        else:
            self._list(lengths)
        for name, array in arrays.items():
            self.values[f"{name}_ptr"] = self._add(name, array, readable=readable)
            self._strides(name, array)

    def _place_outputs(self) -> None:
        p = self.problem
        lse = np.full(p.rows, np.nan, np.float32)
        self.values["o_ptr"] = self._add(
            "out", np.full(self._o_shape, np.nan, np.float16), writable=True
        )
        self.values["softmax_lse_ptr"] = self._add("lse", lse, writable=True)
        if p.splits > 1:
            partial = np.full((p.splits, p.rows, p.head_dim), np.nan, np.float32)
            self.values["oaccum_ptr"] = self._add("out_parts", partial, writable=True)
            parts = np.full((p.splits, p.rows), np.nan, np.float32)
            self.values["softmax_lseaccum_ptr"] = self._add("lse_parts", parts, writable=True)

    def _numbers(self, data: Inputs) -> None:
        p, values = self.problem, self.values
        scale = p.softmax_scale
        logit_scale = p.softcap or scale  # what is left to multiply after tanh
        values |= {
            "b": p.batch,
            "h": p.heads,
            "h_k": p.kv_heads,
            "h_h_k_ratio": p.ratio,
            "seqlen_q": max(p.q_lengths),
            "d": p.head_dim,
            "seqlen_q_rounded": -(-max(p.q_lengths) // 128) * 128,
            "seqlen_k_rounded": -(-max(p.k_lengths) // 128) * 128,
            "d_rounded": -(-p.head_dim // 32) * 32,
            "total_q": sum(p.q_lengths) if p.packed else p.batch * max(p.q_lengths),
            "scale_softmax": logit_scale,
            "scale_softmax_log2": logit_scale * _LOG2E,
            "softcap": scale / p.softcap if p.softcap else 0.0,
            "p_dropout": 1.0,
            "p_dropout_in_uint8_t": 255,
            "rp_dropout": 1.0,
            "window_size_left": p.bounds[0],
            "window_size_right": p.bounds[1],
            "is_causal": p.causal,
            "num_splits": p.splits,
            "unpadded_lse": p.packed,
        }
        if data.slopes is not None:
            values["alibi_slopes_ptr"] = self._add("alibi_slopes", data.slopes)
