# SPDX-License-Identifier: Apache-2.0
"""Running a call along the route table; every call is counted and can be explained afterwards."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_fa2_sm70.calls import Call
from vllm_fa2_sm70.gqa import environment_mistakes
from vllm_fa2_sm70.reasons import MEMORY, kind_of
from vllm_fa2_sm70.routes import ROUTES, NoRoute, Route, choose, reason_data
from vllm_fa2_sm70.served import Arguments, Declined

if TYPE_CHECKING:
    from torch import Tensor

REFUSED = "refused"
"""The name under which calls without a route are counted."""

KEPT = 128
REMEMBERED = 4

log = logging.getLogger("vllm_fa2_sm70")


@dataclass(frozen=True)
class Trace:
    """A call, the route that served it (None: none did) and why not the others before it."""

    call: Call
    route: str | None
    refusals: dict[str, list[str]]

    def as_data(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "function": self.call.operator,
            "q": list(self.call.q.shape),
            "k": list(self.call.k.shape),
            "device": self.call.q.device,
            "route": self.route,
            "refusals": {n: [reason_data(r) for r in why] for n, why in self.refusals.items()},
        }

    def __str__(self) -> str:
        """One line."""
        said = "; ".join(f"{name}: {', '.join(why)}" for name, why in self.refusals.items())
        shapes = f"q {list(self.call.q.shape)}, k {list(self.call.k.shape)}"
        return f"{self.call.operator} {shapes}: {self.route or REFUSED}" + f" ({said})" * bool(said)


_lock = threading.Lock()
_routes: Counter[str] = Counter()
_reasons: Counter[tuple[str, str]] = Counter()
_traces: deque[Trace] = deque(maxlen=KEPT)
_said: set[str] = set()
_answers: tuple[tuple[str, Call, list[str]], ...] = ()


def serve(call: Call, arguments: Arguments) -> Sequence[Tensor]:
    """Output and LSE of the first route that serves the call.

    Args:
        arguments: those of the operator `call.operator`.

    Raises:
        NoRoute: no route serves the call.
    """
    if call.traced:
        return _trace(call, arguments)
    refusals: dict[str, list[str]] = {}
    for route in ROUTES:
        reasons = _refusals(route, call)
        if not reasons:
            outcome = route.serve(call, arguments)
            if not isinstance(outcome, Declined):
                _record(Trace(call, route.name, refusals))
                return outcome
            reasons = [outcome.reason]
        refusals[route.name] = reasons
    _record(Trace(call, None, refusals))
    raise _no_route(call, refusals)


def _refusals(route: Route, call: Call) -> list[str]:
    """What the route says, remembered: the layers of a model make the same call one after another,
    and a look at the last ones is quicker than the sentences."""
    global _answers
    for name, known, reasons in _answers:
        if name == route.name and known == call:
            return reasons
    reasons = route.refusals(call)
    _answers = ((route.name, call, reasons), *_answers[: REMEMBERED - 1])
    return reasons


def _trace(call: Call, arguments: Arguments) -> Sequence[Tensor]:
    """Put an operator into the graph that chooses when it runs; nothing is counted now.

    What a graph is traced with does not say what it will run with: whether it is captured, how
    much memory there is, and with dynamic shapes not even how long the sequences are.
    """
    choice = choose(call)
    if choice.route is None:
        raise _no_route(call, choice.refusals)
    from vllm_fa2_sm70 import tracing

    return tracing.deferred(call.operator, arguments)


def _no_route(call: Call, refusals: dict[str, list[str]]) -> NoRoute:
    lines = [f"{name}: {reason}" for name, why in refusals.items() for reason in why]
    head = f"`{call.operator}` of vllm_fa2_sm70 refuses this call"
    return NoRoute("\n".join([head, *lines, "no route serves the call"]))


def _record(trace: Trace) -> None:
    with _lock:
        _routes[trace.route or REFUSED] += 1
        for name, reasons in trace.refusals.items():
            _reasons.update({(name, kind): 1 for kind in map(kind_of, reasons)})
        _traces.append(trace)
    log.debug("%s", trace)
    for name, reasons in trace.refusals.items():
        for reason in reasons:
            if kind_of(reason) == MEMORY:
                _say_once(name, f"{name} falls back to {trace.route}: {reason}")
    for mistake in environment_mistakes(trace.call):
        _say_once(mistake, f"{mistake}: gqa_prefill is off")


def _say_once(key: str, line: str) -> None:
    with _lock:
        if key in _said:
            return
        _said.add(key)
    log.warning("%s", line)


def route_counts() -> dict[str, int]:
    """How many calls took each route, and how many were refused."""
    with _lock:
        return {name: _routes[name] for name in (*(r.name for r in ROUTES), REFUSED)}


def refusal_counts() -> dict[str, dict[str, int]]:
    """How many calls each route turned down, by the kind of reason; a call can have several."""
    counts: dict[str, dict[str, int]] = {route.name: {} for route in ROUTES}
    with _lock:
        for (name, kind), count in _reasons.items():
            counts[name][kind] = count
    return counts


def recent_calls() -> list[Trace]:
    """The last calls, the newest at the end."""
    with _lock:
        return list(_traces)


def reset_route_counts() -> None:
    """Start counting from zero and forget the calls."""
    with _lock:
        _routes.clear()
        _reasons.clear()
        _traces.clear()
