# SPDX-License-Identifier: Apache-2.0
"""A QSA problem: rows that each selected their own keys in blocks of four, in a paged cache."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from patchctl.emulator.memory import GlobalMemory

Array = npt.NDArray[Any]

HEADS, HEAD_DIM, GROUP, BLOCK = 6, 256, 4, 4
_SCALE = 1 / 16
NOTHING = -77777
"""Entries of nobody, and what the kernels leave alone."""


@dataclass(frozen=True)
class QsaProblem:
    """`lengths` of the requests; `requests` and `positions` of the rows, which may be no request's
    and before or past the end. `pages` of the cache; `selected` indices a row.

    `stale`: blocks are whole, also past the row's position. `scattered`: the indices are any
    numbers. `outside`: the first request's second page is not in the cache, and its third is its
    first one again. `strange`: some values selected by the first row are no numbers.
    """

    lengths: tuple[int, ...]
    requests: tuple[int, ...]
    positions: tuple[int, ...]
    page_size: int = 16
    pages: int = 20
    selected: int = 64
    first_row: int = 0
    stale: bool = True
    scattered: bool = False
    outside: bool = False
    strange: bool = False
    spread: float = 1.0
    seed: int = 0

    @property
    def rows(self) -> int:
        return len(self.requests)

    @property
    def groups(self) -> int:
        return -(-(self.rows - self.first_row) // GROUP)


class QsaData:
    """The numbers of a problem, and what the three kernels make of them."""

    def __init__(self, problem: QsaProblem) -> None:
        self.problem = p = problem
        rng = np.random.default_rng(p.seed)
        self.live = [-(-max(0, n) // p.page_size) for n in p.lengths]
        width = max(self.live) + 2
        order = rng.permutation(p.pages)
        self.table = np.full((len(p.lengths), width), NOTHING, np.int32)
        taken = 0
        for request, count in enumerate(self.live):
            self.table[request, :count] = order[taken : taken + count]
            taken += count
        if p.outside:
            self.table[0, 1], self.table[0, 2] = p.pages, self.table[0, 0]
        self.named = np.arange(width) < np.array(self.live)[:, None]
        self.indices = np.stack([self._select(rng, row) for row in range(p.rows)])
        shape = (p.pages, p.page_size, HEAD_DIM)
        self.q = (rng.standard_normal((p.rows, HEADS, HEAD_DIM)) * p.spread).astype(np.float16)
        self.k, self.v = (rng.standard_normal(shape).astype(np.float16) for _ in range(2))
        self.chosen = [self._chosen(row) for row in range(p.rows)]
        if p.strange:
            for token, column, value in ((0, 5, np.inf), (1, 200, np.nan)):
                page, place = self.chosen[p.first_row][token]
                self.v[page, place, column] = value
        used = np.zeros(shape[:2], bool)
        for page, place in (x for row in self.chosen for x in row):
            used[page, place] = True
        self.used = np.repeat(used[..., None], HEAD_DIM, axis=2)
        self.k[~self.used] = self.v[~self.used] = np.nan

    def _select(self, rng: np.random.Generator, row: int) -> Array:
        """Random blocks up to the row's own one; a row of nobody selects the first ones."""
        p, request, position = self.problem, self.problem.requests[row], self.problem.positions[row]
        exists = 0 <= request < len(p.lengths)
        length = p.lengths[request] if exists else BLOCK
        if p.scattered:
            return rng.integers(-3, length + 9, p.selected).astype(np.int32)
        last = min(max(0, position), max(0, length - 1))
        blocks = rng.permutation(last // BLOCK + 1)[: p.selected // BLOCK]
        tokens = (blocks[:, None] * BLOCK + np.arange(BLOCK)).ravel()
        if not p.stale:
            tokens = np.where(tokens <= position, tokens, -1)
        found = np.full(p.selected, -1, np.int32)
        found[: len(tokens)] = tokens
        if row % 3 == 1 and len(tokens) >= 2 * BLOCK:  # one block twice
            found[BLOCK : 2 * BLOCK] = found[:BLOCK]
        return found

    def _chosen(self, row: int) -> list[tuple[int, int]]:
        """(physical page, place in it) of the tokens that a row attends to, by position."""
        p, request = self.problem, self.problem.requests[row]
        if not 0 <= request < len(p.lengths):
            return []
        end = min(p.lengths[request], p.positions[row] + 1)
        tokens = sorted({int(t) for t in self.indices[row] if 0 <= t < end})
        places = [(int(self.table[request, t // p.page_size]), t % p.page_size) for t in tokens]
        return [(page, place) for page, place in places if 0 <= page < p.pages]

    def ranks(self) -> tuple[Array, Array]:
        """Rank of each live page among its request's (-1: no page), and page of each rank."""
        rank = np.full(self.table.shape, NOTHING, np.int32)
        ranked = np.full(self.table.shape, NOTHING, np.int32)
        for request, count in enumerate(self.live):
            pages = self.table[request, :count]
            order = [int(j) for j in np.argsort(pages, kind="stable")]
            order = [j for j in order if 0 <= pages[j] < self.problem.pages]
            rank[request, :count] = -1
            rank[request, order] = np.arange(len(order))
            ranked[request, : len(order)] = pages[order]
        return rank, ranked

    def lists(self) -> tuple[Array, Array]:
        """[group, entry, 2]: physical page; number of the four tokens << 16 | who selected which.
        And the lengths of the lists."""
        p = self.problem
        lists = np.full((p.groups, GROUP * p.selected, 2), NOTHING, np.int32)
        lengths = np.zeros(p.groups, np.int32)
        rank, _ = self.ranks()
        for group in range(p.groups):
            first = p.first_row + GROUP * group
            rows = range(first, min(first + GROUP, p.rows))
            entries: list[tuple[int, int]] = []
            for request in dict.fromkeys(p.requests[row] for row in rows):
                bits: dict[tuple[int, int], int] = {}
                for row in rows:
                    if p.requests[row] == request:
                        self._mark(bits, rank, row, 1 << (GROUP * (row - first)))
                for (at, block), mask in sorted(bits.items()):
                    page = self.ranks()[1][request, at]
                    entries.append((int(page), block << 16 | mask))
            lengths[group] = len(entries)
            if entries:
                lists[group, : len(entries)] = np.array(entries, np.uint32).view(np.int32)
        return lists, lengths

    def _mark(self, bits: dict[tuple[int, int], int], rank: Array, row: int, unit: int) -> None:
        p, request = self.problem, self.problem.requests[row]
        if not 0 <= request < len(p.lengths):
            return
        for token in self.indices[row]:
            if 0 <= token < min(p.lengths[request], p.positions[row] + 1):
                page, place = divmod(int(token), p.page_size)
                if (at := int(rank[request, page])) >= 0:
                    key = (at, place // BLOCK)
                    bits[key] = bits.get(key, 0) | unit << place % BLOCK

    def attended(self) -> Array:
        """O [row, head, column] in float64; a row without a key has 0."""
        out = np.zeros((self.problem.rows, HEADS, HEAD_DIM))
        for row, chosen in enumerate(self.chosen):
            if chosen:
                pages, places = np.array(chosen).T
                k, v = (x[pages, places].astype(np.float64) for x in (self.k, self.v))
                scores = self.q[row].astype(np.float64) @ k.T * _SCALE
                weights = np.exp(scores - scores.max(axis=1, keepdims=True))
                with np.errstate(invalid="ignore"):
                    out[row] = weights / weights.sum(axis=1, keepdims=True) @ v
        return out

    def place(self, memory: GlobalMemory) -> dict[str, int]:
        """Put the inputs into memory: addresses. K and V of a page follow each other."""
        p = self.problem
        cache = memory.add(
            "kv", np.stack([self.k, self.v], 1), readable=np.stack([self.used, self.used], 1)
        )
        numbers = {"requests": p.requests, "lengths": p.lengths, "positions": p.positions}
        added = {n: memory.add(n, np.array(x, np.int32)).address for n, x in numbers.items()}
        return added | {
            "q": memory.add("q", self.q).address,
            "k": cache.address,
            "v": cache.address + p.page_size * HEAD_DIM * 2,
            "table": memory.add("table", self.table, readable=self.named).address,
            "indices": memory.add("indices", self.indices).address,
        }

    def parameters(self, at: dict[str, int]) -> bytes:
        """``QsaParams`` (qsa_params.h). Strides are in units of 16 bytes."""
        p, (requests, width) = self.problem, self.table.shape
        units = HEAD_DIM // 8
        blocks = p.page_size // BLOCK
        inputs = [at[n] for n in ("table", "requests", "lengths", "positions", "indices")]
        buffers = [at.get(n, 0) for n in ("page_rank", "ranked_page", "lists", "list_lengths")]
        return struct.pack(
            "<4Q4q4I5Q2q7iIf4x4Q3i4x",
            *(at["q"], at["k"], at["v"], at.get("out", 0)),
            *(HEADS * units, units, HEADS * units, units),
            *(2 * p.page_size * units, units) * 2,
            *inputs,
            *(width, p.selected),
            *(p.rows, p.selected, requests, width, p.pages, p.page_size, blocks),
            *(0xFFFFFFFF // blocks, _SCALE * math.log2(math.e)),
            *buffers,
            *(p.first_row, p.groups, GROUP * p.selected),
        )
