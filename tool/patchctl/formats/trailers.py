# SPDX-License-Identifier: Apache-2.0
"""The trailers of a commit message: the ``Key: value`` lines of its last paragraph."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_TRAILER = re.compile(r"(?P<key>[A-Za-z0-9][A-Za-z0-9-]*)\s*:\s*(?P<value>.*)$")


@dataclass(frozen=True)
class Trailer:
    """One trailer; `line` is its line of the message, from 1. A folded value is joined."""

    key: str
    value: str
    line: int


def read_trailers(message: bytes) -> tuple[Trailer, ...]:
    """The trailers of a message, in order; none if its last paragraph holds anything else.

    The first paragraph is the subject and never holds any.
    """
    lines = message.decode("utf-8", "replace").rstrip().split("\n")
    blank = [number for number, line in enumerate(lines) if not line.strip()]
    if not blank:
        return ()
    found: list[Trailer] = []
    for number, line in enumerate(lines[blank[-1] + 1 :], blank[-1] + 2):
        match = _TRAILER.match(line)
        if line[:1].isspace() and found:
            last = found[-1]
            found[-1] = Trailer(last.key, f"{last.value} {line.strip()}", last.line)
        elif match is None:
            return ()
        else:
            found.append(Trailer(match["key"], match["value"].strip(), number))
    return tuple(found)


def add_trailers(message: bytes, trailers: Sequence[tuple[str, str]]) -> bytes:
    """The message with more trailers at its end; one that is there already is not repeated."""
    there = read_trailers(message)
    known = {(t.key, t.value) for t in there}
    lines = [f"{key}: {value}\n" for key, value in trailers if (key, value) not in known]
    if not lines:
        return message
    gap = b"" if there else b"\n"
    return message.rstrip(b"\n") + b"\n" + gap + "".join(lines).encode()
