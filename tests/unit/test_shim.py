# SPDX-License-Identifier: Apache-2.0
"""The shim in fresh processes: importing it never fails, and it says what is missing."""

from __future__ import annotations

import inspect
import json
import textwrap
from pathlib import Path

import pytest
from tests.unit.shimrig import OPERATORS, python

import patchctl
import vllm_fa2_sm70

CASES = Path(__file__).parents[1] / "data" / "cases"

REASON = "import vllm_fa2_sm70 as s; print(s.fa_version_unsupported_reason(2))"


def test_version_is_that_of_the_tool() -> None:
    assert vllm_fa2_sm70.__version__ == patchctl.__version__


def test_missing_library_is_named(tmp_path: Path) -> None:
    said = python(REASON, VLLM_FA2_SM70_LIBRARY=str(tmp_path / "none.so"))
    assert said.startswith("there is no CUDA device (torch ")
    assert said.endswith(f"; there is no library `{tmp_path / 'none.so'}`")


@pytest.mark.parametrize(
    "name", ["empty", "half", "header-only", "minus-one-page", "text", "wrong-machine"]
)
def test_damaged_library_is_not_loaded(name: str) -> None:
    from vllm_fa2_sm70.elf import damage

    assert damage(CASES / "43" / f"{name}.so") != ""


def test_whole_library_is_not_called_damaged() -> None:
    from vllm_fa2_sm70.elf import damage

    assert damage(CASES / "43" / "whole.so") == ""


def test_import_works_with_damaged_library() -> None:
    path = CASES / "43" / "half.so"
    assert f"`{path}` is damaged: truncated" in python(REASON, VLLM_FA2_SM70_LIBRARY=str(path))


def test_library_that_is_another_one_is_refused() -> None:
    path = CASES / "43" / "whole.so"
    said = python(REASON, VLLM_FA2_SM70_LIBRARY=str(path))
    assert f"`{path}` has no operator `varlen_fwd`" in said


def test_import_works_without_torch() -> None:
    code = """
        import sys
        sys.modules["torch"] = None
        import vllm_fa2_sm70 as s
        print(s.is_fa_version_supported(2), s.fa_version_unsupported_reason(2))
    """
    assert python(code).startswith("False torch cannot be imported")


def test_other_version_is_not_supported() -> None:
    assert vllm_fa2_sm70.is_fa_version_supported(3) is False
    assert "FA3 is not in this package" in str(vllm_fa2_sm70.fa_version_unsupported_reason(3))


def test_registered_operators_are_used_and_no_second_library_is_loaded() -> None:
    """Case 40: loading a second library of that name would end the process."""
    said = python(
        OPERATORS + "print(len(torch.ops._vllm_fa2_C.varlen_fwd.default._schema.arguments))"
    )
    assert said == "22"


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (("float p_dropout, ", ""), "argument 13 is `float softmax_scale`, not `float p_dropout`"),
        ((", Tensor? gen", ""), "21 arguments, not 22"),
        (("int num_splits", "bool num_splits"), "argument 21 is `bool num_splits`, not `int"),
    ],
)
def test_registered_operators_of_another_form_are_refused(
    change: tuple[str, str], difference: str
) -> None:
    code = f"""
        import torch
        from vllm_fa2_sm70 import operators
        library = torch.library.Library("_vllm_fa2_C", "DEF")
        library.define("varlen_fwd" + operators.SCHEMAS["varlen_fwd"].replace{change!r})
        library.define("fwd_kvcache" + operators.SCHEMAS["fwd_kvcache"])
        operators._loaded = None
        print(operators.load().reason)
    """
    said = python(code)
    assert said.startswith("the loaded `_vllm_fa2_C` has another `varlen_fwd`: " + difference)


def test_calls_reach_the_operators_with_the_arguments_in_place() -> None:
    code = """
        out = torch.zeros_like(q)
        result, lse = flash_attn_varlen_func(
            q, k, k, 5, at_q, 7, at_k, causal=True, return_softmax_lse=True, out=out)
        assert result is out and torch.equal(out, 2 * q) and lse.shape == (4, 5)
        assert torch.equal(seen[0][0], at_q) and torch.equal(seen[0][1], at_k)
        assert seen[0][2:] == (
            None, None, None, None, 5, 7, 0.0, 0.0625, False, True, -1, -1, 0.0, False, 0, None)
        cache = torch.randn(1, 9, 2, 256, dtype=torch.float16)
        result = flash_attn_with_kvcache(q[None], cache, cache, cache_seqlens=7, softmax_scale=1.0)
        assert torch.equal(result, 2 * q[None])
        assert seen[1][2].tolist() == [7] and seen[1][2].dtype == torch.int32
        assert seen[1][9:] == (None, 1.0, False, -1, -1, 0.0, True, 0)
        # new keys: appended by the operator, where they are wanted contiguous
        new = torch.randn(1, 2, 1, 256, dtype=torch.float16).transpose(1, 2)
        cos = torch.ones(9, 8, dtype=torch.float16)
        flash_attn_with_kvcache(
            q[None], cache, cache, new, new, cos, cos, cache_seqlens=7, causal=True, softcap=2.0,
            window_size=(4, 0), rotary_interleaved=False, num_splits=3)
        assert torch.equal(cache[0, 7:8], new[0]) and seen[2][2].tolist() == [7]
        assert seen[2][3] is cos and seen[2][10:] == (1 / 16, True, 4, 0, 2.0, False, 3)
        pages, table = torch.zeros(4, 16, 2, 256, dtype=torch.float16), torch.zeros(1, 3).int()
        slopes, used = torch.ones(4), torch.tensor([7], dtype=torch.int32)
        flash_attn_varlen_func(
            q, pages, pages, 5, at_q, 7, seqused_k=used, block_table=table, alibi_slopes=slopes)
        assert seen[3][2] is used and seen[3][4] is table and seen[3][5] is slopes
        flash_attn_with_kvcache(q[None], pages, pages, cache_seqlens=7, block_table=table)
        assert seen[4][2].tolist() == [7] and seen[4][7] is table
        # a descale has no meaning for 16 bit, and vLLM always gives one
        one = torch.ones(1, 2)
        flash_attn_varlen_func(q, k, k, 5, at_q, 7, at_k, q_descale=one, k_descale=one)
        turned = k.transpose(1, 2).contiguous().transpose(1, 2)
        flash_attn_varlen_func(q, turned, k, 5, at_q, 7, at_k)
        print(route_counts())
    """
    assert (
        python(OPERATORS + textwrap.dedent(code)) == "{'gqa_prefill': 0, 'dense': 7, 'refused': 0}"
    )


REFUSED = {
    "q_v": "only FA3 has q_v",
    "scheduler_metadata": "only FA3 has scheduler_metadata",
    "s_aux": "only FA3 has s_aux",
    "fa_version": "FA3 is not in this package",
    "cp_world_size": "cp_world_size is 3",
    "return_attn_probs": "return_attn_probs",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_only_other_versions_have_is_refused(name: str) -> None:
    import torch

    q, at = torch.zeros(1, 1, 256), torch.tensor([0, 1])
    with pytest.raises(vllm_fa2_sm70.NoRoute, match=REFUSED[name]):
        vllm_fa2_sm70.flash_attn_varlen_func(q, q, q, 1, at, 1, at, **{name: 3})


def test_lengths_of_keys_are_given_once() -> None:
    import torch

    q, at = torch.zeros(1, 1, 256), torch.tensor([0, 1])
    for arguments in ({}, {"cu_seqlens_k": at, "seqused_k": at}):
        with pytest.raises(ValueError, match="give one of"):
            vllm_fa2_sm70.flash_attn_varlen_func(q, q, q, 1, at, 1, **arguments)
    with pytest.raises(ValueError, match="needs `seqused_k`"):
        vllm_fa2_sm70.flash_attn_varlen_func(q, q, q, 1, at, 1, at, block_table=at)


def test_functions_without_a_kernel_refuse_with_the_reason() -> None:
    with pytest.raises(vllm_fa2_sm70.NoRoute, match="FA3 is not in this package"):
        vllm_fa2_sm70.get_scheduler_metadata(1, 2, max_seqlen_k=3)
    with pytest.raises(vllm_fa2_sm70.NoRoute, match="no vertical-slash sparse kernel"):
        vllm_fa2_sm70.sparse_attn_func(1)


VLLM = {
    "flash_attn_varlen_func": "q k v max_seqlen_q cu_seqlens_q max_seqlen_k cu_seqlens_k=None "
    "seqused_k=None q_v=None dropout_p=0.0 softmax_scale=None causal=False window_size=None "
    "softcap=0.0 alibi_slopes=None deterministic=False return_attn_probs=False block_table=None "
    "return_softmax_lse=False out=None scheduler_metadata=None q_descale=None k_descale=None "
    "v_descale=None num_splits=0 fa_version=2 s_aux=None cp_world_size=1 cp_rank=0 "
    "cp_tot_seqused_k=None",
    "flash_attn_with_kvcache": "q k_cache v_cache k=None v=None rotary_cos=None rotary_sin=None "
    "cache_seqlens=None cache_batch_idx=None cache_leftpad=None block_table=None "
    "softmax_scale=None causal=False window_size=(-1,-1) softcap=0.0 rotary_interleaved=True "
    "alibi_slopes=None num_splits=0 return_softmax_lse=False out=None scheduler_metadata=None "
    "q_descale=None k_descale=None v_descale=None fa_version=2 s_aux=None",
    "is_fa_version_supported": "fa_version device=None",
    "fa_version_unsupported_reason": "fa_version device=None",
}


@pytest.mark.parametrize("name", VLLM)
def test_arguments_and_defaults_are_those_of_vllm(name: str) -> None:
    found = []
    for parameter in inspect.signature(getattr(vllm_fa2_sm70, name)).parameters.values():
        default = parameter.default
        shown = "" if default is parameter.empty else f"={default}".replace(" ", "")
        found.append(parameter.name + shown)
    assert found == VLLM[name].split()


def test_shim_needs_torch_only() -> None:
    code = """
        import json, sys, torch
        before = set(sys.modules)
        import vllm_fa2_sm70
        names = {n.partition(".")[0] for n in set(sys.modules) - before}
        print(json.dumps(sorted(names - set(sys.stdlib_module_names) - {"torch"})))
    """
    assert json.loads(python(code)) == ["vllm_fa2_sm70"]
