# SPDX-License-Identifier: Apache-2.0
"""The functions that vLLM calls, with its argument names, order and defaults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from vllm_fa2_sm70.calls import NO_WINDOW
from vllm_fa2_sm70.describe import describe, describe_packed
from vllm_fa2_sm70.routes import NoRoute
from vllm_fa2_sm70.serving import serve
from vllm_fa2_sm70.support import VERSION, fa_version_unsupported_reason

if TYPE_CHECKING:
    from torch import Tensor


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    max_seqlen_q: int,
    cu_seqlens_q: Tensor,
    max_seqlen_k: int,
    cu_seqlens_k: Tensor | None = None,
    seqused_k: Tensor | None = None,
    q_v: Tensor | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] | None = None,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
    return_softmax_lse: bool = False,
    out: Tensor | None = None,
    scheduler_metadata: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    num_splits: int = 0,
    fa_version: int = VERSION,
    s_aux: Tensor | None = None,
    cp_world_size: int = 1,
    cp_rank: int = 0,
    cp_tot_seqused_k: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention over packed sequences of different lengths.

    Args:
        q: (tokens, query heads, head dimension).
        k, v: (tokens, KV heads, head dimension), or with `block_table` pages: (pages, page size,
            KV heads, head dimension).
        cu_seqlens_q, cu_seqlens_k: int32, where each sequence starts, and the end of the last.
        seqused_k: int32, how many keys each sequence has; instead of `cu_seqlens_k`.
        softmax_scale: default: 1 / sqrt(head dimension).
        causal: the last query sees all keys (aligned at the bottom right).
        window_size: how many keys to the left and to the right of its own a query sees; -1: all.
        alibi_slopes: float32 (query heads) or (sequences, query heads).
        return_softmax_lse: return (out, lse), lse float32 (query heads, tokens).
        q_descale, k_descale, v_descale: without effect, as scales belong to 8-bit inputs.

    Raises:
        NoRoute: no kernel here serves the call; says every reason.
        ValueError: the lengths of the keys are given twice or not at all.
    """
    _require_version(fa_version)
    _refuse_given(q_v=q_v, scheduler_metadata=scheduler_metadata, s_aux=s_aux)
    if cp_world_size != 1:
        raise NoRoute(f"cp_world_size is {cp_world_size}: context parallelism needs FA3")
    if return_attn_probs:
        raise NoRoute("return_attn_probs is for tests with dropout, which is not here")
    if (cu_seqlens_k is None) == (seqused_k is None):
        raise ValueError("give one of `cu_seqlens_k` and `seqused_k`")
    if block_table is not None and seqused_k is None:
        raise ValueError("`block_table` needs `seqused_k`")
    q, k, v = _last_contiguous(q), _last_contiguous(k), _last_contiguous(v)
    window = _window(window_size)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else float(softmax_scale)
    # the operator wants cu_seqlens_k even where seqused_k replaces it, and then looks at no value
    starts_k = cu_seqlens_q if cu_seqlens_k is None else cu_seqlens_k
    arguments = (
        q,
        k,
        v,
        out,
        cu_seqlens_q,
        starts_k,
        seqused_k,
        None,
        block_table,
        alibi_slopes,
        int(max_seqlen_q),
        int(max_seqlen_k),
        dropout_p,
        scale,
        False,
        causal,
        *window,
        softcap,
        False,
        num_splits,
        None,
    )
    result, lse = serve(describe_packed(arguments), arguments)
    return (result, lse) if return_softmax_lse else result


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = NO_WINDOW,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
    *,
    out: Tensor | None = None,
    scheduler_metadata: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    fa_version: int = VERSION,
    s_aux: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of new tokens over a cache, which `k` and `v` are appended to.

    Args:
        q: (batch, tokens, query heads, head dimension).
        k_cache, v_cache: (batch, length, KV heads, head dimension), or pages with `block_table`.
        k, v: written into the caches at `cache_seqlens`, then attended to like what is there.
        rotary_cos, rotary_sin: (length or more, rotary dimension / 2), applied to q and `k`.
        cache_seqlens: how many keys of each sequence are in the cache: one number or int32 (batch).
        cache_batch_idx: int32, which entry of the caches each sequence has.
        cache_leftpad: int32, how many keys to skip at the start of each sequence.
        block_table: int32 (batch, pages of a sequence), which pages each sequence has.
        return_softmax_lse: return (out, lse), lse float32 (batch, query heads, tokens).

    Raises:
        NoRoute: no kernel here serves the call; says every reason.
    """
    import torch

    _require_version(fa_version)
    _refuse_given(scheduler_metadata=scheduler_metadata, s_aux=s_aux)
    q = _last_contiguous(q)
    k, v = (None if new is None else _last_contiguous(new) for new in (k, v))
    if isinstance(cache_seqlens, int):
        cache_seqlens = torch.full(
            (q.shape[0],), cache_seqlens, dtype=torch.int32, device=k_cache.device
        )
    window = _window(window_size)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else float(softmax_scale)
    optional = {
        "k": k,
        "v": v,
        "cache_seqlens": cache_seqlens,
        "rotary_cos": rotary_cos,
        "rotary_sin": rotary_sin,
        "cache_batch_idx": cache_batch_idx,
        "cache_leftpad": cache_leftpad,
        "block_table": block_table,
        "alibi_slopes": alibi_slopes,
    }
    call = describe(
        "fwd_kvcache",
        q,
        k_cache,
        v_cache,
        out,
        optional,
        softmax_scale=scale,
        causal=causal,
        window=window,
        softcap=softcap,
        num_splits=num_splits,
        max_seqlen_q=q.shape[1],
        max_seqlen_k=k_cache.shape[1] * (1 if block_table is None else block_table.shape[-1]),
    )
    arguments = (
        q,
        k_cache,
        v_cache,
        k,
        v,
        cache_seqlens,
        rotary_cos,
        rotary_sin,
        cache_batch_idx,
        cache_leftpad,
        block_table,
        alibi_slopes,
        out,
        scale,
        causal,
        *window,
        softcap,
        rotary_interleaved,
        num_splits,
    )
    result, lse = serve(call, arguments)
    return (result, lse) if return_softmax_lse else result


def get_scheduler_metadata(*args: Any, **kwargs: Any) -> NoReturn:
    """Belongs to FA3, which plans its work ahead; refuses with the reason."""
    raise NoRoute(f"get_scheduler_metadata: {fa_version_unsupported_reason(3)}")


def sparse_attn_func(*args: Any, **kwargs: Any) -> NoReturn:
    """Vertical and slash sparse attention, which has no kernel here; refuses with the reason."""
    raise NoRoute("sparse_attn_func: this package has no vertical-slash sparse kernel for sm_70")


def _require_version(fa_version: int) -> None:
    if fa_version != VERSION:
        raise NoRoute(str(fa_version_unsupported_reason(fa_version)))


def _refuse_given(**arguments: object) -> None:
    given = [name for name, value in arguments.items() if value is not None]
    if given:
        raise NoRoute(f"only FA3 has {', '.join(given)}; this package has FA{VERSION}")


def _last_contiguous(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _window(window_size: Sequence[int] | None) -> tuple[int, int]:
    if window_size is None:
        return NO_WINDOW
    left, right = window_size
    return (left, right)
