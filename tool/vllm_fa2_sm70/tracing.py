# SPDX-License-Identifier: Apache-2.0
"""What torch.compile needs to know of the operators: shapes, and a form that changes nothing.

The schemas say `Tensor! q` and `Tensor!? out` and return a list: torch cannot make that
functional by itself. So each operator gets a twin without `out` under ``vllm_fa2_sm70::``, which
a traced graph holds instead; an `out` that was given is filled from the twin's result. (`q` is
marked as changed for the sake of old callers; no kernel writes it.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vllm_fa2_sm70.operators import NAMESPACE, SCHEMAS

TWINS = "vllm_fa2_sm70"

Shapes = Callable[..., tuple[torch.Tensor, torch.Tensor]]

_libraries: list[torch.library.Library] = []  # an operator lives as long as its library


def register() -> None:
    """Describe each operator to torch, unless its library has done so."""
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
        if not torch._C._dispatch_has_kernel_for_dispatch_key(qualified, "Functionalize"):
            operators.impl(name, _functional(name), "Functionalize")


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
_OUT_AT = {
    name: text[: text.index(" out")].count(",") for name, text in SCHEMAS.items()
}  # the place of `out` among the arguments


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


def _functional(name: str) -> Callable[..., list[torch.Tensor]]:
    at = _OUT_AT[name]

    def functional(*arguments: Any) -> list[torch.Tensor]:
        out = arguments[at]
        twin = getattr(getattr(torch.ops, TWINS), name)
        result, lse = twin(*arguments[:at], *arguments[at + 1 :])
        return [result if out is None else out.copy_(result), lse]

    return functional
