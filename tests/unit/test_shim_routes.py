# SPDX-License-Identifier: Apache-2.0
"""Choosing a route: every admission and every refusal, without a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from vllm_fa2_sm70 import routes
from vllm_fa2_sm70.routes import Call, NoRoute, TensorInfo, choose, explain


def tensor(*shape: int, **changes: Any) -> TensorInfo:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return replace(TensorInfo(shape, tuple(strides), "float16", "cuda:0"), **changes)


VARLEN = Call(
    operator="varlen_fwd",
    q=tensor(100, 6, 256),
    k=tensor(300, 1, 256),
    v=tensor(300, 1, 256),
    softmax_scale=0.0625,
    capability=(7, 0),
    max_seqlen_q=60,
    max_seqlen_k=200,
)
KVCACHE = replace(
    VARLEN,
    operator="fwd_kvcache",
    q=tensor(2, 5, 8, 256),
    k=tensor(2, 200, 2, 256),
    v=tensor(2, 200, 2, 256),
    options=frozenset({"cache_seqlens"}),
)
PTX = ((routes.PTX_VARIABLE, "1"),)


def reasons(call: Call) -> list[str]:
    choice = choose(call)
    assert (choice.route is None) == bool(choice.refusals)
    return choice.refusals.get("dense", [])


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"causal": True},
        {"causal": True, "window": (-1, 0)},
        {"window": (200, -1)},
        {"causal": True, "window": (-1, 5)},
        {"num_splits": 1},
        {"capturing": True},
        {"softmax_scale": 1.0},
        {"out": tensor(100, 6, 256)},
        {"q": tensor(100, 6, 256, strides=(4096, 512, 1))},
        {"q": tensor(1, 6, 256, strides=(3, 256, 1))},
        {"k": tensor(0, 1, 256), "v": tensor(0, 1, 256)},
        {"q": tensor(100, 6, 256, offset=64)},
        {"capability": (9, 0), "environment": PTX},
    ],
)
def test_dense_serves(change: dict[str, Any]) -> None:
    assert reasons(replace(VARLEN, **change)) == []


def test_dense_serves_a_contiguous_cache() -> None:
    assert reasons(KVCACHE) == []
    assert choose(KVCACHE).route is choose(VARLEN).route


FOREIGN_K = tensor(300, 1, 256, device="cuda:1")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"capability": None}, "q is not on a CUDA device"),
        ({"capability": (6, 1)}, "the device has compute capability 6.1, not 7.0"),
        ({"capability": (6, 1), "environment": PTX}, "compute capability 6.1, not 7.0"),
        ({"capability": (9, 0)}, "capability 9.0, not 7.0 (VLLM_FA2_SM70_ALLOW_PTX=1 runs"),
        ({"capability": (9, 0), "environment": ((routes.PTX_VARIABLE, "0"),)}, "9.0, not 7.0"),
        ({"unusable": "there is no library `x`"}, "there is no library `x`"),
        ({"q": tensor(100, 6, 256, dtype="bfloat16")}, "q is bfloat16, not float16"),
        ({"k": tensor(300, 1, 256, dtype="float8_e4m3fn")}, "k is float8_e4m3fn, not float16"),
        ({"q": tensor(100, 6, 128)}, "q has shape [100, 6, 128], its last dimension not 256"),
        ({"q": tensor(1, 100, 6, 256)}, "q has 4 dimensions, not 3"),
        ({"k": FOREIGN_K}, "k is on cuda:1, q on cuda:0"),
        ({"v": tensor(301, 1, 256)}, "k has shape [300, 1, 256], v [301, 1, 256]"),
        ({"q": tensor(100, 5, 256), "k": tensor(9, 2, 256)}, "5 query heads are no multiple of 2"),
        ({"q": tensor(100, 6, 256, strides=(1536, 1, 6))}, "q has strides [1536, 1, 6]"),
        ({"v": tensor(300, 1, 256, strides=(260, 256, 1))}, "not multiples of 8"),
        ({"q": tensor(100, 6, 256, offset=3)}, "q begins 3 elements into its storage"),
        ({"out": tensor(100, 6, 128)}, "out has shape [100, 6, 128], q [100, 6, 256]"),
        ({"out": tensor(100, 6, 256, dtype="float32")}, "out is float32, not float16"),
        ({"dropout": 0.1}, "dropout_p is 0.1, not 0"),
        ({"window": (128, -1)}, "window_size is (128, -1): it has no sliding window"),
        ({"window": (-1, 3)}, "window_size is (-1, 3): it has no sliding window"),
        ({"window": (128, 0), "causal": True}, "it has no sliding window"),
        ({"softcap": 50.0}, "softcap is 50, not 0"),
        ({"softmax_scale": 0.0}, "softmax_scale is 0, not a positive number"),
        ({"softmax_scale": float("nan")}, "softmax_scale is nan, not a positive number"),
        ({"softmax_scale": float("inf")}, "softmax_scale is inf, not a positive number"),
        ({"num_splits": 4}, "num_splits is 4, not 0 or 1"),
        ({"options": frozenset({"block_table"})}, "block_table is given"),
        ({"options": frozenset({"cache_seqlens"})}, "cache_seqlens is given"),
        ({"needs_gradient": True}, "an input needs a gradient, and there is no backward pass"),
        ({"operator": "other"}, "it does not serve `other`"),
    ],
)
def test_dense_refuses_and_says_why(change: dict[str, Any], reason: str) -> None:
    found = reasons(replace(VARLEN, **change))
    assert [r for r in found if reason in r], found


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"options": frozenset({"cache_seqlens", "k", "v"})}, "k is given"),
        ({"options": frozenset({"block_table"})}, "block_table is given"),
        ({"k": tensor(3, 200, 2, 256), "v": tensor(3, 200, 2, 256)}, "q has batch size 2"),
        ({"q": tensor(10, 8, 256)}, "q has 3 dimensions, not 4"),
    ],
)
def test_dense_refuses_caches_that_it_cannot_read(change: dict[str, Any], reason: str) -> None:
    found = reasons(replace(KVCACHE, **change))
    assert [r for r in found if reason in r], found


def test_every_reason_is_given_at_once() -> None:
    call = replace(
        VARLEN,
        capability=(8, 0),
        q=tensor(100, 6, 128, dtype="bfloat16"),
        softcap=30.0,
        options=frozenset({"block_table", "alibi_slopes"}),
    )
    assert explain(call).splitlines() == [
        "dense: the device has compute capability 8.0, not 7.0 "
        "(VLLM_FA2_SM70_ALLOW_PTX=1 runs the embedded PTX there, for tests)",
        "dense: q is bfloat16, not float16",
        "dense: q has shape [100, 6, 128], its last dimension not 256",
        "dense: softcap is 30, not 0",
        "dense: alibi_slopes is given",
        "dense: block_table is given",
        "no route serves the call",
    ]


def test_choice_is_explained_and_counted() -> None:
    routes.reset_route_counts()
    assert routes.take(VARLEN).name == "dense"
    assert explain(VARLEN) == "dense: taken"
    with pytest.raises(NoRoute, match="softcap is 1, not 0"):
        routes.take(replace(VARLEN, softcap=1.0))
    assert routes.route_counts() == {"dense": 1, "refused": 1}
    routes.reset_route_counts()
    assert routes.route_counts() == {"dense": 0, "refused": 0}


def test_refusal_is_what_callers_catch() -> None:
    assert issubclass(NoRoute, NotImplementedError)
