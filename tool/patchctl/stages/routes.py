# SPDX-License-Identifier: Apache-2.0
"""What the routing shim would do with a call that is only described."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from patchctl.errors import UsageError

DEVICE = "cuda:0"
V100_MULTIPROCESSORS = 80


@dataclass(frozen=True)
class Question:
    """A call in words. `strides` and `offsets` are of q, k, v or out, in elements; `variables`
    replace those of the environment; `without` are operators that the library lacks."""

    q: int
    kv: int
    function: str = "varlen_fwd"
    heads: int = 6
    kv_heads: int = 1
    head_dim: int = 256
    dtype: str = "float16"
    scale: float | None = None
    causal: bool = True
    window: tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    dropout: float = 0.0
    num_splits: int = 0
    sequences: int = 1
    page: int | None = None
    alibi: bool = False
    out: bool = False
    capturing: bool = False
    traced: bool = False
    capability: tuple[int, int] = (7, 0)
    strides: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    offsets: Mapping[str, int] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()


def explained(question: Question) -> dict[str, Any]:
    """Which route takes the call, every reason of the others, and what memory the route needs."""
    from vllm_fa2_sm70.calls import ENVIRONMENT
    from vllm_fa2_sm70.gqa import QUERIES, gqa_operator
    from vllm_fa2_sm70.gqa_sizes import sizes
    from vllm_fa2_sm70.preflight import HEADROOM, segment
    from vllm_fa2_sm70.routes import explanation

    _known(question.variables, ENVIRONMENT, "variable")
    call = call_of(question)
    data = explanation(call)
    data["environment"] = dict(call.environment)
    if data["taken"] == "gqa_prefill":
        need = sizes(gqa_operator(call), QUERIES, V100_MULTIPROCESSORS, out_given=question.out)
        wanted = (need.retained, *need.transient)
        data["memory"] = {
            "retained": need.retained,
            "transient": sum(need.transient),
            "headroom": HEADROOM,
            "first_call_needs": sum(map(segment, wanted)) + HEADROOM,
        }
    return data


def call_of(question: Question) -> Any:
    """The description that the routes decide about."""
    from vllm_fa2_sm70.calls import ENVIRONMENT, Call, TensorInfo
    from vllm_fa2_sm70.operators import OPTIONAL

    _known(question.without, OPTIONAL, "operator")
    for given in (question.strides, question.offsets):
        _known(given, ("q", "k", "v", "out"), "tensor")

    def tensor(name: str, *shape: int, dtype: str = question.dtype) -> TensorInfo:
        strides = question.strides.get(name) or tuple(
            math.prod(shape[i + 1 :]) for i in range(len(shape))
        )
        if len(strides) != len(shape):
            raise UsageError(f"{name} has {len(shape)} dimensions, not {len(strides)} strides")
        return TensorInfo(shape, strides, dtype, DEVICE, question.offsets.get(name, 0))

    size = question.head_dim
    cached = question.function == "fwd_kvcache"
    queries = (question.q, question.heads, size)
    keys = (question.kv, question.kv_heads, size)
    options: dict[str, TensorInfo] = {}
    if question.page:
        pages = -(-question.kv // question.page)
        keys = (question.sequences * pages, question.page, *keys[1:])  # type: ignore[assignment]
        table = tensor("block_table", question.sequences, pages, dtype="int32")
        lengths = "cache_seqlens" if cached else "seqused_k"
        options = {"block_table": table, lengths: tensor("", question.sequences, dtype="int32")}
    elif cached:
        keys = (question.sequences, *keys)  # type: ignore[assignment]
    if cached:
        queries = (question.sequences, *queries)  # type: ignore[assignment]
    if question.alibi:
        options["alibi_slopes"] = tensor("", question.heads, dtype="float32")
    variables = {n: os.environ[n] for n in ENVIRONMENT if n in os.environ}
    variables |= question.variables
    return Call(
        operator=question.function,
        q=tensor("q", *queries),
        k=tensor("k", *keys),
        v=tensor("v", *keys),
        out=tensor("out", *queries) if question.out else None,
        softmax_scale=size**-0.5 if question.scale is None else question.scale,
        capability=question.capability,
        causal=question.causal,
        window=question.window,
        softcap=question.softcap,
        dropout=question.dropout,
        num_splits=question.num_splits,
        max_seqlen_q=question.q,
        max_seqlen_k=question.kv,
        options=options,
        capturing=question.capturing,
        traced=question.traced,
        sequences=question.sequences,
        environment=tuple(sorted(variables.items())),
        library_operators=frozenset(OPTIONAL) - set(question.without),
    )


def listed() -> dict[str, Any]:
    """The routes in their order, and the variables that decide about them."""
    from vllm_fa2_sm70.calls import ENVIRONMENT
    from vllm_fa2_sm70.routes import ROUTES

    return {
        "routes": [
            {"name": route.name, "operators": list(route.operators), "serves": route.summary}
            for route in ROUTES
        ],
        "variables": {name: os.environ.get(name) for name in ENVIRONMENT},
    }


def _known(given: Iterable[str], known: Iterable[str], what: str) -> None:
    for name in given:
        if name not in known:
            raise UsageError(f"unknown {what} `{name}`; expected one of {', '.join(known)}")
