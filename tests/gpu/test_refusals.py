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
        "cu_seqlens_q": lengths(0, 2, 5, device=device),
        "cu_seqlens_k": lengths(0, 3, 7, device=device),
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


INT32 = torch.int32
BOTH = {
    "softcap infinite": ("softcap", value(math.inf), "`softcap` is inf"),
    "softcap not a number": ("softcap", value(math.nan), "`softcap` is nan"),
    "num_splits": ("num_splits", value(129), "`num_splits` is 129, but takes 0"),
    "alibi dtype": ("alibi_slopes", tensor(6), "`alibi_slopes` is a tensor float16[6]"),
    "alibi heads": (
        "alibi_slopes", tensor(5, dtype=torch.float32), "`alibi_slopes` is a tensor float32[5]",
    ),
    "alibi batch": (
        "alibi_slopes", tensor(4, 6, dtype=torch.float32),
        "`alibi_slopes` is a tensor float32[4, 6]",
    ),
    "leftpad dtype": (
        "leftpad_k", tensor(2, dtype=torch.int64), "`leftpad_k` is a tensor int64[2]",
    ),
    "leftpad shape": ("leftpad_k", tensor(3, dtype=INT32), "`leftpad_k` is a tensor int32[3]"),
}  # fmt: skip
PAGED = {
    "table dtype": ("block_table", tensor(2, 4, dtype=torch.int64), "is a tensor int64[2, 4]"),
    "table shape": ("block_table", tensor(3, 4, dtype=INT32), "is a tensor int32[3, 4]"),
    "table dimensions": ("block_table", tensor(8, dtype=INT32), "`block_table` is a tensor int32"),
    "leftpad": ("leftpad_k", tensor(2, dtype=INT32), "`leftpad_k` is a tensor int32[2]"),
    "one page": ("page", tensor(9, 8, 2, HEAD_DIM), ".size(1)` is 8, but takes a multiple of 16"),
    "page of 24": (
        "page", tensor(9, 24, 2, HEAD_DIM), ".size(1)` is 24, but takes a multiple of 16",
    ),
}  # fmt: skip
SCALES = [0.0, -1.0, math.nan, math.inf, 1e-60, 1e60]  # the last two: not in float32

VARLEN = {
    "p_dropout": (value(0.1), "`p_dropout` is 0.1, but takes 0.0"),
    "return_softmax": (value(True), "`return_softmax` is True, but takes False"),
    "max_seqlen_q": (value(2**31), "`max_seqlen_q` is 2147483648"),
    "max_seqlen_k": (value(-1), "`max_seqlen_k` is -1, but takes 0 to 2^30 - 1"),
    "cu_seqlens_q": (tensor(3, dtype=torch.int64), "`cu_seqlens_q` is a tensor int64[3]"),
    "cu_seqlens_k": (tensor(2, dtype=INT32), "`cu_seqlens_k` is a tensor int32[2]"),
    "seqused_k": (tensor(3, dtype=INT32), "`seqused_k` is a tensor int32[3]"),
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
NEW = {"k": tensor(2, 1, 2, HEAD_DIM), "v": tensor(2, 1, 2, HEAD_DIM)}
AT = {"seqlens_k": tensor(2, dtype=INT32)}
TABLES = {"rotary_cos": tensor(7, 128), "rotary_sin": tensor(7, 128)}
KVCACHE = {
    "k without v": ({"k": NEW["k"]} | AT, "`v` is None"),
    "v without k": ({"v": NEW["v"]} | AT, "`v` is a tensor float16[2, 1, 2, 256]"),
    "k without lengths": (NEW, "`seqlens_k` is None"),
    "k of another batch": (
        NEW | AT | {"k": tensor(3, 1, 2, HEAD_DIM)}, "`k` is a tensor float16[3, 1, 2, 256]",
    ),
    "v of another length": (
        NEW | AT | {"v": tensor(2, 2, 2, HEAD_DIM)}, "`v` is a tensor float16[2, 2, 2, 256]",
    ),
    "k in bfloat16": (
        NEW | AT | {"k": tensor(2, 1, 2, HEAD_DIM, dtype=torch.bfloat16)},
        "`k` is a tensor bfloat16[2, 1, 2, 256]",
    ),
    "rotary without k": (TABLES, "`rotary_cos` is a tensor float16[7, 128]"),
    "cos without sin": (
        NEW | AT | {"rotary_cos": TABLES["rotary_cos"]}, "`rotary_sin` is None",
    ),
    "rotary_dim past the head size": (
        NEW | AT | {"rotary_cos": tensor(7, 136), "rotary_sin": tensor(7, 136)},
        "`rotary_cos.size(1)` is 136",
    ),
    "rotary_dim of 8": (
        NEW | AT | {"rotary_cos": tensor(7, 4), "rotary_sin": tensor(7, 4)},
        "`rotary_cos.size(1)` is 4",
    ),
    "rotary table too short": (
        NEW | AT | {"rotary_cos": tensor(6, 128), "rotary_sin": tensor(6, 128)},
        "`rotary_cos.size(0)` is 6, but takes at least the 7 rows",
    ),
    "rotary table in float32": (
        NEW | AT | TABLES | {"rotary_sin": tensor(7, 128, dtype=torch.float32)},
        "`rotary_sin` is a tensor float32[7, 128]",
    ),
    "cache_batch_idx dtype": (
        {"cache_batch_idx": tensor(2, dtype=torch.int64)}, "`cache_batch_idx` is a tensor int64[2]",
    ),
    "cache_batch_idx shape": (
        {"cache_batch_idx": tensor(3, dtype=INT32)}, "`cache_batch_idx` is a tensor int32[3]",
    ),
    "seqlens_k": ({"seqlens_k": tensor(3, dtype=INT32)}, "`seqlens_k` is a tensor int32[3]"),
    "small cache": (
        {name: tensor(1, 7, 2, HEAD_DIM) for name in ("kcache", "vcache")},
        "`kcache` is a tensor float16[1, 7, 2, 256]",
    ),
    "vcache": ({"vcache": tensor(2, 8, 2, HEAD_DIM)}, "`vcache` is a tensor float16[2, 8, 2, 256]"),
    "fp8 cache": (
        {"kcache": tensor(2, 7, 2, HEAD_DIM, dtype=torch.float8_e4m3fn)},
        "`kcache` is a tensor float8_e4m3fn[2, 7, 2, 256]",
    ),
    "out": (
        {"out": tensor(2, 5, 6, HEAD_DIM, dtype=torch.float32)},
        "`out` is a tensor float32[2, 5, 6, 256]",
    ),
}  # fmt: skip


def expect_refusal(message: str):
    return pytest.raises(RuntimeError, match=re.escape(message))


both = pytest.mark.parametrize(
    "call", [call_varlen, call_kvcache], ids=["varlen_fwd", "fwd_kvcache"]
)


@both
@pytest.mark.parametrize("case", BOTH)
def test_both_refuse_by_name(device, call, case):
    argument, make, message = BOTH[case]
    with expect_refusal(message):
        call(device, **{argument: make})


@both
@pytest.mark.parametrize("case", PAGED)
def test_both_refuse_pages_by_what_is_wrong_with_them(device, call, case):
    argument, make, message = PAGED[case]
    page = make if argument == "page" else tensor(9, 32, 2, HEAD_DIM)
    names = ("k", "v") if call is call_varlen else ("kcache", "vcache")
    given = {"block_table": tensor(2, 4, dtype=INT32), names[0]: page, names[1]: page}
    with expect_refusal(message):
        call(device, **(given | ({} if argument == "page" else {argument: make})))


@both
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


@pytest.mark.parametrize("case", KVCACHE)
def test_kvcache_refuses_by_name(device, case):
    makes, message = KVCACHE[case]
    with expect_refusal("fwd_kvcache: " + message):
        call_kvcache(device, **makes)


def test_cache_index_goes_with_a_cache_in_one_piece(device):
    page = tensor(9, 32, 2, HEAD_DIM)
    with expect_refusal("`cache_batch_idx` is a tensor int32[2]"):
        call_kvcache(
            device, kcache=page, vcache=page, block_table=tensor(2, 4, dtype=INT32),
            cache_batch_idx=tensor(2, dtype=INT32),
        )  # fmt: skip


@both
@pytest.mark.parametrize("head_dim", [4, 12, 100, 257, 260, 264, 512])
def test_head_sizes_are_multiples_of_8_up_to_256(device, call, head_dim):
    q, k = ((5, 6), (7, 2)) if call is call_varlen else ((2, 5, 6), (2, 7, 2))
    names = ("k", "v") if call is call_varlen else ("kcache", "vcache")
    tensors = {"q": tensor(*q, head_dim)} | {name: tensor(*k, head_dim) for name in names}
    with expect_refusal(f"`q.size(-1)` is head size {head_dim}, but takes multiples of 8"):
        call(device, **tensors)


@both
@pytest.mark.parametrize(
    ("dtype", "reason"),
    [
        (torch.bfloat16, "Volta has no bfloat16 tensor cores"),
        (torch.float8_e4m3fn, "Volta has no 8-bit tensor cores"),
        (torch.float32, "float16"),
    ],
    ids=str,
)
def test_other_types_are_refused_with_the_reason(device, call, dtype, reason):
    shape = (5, 6, HEAD_DIM) if call is call_varlen else (2, 5, 6, HEAD_DIM)
    with expect_refusal(reason) as caught:
        call(device, q=tensor(*shape, dtype=dtype))
    assert "`q` is a tensor " + str(dtype).removeprefix("torch.") in str(caught.value)
    assert "but takes float16" in str(caught.value)


def test_cpu_tensors_are_refused_with_their_device():
    with expect_refusal("float16[5, 6, 256] on the CPU, but takes a tensor on a CUDA device"):
        call_varlen("cpu")


@pytest.mark.gpu
@pytest.mark.cuda
def test_a_tensor_on_another_device_is_refused():
    with expect_refusal("`cu_seqlens_k` is a tensor int32[3] on the CPU"):
        call_varlen("cuda", cu_seqlens_k=lambda device: lengths(0, 3, 7, device="cpu"))
    with expect_refusal("`seqlens_k` is a tensor int32[2] on the CPU"):
        call_kvcache("cuda", seqlens_k=lambda device: lengths(7, 7, device="cpu"))


def test_schemas_are_the_ones_callers_use():
    schema = str(torch.ops._vllm_fa2_C.varlen_fwd.default._schema)
    assert schema.endswith("bool return_softmax, int num_splits, Tensor? gen) -> Tensor[]")
    schema = str(torch.ops._vllm_fa2_C.fwd_kvcache.default._schema)
    assert schema.endswith("float softcap, bool is_rotary_interleaved, int num_splits) -> Tensor[]")
