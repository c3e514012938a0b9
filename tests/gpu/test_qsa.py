# SPDX-License-Identifier: Apache-2.0
"""QSA page4: the operator against float64, what must do no harm, and the routes of the shim."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from attention import DEVICE, int32
from qsa_cases import ACCURACY, GPU, HEAD_DIM, ODD, Call, Case, complaints

sys.path.append(str(Path(__file__).parents[2] / "tool"))

import vllm_fa2_sm70 as shim
from vllm_fa2_sm70 import qsa, qsa_exact
from vllm_fa2_sm70.qsa import qsa_triton_reason

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not hasattr(torch.ops._vllm_fa2_C, "sm70_qsa_page4_prefill"),
        reason="the library has no sm70_qsa_page4_prefill",
    ),
]


@pytest.fixture(autouse=True)
def allow_ptx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_FA2_SM70_ALLOW_PTX", "1")
    monkeypatch.delenv("VLLM_SM70_QSA_XQA_PAGE4", raising=False)
    shim.reset_qsa_route_counts()


def routed(call: Call, **changes: Any) -> torch.Tensor:
    """`qsa_prefill` with forwarded metadata."""
    given = {**call.tensors, **changes}
    if "query_start_loc" not in given:
        given["query_start_loc"] = call.query_start_loc
    return shim.qsa_prefill(**given)


def taken() -> list[str]:
    return [name for name, count in shim.qsa_route_counts().items() for _ in range(count)]


@pytest.mark.parametrize("case", ACCURACY + ODD, ids=str)
def test_attention_is_that_of_float64(case: Case) -> None:
    call = Call(case)
    assert complaints(call.launch(), call.reference()) == []


@pytest.mark.parametrize("what", ["padding", "invalid requests", "no tokens", "no pages"])
def test_rows_that_see_nothing_are_zeros(what: str) -> None:
    call = Call(Case((50, 20), (300, 40), 64))
    changes = {
        "padding": {"indices": torch.full_like(call.tensors["indices"], -1)},
        "invalid requests": {"row_to_request": torch.full_like(call.tensors["positions"], 2)},
        "no tokens": {"seq_lens": torch.zeros_like(call.tensors["seq_lens"])},
        "no pages": {"block_table": torch.full_like(call.tensors["block_table"], 2**31 - 1)},
    }[what]
    assert torch.equal(call.launch(**changes), torch.zeros_like(call.tensors["q"]))


def test_nothing_selected_and_no_rows() -> None:
    call = Call(Case((50,), (300,), 64))
    none = call.launch(indices=call.tensors["indices"][:, :0])
    assert torch.equal(none, torch.zeros_like(none))
    rows = ("q", "row_to_request", "positions", "indices")
    assert call.launch(**{name: call.tensors[name][:0] for name in rows}).numel() == 0


def test_pages_outside_of_the_cache_are_dropped() -> None:
    call = Call(Case((64,), (320,), 64, selection="random"))
    table = call.tensors["block_table"].clone()
    table[0, 3], table[0, 7], table[0, 11] = -1, call.pages, 2**31 - 1
    gone = [3, 7, 11]
    out = call.launch(block_table=table)
    call.seen[:] = [tokens[~torch.isin(torch.from_numpy(tokens // 16), torch.tensor(gone)).numpy()]
                    for tokens in call.seen]  # fmt: skip
    call.__dict__.pop("places", None)
    assert complaints(out, call.reference()) == []


def test_strides_are_taken_as_they_come() -> None:
    call = Call(Case((64,), (320,), 64))
    plain = call.launch()
    wide = torch.full((64, 9, 280), math.nan, dtype=torch.float16, device=DEVICE)
    wide[:, 1:7, 8:264] = call.tensors["q"]
    out = torch.full((64, 7, 272), 3.0, dtype=torch.float16, device=DEVICE)
    indices = torch.nn.functional.pad(call.tensors["indices"], (3, 2), value=7)[:, 3:-2]
    table = torch.nn.functional.pad(call.tensors["block_table"], (1, 2), value=-9)[:, 1:-2]
    call.launch(q=wide[:, 1:7, 8:264], out=out[:, :6, 16:], indices=indices, block_table=table)
    assert torch.equal(out[:, :6, 16:], plain)
    out[:, :6, 16:] = 3.0
    assert bool((out == 3.0).all())


def test_nan_and_infinity_stay_with_the_rows_that_selected_them() -> None:
    call = Call(Case((64,), (320,), 64, selection="random"))
    clean = call.launch()
    page, token, counts = (x.cpu() for x in call.places)
    v = call.tensors["v_cache"]
    struck = []
    for row, value, column in ((5, math.nan, 3), (23, math.inf, 200), (40, -math.inf, 77)):
        at = (int(page[row, row]), int(token[row, row]))
        v[(*at, 0, column)] = value
        struck.append((*at, column))
    out = call.launch()
    same = torch.ones_like(out, dtype=torch.bool)
    for p, t, column in struck:
        order = torch.arange(page.shape[1]) < counts[:, None]
        sees = ((page == p) & (token == t) & order).any(dim=1).to(out.device)
        assert bool(sees.any()) and not bool(sees.all())
        assert not bool(out[sees][:, :, column].isfinite().any())
        same[:, :, column] &= ~sees[:, None]
    assert bool(out[same].isfinite().all())
    # rows whose group saw it are computed in another way, and may round differently
    assert (out[same].double() - clean[same].double()).abs().max() <= 2e-3


def test_same_bits_twice_and_whatever_is_beside() -> None:
    call = Call(Case((300,), (2000,), 256))
    first = call.launch()
    assert torch.equal(call.launch(), first)
    rows = ("q", "row_to_request", "positions", "indices")
    fewer = call.launch(**{name: call.tensors[name][:101] for name in rows})
    assert torch.equal(fewer[:100], first[:100])


@pytest.mark.cuda
def test_graph_replays_are_the_eager_bits() -> None:
    # not poisoned: the other selections see other tokens
    call = Call(Case((1000, 100), (3000, 900), 512, poison=False))
    eager = call.launch()
    out = torch.empty_like(eager)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call.launch(out=out)
    for _ in range(2):
        out.fill_(math.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, eager)
    # other selections, the same graph
    call.tensors["indices"].copy_(call.tensors["indices"].roll(4, dims=0))
    other = call.launch()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, other) and not torch.equal(other, eager)


@pytest.mark.cuda
def test_nothing_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Call(Case((4096,), (5000,), 64))
    call.launch()
    start = call.query_start_loc  # copied from the host
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call.launch()
        routed(call, query_start_loc=start)
        monkeypatch.setenv("VLLM_SM70_QSA_XQA_PAGE4", "0")
        routed(call, query_start_loc=start)
        routed(call, query_start_loc=start, row_to_request=None, positions=None)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.cuda
def test_memory_is_what_the_documentation_says() -> None:
    call = Call(Case((8192,), (9000,), 2048, selection="first", poison=False))
    tensors, out = call.tensors, torch.empty_like(call.tensors["q"])
    call.launch(out=out)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call.launch(out=out)
    took = torch.cuda.max_memory_allocated() - before
    assert took <= (66 << 20) + 8 * tensors["block_table"].numel()


@pytest.mark.parametrize(("rows", "route"), [(4095, "paged"), (4096, "page4")])
def test_rows_decide_about_the_route(rows: int, route: str) -> None:
    call = Call(Case((rows,), (4200,), 64))
    forwarded = routed(call)
    derived = routed(call, row_to_request=None, positions=None)
    assert taken() == [route, route] if GPU else len(taken()) == 2
    assert torch.equal(forwarded, derived)
    assert complaints(forwarded, call.reference()) == []


def test_variable_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Call(Case((4096,), (4200,), 64, odd=True))
    on = routed(call)
    monkeypatch.setenv("VLLM_SM70_QSA_XQA_PAGE4", "0")
    off = routed(call)
    assert taken() == ["page4", "paged"] if GPU else len(taken()) == 2
    expected = call.reference()
    assert complaints(on, expected) == complaints(off, expected) == []


def fallback(call: Call, name: str) -> torch.Tensor:
    given = call.tensors
    selection = qsa_exact.select(
        *(given[n] for n in ("indices", "row_to_request", "positions", "seq_lens", "block_table")),
        *given["k_cache"].shape[:2],
    )
    out = torch.full_like(given["q"], math.nan)
    tensors = (given["q"], given["k_cache"], given["v_cache"], selection, 0.0625, out)
    if name == "torch":
        qsa_exact.attend_torch(*tensors)
    elif name == "paged":
        qsa_exact.attend_paged(*tensors, 16)
    else:
        from vllm_fa2_sm70.qsa_triton import attend_triton

        attend_triton(*tensors)
    return out


@pytest.mark.parametrize("name", ["torch", "paged", "triton"])
@pytest.mark.parametrize("case", [*ODD, Case((70, 33), (300, 1000), 128, 784)], ids=str)
def test_fallbacks_are_exact(name: str, case: Case) -> None:
    if name == "triton" and (not GPU or qsa_triton_reason()):
        pytest.skip(qsa_triton_reason() or "Triton needs a GPU")
    call = Call(case)
    assert complaints(fallback(call, name), call.reference()) == []


def test_other_shapes_take_a_fallback() -> None:
    """8 query heads, 2 KV heads, head size 64, bfloat16: nothing that page4 serves."""
    call = Call(Case((40, 9), (300, 50), 64))
    for dtype in (torch.float16, torch.bfloat16):
        q = torch.randn(49, 8, 64, device=DEVICE).to(dtype)
        k, v = (torch.randn(call.pages, 16, 2, 64, device=DEVICE).to(dtype) for _ in range(2))
        out = routed(call, q=q, k_cache=k, v_cache=v)
        for kv_head in range(2):
            group = slice(4 * kv_head, 4 * kv_head + 4)
            for row in range(0, 49, 7):
                page, token, counts = call.places
                at = (page[row, : counts[row]], token[row, : counts[row]], kv_head)
                scores = q[row, group].double() @ k[at].double().T / 8
                want = scores.softmax(dim=-1) @ v[at].double()
                bound = 2e-3 if dtype == torch.float16 else 2e-2
                assert (out[row, group].double() - want).abs().max() <= bound
    assert set(taken()) <= {"paged", "triton", "torch"}


def test_operator_by_name_makes_its_output() -> None:
    call = Call(Case((64,), (320,), 64))
    if not GPU and qsa.unusable_reason():
        pytest.skip(qsa.unusable_reason())
    assert torch.equal(shim.sm70_qsa_page4_prefill(**call.tensors), call.launch())


@pytest.mark.cuda
def test_compiled_is_eager() -> None:
    call = Call(Case((4096,), (4200,), 64))

    given = {**call.tensors, "query_start_loc": call.query_start_loc}

    def step(q: torch.Tensor) -> torch.Tensor:
        return shim.qsa_prefill(**{**given, "q": q * 2}) + 1

    with torch.inference_mode():
        compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
        q = call.tensors["q"]
        assert torch.equal(compiled(q), step(q))


def half(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.float16, device=DEVICE)


def numbers(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.int32, device=DEVICE)


CACHE = "k_cache", "v_cache"
REFUSED = {
    "q heads": ({"q": lambda: half(8, 8, 256)}, "`q` is a tensor float16[8, 8, 256]"),
    "q type": ({"q": lambda: half(8, 6, 256).bfloat16()}, "float16: Volta has no bfloat16"),
    "q dimensions": ({"q": lambda: half(8, 1, 6, 256)}, "but takes 3 dimensions"),
    "out": ({"out": lambda: half(7, 6, 256)}, "takes the shape [8, 6, 256]"),
    "kv heads": (dict.fromkeys(CACHE, lambda: half(3, 16, 2, 256)), "the shape [3, 16, 1, 256]"),
    "v shape": ({"v_cache": lambda: half(3, 32, 1, 256)}, "the shape [3, 16, 1, 256]"),
    "page size": (dict.fromkeys(CACHE, lambda: half(3, 18, 1, 256)), "is 18, but takes a multiple"),
    "table type": (
        {"block_table": lambda: numbers(2, 3).long()},
        "`block_table` is a tensor int64",
    ),
    "table dimensions": ({"block_table": lambda: numbers(6)}, "but takes 2 dimensions"),
    "requests": ({"seq_lens": lambda: numbers(3)}, "`seq_lens` is a tensor int32[3]"),
    "rows of indices": ({"indices": lambda: numbers(7, 64)}, "`indices.size(0)` is 7"),
    "too many": ({"indices": lambda: numbers(8, 2049)}, "is 2049, but takes at most 2048"),
    "indices strides": ({"indices": lambda: numbers(64, 8).T}, "a contiguous last dimension"),
    "positions": ({"positions": lambda: numbers(9)}, "`positions` is a tensor int32[9]"),
    "row_to_request": ({"row_to_request": lambda: numbers(8).long()}, "but takes int32"),
    "scale": ({"softmax_scale": lambda: 0.0}, "`softmax_scale` is 0, but takes a positive"),
    "scale not finite": ({"softmax_scale": lambda: math.inf}, "`softmax_scale` is inf"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals_name_the_argument(what: str) -> None:
    if not GPU and not qsa.operators.load().path:
        pytest.skip("a stand-in checks nothing")
    made, said = REFUSED[what]
    plain = {
        "q": half(8, 6, HEAD_DIM), "k_cache": half(3, 16, 1, 256), "v_cache": half(3, 16, 1, 256),
        "block_table": numbers(2, 3), "row_to_request": numbers(8), "seq_lens": numbers(2),
        "positions": numbers(8), "indices": numbers(8, 64), "out": half(8, 6, 256),
        "softmax_scale": 0.0625,
    }  # fmt: skip
    changes = {name: make() for name, make in made.items()}
    with pytest.raises(RuntimeError) as refused:
        torch.ops._vllm_fa2_C.sm70_qsa_page4_prefill(**(plain | changes))
    assert said in str(refused.value)


def test_derived_rows_are_the_forwarded_ones() -> None:
    call = Call(Case((70, 1, 0, 33, 260), (300, 9, 20, 1000, 400), 64))
    request, position = qsa_exact.derive_rows(
        call.query_start_loc, call.tensors["seq_lens"], call.rows
    )
    assert torch.equal(request, call.tensors["row_to_request"])
    assert torch.equal(position, call.tensors["positions"])
    padded, _ = qsa_exact.derive_rows(int32([0, 2, 5]), int32([9, 9]), 8)
    assert padded.tolist() == [0, 0, 1, 1, 1, -1, -1, -1]
