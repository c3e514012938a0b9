# SPDX-License-Identifier: Apache-2.0
"""A problem as people type it: ``q=33+1,k=300+20,heads=6/2,causal,page=48``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from patchctl.emulator.problem import Problem
from patchctl.errors import UsageError
from patchctl.formats.wording import did_you_mean

Reader = Callable[[str], dict[str, Any]]


def _lengths(name: str) -> Reader:
    return lambda text: {name: tuple(int(n) for n in text.split("+"))}


def _number(name: str, kind: Callable[[str], Any]) -> Reader:
    return lambda text: {name: kind(text)}


def _heads(text: str) -> dict[str, Any]:
    heads, _, kv_heads = text.partition("/")
    return {"heads": int(heads), "kv_heads": int(kv_heads or heads)}


def _window(text: str) -> dict[str, Any]:
    left, colon, right = text.partition(":")
    if not colon:
        raise ValueError(text)
    return {"window": tuple(int(x) if x else None for x in (left, right))}


_READERS: dict[str, Reader] = {
    "q": _lengths("q_lengths"),
    "k": _lengths("k_lengths"),
    "heads": _heads,
    "d": _number("head_dim", int),
    "window": _window,
    "softcap": _number("softcap", float),
    "page": _number("page_size", int),
    "leftpad": _number("leftpad", int),
    "splits": _number("splits", int),
    "scale": _number("scale", float),
    "spread": _number("spread", float),
    "ramp": _number("ramp", float),
    "seed": _number("seed", int),
}
_FLAGS: dict[str, dict[str, Any]] = {
    "causal": {"causal": True},
    "alibi": {"alibi": True},
    "batched": {"packed": False},
    "used": {"used": True},
    "indexed": {"indexed": True},
    "strange": {"strange": True},
}
HELP = (
    "q=LENGTH[+LENGTH..], k=.., heads=QUERY[/KV], d=HEAD_SIZE, causal, window=[LEFT]:[RIGHT], "
    "softcap=X, alibi, page=SIZE, batched, indexed, used, leftpad=ROWS, splits=N, scale=X, "
    "spread=X (of the logits), ramp=X (logits grow with the key), strange (NaN and "
    "infinities in the last keys), seed=N"
)


def parse_shape(text: str, head_dim: int) -> Problem:
    """Read a problem; what is not said is one head, one sequence, no mask.

    Raises:
        UsageError: an unknown word, or a value that does not fit.
    """
    values: dict[str, Any] = {"head_dim": head_dim, "q_lengths": (37,), "k_lengths": (131,)}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, equals, value = part.partition("=")
        try:
            values |= _READERS[name](value) if equals else _FLAGS[name]
        except KeyError:
            guess = did_you_mean(name, [*_READERS, *_FLAGS])
            raise UsageError(f"a shape has no `{part}`", hint=guess or HELP) from None
        except ValueError:
            raise UsageError(f"`{value}` does not fit `{name}` of a shape", hint=HELP) from None
    return Problem(**values)
