# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-2's ``Flash_fwd_params`` as bytes (csrc/flash_attn/src/flash.h, stable ABI)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from patchctl.errors import UsageError

NO_WINDOW = 1 << 30
"""The window size that means "no bound" (params.h: kNoWindow)."""

_FIELDS = (
    ("q_ptr k_ptr v_ptr", "Q"),
    ("q_batch_stride k_batch_stride v_batch_stride", "q"),
    ("q_row_stride k_row_stride v_row_stride", "q"),
    ("q_head_stride k_head_stride v_head_stride", "q"),
    ("h h_k h_h_k_ratio", "i"),
    ("o_ptr oaccum_ptr", "Q"),
    ("o_batch_stride o_row_stride o_head_stride", "q"),
    ("p_ptr softmax_lse_ptr softmax_lseaccum_ptr", "Q"),
    ("b seqlen_q seqlen_k seqlen_knew d seqlen_q_rounded seqlen_k_rounded d_rounded", "i"),
    ("rotary_dim total_q", "i"),
    ("scale_softmax scale_softmax_log2", "f"),
    ("cu_seqlens_q cu_seqlens_k leftpad_k seqused_k blockmask knew_ptr vnew_ptr", "Q"),
    ("knew_batch_stride vnew_batch_stride knew_row_stride vnew_row_stride", "q"),
    ("knew_head_stride vnew_head_stride", "q"),
    ("rotary_cos_ptr rotary_sin_ptr cache_batch_idx block_table", "Q"),
    ("block_table_batch_stride", "q"),
    ("page_block_size", "i"),
    ("p_dropout", "f"),
    ("p_dropout_in_uint8_t", "B"),
    ("rp_dropout scale_softmax_rp_dropout", "f"),
    ("window_size_left window_size_right", "i"),
    ("softcap", "f"),
    ("rng_state", "Q"),
    ("is_bf16 is_causal is_seqlens_k_cumulative is_rotary_interleaved", "?"),
    ("num_splits", "i"),
    ("alibi_slopes_ptr", "Q"),
    ("alibi_slopes_batch_stride", "q"),
    ("unpadded_lse seqlenq_ngroups_swapped", "?"),
)


@dataclass(frozen=True)
class Field:
    """Where a member is, in bytes, and its `struct` code."""

    offset: int
    code: str


def _layout() -> tuple[dict[str, Field], int]:
    fields, offset = {}, 0
    for names, code in _FIELDS:
        size = struct.calcsize(code)
        for name in names.split():
            offset = -(-offset // size) * size
            fields[name] = Field(offset, code)
            offset += size
    return fields, -(-offset // 8) * 8


FIELDS, SIZE = _layout()


def page_size(size: int | None) -> bytes:
    """``PageSize`` (page_table.h): key / size is key * multiplier >> 30 + shift."""
    if not size:
        return struct.pack("<Ii", 0, 2)
    shift = max(2, (size - 1).bit_length())
    return struct.pack("<Ii", ((1 << 30 + shift) + size - 1) // size, shift)


def pack(values: Mapping[str, int | float | bool]) -> bytes:
    """The struct with these members; all others are zero.

    Raises:
        UsageError: there is no such member.
    """
    buffer = bytearray(SIZE)
    for name, value in values.items():
        if name not in FIELDS:
            raise UsageError(f"Flash_fwd_params has no member `{name}`")
        field = FIELDS[name]
        struct.pack_into("<" + field.code, buffer, field.offset, value)
    return bytes(buffer)
