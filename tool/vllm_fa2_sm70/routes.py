# SPDX-License-Identifier: Apache-2.0
"""Which kernel serves a call: a table, and a pure function of what the call looks like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vllm_fa2_sm70 import gqa_serve
from vllm_fa2_sm70.calls import Call
from vllm_fa2_sm70.dense import DENSE_OPTIONS, dense_refusals
from vllm_fa2_sm70.gqa import OPERATORS, gqa_operator, gqa_refusals
from vllm_fa2_sm70.reasons import kind_of
from vllm_fa2_sm70.served import Serve, call_library


@dataclass(frozen=True)
class Route:
    """A way to serve a call: `refusals` gives every reason why it cannot, none if it can.

    `operator` says which of the library's operators is called. `serve` calls it with the arguments
    of the operator that the caller's function stands for; it can still decline, for a reason that
    nobody knows before. `operators` are all that `operator` can say.
    """

    name: str
    operator: Callable[[Call], str]
    refusals: Callable[[Call], list[str]]
    serve: Serve = call_library
    operators: tuple[str, ...] = ()
    summary: str = ""


@dataclass(frozen=True)
class Choice:
    """The route that serves a call (None: no route does), and what the others said."""

    route: Route | None
    refusals: dict[str, list[str]] = field(default_factory=dict)


class NoRoute(NotImplementedError):
    """No kernel here serves the call; the message gives every reason of every route."""


def _asked_for(call: Call) -> str:
    return call.operator


ROUTES = (
    Route(
        "gqa_prefill",
        gqa_operator,
        gqa_refusals,
        gqa_serve.serve,
        tuple(OPERATORS.values()),
        "one causal prefill of 8,000 tokens over 40,000 to 128,000 keys, six heads on one, D = 256",
    ),
    Route(
        "dense",
        _asked_for,
        dense_refusals,
        call_library,
        tuple(DENSE_OPTIONS),
        "fp16 with all that FA2's forward has, but dropout; exact, the fallback of all",
    ),
)
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


def explanation(call: Call) -> dict[str, Any]:
    """The same as data, with what every route says, also those after the one that is taken."""
    choice = choose(call)
    routes = []
    for route in ROUTES:
        reasons = route.refusals(call)
        routes.append(
            {
                "name": route.name,
                "operator": route.operator(call),
                "taken": route is choice.route,
                "refusals": [reason_data(reason) for reason in reasons],
            }
        )
    return {"taken": choice.route.name if choice.route else None, "routes": routes}


def reason_data(reason: str) -> dict[str, str]:
    """A reason as data."""
    return {"kind": kind_of(reason), "reason": str(reason)}
