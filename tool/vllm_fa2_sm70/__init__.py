# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-2 on Tesla V100 (sm_70), with the functions that vLLM calls.

Change the import and nothing else::

    from vllm_fa2_sm70 import flash_attn_varlen_func, is_fa_version_supported

Importing this package loads the operators ``torch.ops._vllm_fa2_C`` and never fails for want of
a GPU, of the library or of torch: `fa_version_unsupported_reason` says what is missing, and so
does every call.

A process can hold one library of that name. If vLLM's own copy is loaded already, its operators
are used; a process that imports vLLM's copy *after* this package is ended by torch, so put the
library into vLLM instead (``patchctl install --overlay vllm``) where both are imported.

Environment:
    VLLM_FA2_SM70_LIBRARY: load this file instead of the one in the package.
    VLLM_FA2_SM70_ALLOW_PTX: ``1`` lets GPUs after sm_70 run the embedded compute_70 PTX.
    VLLM_FA2_SM70_GQA_PREFILL: ``fused`` (default), ``workspace`` or ``off``: what serves long
        prefills (docs/gqa-prefill.md).
    VLLM_FLASH_V100_PREFILL_D256_GQA_ARCH_128K_EXPERIMENTAL: ``0`` turns that off, too.
    VLLM_SM70_QSA_XQA_PAGE4: ``0`` lets QSA prefills take the exact fallback (docs/qsa.md).

The logger ``vllm_fa2_sm70`` says each call's route at level DEBUG.
"""

from vllm_fa2_sm70 import operators
from vllm_fa2_sm70.buffers import release_memory, retained_memory
from vllm_fa2_sm70.calls import Call
from vllm_fa2_sm70.interface import (
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    get_scheduler_metadata,
    sparse_attn_func,
)
from vllm_fa2_sm70.qsa import qsa_prefill, sm70_qsa_page4_prefill
from vllm_fa2_sm70.qsa_call import QsaCall, explain_qsa, qsa_route_counts, reset_qsa_route_counts
from vllm_fa2_sm70.routes import NoRoute, explain, explanation
from vllm_fa2_sm70.serving import (
    Trace,
    recent_calls,
    refusal_counts,
    reset_route_counts,
    route_counts,
)
from vllm_fa2_sm70.support import fa_version_unsupported_reason, is_fa_version_supported

__version__ = "0.1.0"

library = operators.load()
"""Which file's operators are used (`library.path`), and why none can be (`library.reason`)."""

__all__ = [
    "Call",
    "NoRoute",
    "QsaCall",
    "Trace",
    "explain",
    "explain_qsa",
    "explanation",
    "fa_version_unsupported_reason",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "get_scheduler_metadata",
    "is_fa_version_supported",
    "library",
    "qsa_prefill",
    "qsa_route_counts",
    "recent_calls",
    "refusal_counts",
    "release_memory",
    "reset_qsa_route_counts",
    "reset_route_counts",
    "retained_memory",
    "route_counts",
    "sm70_qsa_page4_prefill",
    "sparse_attn_func",
]
