# SPDX-License-Identifier: Apache-2.0
"""The three kernels of the QSA prefill: ranks of the pages, lists of a group's pages, attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from patchctl.emulator.memory import GlobalMemory
from patchctl.emulator.qsaproblem import NOTHING, QsaData, QsaProblem
from patchctl.emulator.reference import Accuracy, judge
from patchctl.emulator.tasks import Placed, Shape

Array = npt.NDArray[Any]

RANK_PAGES = 64
"""Pages of a CTA that ranks."""


@dataclass(frozen=True)
class QsaRank:
    """The pages of each request in the order of their numbers."""

    problem: QsaProblem

    def place(self, memory: GlobalMemory, shape: Shape) -> Placed:
        data = QsaData(self.problem)
        requests, width = data.table.shape
        expected = dict(zip(("page_rank", "ranked_page"), data.ranks(), strict=True))
        return _exactly(data, memory, (-(-width // RANK_PAGES), requests, 1), expected)


@dataclass(frozen=True)
class QsaTable:
    """Which pages of four tokens a group of rows selected."""

    problem: QsaProblem

    def place(self, memory: GlobalMemory, shape: Shape) -> Placed:
        data = QsaData(self.problem)
        given = dict(zip(("page_rank", "ranked_page"), data.ranks(), strict=True))
        expected = dict(zip(("lists", "list_lengths"), data.lists(), strict=True))
        return _exactly(data, memory, (self.problem.groups, 1, 1), expected, given)


@dataclass(frozen=True)
class QsaForward:
    """Attention over the lists."""

    problem: QsaProblem

    def place(self, memory: GlobalMemory, shape: Shape) -> Placed:
        p = self.problem
        data = QsaData(p)
        at = data.place(memory) | _give(
            memory, dict(zip(("lists", "list_lengths"), data.lists(), strict=True))
        )
        expected = data.attended()
        expected[: p.first_row] = np.nan
        out = memory.add("out", np.full(expected.shape, np.nan, np.float16), writable=True)
        at["out"] = out.address
        none = np.zeros(1)
        return Placed(
            data.parameters(at),
            (p.groups, 1, 1),
            ("out",),
            lambda: judge([(out.array(np.float16, expected.shape), none)], [(expected, none)]),
        )


def _give(memory: GlobalMemory, arrays: dict[str, Array]) -> dict[str, int]:
    """Results of the kernels before; what they leave alone may not be read."""
    return {n: memory.add(n, x, readable=x != NOTHING).address for n, x in arrays.items()}


def _exactly(
    data: QsaData,
    memory: GlobalMemory,
    grid: tuple[int, int, int],
    expected: dict[str, Array],
    given: dict[str, Array] | None = None,
) -> Placed:
    """Integers, each of which is right or wrong; those that are not to be written keep theirs."""
    at = data.place(memory) | _give(memory, given or {})
    tensors = {
        name: memory.add(name, np.full_like(x, NOTHING), writable=True)
        for name, x in expected.items()
    }
    at |= {name: tensor.address for name, tensor in tensors.items()}

    def verdict() -> Accuracy:
        wrong = [
            int((tensors[name].array(np.int32, x.shape) != x).sum()) for name, x in expected.items()
        ]
        return Accuracy(0.0, 0.0, 0.0, sum(wrong), sum(x.size for x in expected.values()))

    return Placed(data.parameters(at), grid, tuple(expected), verdict)
