# SPDX-License-Identifier: Apache-2.0
"""QSA: every admission and every refusal of its routes, without a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from vllm_fa2_sm70 import qsa_call
from vllm_fa2_sm70.calls import PTX_VARIABLE, TensorInfo
from vllm_fa2_sm70.qsa_call import PAGE4_VARIABLE, QsaCall, choose_qsa, explain_qsa, take_qsa
from vllm_fa2_sm70.routes import NoRoute


def tensor(*shape: int, **changes: Any) -> TensorInfo:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return replace(TensorInfo(shape, tuple(strides), "float16", "cuda:0"), **changes)


def integers(*shape: int, **changes: Any) -> TensorInfo:
    return tensor(*shape, dtype="int32", **changes)


def rows(count: int) -> dict[str, TensorInfo]:
    return {
        "q": tensor(count, 6, 256), "out": tensor(count, 6, 256),
        "row_to_request": integers(count), "positions": integers(count),
        "indices": integers(count, 2048),
    }  # fmt: skip


def pages(count: int, size: int, heads: int = 1, dim: int = 256, **changes: Any) -> dict[str, Any]:
    cache = tensor(count, size, heads, dim, **changes)
    return {"k_cache": cache, "v_cache": cache}


def heads(query: int, kv: int, dim: int) -> dict[str, TensorInfo]:
    q = tensor(4096, query, dim)
    return {"q": q, "out": q, **pages(100, 16, kv, dim)}


CALL = QsaCall(
    **rows(4096),
    **pages(100, 784),
    block_table=integers(3, 40),
    seq_lens=integers(3),
    softmax_scale=0.0625,
    capability=(7, 0),
)
PTX = (PTX_VARIABLE, "1")
INTERLEAVED = (2 * 784 * 256, 256, 256, 1)


def said(route: str, **changes: Any) -> list[str]:
    return choose_qsa(replace(CALL, **changes)).refusals.get(route, [])


def taken(**changes: Any) -> str:
    choice = choose_qsa(replace(CALL, **changes))
    return choice.route.name if choice.route else "none"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        rows(4097),
        rows(8192),
        pages(100, 16),
        pages(100, 4),
        pages(100, 1056),
        pages(1, 262144),
        pages(100, 784, strides=INTERLEAVED),
        pages(0, 784),
        {"indices": integers(4096, 64)},
        {"indices": integers(4096, 0)},
        {"indices": integers(4096, 61, strides=(2048, 1))},
        {"block_table": integers(3, 40, strides=(64, 1))},
        {"block_table": integers(65535, 40), "seq_lens": integers(65535)},
        {"q": tensor(4096, 6, 256, strides=(4096, 512, 1), offset=64)},
        {"softmax_scale": 1.0},
        {"environment": ((PAGE4_VARIABLE, "1"),)},
        {"environment": ((PAGE4_VARIABLE, ""),)},
        {"environment": (PTX,), "capability": (9, 0)},
        {"no_triton": "there is no Triton"},
    ],
)
def test_page4_is_on_by_default_and_serves(changes: dict[str, Any]) -> None:
    assert said("page4", **changes) == []
    assert taken(**changes) == "page4"


OFF = "turns it off"


@pytest.mark.parametrize(
    ("changes", "reason", "instead"),
    [
        (rows(4095), "4095 rows, fewer than 4096", "paged"),
        (rows(1), "1 rows, fewer than 4096", "paged"),
        ({"environment": ((PAGE4_VARIABLE, "0"),)}, f"{PAGE4_VARIABLE}=0 {OFF}", "paged"),
        ({"environment": ((PAGE4_VARIABLE, "no"),)}, f"{PAGE4_VARIABLE}=no {OFF}", "paged"),
        ({"no_page4": "the library has no operator `x`"}, "has no operator `x`", "paged"),
        (
            {"unusable": "there is no library", "no_page4": "there is no library"},
            "there is no library",
            "triton",
        ),
        ({"capability": (8, 0)}, "the device has compute capability 8.0, not 7.0", "triton"),
        ({"capability": (6, 1), "environment": (PTX,)}, "compute capability 6.1", "triton"),
        ({"capability": None}, "q is not on a CUDA device", "torch"),
        (heads(8, 1, 256), "8 query heads, not 6", "paged"),
        (heads(12, 2, 256), "2 KV heads, not 1", "paged"),
        (heads(6, 1, 128), "128 columns a head, not 256", "paged"),
        (heads(6, 1, 512), "512 columns a head, not 256", "torch"),
        (heads(34, 2, 256), "34 query heads, not 6", "paged"),
        (pages(100, 18), "pages have 18 tokens, not a multiple of 4 up to 262144", "paged"),
        (pages(100, 262148), "pages have 262148 tokens, not a multiple of 4", "paged"),
        ({"indices": integers(4096, 2049)}, "2049 selected tokens a row, more than", "paged"),
        (
            {"block_table": integers(65536, 40), "seq_lens": integers(65536)},
            "65536 requests, more than 65535",
            "paged",
        ),
        (pages(200000, 784), "k_cache spans 80281600000 bytes, not less than 68719476736", "paged"),
        ({"indices": tensor(4096, 64, dtype="int64")}, "indices is int64, not int32", "paged"),
        ({"seq_lens": tensor(3, dtype="int64")}, "seq_lens is int64, not int32", "paged"),
        (
            {"indices": integers(4096, 64, strides=(1, 4096))},
            "indices has strides [1, 4096], the last one not 1",
            "paged",
        ),
        ({"positions": integers(4096, strides=(2,))}, "positions has strides [2]", "paged"),
        ({"q": tensor(4096, 6, 256, strides=(1536, 1, 6))}, "q has strides [1536, 1, 6]", "paged"),
        ({"out": tensor(4096, 6, 256, offset=4)}, "begins 4 elements into its storage", "paged"),
        (pages(100, 16, strides=(4100, 256, 256, 1)), "k_cache has strides [4100, 256", "paged"),
    ],
)
def test_page4_refuses_and_another_route_serves(
    changes: dict[str, Any], reason: str, instead: str
) -> None:
    found = said("page4", **changes)
    assert [r for r in found if reason in r], found
    assert taken(**changes) == instead


BFLOAT16 = {
    "q": tensor(4096, 6, 256, dtype="bfloat16"), "out": tensor(4096, 6, 256, dtype="bfloat16"),
    **pages(100, 16, dtype="bfloat16"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "route", "reason", "instead"),
    [
        (BFLOAT16, "page4", "q is bfloat16, not float16", "triton"),
        (BFLOAT16, "paged", "q is bfloat16, not float16: Volta has no bfloat16", "triton"),
        ({"indices": integers(4096, 0), **rows(3)}, "page4", "3 rows, fewer", "paged"),
        ({**rows(3), "indices": integers(3, 0)}, "paged", "no token is selected", "triton"),
        ({**BFLOAT16, "no_triton": "there is no Triton"}, "triton", "there is no Triton", "torch"),
        (heads(6, 1, 512), "paged", "its last dimension not a multiple of 8 from 8 to", "torch"),
        (heads(6, 1, 512), "triton", "head size 512, not a power of 2 from 16 to 256", "torch"),
        (heads(6, 1, 100), "triton", "head size 100, not a power of 2", "torch"),
        (
            {**heads(34, 2, 256), "capability": (8, 0)},
            "triton",
            "more than 16 query heads a KV head",
            "torch",
        ),
    ],
)
def test_fallbacks_refuse_and_the_next_one_serves(
    changes: dict[str, Any], route: str, reason: str, instead: str
) -> None:
    found = said(route, **changes)
    assert [r for r in found if reason in r], found
    assert taken(**changes) == instead


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"out": tensor(4095, 6, 256)}, "out has shape [4095, 6, 256], not [4096, 6, 256]"),
        ({"q": tensor(4096, 1536)}, "q has 2 dimensions, not 3"),
        ({"k_cache": tensor(100, 784, 256)}, "k_cache has 3 dimensions, not 4"),
        ({"v_cache": tensor(100, 16, 1, 256)}, "v_cache has shape [100, 16, 1, 256], not [100, 78"),
        (pages(100, 16, 1, 128), "k_cache has shape [100, 16, 1, 128], not [100, 16, 1, 256]"),
        (heads(6, 4, 256), "6 query heads are no multiple of 4 KV heads"),
        (pages(100, 0), "pages have no tokens"),
        ({"v_cache": tensor(100, 784, 1, 256, dtype="float32")}, "v_cache is float32, q float16"),
        ({"seq_lens": integers(2)}, "seq_lens has shape [2], not [3]"),
        ({"positions": integers(4095)}, "positions has shape [4095], not [4096]"),
        ({"row_to_request": integers(4095)}, "row_to_request has shape [4095], not [4096]"),
        ({"indices": integers(4095, 64)}, "indices has shape [4095, 64], not [4096, 64]"),
        ({"indices": tensor(4096, 64)}, "indices is float16, not int32"),
        (
            {"block_table": integers(3, 40, device="cuda:1")},
            "block_table is on cuda:1, q on cuda:0",
        ),
        ({"needs_gradient": True}, "an input needs a gradient, and there is no backward pass"),
        ({"softmax_scale": 0.0}, "softmax_scale is 0, not a positive number"),
        ({"softmax_scale": float("nan")}, "softmax_scale is nan, not a positive number"),
        ({"softmax_scale": float("inf")}, "softmax_scale is inf, not a positive number"),
    ],
)
def test_what_no_route_serves_is_refused_by_each(changes: dict[str, Any], reason: str) -> None:
    call = replace(CALL, **changes)
    choice = choose_qsa(call)
    assert choice.route is None
    assert set(choice.refusals) == {"page4", "paged", "triton", "torch"}
    assert all(any(reason in r for r in why) for why in choice.refusals.values()), choice.refusals
    with pytest.raises(NoRoute, match="qsa_prefill"):
        take_qsa(call)


def test_every_reason_is_given_at_once() -> None:
    call = replace(
        CALL,
        **rows(7),
        **pages(100, 18, 2, 128),
        capability=(8, 0),
        environment=((PAGE4_VARIABLE, "0"),),
        no_triton="there is no Triton",
    )
    call = replace(call, q=tensor(7, 8, 128), out=tensor(7, 8, 128))
    assert explain_qsa(call).splitlines() == [
        "page4: the device has compute capability 8.0, not 7.0 "
        "(VLLM_FA2_SM70_ALLOW_PTX=1 runs the embedded PTX there, for tests)",
        "page4: VLLM_SM70_QSA_XQA_PAGE4=0 turns it off",
        "page4: 8 query heads, not 6",
        "page4: 2 KV heads, not 1",
        "page4: 128 columns a head, not 256",
        "page4: 7 rows, fewer than 4096",
        "page4: pages have 18 tokens, not a multiple of 4 up to 262144",
        "paged: the device has compute capability 8.0, not 7.0 "
        "(VLLM_FA2_SM70_ALLOW_PTX=1 runs the embedded PTX there, for tests)",
        "triton: there is no Triton",
        "torch: taken",
    ]


def test_routes_are_counted() -> None:
    qsa_call.reset_qsa_route_counts()
    take_qsa(CALL)
    take_qsa(replace(CALL, **rows(4095)))
    with pytest.raises(NoRoute):
        take_qsa(replace(CALL, softmax_scale=0.0))
    assert qsa_call.qsa_route_counts() == {
        "page4": 1, "paged": 1, "triton": 0, "torch": 0, "refused": 1,
    }  # fmt: skip
    qsa_call.reset_qsa_route_counts()
    assert not any(qsa_call.qsa_route_counts().values())
