# SPDX-License-Identifier: Apache-2.0
"""The operators under test, one float64 reference for all of them, and error measures."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

LIBRARY_VARIABLE = "VLLM_FA2_SM70_LIBRARY"
DEVICE_VARIABLE = "VLLM_FA2_SM70_TEST_DEVICE"
DEVICE = os.environ.get(DEVICE_VARIABLE, "cuda")
"""`cpu` runs what needs no CUDA on operators that the process has for the CPU, such as a model."""

HEAD_DIM = 256
TILES = (64, 96, 128, 192, 256)


def library_path() -> Path | None:
    """Where the environment says that the library is, or None."""
    value = os.environ.get(LIBRARY_VARIABLE)
    return Path(value) if value else None


def has_operators() -> bool:
    return hasattr(torch.ops._vllm_fa2_C, "varlen_fwd")


def why_not_loadable() -> str | None:
    path = library_path()
    if has_operators():
        return None
    if path is None:
        return f"{LIBRARY_VARIABLE} is not set; it takes the path of a built _vllm_fa2_C.abi3.so"
    if not path.is_file():
        return f"{LIBRARY_VARIABLE}={path}: no such file"
    return None


def why_no_gpu() -> str | None:
    return None if torch.cuda.is_available() else "torch sees no CUDA device"


def load_library() -> None:
    if not has_operators():
        path = library_path()
        assert path is not None
        torch.ops.load_library(str(path.resolve()))


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
        softmax_scale=q.shape[-1] ** -0.5 if scale is None else scale, zero_tensors=False,
        is_causal=causal, window_size_left=-1, window_size_right=-1, softcap=0.0,
        return_softmax=False, num_splits=0, gen=None,
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
        alibi_slopes=None, out=None, softmax_scale=q.shape[-1] ** -0.5 if scale is None else scale,
        is_causal=causal, window_size_left=-1, window_size_right=-1, softcap=0.0,
        is_rotary_interleaved=False, num_splits=0,
    )  # fmt: skip
    out, lse = torch.ops._vllm_fa2_C.fwd_kvcache(**(arguments | other))
    return out, lse


@dataclass(frozen=True)
class Scoring:
    """What decides about a score, beside Q and K. `slopes` is [heads] or [batch, heads]."""

    causal: bool = False
    window: tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    slopes: Tensor | None = None
    scale: float | None = None

    def arguments(self) -> dict[str, Any]:
        """As both operators take it."""
        return {
            "causal": self.causal, "scale": self.scale, "softcap": self.softcap,
            "window_size_left": self.window[0], "window_size_right": self.window[1],
            "alibi_slopes": self.slopes,
        }  # fmt: skip

    def scale_for(self, q: Tensor) -> float:
        return float(q.shape[-1] ** -0.5) if self.scale is None else self.scale

    def bounds(self) -> tuple[int | None, int | None]:
        """How far a query sees to the left and right of its own place."""
        left, right = self.window
        return None if left < 0 else left, 0 if self.causal else None if right < 0 else right


def visible(rows: Tensor, seqlen_k: int, lengths: Tensor, scoring: Scoring) -> Tensor:
    """Which keys a query sees: [batch, rows, seqlen_k]. `lengths` is [batch, 2]: of Q, of K.

    Masks are aligned at the bottom right: the last query stands at the last key.
    """
    query, key = rows[None, :, None], torch.arange(seqlen_k, device=rows.device)[None, None]
    length_q, length_k = lengths[:, 0, None, None], lengths[:, 1, None, None]
    place = query + length_k - length_q
    seen = (key < length_k) & (query < length_q)
    left, right = scoring.bounds()
    if left is not None:
        seen = seen & (key >= place - left)
    if right is not None:
        seen = seen & (key <= place + right)
    return seen


def bias(rows: Tensor, seqlen_k: int, lengths: Tensor, slopes: Tensor) -> Tensor:
    """ALiBi, [batch or 1, heads, rows, seqlen_k]."""
    place = rows[None, :, None] + (lengths[:, 1] - lengths[:, 0])[:, None, None]
    distance = (place - torch.arange(seqlen_k, device=rows.device)[None, None]).abs()
    return -slopes.double().reshape(-1, slopes.shape[-1], 1, 1) * distance[:, None]


def lengths_of(q: Tensor, k: Tensor) -> Tensor:
    """The whole of each batch entry."""
    return torch.tensor([[q.shape[1], k.shape[1]]] * q.shape[0], device=q.device)


def reference(
    q: Tensor, k: Tensor, v: Tensor, scoring: Scoring | None = None, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention in float64: q [batch, Sq, Hq, D], k and v [batch, Sk, Hk, D].

    Returns out [batch, Sq, Hq, D] and the natural-log LSE [batch, Hq, Sq]. A row that sees no key
    gives zeros and -inf. What no row may see does not contribute, whatever stands there; a visible
    NaN or infinity in V reaches the rows that see it.
    """
    scoring = scoring or Scoring()
    lengths = lengths_of(q, k) if lengths is None else lengths
    batch, seqlen_q, heads, dim = q.shape
    _, seqlen_k, heads_k, _ = k.shape
    out = torch.zeros(batch, seqlen_q, heads, dim, dtype=torch.float64, device=q.device)
    lse = torch.full((batch, heads, seqlen_q), -math.inf, dtype=torch.float64, device=q.device)
    if out.numel() == 0 or seqlen_k == 0:
        return out, lse
    k64 = k.double().permute(0, 2, 3, 1)
    v64 = v.double().transpose(1, 2)
    finite = bool(v64.isfinite().all())
    step = max(1, 2**26 // (batch * heads * seqlen_k))  # 512 MiB of scores at a time
    for start in range(0, seqlen_q, step):
        rows = torch.arange(start, min(start + step, seqlen_q), device=q.device)
        grouped = q[:, start : start + step].double().reshape(batch, len(rows), heads_k, -1, dim)
        by_head = grouped.permute(0, 2, 3, 1, 4).reshape(batch, heads_k, -1, dim)
        scores = (by_head @ k64).reshape(batch, heads, len(rows), seqlen_k) * scoring.scale_for(q)
        if scoring.softcap:
            scores = scoring.softcap * (scores / scoring.softcap).tanh()
        if scoring.slopes is not None:
            scores = scores + bias(rows, seqlen_k, lengths, scoring.slopes)
        seen = visible(rows, seqlen_k, lengths, scoring)[:, None]
        scores = scores.masked_fill(~seen, -math.inf)
        row_lse = scores.logsumexp(dim=-1)
        weights = (scores - row_lse[..., None]).exp().masked_fill(~seen, 0)
        weights = weights.reshape(batch, heads_k, -1, seqlen_k)
        part = weights @ (v64 if finite else v64.nan_to_num(0, 0, 0))
        if not finite:
            sees = seen.double().expand(-1, heads // heads_k, -1, -1).flatten(1, 2)[:, None]
            part[sees @ (~v64.isfinite()).double() > 0] = math.nan
        part = part.reshape(batch, heads, len(rows), dim).transpose(1, 2)
        out[:, start : start + step] = part
        lse[:, :, start : start + step] = row_lse
    return out, lse


def torch_attention(
    q: Tensor, k: Tensor, v: Tensor, scoring: Scoring | None = None, lengths: Tensor | None = None
) -> Tensor:
    """PyTorch's own fp16 attention with the same inputs; its function has no softcap and takes a
    bias only in fp16, so both are spelt out, with the softmax in float32."""
    scoring = scoring or Scoring()
    lengths = lengths_of(q, k) if lengths is None else lengths
    if q.numel() == 0 or k.shape[1] == 0:
        return torch.zeros_like(q)
    rows = torch.arange(q.shape[1], device=q.device)
    seen = visible(rows, k.shape[1], lengths, scoring)[:, None]
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, dim=2).transpose(1, 2) for x in (k, v))
    q, scale = q.transpose(1, 2), scoring.scale_for(q)
    if not scoring.softcap and scoring.slopes is None:
        with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
            out = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=seen.expand(-1, q.shape[1], -1, -1), scale=scale
            )
        return out.transpose(1, 2)
    scores = (q @ k.transpose(2, 3)).float() * scale
    if scoring.softcap:
        scores = scoring.softcap * (scores / scoring.softcap).tanh()
    if scoring.slopes is not None:
        scores = scores + bias(rows, k.shape[2], lengths, scoring.slopes).float()
    scores = scores.masked_fill(~seen, -math.inf)
    return (scores.softmax(dim=-1).half() @ v).transpose(1, 2)


def randn(*shape: int, seed: int = 0, device: str = DEVICE) -> Tensor:
    generator = torch.Generator(device=device).manual_seed(seed)
    return torch.randn(*shape, generator=generator, device=device).half()


def int32(values: list[int], device: str = DEVICE) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def cumulative(lengths: list[int], device: str = DEVICE) -> Tensor:
    return torch.tensor([0, *lengths], device=device).cumsum(0).to(torch.int32)
