# SPDX-License-Identifier: Apache-2.0
"""From tensors to the description that routes decide about."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from vllm_fa2_sm70 import operators
from vllm_fa2_sm70.calls import ENVIRONMENT, Call, TensorInfo

if TYPE_CHECKING:
    from torch import Tensor
    from torch import device as Device


_capabilities: dict[int | None, tuple[int, int]] = {}


def describe(
    operator: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor | None,
    optional: dict[str, Any],
    *,
    running: bool = False,
    **facts: Any,
) -> Call:
    """Everything that decides about a call; `facts` are the fields of `Call` that are numbers.

    Args:
        operator: the one that the caller's function stands for.
        optional: the optional tensors by name; those that are not None count as given.
        running: whether this is a graph that runs, and so is not traced.
    """
    import torch

    traced = not running and _is_traced(q)
    library = operators.load()
    return Call(
        operator=operator,
        q=_info(q),
        k=_info(k),
        v=_info(v),
        out=None if out is None else _info(out),
        out_is_shared=out is not None and not traced and _is_shared(out, q, k, v),
        options={name: _info(value) for name, value in optional.items() if value is not None},
        capability=capability_of(q.device),
        needs_gradient=torch.is_grad_enabled()
        and any(t.requires_grad for t in (q, k, v, *optional.values()) if t is not None),
        traced=traced,
        capturing=q.device.type == "cuda"
        and not traced
        and torch.cuda.is_current_stream_capturing(),
        environment=tuple((n, os.environ[n]) for n in ENVIRONMENT if n in os.environ),
        unusable=library.reason,
        library_operators=library.optional,
        **facts,
    )


def describe_packed(arguments: tuple[Any, ...], *, running: bool = False) -> Call:
    """The call that the arguments of ``varlen_fwd`` make."""
    q, k, v, out, starts_q, _, seqused_k, leftpad_k, block_table, slopes = arguments[:10]
    longest_q, longest_k, dropout, scale, _, causal, left, right, softcap = arguments[10:19]
    optional = {
        "seqused_k": seqused_k,
        "leftpad_k": leftpad_k,
        "block_table": block_table,
        "alibi_slopes": slopes,
    }
    return describe(
        "varlen_fwd",
        q,
        k,
        v,
        out,
        optional,
        running=running,
        softmax_scale=scale,
        causal=causal,
        window=(left, right),
        softcap=softcap,
        dropout=dropout,
        num_splits=arguments[20],
        max_seqlen_q=longest_q,
        max_seqlen_k=longest_k,
        sequences=starts_q.shape[0] - 1,
    )


def _info(tensor: Tensor) -> TensorInfo:
    import torch

    # no traced graph can hold an offset; the operator checks the address itself
    offset = 0 if torch.compiler.is_compiling() else int(tensor.storage_offset())
    return TensorInfo(
        shape=tuple(tensor.shape),
        strides=tuple(tensor.stride()),
        dtype=str(tensor.dtype).removeprefix("torch."),
        device=str(tensor.device),
        offset=offset,
    )


def _is_shared(out: Tensor, *inputs: Tensor) -> bool:
    place = out.untyped_storage().data_ptr()
    return any(tensor.untyped_storage().data_ptr() == place for tensor in inputs)


def _is_traced(q: Tensor) -> bool:
    """Whether there is a graph in the making, or only shapes, instead of data."""
    import torch

    if torch.compiler.is_compiling():
        return True
    dispatches = type(q).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    modes: int = torch._C._len_torch_dispatch_stack()
    return dispatches or modes > 0 or q.device.type == "meta"


def capability_of(device: Device) -> tuple[int, int] | None:
    """A CUDA device's compute capability, asked once: that takes longer than choosing."""
    import torch

    if device.type != "cuda":
        return None
    if torch.compiler.is_compiling():
        return torch.cuda.get_device_capability(device)
    if device.index not in _capabilities:
        _capabilities[device.index] = torch.cuda.get_device_capability(device)
    return _capabilities[device.index]
