# SPDX-License-Identifier: Apache-2.0
"""Long prefills on a GPU: both operators, hostile inputs, streams, threads, graphs, compiling."""

from __future__ import annotations

import threading

import pytest
import torch
from attention import DEVICE, int32
from gqa_cases import (
    HOSTILE,
    KEYS,
    LONGEST,
    MODES,
    QUERIES,
    SHORTEST,
    Inputs,
    accuracy,
    attend,
    by,
    calls,
    environment,
    error,
    normal,
    paired,
    shim,
)

from vllm_fa2_sm70 import buffers

pytestmark = pytest.mark.gpu
every_mode = pytest.mark.parametrize("mode", MODES)


@pytest.fixture(autouse=True)
def allow_ptx(monkeypatch):
    monkeypatch.setenv(calls.PTX_VARIABLE, "1")
    yield
    shim.release_memory()
    shim.reset_route_counts()


@pytest.mark.parametrize("keys", KEYS)
def test_unit_normal_inputs_are_within_the_bounds(keys):
    assert [said for found in accuracy(keys).values() for said in found.complaints()] == []


@pytest.mark.parametrize("name", HOSTILE)
def test_error_on_hostile_inputs_is_that_of_dense(name):
    _, found = paired(name, SHORTEST)
    assert [f"{mode}: {text}" for mode, (_, said) in found.items() for text in said] == []


def test_error_on_outliers_at_the_longest_is_that_of_dense():
    _, found = paired("outlier channels x50", LONGEST)
    assert [f"{mode}: {text}" for mode, (_, said) in found.items() for text in said] == []


def views(inputs: Inputs) -> Inputs:
    """The same values with gaps between rows and heads."""
    q = torch.full((QUERIES, 8, 264), float("nan"), dtype=torch.float16, device=DEVICE)
    kv = torch.full((inputs.keys, 3, 1, 256), float("nan"), dtype=torch.float16, device=DEVICE)
    q[:, 1:7, :256], kv[:, 0], kv[:, 2] = inputs.q, inputs.k, inputs.v
    return Inputs(q[:, 1:7, :256], kv[:, 0], kv[:, 2])


@every_mode
def test_strided_inputs_and_a_given_output_give_the_same_bits(mode):
    inputs = normal(SHORTEST)
    expected, lse = by(mode, inputs)
    out = torch.full((QUERIES, 6, 512), 7.0, dtype=torch.float16, device=DEVICE)
    result, other_lse = by(mode, views(inputs), out[..., :256])
    assert result.data_ptr() == out.data_ptr() and torch.equal(result, expected)
    assert torch.equal(lse, other_lse) and bool((out[..., 256:] == 7).all())


@every_mode
def test_garbage_in_the_buffer_does_not_reach_the_output(mode):
    inputs = normal(SHORTEST)
    expected, lse = by(mode, inputs)
    retained = buffers.buffer_of(inputs.q.device)._tensor
    assert retained is not None
    for byte in (0xFF, 0x7B):  # NaN of every width; large numbers
        retained.fill_(byte)
        result, other_lse = by(mode, inputs)
        assert torch.equal(result, expected) and torch.equal(lse, other_lse)


@every_mode
@pytest.mark.parametrize(
    ("at_q", "at_k"),
    [((0, -10), (0, -100)), ((5, 0), (77, 0)), ((3, -3), (8, -72)), ((0, 0), (0, -QUERIES))],
)
def test_lengths_on_the_device_are_kept_to(mode, at_q, at_k):
    """Shapes admit a call; the sequence inside can be shorter."""
    inputs = normal(SHORTEST)
    first, last = at_q[0], QUERIES + at_q[1]
    starts = int32([first, last]), int32([at_k[0], SHORTEST + at_k[1]])
    inputs.k[: at_k[0]], inputs.v[: at_k[0]] = float("nan"), float("nan")
    inputs.k[SHORTEST + at_k[1] :], inputs.v[SHORTEST + at_k[1] :] = float("nan"), float("nan")
    outs = [torch.full_like(inputs.q, 7.0) for _ in range(2)]
    _, lse = by("dense", inputs, outs[0], starts)
    _, our_lse = by(mode, inputs, outs[1], starts)
    found = error(outs[1][first:last], outs[0][first:last])
    assert found.finite and found.relative_l2 <= 5e-4 and found.largest <= 1e-3
    torch.testing.assert_close(our_lse[:, first:last], lse[:, first:last], rtol=2e-5, atol=2e-5)
    for out in outs:
        assert bool((out[:first] == 7).all()) and bool((out[last:] == 7).all())


@every_mode
def test_keys_fewer_than_queries_leave_rows_without_any(mode):
    inputs = normal(SHORTEST)
    seen = QUERIES // 2
    starts = int32([0, QUERIES]), int32([0, seen])
    dense, dense_lse = by("dense", inputs, None, starts)
    result, lse = by(mode, inputs, None, starts)
    empty = QUERIES - seen
    assert bool((result[:empty] == 0).all()) and bool((lse[:, :empty] == -float("inf")).all())
    found = error(result, dense)
    assert found.finite and found.relative_l2 <= 5e-4
    torch.testing.assert_close(lse, dense_lse, rtol=2e-5, atol=2e-5)


@every_mode
@pytest.mark.cuda
def test_streams_and_threads_give_the_bits_of_one(mode):
    shapes = (SHORTEST, KEYS[1])
    inputs = {keys: normal(keys) for keys in shapes}
    expected = {keys: by(mode, inputs[keys]) for keys in shapes}
    failures: list[str] = []
    start = threading.Barrier(2)

    def work(keys: int) -> None:
        streams = [torch.cuda.Stream() for _ in range(2)]
        start.wait()
        found = []
        for i in range(4):
            with torch.cuda.stream(streams[i % 2]):
                found.append(attend(inputs[keys]))
                if i == 1:
                    shim.release_memory()  # the others go on
        torch.cuda.synchronize()
        for result, lse in found:
            if not (torch.equal(result, expected[keys][0]) and torch.equal(lse, expected[keys][1])):
                failures.append(f"KV {keys}")

    torch.cuda.synchronize()
    shim.reset_route_counts()
    with environment(**{calls.GQA_VARIABLE: mode}):
        threads = [threading.Thread(target=work, args=(keys,)) for keys in shapes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == [] and shim.route_counts()["gqa_prefill"] == 8


@pytest.mark.cuda
def test_buffer_grows_on_another_stream_while_it_is_in_use():
    inputs = normal(SHORTEST)
    expected = {mode: by(mode, inputs)[0] for mode in MODES}
    shim.release_memory()
    torch.cuda.synchronize()
    found = []
    for mode in ("fused", "workspace", "fused"):
        with torch.cuda.stream(torch.cuda.Stream()):
            found.append((mode, by(mode, inputs)[0]))
    torch.cuda.synchronize()
    assert all(torch.equal(result, expected[mode]) for mode, result in found)


@every_mode
@pytest.mark.cuda
def test_capture_falls_through_to_dense(mode):
    inputs = normal(SHORTEST)
    dense, _ = by("dense", inputs)
    by(mode, inputs)
    with environment(**{calls.GQA_VARIABLE: mode}):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured, _ = attend(inputs)
        trace = shim.recent_calls()[-1]
        assert trace.route == "dense"
        assert "a CUDA graph is being captured" in trace.refusals["gqa_prefill"][0]
        captured.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(captured, dense)
        assert torch.equal(attend(inputs)[0], by(mode, inputs)[0])


@every_mode
def test_compiled_function_gives_the_bits_of_the_eager_one(mode):
    inputs = normal(SHORTEST)
    expected, lse = by(mode, inputs)

    def step(q, k, v):
        result, lse = attend(Inputs(q, k, v), None, starts)
        return result * 1, lse

    starts = int32([0, QUERIES]), int32([0, SHORTEST])
    with environment(**{calls.GQA_VARIABLE: mode}), torch.inference_mode():
        torch._dynamo.reset()
        compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
        for _ in range(2):
            result, other_lse = compiled(inputs.q, inputs.k, inputs.v)
            assert torch.equal(result, expected) and torch.equal(lse, other_lse)
    assert shim.recent_calls()[-1].route == "gqa_prefill"


@every_mode
@pytest.mark.cuda
def test_buffer_is_not_of_a_pool_that_ends(mode):
    inputs = normal(SHORTEST)
    expected, _ = by(mode, inputs)
    shim.release_memory()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        result, _ = by(mode, inputs)
        assert torch.equal(result, expected)
    torch.cuda.synchronize()
    del result
    retained = buffers.buffer_of(inputs.q.device)._tensor
    held = [(part["address"], part["total_size"]) for part in pool.snapshot()]
    assert retained is not None and held
    assert all(not start <= retained.data_ptr() < start + size for start, size in held)
    del pool
    assert torch.equal(by(mode, inputs)[0], expected)


@every_mode
@pytest.mark.cuda
def test_function_compiled_to_graphs_warms_up_with_the_route_and_replays_dense(mode):
    inputs = normal(SHORTEST)
    expected = [by(route, inputs)[0] for route in (mode, "dense")]
    dense, _ = by("dense", inputs)
    starts = int32([0, QUERIES]), int32([0, SHORTEST])
    shim.release_memory()

    def step(q, k, v):
        return attend(Inputs(q, k, v), None, starts)[0] * 1

    with environment(**{calls.GQA_VARIABLE: mode}), torch.inference_mode():
        torch._dynamo.reset()
        compiled = torch.compile(step, backend="cudagraphs", fullgraph=True)
        found = []
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            found.append(compiled(inputs.q, inputs.k, inputs.v).clone())
            assert torch.equal(attend(inputs)[0], by(mode, inputs)[0])  # in between
    assert all(any(torch.equal(result, one) for one in expected) for result in found)
    assert torch.equal(found[-1], dense)


@pytest.mark.cuda
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
@every_mode
def test_the_other_device_has_a_buffer_of_its_own(mode):
    inputs = normal(SHORTEST)
    expected, _ = by(mode, inputs)
    moved = Inputs(*(tensor.to("cuda:1") for tensor in (inputs.q, inputs.k, inputs.v)))
    starts = int32([0, QUERIES]).to("cuda:1"), int32([0, SHORTEST]).to("cuda:1")
    result, _ = by(mode, moved, None, starts)
    assert torch.equal(result.cpu(), expected.cpu())
    assert set(shim.retained_memory()) == {0, 1}
