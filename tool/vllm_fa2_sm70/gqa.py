# SPDX-License-Identifier: Apache-2.0
"""Which calls are long prefills that the GQA operators serve, and why not the rest.

Decided by the device and by what the tensors look like, never by a model's name. Every condition
stands on its own, so that a refusal lists all that is in the way.
"""

from __future__ import annotations

from vllm_fa2_sm70.calls import GQA_ROLLBACK_VARIABLE, GQA_VARIABLE, Call
from vllm_fa2_sm70.dense import common_refusals, misaligned, not_half, tensors_of
from vllm_fa2_sm70.reasons import Reason

FUSED = "sm70_gqa_prefill_fused"
WORKSPACE = "sm70_gqa_prefill_workspace"
OPERATORS = {"fused": FUSED, "workspace": WORKSPACE}
"""What `VLLM_FA2_SM70_GQA_PREFILL` chooses from, the default first; ``off`` is the third value."""

QUERIES = 8000
KEYS = tuple(range(40_000, 128_001, 8_000))
QUERY_HEADS = 6
KV_HEADS = 1
HEAD_DIM = 256
SCALE = 1 / 16
MAX_ROW_STRIDE = 2**23
"""Elements: the kernels count the bytes between a few rows of K and V in 32 bits."""

TRACED = Reason("traced", "a graph is being traced: it chooses each time that it runs")


def gqa_operator(call: Call) -> str:
    """The operator that the environment chooses."""
    return OPERATORS.get(call.variable(GQA_VARIABLE) or "fused", FUSED)


def gqa_refusals(call: Call) -> list[str]:
    """One causal sequence of 8,000 new tokens after 32,000 to 120,000, six heads on one."""
    if call.traced:
        return [TRACED]  # alone: a comparison of shapes would bind the graph to these shapes
    reasons = _environment(call) + common_refusals(call)
    if not call.unusable and gqa_operator(call) not in call.library_operators:
        reasons.append(Reason("library", f"the library has no operator `{gqa_operator(call)}`"))
    if call.capturing:
        why = "a CUDA graph is being captured: its replays would share the buffer with later calls"
        reasons.append(Reason("capture", why))
    if call.operator != "varlen_fwd":
        reasons.append(Reason("function", f"it serves `varlen_fwd`, not `{call.operator}`"))
    return reasons + _shapes(call) + _layouts(call) + _scores(call) + _options(call)


def environment_mistakes(call: Call) -> list[str]:
    """Variables whose value means nothing. They turn the route off rather than being guessed at."""
    mistakes = []
    mode, rollback = call.variable(GQA_VARIABLE), call.variable(GQA_ROLLBACK_VARIABLE)
    if mode and mode not in (*OPERATORS, "off"):
        mistakes.append(f"{GQA_VARIABLE} is `{mode}`, not one of {', '.join(OPERATORS)}, off")
    if rollback not in ("", "0", "1"):
        mistakes.append(f"{GQA_ROLLBACK_VARIABLE} is `{rollback}`, not 0 or 1")
    return mistakes


def _environment(call: Call) -> list[str]:
    reasons = environment_mistakes(call)
    if call.variable(GQA_VARIABLE) == "off":
        reasons.append(f"{GQA_VARIABLE}=off")
    if call.variable(GQA_ROLLBACK_VARIABLE) == "0":
        reasons.append(f"{GQA_ROLLBACK_VARIABLE}=0")
    return [Reason("environment", reason) for reason in reasons]


def _shapes(call: Call) -> list[str]:
    q, k = call.q.shape, call.k.shape
    reasons = [
        f"{name} has {len(tensor.shape)} dimensions, not 3"
        for name, tensor in tensors_of(call).items()
        if len(tensor.shape) != 3
    ]
    if len(q) == 3:
        reasons += _differs("q has {} rows", q[0], QUERIES)
        reasons += _differs("q has {} heads", q[1], QUERY_HEADS)
        reasons += _differs("q has head size {}", q[2], HEAD_DIM)
        if call.max_seqlen_q != q[0]:
            reasons.append(f"max_seqlen_q is {call.max_seqlen_q}, not the {q[0]} rows of q")
    if len(k) == 3:
        if k[0] not in KEYS:
            step = KEYS[1] - KEYS[0]
            reasons.append(
                f"k has {k[0]} rows, which is not {KEYS[0]} to {KEYS[-1]} in steps of {step}"
            )
        reasons += _differs("k has {} heads", k[1], KV_HEADS)
        reasons += _differs("k has head size {}", k[2], HEAD_DIM)
        if call.max_seqlen_k != k[0]:
            reasons.append(f"max_seqlen_k is {call.max_seqlen_k}, not the {k[0]} rows of k")
    if call.v.shape != k:
        reasons.append(f"v has shape {list(call.v.shape)}, k {list(k)}")
    if call.out is not None and call.out.shape != q:
        reasons.append(f"out has shape {list(call.out.shape)}, q {list(q)}")
    reasons += _differs("{} sequences are packed", call.sequences, 1)
    return [Reason("shape", reason) for reason in reasons]


def _differs(text: str, got: int, wanted: int) -> list[str]:
    return [] if got == wanted else [f"{text.format(got)}, not {wanted}"]


def _layouts(call: Call) -> list[str]:
    reasons = []
    for name, tensor in tensors_of(call).items():
        reasons += not_half(name, tensor.dtype) + misaligned(name, tensor)
        far = max(tensor.strides[:1], default=0)
        if name in ("k", "v") and far > MAX_ROW_STRIDE:
            why = f"{name} has strides {list(tensor.strides)}, its rows more than 2^23 apart"
            reasons.append(Reason("layout", why))
    if call.out is not None and 0 in call.out.strides:
        why = f"out has strides {list(call.out.strides)}: its elements share memory"
        reasons.append(Reason("layout", why))
    if call.out_is_shared:
        why = "out is in the storage of an input, which is read after parts of out are written"
        reasons.append(Reason("layout", why))
    return reasons


def _scores(call: Call) -> list[str]:
    reasons: list[str] = []
    if call.softmax_scale != SCALE:
        why = f"softmax_scale is {call.softmax_scale!r}, not {SCALE}"
        reasons.append(Reason("scale", why))
    if not call.causal:
        reasons.append(Reason("mask", "it is not causal"))
    left, right = call.window
    if left != -1 or right not in (-1, 0):
        reasons.append(Reason("mask", f"window_size is {left, right}: it has a bound"))
    if call.softcap:
        reasons.append(Reason("option", f"softcap is {call.softcap:g}, not 0"))
    if call.dropout:
        reasons.append(Reason("option", f"dropout_p is {call.dropout:g}, not 0"))
    if call.num_splits:
        why = f"num_splits is {call.num_splits}, not 0: it splits as the device needs"
        reasons.append(Reason("option", why))
    return reasons


def _options(call: Call) -> list[str]:
    reasons: list[str] = []
    for name in sorted(call.options):
        if name == "block_table":
            reasons.append(Reason("paged", "block_table is given: K and V are in pages"))
        else:
            reasons.append(Reason("option", f"{name} is given"))
    return reasons
