# SPDX-License-Identifier: Apache-2.0
"""What torch.compile needs to know of the operators: shapes, and a form that changes nothing.

The schemas say `Tensor! q` and `Tensor!? out`, say nothing of caches that are appended to, and
return a list: torch cannot trace that, or would trace it wrongly. So each operator has a twin
without `out` under ``vllm_fa2_sm70::``, which a traced graph holds instead. An `out` that was given
is filled from the twin's result, and `k` and `v` are appended by torch's own operations before the
twin attends. (`q` is marked as changed for the sake of old callers; no kernel writes it.)

Where the caller's function is traced, and not the operator, the graph holds ``routed_varlen_fwd``:
a twin that goes along the route table each time that it runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from vllm_fa2_sm70.appending import Cache, Rotary, append
from vllm_fa2_sm70.operators import NAMESPACE, SCHEMAS

TWINS = "vllm_fa2_sm70"
ROUTED = "routed_varlen_fwd"
COMPOSITE = "CompositeImplicitAutograd"

Shapes = Callable[..., tuple[torch.Tensor, torch.Tensor]]

_libraries: list[torch.library.Library] = []  # an operator lives as long as its library


def register(optional: frozenset[str] = frozenset()) -> None:
    """Describe each operator to torch, unless its library has done so.

    Args:
        optional: the optional operators that the library has. They change what they are given and
            return nothing, so torch can trace them as they are.
    """
    twins = torch.library.Library(TWINS, "DEF")
    operators = torch.library.Library(NAMESPACE, "IMPL")
    _libraries.extend((twins, operators))
    for name, shapes in _SHAPES.items():
        qualified = f"{NAMESPACE}::{name}"
        has_meta = torch._C._dispatch_has_kernel_for_dispatch_key(qualified, "Meta")
        known = torch._library.simple_registry.singleton.find(qualified).fake_impl
        if not has_meta and known.kernel is None:
            torch.library.register_fake(qualified, _fake_of_operator(shapes))
        twins.define(name + twin_schema(name))
        twins.impl(name, _twin(name), "CompositeExplicitAutograd")
        torch.library.register_fake(f"{TWINS}::{name}", shapes)
        # tracing takes an operator apart where it can; calls that are not traced never come here
        if not torch._C._dispatch_has_kernel_for_dispatch_key(qualified, COMPOSITE):
            operators.impl(name, _parts(name), COMPOSITE)
    # as symbols, or the graph would be bound to the lengths that it is traced with
    lengths = twin_schema("varlen_fwd").replace("int max_seqlen", "SymInt max_seqlen")
    twins.define(ROUTED + lengths)
    twins.impl(ROUTED, _routed, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{TWINS}::{ROUTED}", _varlen_shapes)
    for name in optional:
        torch.library.register_fake(f"{NAMESPACE}::{name}", lambda *arguments: None)


def deferred(operator: str, arguments: tuple[Any, ...]) -> Sequence[torch.Tensor]:
    """What a traced graph holds for a call of the interface."""
    if operator != "varlen_fwd":
        result: Sequence[torch.Tensor] = getattr(getattr(torch.ops, NAMESPACE), operator)(
            *arguments
        )
        return result
    at = _OUT_AT[operator]
    out = arguments[at]
    made, lse = getattr(getattr(torch.ops, TWINS), ROUTED)(*arguments[:at], *arguments[at + 1 :])
    return [made if out is None else out.copy_(made), lse]


def _routed(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    from vllm_fa2_sm70.describe import describe_packed
    from vllm_fa2_sm70.serving import serve

    at = _OUT_AT["varlen_fwd"]
    whole = (*arguments[:at], None, *arguments[at:])
    result, lse = serve(describe_packed(whole, running=True), whole)
    return result, lse


def twin_schema(name: str) -> str:
    """The schema of an operator's twin: without `out`, and nothing is marked as changed."""
    arguments = SCHEMAS[name].replace("Tensor!? out, ", "").replace("Tensor! q", "Tensor q")
    return arguments.replace("Tensor[]", "(Tensor, Tensor)")


def _varlen_shapes(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    # q (tokens, heads, dim): LSE is (heads, tokens)
    tokens, heads, _ = q.shape
    return q.new_empty(q.shape), q.new_empty((heads, tokens), dtype=torch.float32)


def _kvcache_shapes(
    q: torch.Tensor, kcache: torch.Tensor, vcache: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    # q (batch, tokens, heads, dim): LSE is (batch, heads, tokens)
    batch, tokens, heads, _ = q.shape
    return q.new_empty(q.shape), q.new_empty((batch, heads, tokens), dtype=torch.float32)


_SHAPES: dict[str, Shapes] = {"varlen_fwd": _varlen_shapes, "fwd_kvcache": _kvcache_shapes}
_NAMES = {
    name: re.findall(r"(\w+)(?=[,)])", schema.partition(" -> ")[0])
    for name, schema in SCHEMAS.items()
}  # the arguments' names, in their order
_OUT_AT = {name: names.index("out") for name, names in _NAMES.items()}


def _fake_of_operator(shapes: Shapes) -> Callable[..., list[torch.Tensor]]:
    def fake(*arguments: Any) -> list[torch.Tensor]:
        return list(shapes(*arguments))

    return fake


def _twin(name: str) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    at = _OUT_AT[name]

    def twin(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        operator = getattr(getattr(torch.ops, NAMESPACE), name)
        result, lse = operator(*arguments[:at], None, *arguments[at:])
        return result, lse

    return twin


def _parts(name: str) -> Callable[..., list[torch.Tensor]]:
    at = _OUT_AT[name]

    def parts(*arguments: Any) -> list[torch.Tensor]:
        if name == "fwd_kvcache":
            arguments = _appended(dict(zip(_NAMES[name], arguments, strict=True)))
        out = arguments[at]
        twin = getattr(getattr(torch.ops, TWINS), name)
        result, lse = twin(*arguments[:at], *arguments[at + 1 :])
        return [result if out is None else out.copy_(result), lse]

    return parts


def _appended(given: dict[str, Any]) -> tuple[Any, ...]:
    """Append, and give the arguments of a call over what then is in the caches."""
    k, lengths = given["k"], given["seqlens_k"]
    if k is None:
        return tuple(given.values())
    cache = Cache(given["kcache"], given["vcache"], given["block_table"], given["cache_batch_idx"])
    rotary = None
    if given["rotary_cos"] is not None:
        rotary = Rotary(given["rotary_cos"], given["rotary_sin"], given["is_rotary_interleaved"])
        given["q"] = rotary.apply(given["q"], _query_positions(given, cache.capacity))
    append(cache, k, given["v"], lengths, given["leftpad_k"], rotary)
    given["seqlens_k"] = (lengths + k.shape[1]).int()
    nothing = ("k", "v", "rotary_cos", "rotary_sin")
    return tuple(None if name in nothing else value for name, value in given.items())


def _query_positions(given: dict[str, Any], capacity: int) -> torch.Tensor:
    """As FA2: each query has its own position if the mask depends on it, else the first one's."""
    lengths, q = given["seqlens_k"], given["q"]
    windows = (given["window_size_left"], given["window_size_right"])
    steps = torch.arange(q.shape[1], device=q.device)
    if not given["is_causal"] and not any(0 <= window < capacity for window in windows):
        steps = torch.zeros_like(steps)
    positions: torch.Tensor = lengths.long()[:, None] + steps
    return positions
