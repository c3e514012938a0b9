# SPDX-License-Identifier: Apache-2.0
"""Same bits twice, streams, graphs, offsets past 2^31."""

from __future__ import annotations

import pytest
import torch
from attention import HEAD_DIM, assert_close, cumulative, kvcache, randn, reference, varlen

pytestmark = pytest.mark.gpu


def test_same_input_gives_the_same_bits():
    q, k, v = randn(700, 6, HEAD_DIM), *(randn(900, 1, HEAD_DIM, seed=s) for s in (1, 2))
    first = kvcache(q[None], k[None], v[None], causal=True)
    for _ in range(3):
        again = kvcache(q[None], k[None], v[None], causal=True)
        assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])


def test_graph_replay_equals_eager():
    lengths = [129, 0, 64, 500]
    q = randn(sum(lengths), 6, HEAD_DIM)
    k, v = (randn(sum(lengths), 2, HEAD_DIM, seed=seed) for seed in (1, 2))
    cu_seqlens = cumulative(lengths)

    def call():
        return varlen(q, k, v, cu_seqlens, cu_seqlens, 500, 500, causal=True)

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    for seed in (10, 20):  # new values in the captured inputs, replayed twice each
        q.copy_(randn(*q.shape, seed=seed))
        eager = call()
        for _ in range(2):
            captured[0].fill_(float("nan"))
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(captured[0], eager[0]) and torch.equal(captured[1], eager[1])


def test_current_stream_is_used():
    q, k, v = randn(300, 2, HEAD_DIM), *(randn(300, 2, HEAD_DIM, seed=s) for s in (1, 2))
    expected, _ = kvcache(q[None], k[None], v[None])
    late = torch.zeros_like(q)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # on another stream, the kernel would come before the copy
        late.copy_(q)
        out, _ = kvcache(late[None], k[None], v[None])
    stream.synchronize()
    assert torch.equal(out, expected)


def test_offsets_past_2_31_elements():
    """The sequence that is checked starts more than 2^31 elements into K and V."""
    seqlen, heads_k, batch = 2**18, 16, 3
    if torch.cuda.mem_get_info()[0] < 18 * 2**30:
        pytest.skip("less than 18 GiB of free GPU memory")
    k = torch.zeros(batch, seqlen, heads_k, HEAD_DIM, dtype=torch.float16, device="cuda")
    v = torch.zeros_like(k)
    assert k[-1].storage_offset() >= 2**31 - 1
    k[-1, -500:] = randn(500, heads_k, HEAD_DIM, seed=1)
    v[-1, -500:] = randn(500, heads_k, HEAD_DIM, seed=2)
    q = randn(batch, 2, heads_k, HEAD_DIM)
    out, _ = kvcache(q, k, v, causal=True, scale=1.0)
    expected, _ = reference(q[-1], k[-1], v[-1], causal=True, scale=1.0)
    assert_close(out[-1], expected)
