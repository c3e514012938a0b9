# SPDX-License-Identifier: Apache-2.0
"""Every admission and every refusal of the route `gqa_prefill`, one row each, for two suites:
tests/unit/test_gqa_policy.py takes them as they are, tests/gpu/test_gqa_policy.py makes tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from vllm_fa2_sm70.calls import GQA_ROLLBACK_VARIABLE as ROLLBACK
from vllm_fa2_sm70.calls import GQA_VARIABLE as MODE
from vllm_fa2_sm70.calls import PTX_VARIABLE as PTX
from vllm_fa2_sm70.calls import Call, TensorInfo
from vllm_fa2_sm70.gqa import FUSED, KEYS, WORKSPACE

DEVICE = "cuda:0"


def tensor(*shape: int, **changes: Any) -> TensorInfo:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return replace(TensorInfo(shape, tuple(strides), "float16", DEVICE), **changes)


def family(keys: int = 40_000, **changes: Any) -> Call:
    """A call that the route is for, with changes."""
    call = Call(
        operator="varlen_fwd",
        q=tensor(8000, 6, 256),
        k=tensor(keys, 1, 256),
        v=tensor(keys, 1, 256),
        softmax_scale=0.0625,
        capability=(7, 0),
        causal=True,
        max_seqlen_q=8000,
        max_seqlen_k=keys,
        library_operators=frozenset({FUSED, WORKSPACE}),
    )
    return replace(call, **changes)


@dataclass(frozen=True)
class Row:
    """A call and what becomes of it. `refusals`: (kind, words of the sentence), all of them; empty:
    it is admitted. `virtual`: no tensors on a GPU of ours can make this call."""

    name: str
    call: Call
    refusals: tuple[tuple[str, str], ...] = ()
    operator: str = FUSED
    virtual: bool = False


def environment(**changes: str) -> dict[str, Any]:
    return {"environment": tuple(changes.items())}


def queries(rows: int) -> dict[str, Any]:
    return {"q": tensor(rows, 6, 256), "max_seqlen_q": rows}


def keys_and_values(*shape: int, **changes: Any) -> dict[str, Any]:
    both = {"k": tensor(*shape, **changes), "v": tensor(*shape, **changes)}
    return both | {"max_seqlen_k": shape[0]}


def heads_first(rows: int, heads: int) -> TensorInfo:
    """A view of (heads, rows, 256)."""
    return tensor(rows, heads, 256, strides=(256, rows * 256, 1))


WINDOWED = (-1, 0)
MODES = {
    "default": ({}, FUSED),
    "fused": ({MODE: "fused"}, FUSED),
    "workspace": ({MODE: "workspace"}, WORKSPACE),
    "empty": ({MODE: "", ROLLBACK: ""}, FUSED),
    "rollback-1": ({ROLLBACK: "1"}, FUSED),
    "workspace-rollback-1": ({MODE: "workspace", ROLLBACK: "1"}, WORKSPACE),
}
SERVED: dict[str, dict[str, Any]] = {
    "out": {"out": tensor(8000, 6, 256)},
    "out-padded-rows": {"out": tensor(8000, 6, 256, strides=(2048, 256, 1))},
    "out-heads-first": {"out": heads_first(8000, 6)},
    "window-right-0": {"window": WINDOWED},
    "q-padded-rows": {"q": tensor(8000, 6, 256, strides=(2048, 256, 1))},
    "q-padded-heads": {"q": tensor(8000, 6, 256, strides=(1584, 264, 1))},
    "q-heads-first": {"q": heads_first(8000, 6)},
    "q-inside-of-qkv": {"q": tensor(8000, 6, 256, strides=(2048, 256, 1), offset=64)},
    "k-inside-of-qkv": {"k": tensor(40_000, 1, 256, strides=(2048, 256, 1), offset=1536)},
    "v-inside-of-qkv": {"v": tensor(40_000, 1, 256, strides=(2048, 256, 1), offset=1792)},
    "k-and-v-interleaved": {
        "k": tensor(40_000, 1, 256, strides=(512, 256, 1)),
        "v": tensor(40_000, 1, 256, strides=(512, 256, 1), offset=256),
    },
    "k-stride-of-one-head": {"k": tensor(40_000, 1, 256, strides=(256, 3, 1))},
    "v-offset": {"v": tensor(40_000, 1, 256, offset=8)},
    "scale-as-float": {"softmax_scale": 256**-0.5},
}
CAPABILITIES = [(7, 2), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)]


def admissions() -> Iterator[Row]:
    for keys in KEYS:
        for name, (variables, operator) in MODES.items():
            call = family(keys, **environment(**variables))
            yield Row(f"kv-{keys}-{name}", call, operator=operator)
    for name, change in SERVED.items():
        yield Row(name, family(**change))
    for name in ("k", "v"):
        call = family(**{name: tensor(40_000, 1, 256, strides=(2**23, 256, 1))})
        yield Row(f"{name}-far-rows", call, virtual=True)
    for capability in CAPABILITIES:
        call = family(capability=capability, **environment(**{PTX: "1"}))
        yield Row("ptx-on-{}.{}".format(*capability), call, virtual=True)
    for mode, operator in (("fused", FUSED), ("workspace", WORKSPACE)):
        call = family(library_operators=frozenset({operator}), **environment(**{MODE: mode}))
        yield Row(f"only-{mode}-there", call, operator=operator)


def refused(name: str, kind: str, words: str, /, virtual: bool = False, **change: Any) -> Row:
    return Row(name, family(**change), ((kind, words),), virtual=virtual)


def wrong_shapes() -> Iterator[Row]:
    for rows in (1, 16, 4000, 7992, 7999, 8001, 8008, 8192, 16_000, 0):
        yield refused(f"q-{rows}", "shape", f"q has {rows} rows, not 8000", **queries(rows))
    near = {keys + step for keys in KEYS for step in (-4000, -1, 1)}
    for rows in sorted({0, 1, 8000, 32_000, 136_000, 200_000} | near - set(KEYS)):
        words = f"k has {rows} rows, which is not 40000 to 128000 in steps of 8000"
        yield refused(f"kv-{rows}", "shape", words, **keys_and_values(rows, 1, 256))
    for heads in (1, 2, 3, 4, 5, 7, 8, 12, 16, 32):
        words = f"q has {heads} heads, not 6"
        yield refused(f"q-heads-{heads}", "shape", words, q=tensor(8000, heads, 256))
    for heads in (2, 3, 6, 8):
        both = keys_and_values(40_000, heads, 256)
        yield refused(f"kv-heads-{heads}", "shape", f"k has {heads} heads, not 1", **both)
    for size in (8, 64, 96, 128, 192, 248, 264, 512):
        call = family(q=tensor(8000, 6, size), **keys_and_values(40_000, 1, size))
        words = (f"q has head size {size}, not 256", f"k has head size {size}, not 256")
        yield Row(f"head-size-{size}", call, tuple(("shape", text) for text in words))
    cases: dict[str, tuple[str, dict[str, Any]]] = {
        "v-shorter": ("v has shape [39999, 1, 256], k", {"v": tensor(39_999, 1, 256)}),
        "v-narrower": ("v has shape [40000, 1, 128], k", {"v": tensor(40_000, 1, 128)}),
        "out-shorter": ("out has shape [7999, 6, 256], q", {"out": tensor(7999, 6, 256)}),
        "max-q-less": ("max_seqlen_q is 7999, not the 8000", {"max_seqlen_q": 7999}),
        "max-q-more": ("max_seqlen_q is 8192, not the 8000", {"max_seqlen_q": 8192}),
        "max-k-less": ("max_seqlen_k is 39999, not the 40000", {"max_seqlen_k": 39_999}),
        "max-k-more": ("max_seqlen_k is 131072, not the 40000", {"max_seqlen_k": 131_072}),
        "sequences-0": ("0 sequences are packed, not 1", {"sequences": 0}),
        "sequences-2": ("2 sequences are packed, not 1", {"sequences": 2}),
        "sequences-64": ("64 sequences are packed, not 1", {"sequences": 64}),
    }
    for name, (words, change) in cases.items():
        yield refused(name, "shape", words, **change)


def wrong_layouts() -> Iterator[Row]:
    shapes = {"q": (8000, 6, 256), "k": (40_000, 1, 256), "v": (40_000, 1, 256)}
    for name, shape in {**shapes, "out": (8000, 6, 256)}.items():
        for dtype in ("bfloat16", "float32", "float64", "float8_e4m3fn", "int8"):
            words = f"{name} is {dtype}, not float16"
            change = {name: tensor(*shape, dtype=dtype)}
            yield refused(f"{name}-{dtype}", "dtype", words, **change)
        _, heads, size = shape
        layouts = {
            "last-stride-2": ((heads * size * 2, size * 2, 2), "the last one not 1"),
            "row-stride-odd": ((heads * size + 4, size, 1), "not multiples of 8"),
        }
        for what, (strides, words) in layouts.items():
            change = {name: tensor(*shape, strides=strides)}
            yield refused(f"{name}-{what}", "layout", words, **change)
        change = {name: tensor(*shape, offset=4)}
        yield refused(f"{name}-offset-4", "layout", f"{name} begins 4 elements", **change)
        if name in ("k", "v"):
            change = {name: tensor(*shape, strides=(2**23 + 8, size, 1))}
            words = "its rows more than 2^23 apart"
            yield refused(f"{name}-too-far-rows", "layout", words, virtual=True, **change)
        if name != "q":
            change = {name: tensor(*shape, device="cuda:1")}
            words = f"{name} is on cuda:1, q on cuda:0"
            yield refused(f"{name}-elsewhere", "device", words, virtual=True, **change)
    words, out = "out is in the storage of an input", tensor(8000, 6, 256)
    yield refused("out-shared", "layout", words, virtual=True, out=out, out_is_shared=True)
    words = "its elements share memory"
    yield refused("out-expanded", "layout", words, out=tensor(8000, 6, 256, strides=(0, 256, 1)))


def wrong_scores() -> Iterator[Row]:
    scale = 0.0625
    scales = (0.125, 0.03125, 1.0, -scale, 0.0, math.inf)
    for value in (*scales, math.nextafter(scale, 1), math.nextafter(scale, 0)):
        words = f"softmax_scale is {value!r}, not 0.0625"
        yield refused(f"scale-{value!r}", "scale", words, softmax_scale=value)
    yield refused("not-causal", "mask", "it is not causal", causal=False)
    for window in ((0, 0), (128, 0), (128, -1), (200_000, 0), (-1, 1), (-1, 64), (64, 64)):
        words = f"window_size is {window}: it has a bound"
        yield refused("window-{}-{}".format(*window), "mask", words, window=window)
    for value in (1.0, 30.0, 50.0, -1.0):
        words = f"softcap is {value:g}, not 0"
        yield refused(f"softcap-{value:g}", "option", words, softcap=value)
    yield refused("dropout", "option", "dropout_p is 0.1, not 0", dropout=0.1)
    for count in (1, 2, 128):
        words = f"num_splits is {count}, not 0"
        yield refused(f"num-splits-{count}", "option", words, num_splits=count)
    for name, slopes in {"heads": tensor(6, dtype="float32"), "both": tensor(1, 6)}.items():
        given = {"options": {"alibi_slopes": replace(slopes, dtype="float32")}}
        yield refused(f"alibi-{name}", "option", "alibi_slopes is given", **given)


def wrong_calls() -> Iterator[Row]:
    table, used = tensor(1, 2500, dtype="int32"), tensor(1, dtype="int32")
    for rows in (16, 784, 1056):
        pages = -(-40_000 // rows)
        call = family(
            options={"block_table": tensor(1, pages, dtype="int32"), "seqused_k": used},
            **(keys_and_values(pages, rows, 1, 256) | {"max_seqlen_k": 40_000}),
        )
        reasons = (
            ("shape", "k has 4 dimensions, not 3"),
            ("shape", "v has 4 dimensions, not 3"),
            ("paged", "block_table is given: K and V are in pages"),
            ("option", "seqused_k is given"),
        )
        yield Row(f"paged-{rows}", call, reasons)
    words = "block_table is given"
    yield refused("block-table", "paged", words, virtual=True, options={"block_table": table})
    for name in ("seqused_k", "leftpad_k", "q_v", "s_aux"):
        given = {"options": {name: used}}
        yield refused(name, "option", f"{name} is given", virtual=True, **given)
    yield refused("capturing", "capture", "a CUDA graph is being captured", capturing=True)
    yield refused("traced", "traced", "a graph is being traced", virtual=True, traced=True)
    words = "an input needs a gradient"
    yield refused("gradient", "gradient", words, virtual=True, needs_gradient=True)
    words = "it serves `varlen_fwd`, not `fwd_kvcache`"
    yield refused("kvcache", "function", words, virtual=True, operator="fwd_kvcache")


def wrong_machines() -> Iterator[Row]:
    words = "q is not on a CUDA device"
    yield refused("no-gpu", "device", words, virtual=True, capability=None)
    for capability in [(5, 2), (6, 0), (6, 1), *CAPABILITIES]:
        name, words = "{}.{}".format(*capability), "compute capability {}.{}, not 7.0"
        variables = [None] if capability < (7, 0) else [None, "", "0", "2", "yes"]
        for value in variables:
            change = {} if value is None else environment(**{PTX: value})
            change["capability"] = capability
            label = f"capability-{name}-ptx-{value}"
            yield refused(label, "device", words.format(*capability), virtual=True, **change)
    call = family(capability=(6, 1), **environment(**{PTX: "1"}))
    yield Row("older-with-ptx", call, (("device", "capability 6.1, not 7.0"),), virtual=True)
    for mode, missing, there in (("fused", FUSED, WORKSPACE), ("workspace", WORKSPACE, FUSED)):
        for operators in (frozenset({there}), frozenset[str]()):
            change = environment(**{MODE: mode}) | {"library_operators": operators}
            words = f"the library has no operator `{missing}`"
            yield refused(f"no-{mode}-beside-{len(operators)}", "library", words, **change)
    words = "there is no library `x`"
    yield refused("no-library", "library", words, virtual=True, unusable=words)
    yield refused("off", "environment", f"{MODE}=off", **environment(**{MODE: "off"}))
    yield refused("rollback", "environment", f"{ROLLBACK}=0", **environment(**{ROLLBACK: "0"}))
    call = family(**environment(**{MODE: "workspace", ROLLBACK: "0"}))
    yield Row("workspace-rollback", call, (("environment", f"{ROLLBACK}=0"),))
    call = family(**environment(**{MODE: "off", ROLLBACK: "0"}))
    both = (("environment", f"{MODE}=off"), ("environment", f"{ROLLBACK}=0"))
    yield Row("off-and-rollback", call, both)
    for value in ("1", "0", "on", "FUSED", "fused ", "fused,workspace"):
        words = f"{MODE} is `{value}`, not one of fused, workspace, off"
        yield refused(f"mode-{value}", "environment", words, **environment(**{MODE: value}))
    for value in ("2", "off", "false", "no", "-1"):
        words = f"{ROLLBACK} is `{value}`, not 0 or 1"
        change = environment(**{ROLLBACK: value})
        yield refused(f"rollback-{value}", "environment", words, **change)


ADMISSIONS = tuple(admissions())
REFUSALS = (
    *wrong_shapes(),
    *wrong_layouts(),
    *wrong_scores(),
    *wrong_calls(),
    *wrong_machines(),
)
ROWS = ADMISSIONS + REFUSALS
