# SPDX-License-Identifier: Apache-2.0
"""The rows of tests/unit/gqa_rows.py as tensors: what is decided about them on this machine."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from attention import DEVICE, cumulative

sys.path.append(str(Path(__file__).parents[2] / "tool"))
sys.path.append(str(Path(__file__).parents[1] / "unit"))

from gqa_rows import ROWS, Row

from vllm_fa2_sm70 import calls, describe, interface, operators
from vllm_fa2_sm70.gqa import gqa_refusals
from vllm_fa2_sm70.reasons import kind_of
from vllm_fa2_sm70.routes import choose

pytestmark = pytest.mark.gpu
REAL = [row for row in ROWS if not row.virtual]


class Decided(Exception):
    """Instead of a launch."""


def tensor(info: calls.TensorInfo) -> torch.Tensor:
    """Memory that is never touched, in the described form."""
    size = info.offset + 1 + sum((n - 1) * s for n, s in zip(info.shape, info.strides, strict=True))
    if 0 in info.shape:
        size = info.offset + 1
    storage = torch.empty(size, dtype=getattr(torch, info.dtype), device=DEVICE)
    return storage.as_strided(info.shape, info.strides, info.offset)


def arguments(call: calls.Call) -> dict[str, Any]:
    """Those of the function that vLLM calls, with tensors like those of `call`."""
    given: dict[str, Any] = {name: tensor(info) for name, info in call.options.items()}
    given["cu_seqlens_q"] = cumulative([1] * call.sequences)
    if "seqused_k" not in given:
        given["cu_seqlens_k"] = given["cu_seqlens_q"]
    return given | {
        "q": tensor(call.q), "k": tensor(call.k), "v": tensor(call.v),
        "out": None if call.out is None else tensor(call.out),
        "max_seqlen_q": call.max_seqlen_q, "max_seqlen_k": call.max_seqlen_k,
        "causal": call.causal, "softmax_scale": call.softmax_scale, "window_size": call.window,
        "softcap": call.softcap, "dropout_p": call.dropout, "num_splits": call.num_splits,
    }  # fmt: skip


def decided(given: dict[str, Any]) -> calls.Call:
    """What the function makes of its arguments."""
    with pytest.raises(Decided) as caught:
        interface.flash_attn_varlen_func(**given)
    found: calls.Call = caught.value.args[0]
    return found


@pytest.fixture
def no_launch(monkeypatch):
    def stop(call: calls.Call, arguments: Any) -> None:
        raise Decided(call)

    monkeypatch.setattr(interface, "serve", stop)
    for name in calls.ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("row", REAL, ids=lambda row: row.name)
def test_row_is_decided_about_as_without_a_gpu(row: Row, no_launch, monkeypatch):
    for name, value in row.call.environment:
        monkeypatch.setenv(name, value)
    native = describe.capability_of(torch.device(DEVICE, 0)) == (7, 0)
    if not native:
        monkeypatch.setenv(calls.PTX_VARIABLE, "1")
    there = operators.load().optional & row.call.library_operators
    monkeypatch.setattr(operators, "_loaded", replace(operators.load(), optional=there))
    given = arguments(row.call)
    if row.call.capturing:
        if DEVICE != "cuda":
            pytest.skip("graphs need CUDA")
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            found = decided(given)
    else:
        found = decided(given)
    if row.name.endswith("last-stride-2") and row.name[0] != "o":
        assert choose(found).route is not None  # the function makes q, k and v contiguous
        return
    reasons = gqa_refusals(found)
    assert [kind_of(reason) for reason in reasons] == [kind for kind, _ in row.refusals], reasons
    for reason, (_, words) in zip(reasons, row.refusals, strict=True):
        assert words in reason
    if not row.refusals:
        route = choose(found).route
        assert route is not None and route.operator(found) == row.operator
