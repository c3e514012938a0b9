# SPDX-License-Identifier: Apache-2.0
"""An attention problem: lengths, layout and masks; its numbers and its grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from patchctl.emulator.params import NO_WINDOW
from patchctl.errors import UsageError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Problem:
    """What one launch computes. Lengths are in tokens, one entry a sequence.

    `packed`: sequences follow each other (``varlen_fwd``), else each has its own batch entry of a
    cache (``fwd_kvcache``), in another order if `indexed`. `page_size` puts K and V into pages
    that a block table names. `used`: K and V hold more rows than there are keys. `leftpad`: rows
    before the first key (of the first sequence; others have less; not with pages). `window`: keys
    to the left and to the right of a query's own position, None for no bound. `splits`: partial
    results, not merged. `spread` scales the logits, `ramp` lets them grow with the key. `strange`:
    the last keys hold a NaN, their values NaN and infinities.
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
    indexed: bool = False
    leftpad: int = 0
    splits: int = 1
    scale: float | None = None
    seed: int = 0
    spread: float = 1.0
    ramp: float = 0.0
    strange: bool = False

    def __post_init__(self) -> None:
        if len(self.q_lengths) != len(self.k_lengths):
            raise UsageError(
                f"{len(self.q_lengths)} query lengths and {len(self.k_lengths)} key lengths"
            )
        if not self.packed and len(set(self.q_lengths)) > 1:
            raise UsageError(
                f"sequences that are not packed have one query length, not {self.q_lengths}"
            )
        if (self.leftpad or self.indexed) and self.page_size:
            raise UsageError("neither left padding nor an index of batch entries goes with pages")
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
    def pads(self) -> tuple[int, ...]:
        """Rows before the first key, of each sequence."""
        return tuple(max(0, self.leftpad - 3 * i) for i in range(self.batch))

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
    if problem.strange:
        for keys, values in zip(k, v, strict=True):
            _make_strange(keys, values)
    slopes = None
    if problem.alibi:
        slopes = (2.0 ** -np.arange(1, problem.heads + 1)).astype(np.float32)
    return Inputs(tuple(q), tuple(k), tuple(v), slopes)


def _make_strange(k: Array, v: Array) -> None:
    """Only the last rows of a causal problem see these keys; the others must stay as they are."""
    for back, column, value in ((2, 5, np.nan), (3, 1, np.inf), (6, 1, -np.inf)):
        if len(v) > 8:
            v[-back, :, column] = value
    if len(k) > 8:
        k[-1, 0, 3] = np.nan
