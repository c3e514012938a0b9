# SPDX-License-Identifier: Apache-2.0
"""Tables of instructions with what they compute (tests/data/emulator/ptx-instructions.txt)."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from patchctl.emulator.ptx.snippet import LANES, Snippet
from patchctl.errors import UsageError


@dataclass(frozen=True)
class Case:
    """`rows`: values of the inputs and of the outputs, as bits. `line`: of the table."""

    snippet: Snippet
    rows: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    line: int

    def values(self) -> npt.NDArray[np.uint64]:
        """[inputs, lanes]: the rows over and over."""
        return self._lanes(0)

    def expected(self) -> npt.NDArray[np.uint64]:
        """[outputs, lanes]."""
        return self._lanes(1)

    def _lanes(self, side: int) -> npt.NDArray[np.uint64]:
        rows = [self.rows[lane % len(self.rows)][side] for lane in range(LANES)]
        return np.array(rows, np.uint64).reshape(LANES, -1).T


def parse_cases(text: str) -> list[Case]:
    """Read a table.

    Raises:
        UsageError: a line is not understood.
    """
    cases: list[Case] = []
    body: list[str] = []
    types: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    rows: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    first = 0
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.startswith("#"):
            continue
        if not line.startswith(" "):
            if line and types is None:
                body.append(line)
                first = first or number
                continue
            if types is not None:
                snippet = Snippet(f"case{len(cases)}", "\n".join(body), *types)
                cases.append(Case(snippet, tuple(rows), first))
            body, types, rows, first = ([line] if line else []), None, [], number if line else 0
            continue
        left, arrow, right = line.partition("->")
        if not arrow or not body:
            raise UsageError(f"line {number}: `{line.strip()}` is no row of inputs -> outputs")
        if types is None:
            types = tuple(left.split()), tuple(right.split())
            continue
        row = _values(left, types[0], number), _values(right, types[1], number)
        rows.append(row)
    return cases


def _values(text: str, types: tuple[str, ...], line: int) -> tuple[int, ...]:
    words = text.split()
    if len(words) != len(types):
        raise UsageError(f"line {line}: {len(words)} values for {len(types)} registers")
    return tuple(_bits(word, kind, line) for word, kind in zip(words, types, strict=True))


def _bits(word: str, kind: str, line: int) -> int:
    width = int(kind[1:]) if kind != "pred" else 1
    if ":" in word:
        low, high = word.split(":")
        return _bits(low, "b16", line) | _bits(high, "b16", line) << 16
    try:
        if re.fullmatch(r"-?\d+|0x[0-9a-f]+", word):
            return int(word, 0) % (1 << width)
        number = float.fromhex(word[:-1]) if "x" in word else float(word[:-1])
        code = {"f": "<f", "h": "<e"}[word[-1]]
        return int.from_bytes(struct.pack(code, number), "little")
    except (KeyError, ValueError) as error:
        raise UsageError(f"line {line}: `{word}` is no value") from error
