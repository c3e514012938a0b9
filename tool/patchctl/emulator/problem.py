# SPDX-License-Identifier: Apache-2.0
"""An attention problem: lengths, layout and masks; its tensors, its parameters, its grid."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from patchctl.emulator.memory import GlobalMemory
from patchctl.emulator.params import NO_WINDOW, pack
from patchctl.errors import UsageError

Array = npt.NDArray[Any]

_LOG2E = math.log2(math.e)


@dataclass(frozen=True)
class Problem:
    """What one launch computes. Lengths are in tokens, one entry a sequence.

    `packed`: sequences follow each other (``varlen_fwd``), else each has its own batch entry.
    `page_size` puts K and V into pages that a block table names. `used`: seqused_k is given.
    `leftpad`: rows of the cache before the first key (not packed, not paged). `window`: keys to
    the left and to the right of a query's own position, None for no bound. `splits`: partial
    results, not merged. `spread` scales the logits, `ramp` lets them grow with the key. `poison`:
    a key and another one's value are NaN, which rows that do not see them must not feel.
    """

    head_dim: int
    q_lengths: tuple[int, ...]
    k_lengths: tuple[int, ...]
    heads: int = 1
    kv_heads: int = 1
    packed: bool = True
    causal: bool = False
    window: tuple[int | None, int | None] = (None, None)
    softcap: float = 0.0
    alibi: bool = False
    page_size: int | None = None
    used: bool = False
    leftpad: int = 0
    splits: int = 1
    scale: float | None = None
    seed: int = 0
    spread: float = 1.0
    ramp: float = 0.0
    poison: bool = False

    def __post_init__(self) -> None:
        if len(self.q_lengths) != len(self.k_lengths):
            raise UsageError(
                f"{len(self.q_lengths)} query lengths and {len(self.k_lengths)} key lengths"
            )
        if not self.packed and len(set(self.q_lengths)) > 1:
            raise UsageError(
                f"sequences that are not packed have one query length, not {self.q_lengths}"
            )
        if self.heads % self.kv_heads:
            raise UsageError(f"{self.heads} heads are no multiple of {self.kv_heads} KV heads")

    @property
    def batch(self) -> int:
        return len(self.q_lengths)

    @property
    def ratio(self) -> int:
        """Query heads per KV head."""
        return self.heads // self.kv_heads

    @property
    def softmax_scale(self) -> float:
        return self.head_dim**-0.5 if self.scale is None else self.scale

    @property
    def bounds(self) -> tuple[int, int]:
        """Keys to the left and right, as the kernels get them."""
        left, right = self.window
        if self.causal:
            right = 0
        return (NO_WINDOW if left is None else left, NO_WINDOW if right is None else right)

    @property
    def rows(self) -> int:
        """Rows of the LSE: of all heads."""
        per_head = sum(self.q_lengths) if self.packed else self.batch * max(self.q_lengths)
        return self.heads * per_head

    def grid(self, tile_rows: int, splits_on: str = "z") -> tuple[int, int, int]:
        """Blocks of packed rows, KV heads, sequences; one of the last two times the splits."""
        rows = max(self.q_lengths) * self.ratio
        y, z = self.kv_heads, self.batch
        if splits_on == "y":
            y *= self.splits
        else:
            z *= self.splits
        return max(1, -(-rows // tile_rows)), y, z


@dataclass(frozen=True)
class Inputs:
    """The numbers of a problem, by sequence: q [tokens, heads, d]; k, v [keys, KV heads, d]."""

    q: tuple[Array, ...]
    k: tuple[Array, ...]
    v: tuple[Array, ...]
    slopes: Array | None


def inputs(problem: Problem) -> Inputs:
    """Random numbers, the same ones for the same problem."""
    rng = np.random.default_rng(problem.seed)
    d = problem.head_dim

    def draw(tokens: int, heads: int, spread: float = 1.0) -> Array:
        return (rng.standard_normal((tokens, heads, d)) * spread).astype(np.float16)

    q = [draw(n, problem.heads, problem.spread) for n in problem.q_lengths]
    k = [draw(n, problem.kv_heads) for n in problem.k_lengths]
    v = [draw(n, problem.kv_heads) for n in problem.k_lengths]
    if problem.ramp:
        direction = rng.standard_normal(d)
        direction /= np.linalg.norm(direction)
        q = [(x + 6 * direction).astype(np.float16) for x in q]
        k = [
            (x + np.linspace(0, problem.ramp, len(x))[:, None, None] * direction).astype(np.float16)
            for x in k
        ]
    if problem.poison:
        for keys, values in zip(k, v, strict=True):
            keys[7 * len(keys) // 10 :][:1, 0, 5] = np.nan
            values[6 * len(values) // 10 :][:1, -1, 3] = np.nan
    slopes = None
    if problem.alibi:
        slopes = (2.0 ** -np.arange(1, problem.heads + 1)).astype(np.float32)
    return Inputs(tuple(q), tuple(k), tuple(v), slopes)


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
        elif problem.packed:
            self._place_packed_k(data)
        else:
            self._place_cache(data)
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

    def _place_packed_k(self, data: Inputs) -> None:
        starts = np.concatenate([[0], np.cumsum(self.problem.k_lengths)]).astype(np.int32)
        self.values["cu_seqlens_k"] = self._add("cu_seqlens_k", starts)
        self.values["is_seqlens_k_cumulative"] = True
        self.values["seqlen_k"] = max(self.problem.k_lengths)
        for name, parts in (("k", data.k), ("v", data.v)):
            # a kernel may be called with no key at all: a tensor has one row at least
            array = np.concatenate(
                [*parts, np.full_like(parts[0], np.nan, shape=(1, *parts[0].shape[1:]))]
            )
            readable = np.ones(array.shape, bool)
            readable[-1] = False
            self.values[f"{name}_ptr"] = self._add(name, array, readable=readable)
            self._strides(name, array)

    def _place_cache(self, data: Inputs) -> None:
        p = self.problem
        capacity = max(p.k_lengths) + p.leftpad + (17 if p.used else 0)
        used = p.used or len(set(p.k_lengths)) > 1 or bool(p.leftpad)
        self.values["seqlen_k"] = capacity
        if used:
            lengths = np.array(p.k_lengths, np.int32) + np.int32(p.leftpad)
            self.values["seqused_k"] = self._add("seqused_k", lengths)
        if p.leftpad:
            pads = np.full(p.batch, p.leftpad, np.int32)
            self.values["leftpad_k"] = self._add("leftpad_k", pads)
        for name, parts in (("k", data.k), ("v", data.v)):
            array = np.full((p.batch, capacity, p.kv_heads, p.head_dim), np.nan, np.float16)
            readable = np.zeros(array.shape, bool)
            for i, part in enumerate(parts):
                array[i, p.leftpad : p.leftpad + len(part)] = part
                readable[i, p.leftpad : p.leftpad + len(part)] = True
            self.values[f"{name}_ptr"] = self._add(name, array, readable=readable)
            self._strides(name, array)

    def _place_pages(self, data: Inputs, size: int) -> None:
        p = self.problem
        pages = [-(-n // size) for n in p.k_lengths]
        width = max(1, *pages) + 1
        total = sum(pages) + 2
        order = np.random.default_rng(p.seed + 1).permutation(total)
        table = np.full((p.batch, width), 0x7FFFFFF0, np.int32)  # entries of nobody: far outside
        named = np.zeros(table.shape, bool)
        arrays = {
            n: np.full((total, size, p.kv_heads, p.head_dim), np.nan, np.float16) for n in "kv"
        }
        readable = np.zeros(arrays["k"].shape, bool)
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
        self.values["seqused_k"] = self._add("seqused_k", np.array(p.k_lengths, np.int32))
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
