# SPDX-License-Identifier: Apache-2.0
"""Whether this machine can run what a version of FlashAttention needs, and why not."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from vllm_fa2_sm70 import operators
from vllm_fa2_sm70.calls import PTX_VARIABLE
from vllm_fa2_sm70.dense import capability_reason

if TYPE_CHECKING:
    import torch

VERSION = 2


def is_fa_version_supported(fa_version: int, device: torch.device | None = None) -> bool:
    """Whether calls with `fa_version` can run on `device` (default: the current one)."""
    return fa_version_unsupported_reason(fa_version, device) is None


def fa_version_unsupported_reason(
    fa_version: int, device: torch.device | None = None
) -> str | None:
    """Why calls with `fa_version` cannot run on `device`; None if they can."""
    if fa_version != VERSION:
        return f"FA{fa_version} is not in this package: it has FA{VERSION} for sm_70"
    # without CUDA the library may not even load: the cause comes first
    reasons = [_device_reason(device), operators.load().reason]
    return "; ".join(reason for reason in reasons if reason) or None


def _device_reason(device: torch.device | None) -> str:
    try:
        import torch
    except Exception:
        return ""  # the library's reason says it
    if not torch.cuda.is_available():
        built = torch.version.cuda
        why = f"torch {torch.__version__} finds none" if built else "torch is a CPU build"
        return f"there is no CUDA device ({why})"
    if device is not None and torch.device(device).type != "cuda":
        return f"`{device}` is not a CUDA device"
    index = None if device is None else torch.device(device).index
    found = torch.cuda.get_device_capability(index)
    return capability_reason(found, allow_ptx=os.environ.get(PTX_VARIABLE) == "1")
