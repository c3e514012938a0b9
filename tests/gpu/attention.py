# SPDX-License-Identifier: Apache-2.0
"""The operators under test, a float64 reference and error measures. Needs torch only."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LIBRARY_VARIABLE = "VLLM_FA2_SM70_LIBRARY"
HEAD_DIM = 256


def library_path() -> Path | None:
    """Where the environment says that the library is, or None."""
    value = os.environ.get(LIBRARY_VARIABLE)
    return Path(value) if value else None


def why_not_loadable() -> str | None:
    path = library_path()
    if path is None:
        return f"{LIBRARY_VARIABLE} is not set; it takes the path of a built _vllm_fa2_C.abi3.so"
    if not path.is_file():
        return f"{LIBRARY_VARIABLE}={path}: no such file"
    return None


def why_no_gpu() -> str | None:
    return None if torch.cuda.is_available() else "torch sees no CUDA device"


def load_library() -> None:
    path = library_path()
    assert path is not None
    torch.ops.load_library(str(path.resolve()))


def scale_of(q: Tensor, scale: float | None) -> float:
    return q.shape[-1] ** -0.5 if scale is None else scale


def varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    causal: bool = False,
    scale: float | None = None,
    **other: Any,
) -> tuple[Tensor, Tensor]:
    """`varlen_fwd` with the arguments of a plain call; `other` replaces any of them."""
    arguments: dict[str, Any] = dict(
        q=q, k=k, v=v, out=None, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
        seqused_k=None, leftpad_k=None, block_table=None, alibi_slopes=None,
        max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, p_dropout=0.0,
        softmax_scale=scale_of(q, scale), zero_tensors=False, is_causal=causal,
        window_size_left=-1, window_size_right=-1, softcap=0.0, return_softmax=False,
        num_splits=0, gen=None,
    )  # fmt: skip
    out, lse = torch.ops._vllm_fa2_C.varlen_fwd(**(arguments | other))
    return out, lse


def kvcache(
    q: Tensor,
    kcache: Tensor,
    vcache: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    **other: Any,
) -> tuple[Tensor, Tensor]:
    """`fwd_kvcache` with the arguments of a plain call; `other` replaces any of them."""
    arguments: dict[str, Any] = dict(
        q=q, kcache=kcache, vcache=vcache, k=None, v=None, seqlens_k=None, rotary_cos=None,
        rotary_sin=None, cache_batch_idx=None, leftpad_k=None, block_table=None,
        alibi_slopes=None, out=None, softmax_scale=scale_of(q, scale), is_causal=causal,
        window_size_left=-1, window_size_right=-1, softcap=0.0, is_rotary_interleaved=False,
        num_splits=0,
    )  # fmt: skip
    out, lse = torch.ops._vllm_fa2_C.fwd_kvcache(**(arguments | other))
    return out, lse


def reference(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Attention of one sequence in float64: q [Sq, Hq, D], k and v [Sk, Hk, D].

    Returns out [Sq, Hq, D] and the natural-log LSE [Hq, Sq]. Causal masks are aligned at the bottom
    right; a row that sees no key gives zeros and -inf. Masked positions do not contribute, whatever
    stands there.
    """
    scale = scale_of(q, scale)
    seqlen_q, heads, dim = q.shape
    seqlen_k, heads_k, _ = k.shape
    out = torch.zeros(seqlen_q, heads, dim, dtype=torch.float64, device=q.device)
    lse = torch.full((heads, seqlen_q), -math.inf, dtype=torch.float64, device=q.device)
    if seqlen_k == 0:
        return out, lse
    keys = torch.arange(seqlen_k, device=q.device)
    rows = max(1, 2**25 // seqlen_k)  # 256 MiB of scores at a time
    for head in range(heads):
        head_k = head * heads_k // heads
        k64, v64 = k[:, head_k].double(), v[:, head_k].double()
        for start in range(0, seqlen_q, rows):
            stop = min(start + rows, seqlen_q)
            scores = q[start:stop, head].double() @ k64.T * scale
            if causal:
                limit = torch.arange(start, stop, device=q.device) + seqlen_k - seqlen_q
                scores.masked_fill_(keys[None] > limit[:, None], -math.inf)
            row_lse = scores.logsumexp(dim=1)
            probabilities = (scores - row_lse[:, None]).exp()
            probabilities[row_lse == -math.inf] = 0
            out[start:stop, head] = probabilities @ v64
            lse[head, start:stop] = row_lse
    return out, lse


def torch_attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Tensor:
    """PyTorch's own fp16 attention of one sequence, with the same inputs and the same mask."""
    seqlen_q, heads, _ = q.shape
    seqlen_k, heads_k, _ = k.shape
    mask = None
    if causal:
        mask = torch.ones(seqlen_q, seqlen_k, dtype=torch.bool, device=q.device)
        mask = mask.tril(seqlen_k - seqlen_q)
    k, v = (x.repeat_interleave(heads // heads_k, dim=1) for x in (k, v))
    out = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None], attn_mask=mask
    )
    return out[0].transpose(0, 1)


@dataclass(frozen=True)
class Errors:
    """`relative_l2`: of the whole tensor. `worst`: the largest |error| / max(1, |reference|)."""

    relative_l2: float
    worst: float


RELATIVE_L2_BOUND = 4e-4
WORST_BOUND = 1e-3


def errors(out: Tensor, expected: Tensor) -> Errors:
    difference = (out.double() - expected).abs()
    norm = expected.norm().item()
    return Errors(
        relative_l2=difference.norm().item() / norm if norm else difference.norm().item(),
        worst=(difference / expected.abs().clamp(min=1)).max().item() if out.numel() else 0.0,
    )


def assert_close(out: Tensor, expected: Tensor) -> None:
    assert out.dtype == torch.float16
    assert torch.isfinite(out).all(), "NaN or infinity in the output"
    found = errors(out, expected)
    assert found.relative_l2 <= RELATIVE_L2_BOUND, found
    assert found.worst <= WORST_BOUND, found


def assert_lse_close(lse: Tensor, expected: Tensor, tolerance: float = 2e-5) -> None:
    assert lse.dtype == torch.float32
    assert lse.shape == expected.shape
    empty = expected == -math.inf
    assert torch.equal(lse == -math.inf, empty), "-inf stands in the wrong rows"
    difference = (lse.double() - expected)[~empty].abs()
    assert bool((difference <= tolerance * expected[~empty].abs().clamp(min=1)).all())


def randn(*shape: int, seed: int = 0, device: str = "cuda") -> Tensor:
    generator = torch.Generator(device=device).manual_seed(seed)
    return torch.randn(*shape, generator=generator, device=device).half()


def cumulative(lengths: list[int], device: str = "cuda") -> Tensor:
    return torch.tensor([0, *lengths], device=device).cumsum(0).to(torch.int32)


def split_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths_q: list[int],
    lengths_k: list[int],
    used_k: list[int] | None = None,
    *,
    causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """`reference` of packed sequences: out [total_q, Hq, D], LSE [Hq, total_q]."""
    outs, lses = [], []
    parts_q, parts_k, parts_v = q.split(lengths_q), k.split(lengths_k), v.split(lengths_k)
    for i, (part_q, part_k, part_v) in enumerate(zip(parts_q, parts_k, parts_v, strict=True)):
        length = lengths_k[i] if used_k is None else min(used_k[i], lengths_k[i])
        out, lse = reference(part_q, part_k[:length], part_v[:length], causal=causal)
        outs.append(out)
        lses.append(lse)
    return torch.cat(outs), torch.cat(lses, dim=1)
