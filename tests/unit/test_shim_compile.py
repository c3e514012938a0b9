# SPDX-License-Identifier: Apache-2.0
"""The shim under torch.compile: one graph, and what is changed is known to it."""

from __future__ import annotations

import textwrap

import pytest
from tests.unit.shimrig import OPERATORS, python


def test_torch_compile_traces_the_functions_in_one_graph() -> None:
    code = """
        from torch._subclasses import FakeTensorMode
        def attend(q, k, out=None):
            result, lse = flash_attn_varlen_func(
                q + 1, k, k, 5, at_q, 7, at_k, return_softmax_lse=True, out=out)
            return result + 1, lse
        with torch.inference_mode():
            how = {"backend": "aot_eager", "fullgraph": True}
            for dynamic in (False, True):
                torch._dynamo.reset()
                compiled = torch.compile(attend, dynamic=dynamic, **how)
                assert torch.equal(compiled(q, k)[0], attend(q, k)[0])
                out = torch.zeros_like(q)
                assert torch.equal(compiled(q, k, out)[0], attend(q, k)[0])
                assert torch.equal(out, 2 * (q + 1))
            with FakeTensorMode() as mode:
                at_q, at_k = mode.from_tensor(at_q), mode.from_tensor(at_k)
                result, lse = attend(mode.from_tensor(q), mode.from_tensor(k))
                print(tuple(result.shape), result.dtype, tuple(lse.shape), lse.dtype)
                cache = torch.empty(3, 9, 2, 256, dtype=torch.float16)
                result, lse = flash_attn_with_kvcache(
                    torch.empty(3, 2, 4, 256, dtype=torch.float16), cache, cache,
                    return_softmax_lse=True)
                print(tuple(result.shape), tuple(lse.shape))
    """
    said = python(OPERATORS + textwrap.dedent(code))
    assert said.splitlines() == [
        "(5, 4, 256) torch.float16 (4, 5) torch.float32",
        "(3, 2, 4, 256) (3, 4, 2)",
    ]


@pytest.mark.parametrize("call", ["flash_attn_with_kvcache", "torch.ops._vllm_fa2_C.fwd_kvcache"])
def test_traced_graph_knows_that_the_caches_are_appended_to(call: str) -> None:
    """The schema does not say it. Reads of a cache stay before or after, as they were written."""
    rest = "None, None, None, None, None, None, None, 1.0, True, -1, -1, 0.0, True, 0"
    arguments = "at, causal=True" if call.startswith("flash") else f"at, {rest}"
    keyword = "cache_seqlens=" if call.startswith("flash") else ""
    code = f"""
        def attend(q, kcache, vcache, new, at):
            before = kcache.sum()
            out = {call}(q + 1, kcache, vcache, new, 2 * new, {keyword}{arguments})
            return before, out[0] + 1, kcache.sum() + vcache.sum()
        def inputs():
            torch.manual_seed(0)
            caches = torch.randn(2, 3, 9, 2, 64).half()  # views of one tensor
            q, new = torch.randn(3, 2, 4, 64).half(), torch.randn(3, 2, 2, 64).half()
            return q, caches[0], caches[1], new, torch.tensor([0, 4, 7], dtype=torch.int32)
        for grad in (torch.inference_mode, torch.no_grad):
            for dynamic in (False, True):
                with grad():
                    torch._dynamo.reset()
                    compiled = torch.compile(
                        attend, backend="aot_eager", fullgraph=True, dynamic=dynamic)
                    eager, traced = inputs(), inputs()
                    expected, got = attend(*eager), compiled(*traced)
                    assert all(map(torch.equal, expected, got)), (expected, got)
                    assert all(map(torch.equal, eager, traced))
                    assert not torch.equal(traced[1], inputs()[1])
        print("equal")
    """
    assert python(OPERATORS + textwrap.dedent(code)) == "equal"


def test_fake_implementations_give_shapes_for_every_argument() -> None:
    code = """
        from torch._subclasses import FakeTensorMode
        cache, q = torch.randn(3, 9, 2, 64).half(), torch.randn(3, 2, 4, 64).half()
        new, at = torch.randn(3, 1, 2, 64).half(), torch.tensor([0, 4, 7], dtype=torch.int32)
        cos, out = torch.ones(9, 8).half(), torch.empty(3, 2, 4, 64).half()
        operator = torch.ops._vllm_fa2_C.fwd_kvcache
        rest = (1.0, True, -1, -1, 0.0, True, 0)
        def shapes(move):
            given = [None if x is None else move(x) for x in (
                q, cache, cache, new, new, at, cos, cos, at, at, None, None, out)]
            return [(tuple(x.shape), x.dtype) for x in operator(*given, *rest)]
        with FakeTensorMode() as mode:
            faked = shapes(mode.from_tensor)
        assert faked == shapes(lambda x: x.to("meta")), faked
        print(faked)
    """
    said = python(OPERATORS + textwrap.dedent(code))
    assert said == "[((3, 2, 4, 64), torch.float16), ((3, 4, 2), torch.float32)]"
