# SPDX-License-Identifier: Apache-2.0
"""The kernels' parameter structs as bytes: `Flash_fwd_params` of ``flash.h`` (stable ABI)."""

from __future__ import annotations

import struct

_POINTERS = ("q_ptr", "k_ptr", "v_ptr")
_STRIDES = tuple(
    f"{t}_{kind}_stride" for kind in ("batch", "row", "head") for t in ("q", "k", "v")
)

FIELDS: tuple[tuple[str, str], ...] = (
    *((name, "Q") for name in _POINTERS),
    *((name, "q") for name in _STRIDES),
    *((name, "i") for name in ("h", "h_k", "h_h_k_ratio")),
    # Qkv_params ends here; its size is a multiple of 8
    ("", "8"),
    *((name, "Q") for name in ("o_ptr", "oaccum_ptr")),
    *((name, "q") for name in ("o_batch_stride", "o_row_stride", "o_head_stride")),
    *((name, "Q") for name in ("p_ptr", "softmax_lse_ptr", "softmax_lseaccum_ptr")),
    *(
        (name, "i")
        for name in (
            "b",
            "seqlen_q",
            "seqlen_k",
            "seqlen_knew",
            "d",
            "seqlen_q_rounded",
            "seqlen_k_rounded",
            "d_rounded",
            "rotary_dim",
            "total_q",
        )
    ),
    *((name, "f") for name in ("scale_softmax", "scale_softmax_log2")),
    *(
        (name, "Q")
        for name in (
            "cu_seqlens_q",
            "cu_seqlens_k",
            "leftpad_k",
            "seqused_k",
            "blockmask",
            "knew_ptr",
            "vnew_ptr",
        )
    ),
    *((f"{t}_{kind}_stride", "q") for kind in ("batch", "row", "head") for t in ("knew", "vnew")),
    *(
        (name, "Q")
        for name in ("rotary_cos_ptr", "rotary_sin_ptr", "cache_batch_idx", "block_table")
    ),
    ("block_table_batch_stride", "q"),
    ("page_block_size", "i"),
    ("p_dropout", "f"),
    ("p_dropout_in_uint8_t", "B"),
    ("rp_dropout", "f"),
    ("scale_softmax_rp_dropout", "f"),
    ("window_size_left", "i"),
    ("window_size_right", "i"),
    ("softcap", "f"),
    ("rng_state", "Q"),
    *(
        (name, "?")
        for name in ("is_bf16", "is_causal", "is_seqlens_k_cumulative", "is_rotary_interleaved")
    ),
    ("num_splits", "i"),
    ("alibi_slopes_ptr", "Q"),
    ("alibi_slopes_batch_stride", "q"),
    ("unpadded_lse", "?"),
    ("seqlenq_ngroups_swapped", "?"),
)
"""(name, struct code) in the order of the C++ declaration; "8" aligns to 8 bytes."""


def _places() -> tuple[dict[str, tuple[int, str]], int]:
    offset = 0
    places = {}
    for name, code in FIELDS:
        size = 8 if code == "8" else struct.calcsize(code)
        offset = -(-offset // size) * size
        if name:
            places[name] = (offset, code)
            offset += size
    return places, -(-offset // 8) * 8


PLACES, SIZE = _places()
"""Offset in bytes and struct code of each field, and the size of the struct."""


def pack(values: dict[str, int | float | bool]) -> bytes:
    """The struct with `values`; fields that are not named are 0.

    Raises:
        KeyError: no field has that name.
    """
    data = bytearray(SIZE)
    for name, value in values.items():
        offset, code = PLACES[name]
        struct.pack_into("<" + code, data, offset, value)
    return bytes(data)
