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
    **facts: Any,
) -> Call:
    """Everything that decides about a call; `facts` are the fields of `Call` that are numbers.

    Args:
        operator: the one that the caller's function stands for.
        optional: the optional tensors by name; those that are not None count as given.
    """
    import torch

    on_cuda = q.device.type == "cuda"
    return Call(
        operator=operator,
        q=_info(q),
        k=_info(k),
        v=_info(v),
        out=None if out is None else _info(out),
        options={name: _info(value) for name, value in optional.items() if value is not None},
        capability=_capability(q.device) if on_cuda else None,
        needs_gradient=torch.is_grad_enabled()
        and any(t.requires_grad for t in (q, k, v, *optional.values()) if t is not None),
        capturing=on_cuda
        and not torch.compiler.is_compiling()
        and torch.cuda.is_current_stream_capturing(),
        environment=tuple((n, os.environ[n]) for n in ENVIRONMENT if n in os.environ),
        unusable=operators.load().reason,
        **facts,
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


def _capability(device: Device) -> tuple[int, int]:
    """A CUDA device's compute capability, asked once: that takes longer than choosing."""
    import torch

    if torch.compiler.is_compiling():
        return torch.cuda.get_device_capability(device)
    if device.index not in _capabilities:
        _capabilities[device.index] = torch.cuda.get_device_capability(device)
    return _capabilities[device.index]
