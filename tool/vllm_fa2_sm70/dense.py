# SPDX-License-Identifier: Apache-2.0
"""What the fused kernels serve, and why not the rest."""

from __future__ import annotations

from vllm_fa2_sm70.calls import PTX_VARIABLE, Call, TensorInfo
from vllm_fa2_sm70.reasons import Reason

NATIVE = (7, 0)
ALIGNED = 8  # elements: the kernels load 16 bytes at a time
MAX_HEAD_DIM = 256
PAGE_ROWS = 16
MAX_SPLITS = 128
DENSE_OPTIONS = {
    "varlen_fwd": frozenset({"seqused_k", "block_table", "alibi_slopes"}),
    "fwd_kvcache": frozenset(
        {
            *("k", "v", "cache_seqlens", "rotary_cos", "rotary_sin", "cache_batch_idx"),
            *("cache_leftpad", "block_table", "alibi_slopes"),
        }
    ),
}
"""The optional tensors that the dense kernels take, for each operator."""


def capability_reason(capability: tuple[int, int] | None, *, allow_ptx: bool) -> str:
    """Why a GPU cannot run these kernels; empty if it can."""
    if capability is None:
        return "q is not on a CUDA device"
    major, minor = capability
    if capability == NATIVE or (allow_ptx and capability > NATIVE):
        return ""
    reason = f"the device has compute capability {major}.{minor}, not 7.0"
    if capability > NATIVE:
        reason += f" ({PTX_VARIABLE}=1 runs the embedded PTX there, for tests)"
    return reason


def common_refusals(call: Call) -> list[str]:
    """What stands against every route."""
    reasons: list[str] = [Reason("library", call.unusable)] if call.unusable else []
    unfit = capability_reason(call.capability, allow_ptx=call.allows_ptx())
    reasons += [Reason("device", unfit)] if unfit else []
    for name, tensor in tensors_of(call).items():
        if tensor.device != call.q.device:
            other = f"{name} is on {tensor.device}, q on {call.q.device}"
            reasons.append(Reason("device", other))
    if call.needs_gradient:
        why = "an input needs a gradient, and there is no backward pass"
        reasons.append(Reason("gradient", why))
    return reasons


def dense_refusals(call: Call) -> list[str]:
    """The exact fused kernels: fp16 and all that FA2's forward has, but no dropout."""
    reasons = common_refusals(call)
    served = DENSE_OPTIONS.get(call.operator)
    if served is None:
        reasons.append(f"it does not serve `{call.operator}`")
    cached = call.operator == "fwd_kvcache"
    paged = "block_table" in call.options
    for name, tensor in tensors_of(call).items():
        is_key = name in ("k", "v")
        reasons += _layout(name, tensor, 4 if cached or (paged and is_key) else 3)
    for name in ("k", "v"):
        if name in call.options:
            reasons += _layout(f"new {name}", call.options[name], 4)
    reasons += _shapes(call)
    reasons += _scores(call)
    if call.dropout:
        reasons.append(f"dropout_p is {call.dropout:g}, not 0: it is for training")
    if call.num_splits > MAX_SPLITS:
        reasons.append(f"num_splits is {call.num_splits}, more than {MAX_SPLITS}")
    reasons += _pages(call)
    reasons += _cache(call) if cached else []
    # without operators of sets and views: torch 2.11 cannot trace them all
    unserved = [name for name in call.options if name not in (served or ())]
    reasons += [f"{name} is given" for name in sorted(unserved)]
    return reasons


def tensors_of(call: Call) -> dict[str, TensorInfo]:
    """Those that every route reads or writes, by name."""
    found = {"q": call.q, "k": call.k, "v": call.v}
    return found if call.out is None else {**found, "out": call.out}


_REMEDIES = {
    "bfloat16": ": Volta has no bfloat16 tensor cores; load the model in float16",
    "float8": ": Volta has no 8-bit tensor cores; keep the cache in 16 bits",
    "uint8": ": Volta has no 8-bit tensor cores; keep the cache in 16 bits",
}


def not_half(name: str, dtype: str) -> list[str]:
    """Why a tensor's type does not serve."""
    if dtype == "float16":
        return []
    why = f"{name} is {dtype}, not float16{_REMEDIES.get(dtype.partition('_')[0], '')}"
    return [Reason("dtype", why)]


def _layout(name: str, tensor: TensorInfo, dimensions: int) -> list[str]:
    reasons = not_half(name, tensor.dtype)
    if len(tensor.shape) != dimensions:
        reasons.append(f"{name} has {len(tensor.shape)} dimensions, not {dimensions}")
    head_dim = tensor.shape[-1] if tensor.shape else 0
    if head_dim % 8 or not 0 < head_dim <= MAX_HEAD_DIM:
        reasons.append(
            f"{name} has shape {list(tensor.shape)}, its last dimension not a multiple of 8 "
            "from 8 to 256"
        )
    return reasons + misaligned(name, tensor)


def misaligned(name: str, tensor: TensorInfo) -> list[str]:
    """What is wrong with a tensor's strides and address."""
    reasons: list[str] = []
    if 0 in tensor.shape:
        return reasons
    if tensor.strides[-1:] != (1,):
        reasons.append(f"{name} has strides {list(tensor.strides)}, the last one not 1")
    rows = [s for size, s in zip(tensor.shape, tensor.strides[:-1], strict=False) if size > 1]
    if any(stride % ALIGNED for stride in rows):
        reasons.append(f"{name} has strides {list(tensor.strides)}, not multiples of {ALIGNED}")
    if tensor.offset % ALIGNED:
        reasons.append(
            f"{name} begins {tensor.offset} elements into its storage, which is no "
            f"multiple of {ALIGNED}"
        )
    return [Reason("layout", reason) for reason in reasons]


def _shapes(call: Call) -> list[str]:
    q, k, v = call.q.shape, call.k.shape, call.v.shape
    reasons = []
    if k != v:
        reasons.append(f"k has shape {list(k)}, v {list(v)}")
    if call.out is not None and call.out.shape != q:
        reasons.append(f"out has shape {list(call.out.shape)}, q {list(q)}")
    if len(q) < 3 or len(k) < 3:
        return reasons
    if k[-1] != q[-1]:
        reasons.append(f"k has head size {k[-1]}, q {q[-1]}")
    if not k[-2] or q[-2] % k[-2]:
        reasons.append(f"{q[-2]} query heads are no multiple of {k[-2]} KV heads")
    return reasons


def _scores(call: Call) -> list[str]:
    reasons = []
    infinity = float("inf")
    if not 0.0 < call.softmax_scale < infinity:
        reasons.append(f"softmax_scale is {call.softmax_scale:g}, not a positive number")
    if not -infinity < call.softcap < infinity:
        reasons.append(f"softcap is {call.softcap:g}, not a finite number")
    slopes = call.options.get("alibi_slopes")
    if slopes is not None:
        if slopes.dtype != "float32":
            reasons.append(f"alibi_slopes is {slopes.dtype}, not float32")
        if len(slopes.shape) not in (1, 2) or slopes.shape[-1:] != call.q.shape[-2:-1]:
            reasons.append(
                f"alibi_slopes has shape {list(slopes.shape)}, not a slope for each of the heads "
                "of q or of each sequence"
            )
    return reasons


def _pages(call: Call) -> list[str]:
    table = call.options.get("block_table")
    if table is None:
        if call.operator == "varlen_fwd" and "seqused_k" in call.options:
            return ["seqused_k is given without block_table: nothing says where sequences start"]
        return []
    reasons = []
    if table.dtype != "int32" or len(table.shape) != 2:
        reasons.append(
            f"block_table is {table.dtype} {list(table.shape)}, not int32 in two dimensions"
        )
    rows = call.k.shape[1] if len(call.k.shape) == 4 else 0
    if rows == 0 or rows % PAGE_ROWS:
        reasons.append(f"pages have {rows} rows, not a multiple of {PAGE_ROWS}")
    for name in ("cache_batch_idx", "cache_leftpad"):
        if name in call.options:
            reasons.append(f"{name} is given together with block_table")
    return reasons


def _cache(call: Call) -> list[str]:
    options = call.options
    reasons = []
    batch, entries = (tensor.shape[0] if tensor.shape else 0 for tensor in (call.q, call.k))
    if "block_table" not in options and "cache_batch_idx" not in options and batch > entries:
        reasons.append(f"q has batch size {batch}, the cache {entries}")
    for given, needed in (
        ("k", "v"), ("v", "k"), ("k", "cache_seqlens"), ("rotary_cos", "k"),
        ("rotary_cos", "rotary_sin"), ("rotary_sin", "rotary_cos"),
    ):  # fmt: skip
        if given in options and needed not in options:
            reasons.append(f"{given} is given without {needed}")
    for name in ("k", "v"):
        shape = options[name].shape if name in options else None
        if shape and (shape[0] != batch or shape[2:] != call.k.shape[2:]):
            reasons.append(
                f"new {name} has shape {list(shape)}, which does not fit q and the cache"
            )
    if "k" in options and "v" in options and options["k"].shape != options["v"].shape:
        reasons.append(
            f"new k has shape {list(options['k'].shape)}, new v {list(options['v'].shape)}"
        )
    for name in ("rotary_cos", "rotary_sin"):
        if name in options:
            reasons += _rotary(call, name, options[name])
    return reasons


def _rotary(call: Call, name: str, table: TensorInfo) -> list[str]:
    reasons = not_half(name, table.dtype)
    if len(table.shape) != 2:
        return [*reasons, f"{name} has {len(table.shape)} dimensions, not 2"]
    rows, half = table.shape
    if half % 8 or 2 * half > call.q.shape[-1]:
        reasons.append(
            f"{name} turns {2 * half} dimensions, not a multiple of 16 up to the head size"
        )
    if rows < call.max_seqlen_k:
        reasons.append(f"{name} has {rows} rows, fewer than the cache, {call.max_seqlen_k}")
    return reasons
