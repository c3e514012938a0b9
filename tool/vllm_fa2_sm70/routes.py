# SPDX-License-Identifier: Apache-2.0
"""Which kernel serves a call: a table, and a pure function of what the call looks like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from vllm_fa2_sm70.calls import Call
from vllm_fa2_sm70.dense import DENSE_OPTIONS, dense_refusals

REFUSED = "refused"
"""The name under which calls without a route are counted."""


@dataclass(frozen=True)
class Route:
    """A way to serve a call: `refusals` gives every reason why it cannot, none if it can.

    `operators` says what is called for each operator that a caller's function stands for.
    """

    name: str
    operators: Mapping[str, str]
    refusals: Callable[[Call], list[str]]


@dataclass(frozen=True)
class Choice:
    """The route that serves a call (None: no route does), and what the others said."""

    route: Route | None
    refusals: dict[str, list[str]] = field(default_factory=dict)


class NoRoute(NotImplementedError):
    """No kernel here serves the call; the message gives every reason of every route."""


_SAME = {name: name for name in DENSE_OPTIONS}
ROUTES = (Route("dense", _SAME, dense_refusals),)
"""In order of preference; the last one is the exact fallback of all."""


def choose(call: Call) -> Choice:
    """The first route without a refusal, and the refusals of those before it."""
    refusals: dict[str, list[str]] = {}
    for route in ROUTES:
        reasons = route.refusals(call)
        if not reasons:
            return Choice(route, refusals)
        refusals[route.name] = reasons
    return Choice(None, refusals)


def explain(call: Call) -> str:
    """Which route a call takes and why not the others, one line a reason."""
    choice = choose(call)
    lines = [f"{name}: {reason}" for name, why in choice.refusals.items() for reason in why]
    taken = f"{choice.route.name}: taken" if choice.route else "no route serves the call"
    return "\n".join([*lines, taken])


_counts: Counter[str] = Counter()


def take(call: Call) -> Route:
    """The route for a call that is about to run; it is counted.

    Raises:
        NoRoute: no route serves the call.
    """
    choice = choose(call)
    _counts[choice.route.name if choice.route else REFUSED] += 1
    if choice.route is None:
        raise NoRoute(f"`{call.operator}` of vllm_fa2_sm70 refuses this call\n{explain(call)}")
    return choice.route


def route_counts() -> dict[str, int]:
    """How many calls took each route, and how many were refused."""
    return {name: _counts[name] for name in (*(r.name for r in ROUTES), REFUSED)}


def reset_route_counts() -> None:
    """Start counting from zero."""
    _counts.clear()
