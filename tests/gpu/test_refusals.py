# SPDX-License-Identifier: Apache-2.0
"""What is not there is refused before a launch: the argument, what it is and what it may be.

These run on a CPU torch as well: everything is checked before the device is.
"""

from __future__ import annotations

import math
import re

import pytest
import torch
from attention import HEAD_DIM, kvcache, varlen


def half(*shape: int, device: str) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.float16, device=device)


def lengths(*values: int, device: str) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def call_varlen(device: str, **changes):
    q, k = half(5, 6, HEAD_DIM, device=device), half(7, 2, HEAD_DIM, device=device)
    made = {name: make(device) for name, make in changes.items()}
    plain = {
        "q": q, "k": k, "v": k, "max_seqlen_q": 5, "max_seqlen_k": 7,
        "cu_seqlens_q": lengths(0, 5, device=device), "cu_seqlens_k": lengths(0, 7, device=device),
    }  # fmt: skip
    return varlen(**(plain | made))


def call_kvcache(device: str, **changes):
    q, k = half(2, 5, 6, HEAD_DIM, device=device), half(2, 7, 2, HEAD_DIM, device=device)
    made = {name: make(device) for name, make in changes.items()}
    return kvcache(**({"q": q, "kcache": k, "vcache": k} | made))


def value(x):
    return lambda device: x


def tensor(*shape: int, dtype: torch.dtype = torch.float16):
    return lambda device: torch.zeros(*shape, dtype=dtype, device=device)


def strided(shape: tuple[int, ...], strides: tuple[int, ...]):
    return lambda device: torch.empty_strided(shape, strides, dtype=torch.float16, device=device)


BOTH = {
    "softcap": (value(30.0), "`softcap` is 30, but takes 0.0"),
    "num_splits": (value(4), "`num_splits` is 4, but takes 0 or 1"),
    "window_size_left": (value(3), "`window_size_left` is 3, but takes -1"),
    "window_size_right": (value(3), "`window_size_right` is 3, but takes -1"),
    "alibi_slopes": (tensor(6, dtype=torch.float32), "`alibi_slopes` is a tensor float32[6]"),
    "leftpad_k": (tensor(1, dtype=torch.int32), "`leftpad_k` is a tensor int32[1]"),
    "block_table": (tensor(1, 4, dtype=torch.int32), "`block_table` is a tensor int32[1, 4]"),
}
SCALES = [0.0, -1.0, math.nan, math.inf, 1e-60, 1e60]  # the last two: not in float32

VARLEN = {
    "p_dropout": (value(0.1), "`p_dropout` is 0.1, but takes 0.0"),
    "return_softmax": (value(True), "`return_softmax` is True, but takes False"),
    "max_seqlen_q": (value(2**31), "`max_seqlen_q` is 2147483648"),
    "max_seqlen_k": (value(-1), "`max_seqlen_k` is -1"),
    "cu_seqlens_q": (tensor(2, dtype=torch.int64), "`cu_seqlens_q` is a tensor int64[2]"),
    "cu_seqlens_k": (tensor(3, dtype=torch.int32), "`cu_seqlens_k` is a tensor int32[3]"),
    "seqused_k": (tensor(2, dtype=torch.int32), "`seqused_k` is a tensor int32[2]"),
    "out": (tensor(5, 5, HEAD_DIM), "`out` is a tensor float16[5, 5, 256]"),
    "v": (tensor(6, 2, HEAD_DIM), "`v` is a tensor float16[6, 2, 256]"),
    "k": (tensor(7, 4, HEAD_DIM), "`k.size(-2)` is 4, but takes a divisor of the 6 heads of `q`"),
}
VARLEN_Q = {
    "dimensions": (tensor(5, HEAD_DIM), "`q` is a tensor float16[5, 256]"),
    "float32": (tensor(5, 6, HEAD_DIM, dtype=torch.float32), "`q` is a tensor float32[5, 6, 256]"),
    "bfloat16": (tensor(5, 6, HEAD_DIM, dtype=torch.bfloat16), "but takes float16"),
    "last stride": (
        strided((5, 6, HEAD_DIM), (6 * 512, 512, 2)),
        "`q.stride(-1)` is 2, but takes 1",
    ),
    "row stride": (
        strided((5, 6, HEAD_DIM), (1540, 256, 1)),
        "`q.stride(0)` is 1540, but takes a multiple of 8",
    ),
    "head stride": (
        strided((5, 6, HEAD_DIM), (1600, 260, 1)),
        "`q.stride(1)` is 260, but takes a multiple of 8",
    ),
    "pointer": (
        lambda device: half(5, 6, 264, device=device)[..., 4:260],
        "`q.data_ptr()` is not aligned",
    ),
}  # fmt: skip
KVCACHE = {
    "k": (tensor(2, 1, 2, HEAD_DIM), "`k` is a tensor float16[2, 1, 2, 256]"),
    "v": (tensor(2, 1, 2, HEAD_DIM), "`v` is a tensor float16[2, 1, 2, 256]"),
    "rotary_cos": (tensor(7, 128), "`rotary_cos` is a tensor float16[7, 128]"),
    "rotary_sin": (tensor(7, 128), "`rotary_sin` is a tensor float16[7, 128]"),
    "cache_batch_idx": (tensor(2, dtype=torch.int32), "`cache_batch_idx` is a tensor int32[2]"),
    "seqlens_k": (tensor(3, dtype=torch.int32), "`seqlens_k` is a tensor int32[3]"),
    "kcache": (tensor(3, 7, 2, HEAD_DIM), "`kcache` is a tensor float16[3, 7, 2, 256]"),
    "vcache": (tensor(2, 8, 2, HEAD_DIM), "`vcache` is a tensor float16[2, 8, 2, 256]"),
    "out": (tensor(2, 5, 6, HEAD_DIM, dtype=torch.float32), "`out` is a tensor float32[2, 5, 6"),
}  # fmt: skip


def expect_refusal(message: str):
    return pytest.raises(RuntimeError, match=re.escape(message))


@pytest.mark.parametrize("call", [call_varlen, call_kvcache], ids=["varlen_fwd", "fwd_kvcache"])
@pytest.mark.parametrize("argument", BOTH)
def test_both_refuse_by_name(device, call, argument):
    make, message = BOTH[argument]
    with expect_refusal(message):
        call(device, **{argument: make})


@pytest.mark.parametrize("call", [call_varlen, call_kvcache], ids=["varlen_fwd", "fwd_kvcache"])
@pytest.mark.parametrize("scale", SCALES)
def test_both_refuse_a_scale_that_float32_does_not_have(device, call, scale):
    with expect_refusal("`softmax_scale` is"):
        call(device, scale=value(scale))


@pytest.mark.parametrize("argument", VARLEN)
def test_varlen_refuses_by_name(device, argument):
    make, message = VARLEN[argument]
    with expect_refusal("varlen_fwd: " + message):
        call_varlen(device, **{argument: make})


@pytest.mark.parametrize("case", VARLEN_Q)
def test_varlen_refuses_a_query_by_what_is_wrong_with_it(device, case):
    make, message = VARLEN_Q[case]
    with expect_refusal(message):
        call_varlen(device, q=make)


@pytest.mark.parametrize("argument", KVCACHE)
def test_kvcache_refuses_by_name(device, argument):
    make, message = KVCACHE[argument]
    with expect_refusal("fwd_kvcache: " + message):
        call_kvcache(device, **{argument: make})


@pytest.mark.parametrize("head_dim", [64, 128, 264])
def test_head_sizes_without_a_kernel_are_refused_with_those_that_have_one(device, head_dim):
    with expect_refusal(f"`q.size(-1)` is head size {head_dim}, but takes 256"):
        call_varlen(
            device, q=tensor(5, 6, head_dim), k=tensor(7, 2, head_dim), v=tensor(7, 2, head_dim)
        )


def test_cpu_tensors_are_refused_with_their_device():
    with expect_refusal("float16[5, 6, 256] on the CPU, but takes a tensor on a CUDA device"):
        call_varlen("cpu")


@pytest.mark.gpu
def test_a_tensor_on_another_device_is_refused():
    with expect_refusal("`cu_seqlens_k` is a tensor int32[2] on the CPU"):
        call_varlen("cuda", cu_seqlens_k=lambda device: lengths(0, 7, device="cpu"))


def test_schemas_are_the_ones_callers_use():
    schema = str(torch.ops._vllm_fa2_C.varlen_fwd.default._schema)
    assert schema.endswith("bool return_softmax, int num_splits, Tensor? gen) -> Tensor[]")
    schema = str(torch.ops._vllm_fa2_C.fwd_kvcache.default._schema)
    assert schema.endswith("float softcap, bool is_rotary_interleaved, int num_splits) -> Tensor[]")
