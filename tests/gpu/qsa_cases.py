# SPDX-License-Identifier: Apache-2.0
"""QSA calls with what they have to give: selections, caches and a float64 reference of its own.

What no row selected is NaN in the cache, and table entries past a request's pages point nowhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from attention import DEVICE, randn
from numpy.typing import NDArray
from torch import Tensor

HEADS, HEAD_DIM = 6, 256
RELATIVE_L2, LARGEST, COSINE = 3.8e-4, 1e-3, 0.9999998
GARBAGE = -123456789
Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """`rows`: of each request, `lengths`: its live tokens; the last row is the last token.

    `selection`: ``random`` blocks, ``neighbours`` (a row's scores are nearly those of the row
    before), ``tokens`` (any tokens, as no index stage gives them) or ``first`` (the first ones).
    `odd`: padding, duplicates, stale tokens, invalid requests and empty rows are mixed in.
    """

    rows: tuple[int, ...]
    lengths: tuple[int, ...]
    selected: int
    page: int = 16
    interleaved: bool = True
    selection: str = "neighbours"
    odd: bool = False
    spare_pages: int = 3
    seed: int = 0
    poison: bool = field(default=True)

    def __str__(self) -> str:
        cache = "interleaved" if self.interleaved else "two tensors"
        mixed = ", odd" if self.odd else ""
        return (
            f"{sum(self.rows)} rows, {self.selected} {self.selection}, page {self.page}, "
            f"{cache}, lengths {'+'.join(map(str, self.lengths))}{mixed}"
        )


class Call:
    """The tensors of a case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.rng = np.random.default_rng(case.seed)
        self.rows = sum(case.rows)
        requests = np.arange(len(case.rows))
        self.request = np.repeat(requests, case.rows)
        self.position = np.concatenate(
            [np.arange(n - rows, n) for rows, n in zip(case.rows, case.lengths, strict=True)]
        ) if self.rows else np.zeros(0, np.int64)  # fmt: skip
        self.table, self.pages = self._table()
        self.indices = self._indices()
        if case.odd:
            self._make_odd()
        self.start = np.concatenate([[0], np.cumsum(case.rows)])

    def _table(self) -> tuple[Array, int]:
        used = [-(-n // self.case.page) for n in self.case.lengths]
        pages = sum(used) + self.case.spare_pages
        order = self.rng.permutation(pages)
        table = np.full((len(used), max(used, default=0) + 2), GARBAGE)
        start = 0
        for request, count in enumerate(used):
            table[request, :count] = order[start : start + count]
            start += count
        return table, pages

    def _indices(self) -> Array:
        case, rng = self.case, self.rng
        indices = np.full((self.rows, case.selected), -1)
        blocks = case.selected // 4
        for request, length in enumerate(case.lengths):
            count = -(-length // 4)
            score = rng.standard_normal(count, dtype=np.float32)
            for row in np.flatnonzero(self.request == request):
                visible = self.position[row] // 4 + 1
                if case.selection == "tokens":
                    indices[row] = rng.integers(0, length, case.selected)
                    continue
                if case.selection == "neighbours":
                    fresh = rng.standard_normal(count, dtype=np.float32)
                    score = np.float32(0.99) * score + np.float32(0.14) * fresh
                elif case.selection == "random":
                    score = rng.random(count, dtype=np.float32)
                else:
                    score = -np.arange(count, dtype=np.float32)
                mine = score[:visible].copy()
                mine[visible - 1] = np.inf  # its own block, of which a part exists
                chosen = np.arange(visible)
                if visible > blocks:
                    chosen = np.argpartition(-mine, blocks - 1)[:blocks]
                tokens = (chosen[:, None] * 4 + np.arange(4)).ravel()
                indices[row, : tokens.size] = np.where(tokens <= self.position[row], tokens, -1)
        return indices

    def _make_odd(self) -> None:
        """Each of some rows gets one of the things that must do no harm."""
        rng, indices = self.rng, self.indices
        largest = np.iinfo(np.int32).max
        for row in range(0, self.rows, 2):
            kind = row // 2 % 9
            if kind == 0:
                indices[row] = -1
            elif kind == 1:
                self.request[row] = rng.choice([-1, len(self.case.rows), largest, -largest - 1])
            elif kind == 2:
                half = indices.shape[1] // 2
                indices[row, half : 2 * half] = indices[row, :half]
            elif kind == 3:
                indices[row, ::3] = largest
            elif kind == 4:  # stale: past the live length, and past its own position
                length = self.case.lengths[self.request[row]]
                indices[row, 1::4] = length + rng.integers(0, 50, indices[row, 1::4].shape)
                indices[row, 2::4] = self.position[row] + 1
            elif kind == 5:
                self.position[row] = rng.choice([-1, -largest - 1])
            elif kind == 6:
                self.position[row] = largest
            elif kind == 7:
                indices[row] = rng.permutation(indices[row])
            else:
                indices[row, 1:] = -1

    @cached_property
    def seen(self) -> list[Array]:
        """The tokens that each row attends to."""
        found = []
        for row in range(self.rows):
            request = self.request[row]
            if not 0 <= request < len(self.case.lengths):
                found.append(np.zeros(0, np.int64))
                continue
            end = min(self.case.lengths[request], self.position[row] + 1)
            tokens = np.unique(self.indices[row])
            found.append(tokens[(tokens >= 0) & (tokens < end)])
        return found

    @cached_property
    def places(self) -> tuple[Tensor, Tensor, Tensor]:
        """Page and token (rows, most tokens of a row) of `seen`, and how many there are."""
        counts = np.array([len(tokens) for tokens in self.seen])
        tokens = np.zeros((self.rows, max(1, counts.max(initial=0))), np.int64)
        for row, mine in enumerate(self.seen):
            tokens[row, : len(mine)] = mine
        request = np.clip(self.request, 0, len(self.case.lengths) - 1)[:, None]
        page = np.where(
            np.arange(tokens.shape[1]) < counts[:, None],
            self.table[request, tokens // self.case.page], 0,
        )  # fmt: skip
        placed = (page, tokens % self.case.page, counts)
        return tuple(torch.from_numpy(x).to(DEVICE) for x in placed)  # type: ignore[return-value]

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """The arguments of the operator but for `out` and the scale."""
        case = self.case
        q = randn(self.rows, HEADS, HEAD_DIM, seed=case.seed)
        cache = randn(self.pages, 2, case.page, 1, HEAD_DIM, seed=case.seed + 1)
        if case.poison:
            page, token, counts = self.places
            used = torch.zeros(self.pages, case.page, dtype=torch.bool, device=DEVICE)
            real = torch.arange(page.shape[1], device=DEVICE) < counts[:, None]
            used[page[real], token[real]] = True
            cache.masked_fill_(~used[:, None, :, None, None], math.nan)
        k, v = (cache[:, i] if case.interleaved else cache[:, i].clone() for i in (0, 1))
        numbers = {
            "block_table": self.table, "row_to_request": self.request,
            "seq_lens": np.array(case.lengths), "positions": self.position,
            "indices": self.indices,
        }  # fmt: skip
        made = {
            name: torch.from_numpy(x.astype(np.int32)).to(DEVICE) for name, x in numbers.items()
        }
        return {"q": q, "k_cache": k, "v_cache": v, **made}

    @property
    def query_start_loc(self) -> Tensor:
        return torch.from_numpy(self.start.astype(np.int32)).to(DEVICE)

    def launch(self, **changes: Any) -> Tensor:
        """The operator; `out` is NaN before."""
        given = {**self.tensors, "softmax_scale": 0.0625, **changes}
        if "out" not in given:
            given["out"] = torch.full_like(given["q"], math.nan)
        torch.ops._vllm_fa2_C.sm70_qsa_page4_prefill(**given)
        out: Tensor = given["out"]
        return out

    def reference(self, scale: float = 0.0625) -> Tensor:
        """In float64: zeros where a row sees nothing."""
        page, token, counts = self.places
        q, k, v = (self.tensors[name] for name in ("q", "k_cache", "v_cache"))
        out = torch.zeros(self.rows, HEADS, HEAD_DIM, dtype=torch.float64, device=q.device)
        step = max(1, 2**28 // (page.shape[1] * HEAD_DIM * 8))
        for start in range(0, self.rows, step):
            part = slice(start, start + step)
            real = torch.arange(page.shape[1], device=q.device) < counts[part, None]
            places = (page[part], token[part], 0)
            keys, values = (x[places].double().masked_fill(~real[..., None], 0) for x in (k, v))
            scores = q[part].double() @ keys.transpose(1, 2) * scale
            scores = scores.masked_fill(~real[:, None], -math.inf)
            weights = scores.softmax(dim=-1).masked_fill(counts[part, None, None] == 0, 0)
            out[part] = weights @ values
        return out


@dataclass(frozen=True)
class Error:
    """Of the whole output; `worst` is the largest |error| / max(1, |reference|)."""

    relative_l2: float
    largest: float
    worst: float
    cosine: float


def error(out: Tensor, expected: Tensor) -> Error:
    got = out.double()
    difference = (got - expected).abs()
    norm = expected.norm()
    largest = difference.max() if difference.numel() else norm
    worst = (difference / expected.abs().clamp(min=1)).max() if difference.numel() else norm
    relative = difference.norm() / torch.where(norm > 0, norm, 1)
    both = got.norm() * norm
    cosine = torch.where(both > 0, (got * expected).sum() / torch.where(both > 0, both, 1), 1)
    return Error(*torch.stack([relative, largest, worst, cosine]).tolist())


def complaints(out: Tensor, expected: Tensor) -> list[str]:
    """Which bounds the output breaks. With few tokens a row its values pass 2, where one rounding
    to fp16 is 9.8e-4 already: `worst` then stands for the largest error."""
    found = error(out, expected)
    large = bool((expected.abs() > 2).any()) if expected.numel() else False
    largest = found.worst if large else found.largest
    said = []
    if not out.isfinite().all():
        said.append(f"{int((~out.isfinite()).sum())} values are not finite")
    if not found.relative_l2 <= RELATIVE_L2:
        said.append(f"relative L2 {found.relative_l2:.2e}")
    if not largest <= LARGEST:
        said.append(f"largest error {largest:.2e}")
    if not found.cosine >= COSINE:
        said.append(f"cosine {found.cosine:.9f}")
    return said


GPU = DEVICE == "cuda"
LONG = 8192 if GPU else 600
MANY, SOME = (4096, 512) if GPU else (64, 32)

# every number of selected tokens, page size and layout; then what is special
ACCURACY = [
    *(
        Case((MANY,), (LONG,), selected, page, interleaved, selection, seed=selected + page)
        for selected in ((64, 512, 2048) if GPU else (64, 512))
        for page, interleaved in ((16, True), (16, False), (784, True), (784, False))
        for selection in (("neighbours", "random") if page == 16 else ("neighbours",))
    ),
    *(Case((SOME,), (LONG - 4 + tail,), 64, 16, True, seed=tail) for tail in range(4)),
    *(Case((SOME,), (LONG - 4 + tail,), 64, 784, False, seed=tail) for tail in range(4)),
    Case((SOME,), (2048,), 512, 16, False, spare_pages=784 * 3 // 16, seed=7),
    Case((SOME,), (LONG,), 128, 4, True),
    Case((SOME,), (LONG,), 128, 1056, True, "tokens"),
    Case((MANY - 1,), (LONG,), 64),
    Case((2 * MANY,), (2 * LONG,), 64, 784),
    Case((70, 1, 0, 33, 260), (300, 9, 20, 1000, 400), 64),
    Case((70, 1, 0, 33, 260), (300, 9, 20, 1000, 400), 128, 784, False, "random"),
]
ODD = [
    Case((1,), (1,), 4),
    Case((3,), (3,), 8),
    Case((61, 30, 7), (200, 31, 7), 64, odd=True),
    Case((61, 30, 7), (2000, 31, 70), 101, 784, False, "tokens", odd=True),
    Case((90,), (1000,), 96, 12, True, "random", odd=True, seed=5),
]
SMALL = [
    Case((9, 4), (70, 4), 32, odd=True),
    Case((6, 3), (900, 5), 64, 784, False, "random"),
    Case((5,), (600,), 64, 4, True, "tokens"),
]
"""For compute-sanitizer."""
