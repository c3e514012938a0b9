# SPDX-License-Identifier: Apache-2.0
"""The functions that vLLM calls, through the shim, on a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from attention import HEAD_DIM, cumulative, kvcache, randn, varlen

sys.path.append(str(Path(__file__).parents[2] / "tool"))

import vllm_fa2_sm70 as shim

pytestmark = pytest.mark.gpu
LENGTHS = [129, 0, 64, 500]


@pytest.fixture(autouse=True)
def allow_ptx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_FA2_SM70_ALLOW_PTX", "1")
    shim.reset_route_counts()


@pytest.fixture
def packed() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    q = randn(sum(LENGTHS), 6, HEAD_DIM)
    k, v = (randn(sum(LENGTHS), 2, HEAD_DIM, seed=seed) for seed in (1, 2))
    return q, k, v, cumulative(LENGTHS)


def attend(q, k, v, at, **other):
    return shim.flash_attn_varlen_func(
        q, k, v, 500, at, 500, at, causal=True, return_softmax_lse=True, **other
    )


def test_version_2_is_supported():
    assert shim.fa_version_unsupported_reason(2) is None
    assert shim.is_fa_version_supported(2, torch.device("cuda:0"))
    assert not shim.is_fa_version_supported(2, torch.device("cpu"))


@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() == (7, 0),
    reason="this GPU is sm_70",
)
def test_other_gpus_are_refused_unless_allowed(packed, monkeypatch):
    monkeypatch.delenv("VLLM_FA2_SM70_ALLOW_PTX")
    assert "VLLM_FA2_SM70_ALLOW_PTX=1" in shim.fa_version_unsupported_reason(2)
    with pytest.raises(shim.NoRoute, match=r"not 7\.0"):
        attend(*packed)
    assert shim.route_counts() == {"dense": 0, "refused": 1}


def test_varlen_gives_what_the_operator_gives(packed):
    expected = varlen(*packed, packed[3], 500, 500, causal=True)
    out = torch.empty_like(packed[0])
    for result, lse in (attend(*packed), attend(*packed, out=out)):
        assert torch.equal(result, expected[0]) and torch.equal(lse, expected[1])
    assert torch.equal(out, expected[0])
    assert shim.route_counts() == {"dense": 2, "refused": 0}


def test_kvcache_gives_what_the_operator_gives():
    q = randn(2, 3, 6, HEAD_DIM)
    k, v = (randn(2, 300, 2, HEAD_DIM, seed=seed) for seed in (1, 2))
    lengths = torch.tensor([200, 200], dtype=torch.int32, device="cuda")
    expected, _ = kvcache(q, k, v, seqlens_k=lengths, causal=True)
    result = shim.flash_attn_with_kvcache(q, k, v, cache_seqlens=200, causal=True)
    assert torch.equal(result, expected)


def test_refusal_names_every_reason(packed):
    q, k, v, at = packed
    with pytest.raises(shim.NoRoute) as caught:
        attend(q.bfloat16(), k, v, at, softcap=30.0)
    assert "q is bfloat16" in str(caught.value) and "softcap is 30" in str(caught.value)


def test_graph_replay_equals_eager(packed):
    expected, _ = attend(*packed)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured, _ = attend(*packed)
    captured.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured, expected)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_function_is_one_graph_and_equals_eager(packed, backend):
    def step(q, k, v, at, out):
        result, lse = attend(q * 2, k, v, at, out=out)
        return result + 1, lse

    eager_out, out = torch.zeros_like(packed[0]), torch.zeros_like(packed[0])
    with torch.inference_mode():
        expected = step(*packed, eager_out)
        torch._dynamo.reset()
        got = torch.compile(step, backend=backend, fullgraph=True)(*packed, out)
    assert torch.equal(got[0], expected[0]) and torch.equal(got[1], expected[1])
    assert torch.equal(out, eager_out)
