# SPDX-License-Identifier: Apache-2.0
"""Serving a long prefill: its buffers come from here, because only Python learns of a lack of
memory as such."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_fa2_sm70.buffers import Shortage, buffer_of
from vllm_fa2_sm70.calls import Call
from vllm_fa2_sm70.gqa import FUSED, gqa_operator
from vllm_fa2_sm70.gqa_sizes import FLOAT, KEY_BLOCK, sizes
from vllm_fa2_sm70.reasons import MEMORY, Reason
from vllm_fa2_sm70.served import Arguments, Declined, Outcome, library_operator

if TYPE_CHECKING:
    from torch import Tensor
    from torch import device as Device

Own = tuple["Tensor", "Tensor", "Tensor | None"]
"""What a call allocates: output, LSE, and the state of the workspace operator."""

_multiprocessors: dict[int, int] = {}


def serve(call: Call, arguments: Arguments) -> Outcome:
    """Run the operator that the environment chooses, or say that memory is short."""
    import torch

    q, k, v, out, starts_q, starts_k = arguments[:6]
    operator = gqa_operator(call)
    queries, heads, _ = q.shape
    need = sizes(operator, queries, multiprocessors(q.device), out_given=out is not None)

    def prepare() -> Own:
        result = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
        lse = torch.empty((heads, queries), dtype=torch.float32, device=q.device)
        state = None
        if need.state:
            state = torch.empty(need.state // FLOAT, dtype=torch.float32, device=q.device)
        return result, lse, state

    def launch(buffer: Tensor, own: Own) -> None:
        result, lse, state = own
        inputs = (q, k, v, result, lse)
        lengths = (starts_q, starts_k, call.softmax_scale)
        retained = buffer[: need.retained]
        if operator == FUSED:
            library_operator(operator)(*inputs, retained.view(torch.float32), *lengths)
        else:
            library_operator(operator)(*inputs, retained, state, *lengths, KEY_BLOCK)

    own = buffer_of(q.device).use(need.retained, need.transient, prepare, launch)
    if isinstance(own, Shortage):
        return Declined(Reason(MEMORY, f"out of memory ({own.place}): {own.text}"))
    return own[:2]


def multiprocessors(device: Device) -> int:
    """How many a device has."""
    import torch

    index: int = device.index
    if index not in _multiprocessors:
        properties = torch.cuda.get_device_properties(device)
        _multiprocessors[index] = properties.multi_processor_count
    return _multiprocessors[index]
