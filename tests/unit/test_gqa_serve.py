# SPDX-License-Identifier: Apache-2.0
"""Long prefills through the functions that vLLM calls, with operators and memory that stand in."""

from __future__ import annotations

import textwrap

from tests.unit.shimrig import GQA, python


def run(code: str, **environment: str) -> str:
    return python(GQA + textwrap.dedent(code), **environment)


def test_call_of_the_family_takes_the_route_and_the_others_do_not() -> None:
    code = """
        result, lse = attend(q, k, at_q, at_k)
        assert torch.equal(result, 3 * q) and lse.shape == (6, 8000) and bool((lse == 1).all())
        out = torch.empty_like(q)
        assert attend(q, k, at_q, at_k, out)[0] is out and torch.equal(out, 3 * q)
        assert torch.equal(attend(q, k, at_q, at_k, num_splits=1)[0], 2 * q)
        own, before = q.clone(), q.clone()
        assert torch.equal(attend(own, k, at_q, at_k, own)[0], 2 * before)
        assert torch.equal(attend(q[1:], k, at_q, at_k)[0], 2 * q[1:])
        print(called, route_counts(), refusal_counts(), fake.allocations, retained_memory())
        print(*recent_calls(), sep="\\n")
        print(recent_calls()[-1].as_data()["refusals"])
        reset_route_counts()
        assert recent_calls() == [] and set(route_counts().values()) == {0}
    """
    first, *rest = run(code).splitlines()
    assert first == (
        "['sm70_gqa_prefill_fused', 'sm70_gqa_prefill_fused'] "
        "{'gqa_prefill': 2, 'dense': 3, 'refused': 0} "
        "{'gqa_prefill': {'option': 1, 'layout': 1, 'shape': 1}, 'dense': {}} 1 {None: 17633756}"
    )
    assert rest == [
        "varlen_fwd q [8000, 6, 256], k [40000, 1, 256]: gqa_prefill",
        "varlen_fwd q [8000, 6, 256], k [40000, 1, 256]: gqa_prefill",
        "varlen_fwd q [8000, 6, 256], k [40000, 1, 256]: dense "
        "(gqa_prefill: num_splits is 1, not 0: it splits as the device needs)",
        "varlen_fwd q [8000, 6, 256], k [40000, 1, 256]: dense (gqa_prefill: out is in the storage "
        "of an input, which is read after parts of out are written)",
        "varlen_fwd q [7999, 6, 256], k [40000, 1, 256]: dense "
        "(gqa_prefill: q has 7999 rows, not 8000)",
        "{'gqa_prefill': [{'kind': 'shape', 'reason': 'q has 7999 rows, not 8000'}]}",
    ]


def test_environment_chooses_the_operator_at_each_call() -> None:
    code = """
        import os
        for value in ("workspace", "fused", "off", "quick", "quick", ""):
            os.environ["VLLM_FA2_SM70_GQA_PREFILL"] = value
            attend(q, k, at_q, at_k)
        os.environ["VLLM_FLASH_V100_PREFILL_D256_GQA_ARCH_128K_EXPERIMENTAL"] = "0"
        attend(q, k, at_q, at_k)
        print(*called, route_counts(), refusal_counts()["gqa_prefill"])
    """
    lines = "import logging, sys; logging.basicConfig(stream=sys.stdout, format='%(message)s')\n"
    assert run(lines + textwrap.dedent(code)).splitlines() == [
        "VLLM_FA2_SM70_GQA_PREFILL is `quick`, not one of fused, workspace, off: "
        "gqa_prefill is off",
        "sm70_gqa_prefill_workspace sm70_gqa_prefill_fused sm70_gqa_prefill_fused "
        "{'gqa_prefill': 3, 'dense': 4, 'refused': 0} {'environment': 4}",
    ]


def test_lack_of_memory_at_any_place_gives_the_dense_result() -> None:
    code = """
        import logging, sys
        logging.basicConfig(stream=sys.stdout, format="%(message)s")
        expected = torch.ops._vllm_fa2_C.varlen_fwd(
            q, k, k, None, at_q, at_k, None, None, None, None, 8000, 40_000, 0.0, 1 / 16, False,
            True, -1, -1, 0.0, False, 0, None)
        def check(text):
            result, lse = attend(q, k, at_q, at_k)
            assert torch.equal(result, expected[0]) and torch.equal(lse, expected[1])
            said = recent_calls()[-1]
            assert said.route == "dense" and text in said.refusals["gqa_prefill"][0], str(said)
        fake.capacity = 0
        for _ in range(20):
            check("out of memory (preflight): ")
        fake.seen = 10**12
        for _ in range(20):
            check("out of memory (persistent): CUDA out of memory. Tried to allocate 17633756")
        fake.capacity = 10**12
        empty = torch.empty
        def short(*shape, **other):
            if shape == ((6, 8000),):
                raise torch.OutOfMemoryError("CUDA out of memory. Tried")
            return empty(*shape, **other)
        for _ in range(20):
            attend(q, k, at_q, at_k)
            torch.empty = short
            check("out of memory (transient): CUDA out of memory. Tried")
            torch.empty = empty
            assert set(retained_memory().values()) == {0}
        print(route_counts(), refusal_counts()["gqa_prefill"])
    """
    first, second = run(code).splitlines()
    assert first.startswith("gqa_prefill falls back to dense: out of memory (preflight): ")
    assert second == "{'gqa_prefill': 20, 'dense': 60, 'refused': 0} {'memory': 60}"


def test_torch_compile_holds_an_operator_that_chooses_when_it_runs() -> None:
    code = """
        import os
        longer = k.new_zeros(128_000, 1, 256)
        def step(q, k, at_q, at_k, out=None):
            result, lse = attend(q + 1, k, at_q, at_k, out)
            return result + 1, lse + 1
        with torch.inference_mode():
            for dynamic in (False, True):
                torch._dynamo.reset()
                reset_route_counts()
                called.clear()
                compiled = torch.compile(
                    step, backend="aot_eager", fullgraph=True, dynamic=dynamic)
                given = [q, k, at_q, at_k]
                if dynamic:
                    for tensor in given[:2]:
                        torch._dynamo.mark_dynamic(tensor, 0)
                expected = step(*given)
                assert torch.equal(expected[0], 3 * (q + 1) + 1)
                assert all(map(torch.equal, compiled(*given), expected))
                out = torch.zeros_like(q)
                assert all(map(torch.equal, compiled(*given, out), expected))
                assert torch.equal(out, 3 * (q + 1))
                print(route_counts(), len(called))
                # the graph is the same, and the memory is gone
                fake.capacity = 0
                release_memory()
                assert torch.equal(compiled(*given)[0], 2 * (q + 1) + 1)
                fake.capacity = 10**12
                os.environ["VLLM_FA2_SM70_GQA_PREFILL"] = "off"
                assert torch.equal(compiled(*given)[0], 2 * (q + 1) + 1)
                del os.environ["VLLM_FA2_SM70_GQA_PREFILL"]
                if dynamic:  # one graph for all lengths, in and out of the family
                    with torch._dynamo.config.patch(error_on_recompile=True):
                        assert torch.equal(compiled(q[:9], *given[1:])[0], 2 * (q[:9] + 1) + 1)
                        assert torch.equal(compiled(q, longer, at_q, at_k)[0], expected[0])
                        assert torch.equal(compiled(*given)[0], expected[0])
                print(route_counts(), refusal_counts()["gqa_prefill"], fake.races)
    """
    assert run(code).splitlines() == [
        "{'gqa_prefill': 3, 'dense': 0, 'refused': 0} 3",
        "{'gqa_prefill': 3, 'dense': 2, 'refused': 0} {'memory': 1, 'environment': 1} []",
        "{'gqa_prefill': 3, 'dense': 0, 'refused': 0} 3",
        "{'gqa_prefill': 5, 'dense': 3, 'refused': 0} "
        "{'memory': 1, 'environment': 1, 'shape': 1} []",
    ]


def test_operator_of_the_library_stays_what_it_is_under_torch_compile() -> None:
    """Who calls `varlen_fwd` itself gets it, traced or not."""
    code = """
        def step(q, k, at_q, at_k):
            return torch.ops._vllm_fa2_C.varlen_fwd(
                q, k, k, None, at_q, at_k, None, None, None, None, 8000, 40_000, 0.0, 1 / 16,
                False, True, -1, -1, 0.0, False, 0, None)[0]
        with torch.inference_mode():
            compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
            assert torch.equal(compiled(q, k, at_q, at_k), 2 * q)
        print(called, set(route_counts().values()))
    """
    assert run(code) == "[] {0}"


def test_fake_tensors_and_traced_operators_know_the_shapes() -> None:
    code = """
        from torch._subclasses import FakeTensorMode
        with FakeTensorMode() as mode:
            fakes = [mode.from_tensor(tensor) for tensor in (q, k, at_q, at_k)]
            result, lse = attend(*fakes)
            assert (result.shape, result.dtype) == (q.shape, torch.float16)
            assert (lse.shape, lse.dtype) == ((6, 8000), torch.float32)
        metas = [tensor.to("meta") for tensor in (q, k, at_q, at_k)]
        assert attend(*metas)[0].shape == q.shape
        assert called == [] and set(route_counts().values()) == {0}
        out, lse = torch.empty_like(q), torch.empty(6, 8000)
        buffers = {
            "sm70_gqa_prefill_fused": (torch.empty(99), at_q, at_k, 1 / 16),
            "sm70_gqa_prefill_workspace": (
                torch.empty(99, dtype=torch.uint8), torch.empty(9), at_q, at_k, 1 / 16, 8192),
        }
        for name, rest in buffers.items():
            operator = getattr(torch.ops._vllm_fa2_C, name)
            def step(q, k, out, lse):
                operator(q, k, k, out, lse, *rest)
                return out + 1
            torch._dynamo.reset()
            compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
            assert torch.equal(compiled(q, k, out.zero_(), lse), 3 * q + 1)
            assert torch.equal(out, 3 * q)
            torch.library.opcheck(operator, (q, k, k, out, lse, *rest), test_utils=(
                "test_schema", "test_faketensor"))
        print(len(called))
    """
    assert int(run(code)) >= 4


def test_library_without_the_operators_serves_all_by_dense() -> None:
    code = """
        operators._loaded = operators.replace(operators.load(), optional=frozenset())
        assert torch.equal(attend(q, k, at_q, at_k)[0], 2 * q)
        print(recent_calls()[-1].refusals, library.optional)
    """
    said = run(code)
    assert said.startswith(
        "{'gqa_prefill': ['the library has no operator `sm70_gqa_prefill_fused`']}"
    )
