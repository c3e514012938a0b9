# SPDX-License-Identifier: Apache-2.0
"""What ``fwd_kvcache`` does around attention: new keys into the cache, rotary embedding."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from patchctl.emulator.memory import GlobalMemory
from patchctl.emulator.params import pack
from patchctl.emulator.reference import Accuracy
from patchctl.emulator.tasks import Placed, Shape
from patchctl.errors import UsageError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class CacheTask:
    """New tokens behind those in the cache, or Q rotated as if it stood there.

    `lengths`: rows that are in the cache, one number a sequence. `rotary_dim` 0: no rotation.
    `page_size`: the cache is paged. `each_position`: of Q, see append_kv.h.
    """

    lengths: tuple[int, ...]
    new: int
    head_dim: int
    heads: int = 1
    rotary_dim: int = 0
    interleaved: bool = False
    page_size: int | None = None
    rotates_q: bool = False
    each_position: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rotary_dim % 16 or self.rotary_dim > self.head_dim:
            raise UsageError(f"a rotary dimension of {self.rotary_dim}")
        if self.rotates_q and not self.rotary_dim:
            raise UsageError("rotating Q needs a rotary dimension")

    def place(self, memory: GlobalMemory, launch: Shape) -> Placed:
        rng = np.random.default_rng(self.seed)
        rows = max(self.lengths) + self.new
        angles = rng.uniform(-np.pi, np.pi, (rows, max(8, self.rotary_dim // 2)))
        cos, sin = np.cos(angles).astype(np.float16), np.sin(angles).astype(np.float16)
        values: dict[str, int | float | bool] = {
            "b": len(self.lengths),
            "d": self.head_dim,
            "rotary_dim": self.rotary_dim,
            "is_rotary_interleaved": self.interleaved,
            "cu_seqlens_k": memory.add("lengths", np.array(self.lengths, np.int32)).address,
            "rotary_cos_ptr": memory.add("cos", cos).address,
            "rotary_sin_ptr": memory.add("sin", sin).address,
        }
        shape = (len(self.lengths), self.new, self.heads, self.head_dim)
        fresh = {n: rng.standard_normal(shape).astype(np.float16) for n in ("knew", "vnew")}
        if self.rotates_q:
            return self._q(memory, values, fresh["knew"], cos, sin)
        return self._append(memory, values, fresh, cos, sin)

    def _q(
        self, memory: GlobalMemory, values: dict[str, Any], q: Array, cos: Array, sin: Array
    ) -> Placed:
        values |= {"q_ptr": memory.add("q", q).address, "h": self.heads, "seqlen_q": self.new}
        values |= _strides("q", q)
        out = memory.add("rotated", np.full_like(q, np.nan), writable=True)
        second = struct.pack("<QqB7x", out.address, len(cos), self.each_position)
        expected = np.stack(
            [
                self._rotated(x, n, cos, sin, steps=self.each_position)
                for x, n in zip(q, self.lengths, strict=True)
            ]
        )
        return Placed(
            pack(values) + second,
            (self.new, len(self.lengths), 1),
            ("rotated",),
            lambda: _compare(out.array(np.float16, q.shape), expected),
        )

    def _append(
        self,
        memory: GlobalMemory,
        values: dict[str, Any],
        fresh: dict[str, Array],
        cos: Array,
        sin: Array,
    ) -> Placed:
        size = self.page_size or max(self.lengths) + self.new
        per_sequence = -(-(max(self.lengths) + self.new) // size)
        pages = len(self.lengths) * per_sequence
        order = np.random.default_rng(self.seed + 1).permutation(pages)
        table = order.reshape(len(self.lengths), per_sequence).astype(np.int32)
        if not self.page_size:
            table = np.arange(pages, dtype=np.int32)[:, None]
        values |= {"h_k": self.heads, "seqlen_knew": self.new, "seqlen_k": per_sequence * size}
        if self.page_size:
            values["block_table"] = memory.add("block_table", table).address
            values["block_table_batch_stride"] = per_sequence
            values["page_block_size"] = size
        caches, expected = {}, {}
        for name in ("k", "v"):
            cache = np.full((pages, size, self.heads, self.head_dim), np.nan, np.float16)
            new = fresh[f"{name}new"]
            caches[name] = memory.add(name, cache, writable=True)
            values |= {f"{name}_ptr": caches[name].address, **_strides(name, cache)}
            values[f"{name}new_ptr"] = memory.add(f"{name}new", new).address
            values |= _strides(f"{name}new", new)
            expected[name] = cache.astype(np.float64)
            for i, length in enumerate(self.lengths):
                rows = new[i].astype(np.float64)
                if name == "k":
                    rows = self._rotated(new[i], length, cos, sin, steps=True)
                for j, row in enumerate(rows):
                    page, place = divmod(length + j, size)
                    expected[name][table[i, page], place] = row
        return Placed(
            pack(values),
            (self.new, 2, len(self.lengths)),
            ("k", "v"),
            lambda: _compare(
                np.stack([caches[n].array(np.float16, expected[n].shape) for n in "kv"]),
                np.stack([expected[n] for n in "kv"]),
            ),
        )

    def _rotated(self, x: Array, first: int, cos: Array, sin: Array, *, steps: bool) -> Array:
        """[tokens, heads, d] in float64, each token turned by its position's angles."""
        result = x.astype(np.float64)
        half = self.rotary_dim // 2
        if not half:
            return result
        position = first + np.arange(len(x)) * steps
        c, s = (t[position, None, :half].astype(np.float64) for t in (cos, sin))
        left, right = (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
        if not self.interleaved:
            left, right = slice(0, half), slice(half, 2 * half)
        a, b = result[..., left].copy(), result[..., right].copy()
        result[..., left], result[..., right] = a * c - b * s, a * s + b * c
        return result


def _strides(name: str, array: Array) -> dict[str, int]:
    batch, row, head = (s // array.itemsize for s in array.strides[:3])
    return {f"{name}_batch_stride": batch, f"{name}_row_stride": row, f"{name}_head_stride": head}


def _compare(got: Array, expected: Array) -> Accuracy:
    """NaN stands for what must not be written."""
    wide = got.astype(np.float64)
    missing = int((np.isnan(wide) != np.isnan(expected)).sum())
    error = np.where(np.isnan(wide) | np.isnan(expected), 0.0, wide - expected)
    size = np.nan_to_num(expected)
    relative = float(np.sqrt((error**2).sum() / (size**2).sum()))
    return Accuracy(float(np.abs(error).max()), relative, 0.0, missing, got.size)
