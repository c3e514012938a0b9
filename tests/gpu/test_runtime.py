# SPDX-License-Identifier: Apache-2.0
"""Same bits twice, streams, graphs, threads, no waiting for the device."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from attention import cumulative, int32, kvcache, randn, varlen

pytestmark = [pytest.mark.gpu, pytest.mark.cuda]

Call = Callable[[torch.Tensor], list[torch.Tensor]]
LENGTHS = [129, 0, 64, 500]


def prefill(head_dim: int, **other) -> tuple[torch.Tensor, Call]:
    q = randn(sum(LENGTHS), 6, head_dim)
    k, v = (randn(sum(LENGTHS), 2, head_dim, seed=seed) for seed in (1, 2))
    at = cumulative(LENGTHS)
    return q, lambda q: list(varlen(q, k, v, at, at, 500, 500, causal=True, **other))


def decode(head_dim: int, **other) -> tuple[torch.Tensor, Call]:
    q = randn(3, 2, 8, head_dim)
    k, v = (randn(3, 3000, 2, head_dim, seed=seed) for seed in (1, 2))
    lengths = int32([3000, 17, 1500])
    return q, lambda q: list(kvcache(q, k, v, seqlens_k=lengths, causal=True, **other))


def paged_decode(head_dim: int, **other) -> tuple[torch.Tensor, Call]:
    q = randn(3, 2, 8, head_dim)
    pages = randn(30, 2, 96, 2, head_dim, seed=1)
    table = torch.randperm(30, device="cuda").int().view(3, 10)
    lengths = int32([960, 17, 400])
    return q, lambda q: list(
        kvcache(
            q, pages[:, 0], pages[:, 1], seqlens_k=lengths, block_table=table, causal=True, **other
        )
    )


def append(head_dim: int, **other) -> tuple[torch.Tensor, Call]:
    """Each call appends the same tokens at the same place."""
    q = randn(2, 3, 4, head_dim)
    k, v = (randn(2, 400, 2, head_dim, seed=seed) for seed in (1, 2))
    new_k, new_v = (randn(2, 3, 2, head_dim, seed=seed) for seed in (3, 4))
    angle = torch.rand(400, head_dim // 2, device="cuda")
    lengths = int32([100, 397])
    return q, lambda q: [
        *kvcache(
            q, k, v, k=new_k, v=new_v, seqlens_k=lengths, rotary_cos=angle.cos().half(),
            rotary_sin=angle.sin().half(), causal=True, **other,
        ),
        k,
        v,
    ]  # fmt: skip


KINDS = {
    "prefill": lambda d: prefill(d, num_splits=1),
    "general prefill": lambda d: prefill(d, softcap=20.0, window_size_left=100),
    "split prefill": lambda d: prefill(d, num_splits=3),
    "decode": lambda d: decode(d, num_splits=1),
    "decode, splits chosen": decode,
    "split decode": lambda d: decode(d, num_splits=7),
    "paged split decode": lambda d: paged_decode(d, num_splits=4),
    "append": append,
}
every_kind = pytest.mark.parametrize("kind", KINDS)
some_head_dims = pytest.mark.parametrize("head_dim", [64, 128, 256])


def equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def copies(results: list[torch.Tensor]) -> list[torch.Tensor]:
    return [result.clone() for result in results]


@every_kind
@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256])
def test_same_input_gives_the_same_bits(kind, head_dim):
    q, call = KINDS[kind](head_dim)
    first = copies(call(q))
    for _ in range(3):
        torch.empty(2**22, device="cuda").fill_(float("nan"))  # another workspace, another content
        assert equal(call(q), first)


@every_kind
@some_head_dims
def test_graph_replay_equals_eager(kind, head_dim):
    q, call = KINDS[kind](head_dim)
    call(q)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call(q)
    for seed in (10, 20):  # new values in the captured inputs, replayed twice each
        q.copy_(randn(*q.shape, seed=seed))
        eager = copies(call(q))
        for _ in range(2):
            for result in captured[:2]:
                result.fill_(float("nan"))
            graph.replay()
            torch.cuda.synchronize()
            assert equal(captured, eager)


@every_kind
def test_nothing_waits_for_the_device(kind):
    q, call = KINDS[kind](128)
    expected = copies(call(q))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")  # what torch does; the events show the rest
    try:
        torch.cuda._sleep(400_000_000)  # at least 0.2 s
        started = torch.cuda.Event()
        started.record()
        results = call(q)
        assert not started.query(), "the call came back after the work before it was done"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert equal(results, expected)


@every_kind
def test_current_stream_is_used(kind):
    q, call = KINDS[kind](128)
    expected = copies(call(q))
    late = torch.zeros_like(q)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)  # on another stream, the kernel would come before the copy
        late.copy_(q)
        results = call(late)
    stream.synchronize()
    assert equal(results, expected)


def test_two_threads_with_streams_of_their_own_do_not_disturb_each_other():
    calls = [KINDS[kind](128) for kind in ("split decode", "general prefill")]
    expected = [copies(call(q)) for q, call in calls]
    torch.cuda.synchronize()
    together = threading.Barrier(2)

    def work(index: int) -> bool:
        q, call = calls[index]
        with torch.cuda.stream(torch.cuda.Stream()):
            together.wait()
            results = [call(q) for _ in range(50)]
            torch.cuda.current_stream().synchronize()
            return all(equal(result, expected[index]) for result in results)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, range(2))) == [True, True]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
def test_device_of_the_tensors_is_used_whatever_the_current_one_is():
    q, call = KINDS["split decode"](128)
    expected = call(q)
    k, v = (randn(3, 3000, 2, 128, seed=seed).to("cuda:1") for seed in (1, 2))
    lengths = int32([3000, 17, 1500]).to("cuda:1")
    out, lse = kvcache(q.to("cuda:1"), k, v, seqlens_k=lengths, causal=True, num_splits=7)
    assert out.device == torch.device("cuda:1")
    assert equal([out.to("cuda:0"), lse.to("cuda:0")], expected)
