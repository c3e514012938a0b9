# SPDX-License-Identifier: Apache-2.0
"""What a launch is to do: tensors and parameters before it, a judgement after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from patchctl.emulator.memory import GlobalMemory
from patchctl.emulator.params import page_size
from patchctl.emulator.placement import Placement
from patchctl.emulator.problem import Inputs, Problem, inputs
from patchctl.emulator.reference import (
    NO_WEIGHT_LSE,
    Accuracy,
    attention,
    judge,
    merged,
    results,
)

Array = npt.NDArray[Any]

COMBINE_ROWS = 4
"""Rows of the LSE that a CTA of the combine kernel merges."""


@dataclass(frozen=True)
class Placed:
    """A task whose tensors are in memory. `outputs`: the tensors that the kernel writes."""

    parameters: bytes
    grid: tuple[int, int, int]
    outputs: tuple[str, ...]
    judge: Callable[[], Accuracy]


@dataclass(frozen=True)
class Shape:
    """How the host launches a kernel: rows of a CTA, threads, bytes of shared memory in all.

    `splits_on`: the axis of the grid that counts the splits, too. `page_size`: the kernel's second
    parameter is the page size, prepared for divisions.
    """

    tile_rows: int
    threads: int
    shared_bytes: int
    splits_on: str = "z"
    page_size: bool = False


class Task(Protocol):
    """Something to run a kernel on."""

    def place(self, memory: GlobalMemory, shape: Shape) -> Placed:
        """Put the tensors into memory."""
        ...


@dataclass(frozen=True)
class Attention:
    """Forward attention, prefill or decode. `data`: other numbers than the problem's own."""

    problem: Problem
    data: Inputs | None = None

    def place(self, memory: GlobalMemory, shape: Shape) -> Placed:
        data = inputs(self.problem) if self.data is None else self.data
        placement = Placement(self.problem, data, memory)
        parts = self.problem.splits > 1
        second = page_size(self.problem.page_size) if shape.page_size else b""
        return Placed(
            placement.parameters + second,
            self.problem.grid(shape.tile_rows, shape.splits_on),
            ("out_parts", "lse_parts") if parts else ("out", "lse"),
            lambda: judge(
                (merged if parts else results)(self.problem, memory), attention(self.problem, data)
            ),
        )


@dataclass(frozen=True)
class Combine:
    """Merging of partial results; some parts saw no key, some have no weight."""

    problem: Problem

    def place(self, memory: GlobalMemory, shape: Shape) -> Placed:
        p = replace(self.problem, splits=max(2, self.problem.splits))
        placement = Placement(p, inputs(p), memory)
        rng = np.random.default_rng(p.seed)
        lse = (3 * rng.standard_normal((p.splits, p.rows))).astype(np.float32)
        empty = rng.random(lse.shape) < 0.5
        empty[:, np.arange(p.rows) % 3 != 0] = False
        empty[:, 0] = True  # a row that sees no key at all
        lse[empty] = -np.inf
        weightless = rng.random(lse.shape) < 0.3
        weightless[:, np.arange(p.rows) % 3 != 1] = False
        weightless[:, 1] = True  # a row all of whose keys are without weight
        lse[weightless] = NO_WEIGHT_LSE
        out = rng.standard_normal((*lse.shape, p.head_dim)).astype(np.float32)
        out[empty] = np.nan  # never written, so never to be read
        for name, data, readable in (
            ("lse_parts", lse, None),
            ("out_parts", out, np.repeat(~empty[..., None], p.head_dim, axis=2)),
        ):
            tensor = memory.tensors[name]
            tensor.data[:] = data.reshape(-1).view(np.uint8)
            tensor.writable = False
            tensor.readable = None if readable is None else np.repeat(readable.ravel(), 2)
        expected = merged(p, memory)
        rows = -(-p.rows // COMBINE_ROWS)
        return Placed(
            placement.parameters,
            (rows, 1, 1),
            ("out", "lse"),
            lambda: judge(results(p, memory), expected),
        )
