# SPDX-License-Identifier: Apache-2.0
"""The functions that vLLM calls, through the shim, on a GPU: eager, captured and compiled."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from attention import DEVICE, cumulative, int32, kvcache, randn, varlen

sys.path.append(str(Path(__file__).parents[2] / "tool"))

import vllm_fa2_sm70 as shim

pytestmark = pytest.mark.gpu
LENGTHS = [129, 0, 64, 500]
HEAD_DIMS = [64, 128, 256]

Tensors = dict[str, Any]
Step = Callable[..., tuple[torch.Tensor, torch.Tensor]]


@pytest.fixture(autouse=True)
def allow_ptx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_FA2_SM70_ALLOW_PTX", "1")
    shim.reset_route_counts()


def packed(head_dim: int) -> Tensors:
    k, v = (randn(sum(LENGTHS), 2, head_dim, seed=seed) for seed in (1, 2))
    at = cumulative(LENGTHS)
    q = randn(sum(LENGTHS), 6, head_dim)
    return {"q": q, "k": k, "v": v, "cu_seqlens_q": at, "cu_seqlens_k": at}


def paged(head_dim: int) -> Tensors:
    """As vLLM calls it: K and V of a page side by side, prompts and generated tokens mixed."""
    pages = randn(40, 2, 784, 2, head_dim, seed=1)
    return {
        "q": randn(60, 6, head_dim), "k": pages[:, 0], "v": pages[:, 1],
        "cu_seqlens_q": cumulative([1, 1, 50, 8]), "seqused_k": int32([1000, 3, 2000, 8]),
        "block_table": torch.arange(39, 19, -1, dtype=torch.int32, device=DEVICE).view(4, 5),
    }  # fmt: skip


def cached(head_dim: int) -> Tensors:
    caches = [randn(2, 400, 2, head_dim, seed=seed) for seed in (1, 2)]
    return {
        "q": randn(2, 3, 6, head_dim), "k_cache": caches[0], "v_cache": caches[1],
        "cache_seqlens": int32([300, 50]),
    }  # fmt: skip


def appended(head_dim: int) -> Tensors:
    new = [randn(2, 3, 2, head_dim, seed=seed) for seed in (3, 4)]
    angle = torch.linspace(0, 6, 400 * head_dim // 2, device=DEVICE).view(400, -1)
    tables = {"rotary_cos": angle.cos().half(), "rotary_sin": angle.sin().half()}
    return cached(head_dim) | {"k": new[0], "v": new[1]} | tables


def varlen_func(tensors: Tensors, **other: Any) -> tuple[torch.Tensor, torch.Tensor]:
    longest = {"max_seqlen_q": 500, "max_seqlen_k": 2000}
    return shim.flash_attn_varlen_func(
        **(longest | tensors | other), causal=True, return_softmax_lse=True
    )


def kvcache_func(tensors: Tensors, **other: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return shim.flash_attn_with_kvcache(**tensors, causal=True, return_softmax_lse=True, **other)


FUNCTIONS: dict[str, tuple[Callable[[int], Tensors], Step]] = {
    "packed": (packed, varlen_func),
    "paged": (paged, varlen_func),
    "cache": (cached, kvcache_func),
    "append": (appended, kvcache_func),
}
every_function = pytest.mark.parametrize("name", FUNCTIONS)


def clone(tensors: Tensors) -> Tensors:
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    if "block_table" in tensors:  # pages stay side by side
        copies |= {"k": tensors["k"], "v": tensors["v"]}
    return copies


@pytest.mark.cuda
def test_version_2_is_supported():
    assert shim.fa_version_unsupported_reason(2) is None
    assert shim.is_fa_version_supported(2, torch.device("cuda:0"))
    assert not shim.is_fa_version_supported(2, torch.device("cpu"))


@pytest.mark.cuda
@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() == (7, 0),
    reason="this GPU is sm_70",
)
def test_other_gpus_are_refused_unless_allowed(monkeypatch):
    monkeypatch.delenv("VLLM_FA2_SM70_ALLOW_PTX")
    assert "VLLM_FA2_SM70_ALLOW_PTX=1" in shim.fa_version_unsupported_reason(2)
    with pytest.raises(shim.NoRoute, match=r"not 7\.0"):
        varlen_func(packed(128))
    assert shim.route_counts() == {"dense": 0, "refused": 1}


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_varlen_gives_what_the_operator_gives(head_dim):
    tensors = packed(head_dim)
    expected = varlen(**tensors, max_seqlen_q=500, max_seqlen_k=2000, causal=True)
    out = torch.empty_like(tensors["q"])
    for result, lse in (varlen_func(tensors), varlen_func(tensors, out=out)):
        assert torch.equal(result, expected[0]) and torch.equal(lse, expected[1])
    assert torch.equal(out, expected[0])
    assert shim.route_counts() == {"dense": 2, "refused": 0}


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_paged_varlen_with_everything_gives_what_the_operator_gives(head_dim):
    tensors = paged(head_dim)
    slopes = torch.rand(4, 6, device=DEVICE)
    starts = torch.zeros(5, dtype=torch.int32, device=DEVICE)
    expected = varlen(
        **tensors, cu_seqlens_k=starts, max_seqlen_q=500, max_seqlen_k=2000, causal=True,
        window_size_left=300, window_size_right=0, softcap=30.0, alibi_slopes=slopes,
    )  # fmt: skip
    result, lse = varlen_func(tensors, window_size=(300, 0), softcap=30.0, alibi_slopes=slopes)
    assert torch.equal(result, expected[0]) and torch.equal(lse, expected[1])


@pytest.mark.parametrize("name", ["cache", "append"])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_kvcache_gives_what_the_operator_gives(name, head_dim):
    tensors = FUNCTIONS[name][0](head_dim)
    changed, renamed = clone(tensors), clone(tensors)
    for old, new in (
        ("k_cache", "kcache"), ("v_cache", "vcache"), ("cache_seqlens", "seqlens_k"),
    ):  # fmt: skip
        renamed[new] = renamed.pop(old)
    expected = kvcache(**renamed, causal=True, is_rotary_interleaved=True)
    result, lse = kvcache_func(changed)
    assert torch.equal(result, expected[0]) and torch.equal(lse, expected[1])
    for side in ("k", "v"):
        assert torch.equal(changed[f"{side}_cache"], renamed[f"{side}cache"])
        same = torch.equal(changed[f"{side}_cache"], tensors[f"{side}_cache"])
        assert same == (name == "cache"), "the cache is changed where tokens are appended"


def test_one_length_for_all_sequences_is_a_number():
    tensors = cached(128)
    lengths = tensors.pop("cache_seqlens")
    result, _ = kvcache_func(tensors, cache_seqlens=200)
    expected, _ = kvcache_func(tensors, cache_seqlens=torch.full_like(lengths, 200))
    assert torch.equal(result, expected)


def test_refusal_names_every_reason():
    tensors = packed(128)
    tensors["q"] = tensors["q"].bfloat16()
    with pytest.raises(shim.NoRoute) as caught:
        varlen_func(tensors, dropout_p=0.5)
    assert "q is bfloat16" in str(caught.value) and "dropout_p is 0.5" in str(caught.value)


@every_function
@pytest.mark.cuda
def test_graph_replay_equals_eager(name):
    make, function = FUNCTIONS[name]
    tensors = make(128)
    expected = [result.clone() for result in function(tensors)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = function(tensors)
    for result in captured:
        result.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert all(map(torch.equal, captured, expected))


@every_function
@pytest.mark.parametrize("given", [False, True], ids=["allocated", "given"])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_function_is_one_graph_and_equals_eager(name, backend, given):
    if backend == "inductor" and given == (name in ("packed", "append")):
        pytest.skip("one of the two is compiled by inductor, which takes long")
    make, function = FUNCTIONS[name]

    def step(tensors: Tensors, **out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        result, lse = function(tensors | {"q": tensors["q"] * 2}, **out)
        return result + 1, lse

    tensors = make(128)
    runs = []
    with torch.inference_mode():
        torch._dynamo.reset()
        for run in (step, torch.compile(step, backend=backend, fullgraph=True)):
            changed = clone(tensors)
            out = {"out": torch.zeros_like(tensors["q"])} if given else {}
            runs.append([*run(changed, **out), *out.values(), *changed.values()])
    for eager, compiled in zip(*runs, strict=True):
        assert torch.equal(eager, compiled)
