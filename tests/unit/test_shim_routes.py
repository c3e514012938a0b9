# SPDX-License-Identifier: Apache-2.0
"""Choosing a route: every admission and every refusal, without a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from vllm_fa2_sm70.calls import PTX_VARIABLE, Call, TensorInfo
from vllm_fa2_sm70.routes import NoRoute, choose, explain


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
    options={"cache_seqlens": tensor(2, dtype="int32")},
)
PTX = ((PTX_VARIABLE, "1"),)


TABLE = tensor(2, 4, dtype="int32")
PAGES = {"k": tensor(9, 784, 1, 256), "v": tensor(9, 784, 1, 256)}
CACHE_PAGES = {"k": tensor(9, 16, 2, 256), "v": tensor(9, 16, 2, 256), "max_seqlen_k": 64}
NEW = {"k": tensor(2, 3, 2, 256), "v": tensor(2, 3, 2, 256)}
ROTARY = {"rotary_cos": tensor(200, 64), "rotary_sin": tensor(200, 64)}


def reasons(call: Call) -> list[str]:
    choice = choose(call)
    assert (choice.route is None) == ("dense" in choice.refusals)
    return choice.refusals.get("dense", [])


def heads(head_dim: int) -> dict[str, TensorInfo]:
    return {
        "q": tensor(100, 6, head_dim),
        "k": tensor(300, 1, head_dim),
        "v": tensor(300, 1, head_dim),
    }


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"causal": True},
        {"causal": True, "window": (-1, 0)},
        {"window": (200, -1)},
        {"window": (128, -1)},
        {"window": (-1, 3)},
        {"window": (128, 0), "causal": True},
        {"causal": True, "window": (-1, 5)},
        {"num_splits": 1},
        {"num_splits": 128},
        {"capturing": True},
        {"softmax_scale": 1.0},
        {"softcap": 50.0},
        {"out": tensor(100, 6, 256)},
        {"q": tensor(100, 6, 256, strides=(4096, 512, 1))},
        {"q": tensor(1, 6, 256, strides=(3, 256, 1))},
        {"k": tensor(0, 1, 256), "v": tensor(0, 1, 256)},
        {"q": tensor(100, 6, 256, offset=64)},
        {"capability": (9, 0), "environment": PTX},
        {"options": {"alibi_slopes": tensor(6, dtype="float32")}},
        {"options": {"alibi_slopes": tensor(2, 6, dtype="float32")}},
        {"options": {"block_table": TABLE, "seqused_k": tensor(2, dtype="int32")}, **PAGES},
        *(heads(head_dim) for head_dim in (8, 64, 72, 96, 128, 192, 248)),
    ],
)
def test_dense_serves(change: dict[str, Any]) -> None:
    assert reasons(replace(VARLEN, **change)) == []


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"options": {}},
        {"options": {**KVCACHE.options, **NEW}},
        {"options": {**KVCACHE.options, **NEW, **ROTARY}},
        {"options": {**KVCACHE.options, "cache_leftpad": tensor(2, dtype="int32")}},
        {
            "options": {"cache_batch_idx": tensor(2, dtype="int32")},
            "k": tensor(1, 200, 2, 256),
            "v": tensor(1, 200, 2, 256),
        },
        {"k": tensor(3, 200, 2, 256), "v": tensor(3, 200, 2, 256)},
        {"options": {**KVCACHE.options, **NEW, **ROTARY, "block_table": TABLE}, **CACHE_PAGES},
    ],
)
def test_dense_serves_caches(change: dict[str, Any]) -> None:
    assert reasons(replace(KVCACHE, **change)) == []
    assert choose(replace(KVCACHE, **change)).route is choose(VARLEN).route


FOREIGN_K = tensor(300, 1, 256, device="cuda:1")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"capability": None}, "q is not on a CUDA device"),
        ({"capability": (6, 1)}, "the device has compute capability 6.1, not 7.0"),
        ({"capability": (6, 1), "environment": PTX}, "compute capability 6.1, not 7.0"),
        ({"capability": (9, 0)}, "capability 9.0, not 7.0 (VLLM_FA2_SM70_ALLOW_PTX=1 runs"),
        ({"capability": (9, 0), "environment": ((PTX_VARIABLE, "0"),)}, "9.0, not 7.0"),
        ({"unusable": "there is no library `x`"}, "there is no library `x`"),
        ({"q": tensor(100, 6, 256, dtype="bfloat16")}, "q is bfloat16, not float16: Volta has no"),
        (
            {"k": tensor(300, 1, 256, dtype="float8_e4m3fn")},
            "k is float8_e4m3fn, not float16: Volta has",
        ),
        (
            heads(60),
            "q has shape [100, 6, 60], its last dimension not a multiple of 8 from 8 to 256",
        ),
        (heads(264), "k has shape [300, 1, 264], its last dimension not a multiple of 8"),
        (heads(0), "q has shape [100, 6, 0], its last dimension not a multiple of 8"),
        ({"q": tensor(100, 6, 128)}, "k has head size 256, q 128"),
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
        ({"softcap": float("nan")}, "softcap is nan, not a finite number"),
        ({"softcap": float("inf")}, "softcap is inf, not a finite number"),
        ({"softmax_scale": 0.0}, "softmax_scale is 0, not a positive number"),
        ({"softmax_scale": float("nan")}, "softmax_scale is nan, not a positive number"),
        ({"softmax_scale": float("inf")}, "softmax_scale is inf, not a positive number"),
        ({"num_splits": 129}, "num_splits is 129, more than 128"),
        ({"options": {"cache_seqlens": tensor(2, dtype="int32")}}, "cache_seqlens is given"),
        (
            {"options": {"seqused_k": tensor(2, dtype="int32")}},
            "seqused_k is given without block_table",
        ),
        ({"options": {"alibi_slopes": tensor(6)}}, "alibi_slopes is float16, not float32"),
        ({"options": {"alibi_slopes": tensor(5, dtype="float32")}}, "alibi_slopes has shape [5]"),
        ({"options": {"block_table": TABLE}}, "k has 3 dimensions, not 4"),
        ({"options": {"block_table": tensor(2, 4)}, **PAGES}, "block_table is float16 [2, 4]"),
        (
            {
                "options": {"block_table": TABLE},
                "k": tensor(9, 24, 1, 256),
                "v": tensor(9, 24, 1, 256),
            },
            "pages have 24 rows, not a multiple of 16",
        ),
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
        ({"options": NEW}, "k is given without cache_seqlens"),
        ({"options": {**KVCACHE.options, "k": NEW["k"]}}, "k is given without v"),
        ({"options": {**KVCACHE.options, "v": NEW["v"]}}, "v is given without k"),
        (
            {"options": {**KVCACHE.options, **NEW, "k": tensor(2, 3, 1, 256)}},
            "new k has shape [2, 3, 1, 256], which does not fit",
        ),
        (
            {"options": {**KVCACHE.options, **NEW, "v": tensor(2, 4, 2, 256)}},
            "new k has shape [2, 3, 2, 256], new v [2, 4, 2, 256]",
        ),
        (
            {"options": {**KVCACHE.options, **NEW, "v": tensor(2, 3, 2, 256, dtype="bfloat16")}},
            "new v is bfloat16, not float16",
        ),
        ({"options": {**KVCACHE.options, **ROTARY}}, "rotary_cos is given without k"),
        (
            {"options": {**KVCACHE.options, **NEW, "rotary_cos": ROTARY["rotary_cos"]}},
            "rotary_cos is given without rotary_sin",
        ),
        (
            {"options": {**KVCACHE.options, **NEW, **ROTARY, "rotary_sin": tensor(199, 64)}},
            "rotary_sin has 199 rows, fewer than the cache, 200",
        ),
        (
            {"options": {**KVCACHE.options, **NEW, **ROTARY, "rotary_cos": tensor(200, 20)}},
            "rotary_cos turns 40 dimensions, not a multiple of 16",
        ),
        (
            {"options": {**KVCACHE.options, **NEW, **ROTARY, "rotary_cos": tensor(200, 136)}},
            "rotary_cos turns 272 dimensions, not a multiple of 16 up to the head size",
        ),
        (
            {
                "options": {
                    "block_table": TABLE,
                    "cache_batch_idx": tensor(2, dtype="int32"),
                    "cache_leftpad": tensor(2, dtype="int32"),
                },
                **CACHE_PAGES,
            },
            "cache_batch_idx is given together with block_table",
        ),
        (
            {
                "options": {"block_table": TABLE, "cache_leftpad": tensor(2, dtype="int32")},
                **CACHE_PAGES,
            },
            "cache_leftpad is given together with block_table",
        ),
        (
            {"k": tensor(1, 200, 2, 256), "v": tensor(1, 200, 2, 256)},
            "q has batch size 2, the cache 1",
        ),
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
        dropout=0.1,
        options={"q_v": tensor(1), "cache_seqlens": tensor(2, dtype="int32")},
    )
    said = [line for line in explain(call).splitlines() if not line.startswith("gqa_prefill: ")]
    assert said == [
        "dense: the device has compute capability 8.0, not 7.0 "
        "(VLLM_FA2_SM70_ALLOW_PTX=1 runs the embedded PTX there, for tests)",
        "dense: q is bfloat16, not float16: Volta has no bfloat16 tensor cores; load the model in "
        "float16",
        "dense: k has head size 256, q 128",
        "dense: dropout_p is 0.1, not 0: it is for training",
        "dense: cache_seqlens is given",
        "dense: q_v is given",
        "no route serves the call",
    ]


def test_choice_is_explained() -> None:
    assert explain(VARLEN).splitlines()[-1] == "dense: taken"
    assert explain(replace(VARLEN, num_splits=200)).splitlines()[-2:] == [
        "dense: num_splits is 200, more than 128",
        "no route serves the call",
    ]


def test_refusal_is_what_callers_catch() -> None:
    assert issubclass(NoRoute, NotImplementedError)
