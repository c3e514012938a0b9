# SPDX-License-Identifier: Apache-2.0
"""QSA prefill on a CPU: what counts as selected, the exact form, what the operator is given."""

from __future__ import annotations

import textwrap

from tests.unit.shimrig import python

# the operator in a process of its own; its model says what it was given
RIG = """
import os, torch
from dataclasses import replace
from vllm_fa2_sm70 import operators, qsa, qsa_exact

registry = torch.library.Library("_vllm_fa2_C", "DEF")
for name, schema in operators.SCHEMAS.items():
    registry.define(name + schema)
if not os.environ.get("WITHOUT"):
    registry.define(qsa.OPERATOR + os.environ.get("OTHER", qsa.SCHEMA))
    def page4(q, k, v, *rest):
        *numbers, out, scale = rest
        seen.append((numbers, scale))
        table, request, lengths, positions, indices = numbers
        selection = qsa_exact.select(
            indices, request, positions, lengths, table, *k.shape[:2])
        qsa_exact.attend_torch(q, k, v, selection, scale, out)
    if not os.environ.get("OTHER"):
        registry.impl(qsa.OPERATOR, page4, "CPU")
seen = []
operators._loaded = None
from vllm_fa2_sm70 import *
operators.load()

# a CPU stands for the GPU here
describe = qsa.describe_qsa
qsa.describe_qsa = lambda *a: replace(describe(*a), capability=(7, 0))

def case(rows, lengths, selected, page=16, seed=0):
    torch.manual_seed(seed)
    used = [-(-n // page) for n in lengths]
    pages = sum(used) + 2
    table = torch.full((len(lengths), max(used) + 1), -99, dtype=torch.int32)
    order = iter(torch.randperm(pages).tolist())
    for request, count in enumerate(used):
        table[request, :count] = torch.tensor([next(order) for _ in range(count)])
    starts = torch.tensor([0, *rows]).cumsum(0).int()
    indices = torch.full((sum(rows), selected), -1, dtype=torch.int32)
    row = 0
    for count, length in zip(rows, lengths):
        for position in range(length - count, length):
            blocks = torch.randperm(position // 4 + 1)[: selected // 4]
            tokens = (blocks[:, None] * 4 + torch.arange(4)).flatten()
            indices[row, : len(tokens)] = tokens.where(tokens <= position, -1)
            row += 1
    cache = torch.randn(pages, 2, page, 1, 256).half()
    return dict(q=torch.randn(sum(rows), 6, 256).half(), k_cache=cache[:, 0], v_cache=cache[:, 1],
        block_table=table, seq_lens=torch.tensor(lengths).int(), query_start_loc=starts,
        indices=indices)

def expected(given, request, position, rows=None):
    # in float64, of some rows; the others are zeros
    out = torch.zeros(given["q"].shape, dtype=torch.float64)
    page = given["k_cache"].shape[1]
    for row in range(len(out)) if rows is None else rows:
        r = int(request[row])
        if not 0 <= r < len(given["seq_lens"]):
            continue
        end = min(int(given["seq_lens"][r]), int(position[row]) + 1)
        tokens = sorted({t for t in given["indices"][row].tolist() if 0 <= t < end})
        if tokens:
            at = [(int(given["block_table"][r, t // page]), t % page) for t in tokens]
            k, v = (torch.stack([given[n][p][t, 0] for p, t in at]).double()
                    for n in ("k_cache", "v_cache"))
            out[row] = (given["q"][row].double() @ k.T / 16).softmax(-1) @ v
    return out

def exact(given, request, position):
    numbers = (given["indices"], request, position, given["seq_lens"], given["block_table"])
    selection = qsa_exact.select(*numbers, *given["k_cache"].shape[:2])
    out = torch.full_like(given["q"], float("nan"))
    qsa_exact.attend_torch(
        given["q"], given["k_cache"], given["v_cache"], selection, 0.0625, out)
    return out

SOME = [0, 1, 2, 3, 500, 3998, 3999, 4000, 4001, 4094]

def error(out, want):
    if len(out) > 100:
        out, want = out[SOME], want[SOME]
    return float((out.double() - want).norm() / want.norm())
"""


def run(code: str, **environment: str) -> list[str]:
    return python(RIG + textwrap.dedent(code), **environment).splitlines()


def test_forwarded_metadata_reach_the_operator_as_they_are() -> None:
    code = """
        given = case((4000, 96), (4100, 200), 16)
        request, position = qsa_exact.derive_rows(
            given["query_start_loc"], given["seq_lens"], 4096)
        out = qsa_prefill(**given, row_to_request=request, positions=position)
        numbers, scale = seen[0]
        same = [numbers[1] is request, numbers[3] is position, numbers[0] is given["block_table"]]
        print(*same, scale, qsa_route_counts()["page4"])
        assert torch.equal(qsa_prefill(**given), out)
        print(all(torch.equal(a, b) for a, b in zip(seen[0][0], seen[1][0])))
        print(error(out, expected(given, request, position, SOME)) < 4e-4)
    """
    assert run(code) == ["True True True 0.0625 1", "True", "True"]


def test_4095_rows_take_the_fallback_with_and_without_metadata() -> None:
    code = """
        def paged(q, k, v, *rest):
            calls.append(tuple(k.shape))
            lengths, table, scale = rest[2], rest[7], rest[10]
            keys, values = (x[table].flatten(1, 2)[:, :, 0].float() for x in (k, v))
            hidden = torch.arange(keys.shape[1]) >= lengths[:, None]
            scores = (q[:, 0].float() @ keys.transpose(1, 2)) * scale
            scores = scores.masked_fill(hidden[:, None], -torch.inf)
            return [(scores.softmax(-1) @ values)[:, None].half(), torch.zeros(1)]
        registry.impl("fwd_kvcache", paged, "CPU")
        calls = []
        given = case((4000, 95), (4100, 200), 36)
        request, position = qsa_exact.derive_rows(
            given["query_start_loc"], given["seq_lens"], 4095)
        derived = qsa_prefill(**given)
        forwarded = qsa_prefill(**given, row_to_request=request, positions=position)
        print(torch.equal(derived, forwarded), seen, qsa_route_counts()["paged"])
        print(calls[0], error(derived, expected(given, request, position, SOME)) < 4e-4)
    """
    assert run(code) == ["True [] 2", f"({4095 * 3}, 16, 1, 256) True"]


def test_invalid_stale_and_doubled_do_no_harm() -> None:
    code = """
        given = case((30, 10), (100, 60), 64)
        request, position = qsa_exact.derive_rows(
            given["query_start_loc"], given["seq_lens"], 40)
        indices = given["indices"]
        request[3], request[9], request[20] = -1, 2, 2**31 - 1
        position[5], position[6] = 2**31 - 1, -5
        indices[11] = -1
        indices[12, 32:] = indices[12, :32]
        indices[13, ::4] = 2**31 - 1
        indices[14, 1::4] = 101  # past the live length
        indices[15, 2::4] = int(position[15]) + 1  # past its own position
        indices[16] = indices[16].flip(0)
        out = exact(given, request, position)
        print(error(out, expected(given, request, position)) < 4e-4)
        print([row for row in range(40) if not out[row].any()])
    """
    assert run(code) == ["True", "[3, 6, 9, 11, 20]"]


def test_tail_is_mapped_to_its_physical_page() -> None:
    """Tails of 0 to 3 tokens: of the last block exactly what is in the indices and live."""
    code = """
        table = torch.tensor([[7, 2, 5, -1]], dtype=torch.int32)
        zero = torch.zeros(1, dtype=torch.int32)
        for tail in range(4):
            length = 40 + tail
            tokens = torch.tensor([[40, 41, 42, 43, 4, 5, 6, 7, -1, -1, 40, 3]]).int()
            chosen = qsa_exact.select(tokens, zero, zero + 99, zero + length, table, 9, 16)
            count = int(chosen.counts)
            print(count, list(zip(chosen.pages[0, :count].tolist(),
                chosen.tokens[0, :count].tolist()))[5:])
            partial = qsa_exact.select(tokens[:, 1:2], zero, zero + 99, zero + 44, table, 9, 16)
            assert int(partial.counts) == 1 and int(partial.tokens[0, 0]) == 9
    """
    assert run(code) == ["5 []", "6 [(5, 8)]", "7 [(5, 8), (5, 9)]", "8 [(5, 8), (5, 9), (5, 10)]"]


def test_pages_outside_of_the_cache_and_past_the_table_are_dropped() -> None:
    code = """
        table = torch.tensor([[0, 9, -1, 2**31 - 1, 1]], dtype=torch.int32)
        zero = torch.zeros(1, dtype=torch.int32)
        tokens = torch.arange(0, 96, 4).int()[None]
        chosen = qsa_exact.select(tokens, zero, zero + 2**31 - 1, zero + 500, table, 9, 16)
        print(chosen.pages[0, : int(chosen.counts)].tolist())
    """
    assert run(code) == ["[0, 0, 0, 0, 1, 1, 1, 1]"]


def test_nan_stays_with_the_rows_that_selected_it() -> None:
    code = """
        given = case((8,), (300,), 32)
        request, position = qsa_exact.derive_rows(given["query_start_loc"], given["seq_lens"], 8)
        token = int(given["indices"][2, 0])
        page = int(given["block_table"][0, token // 16])
        given["v_cache"][page, token % 16, 0, 9] = float("nan")
        out = exact(given, request, position)
        bad = ~out.isfinite()
        sees = (given["indices"] == token).any(dim=1)
        assert bool(sees.any()) and not bool(sees.all())
        print(torch.equal(bad.any(dim=1)[:, 9], sees), int(bad.sum()) == 6 * int(sees.sum()))
    """
    assert run(code) == ["True True"]


def test_rows_of_no_request_are_not_derived() -> None:
    code = """
        starts, lengths = torch.tensor([0, 2, 2, 5]).int(), torch.tensor([9, 7, 3]).int()
        for found in qsa_exact.derive_rows(starts, lengths, 7):
            print(found.tolist(), found.dtype)
        print(*(x.tolist() for x in qsa_exact.derive_rows(starts[:1], lengths[:0], 2)))
    """
    assert run(code) == [
        "[0, 0, 2, 2, 2, -1, -1] torch.int32",
        "[7, 8, 0, 1, 2, -1, -1] torch.int32",
        "[-1, -1] [-1, -1]",
    ]


def test_library_without_the_operator_serves_everything_else() -> None:
    code = """
        given = case((8,), (300,), 32)
        print(qsa.unusable_reason())
        try:
            numbers = [given[n] for n in ("block_table", "seq_lens", "seq_lens", "indices")]
            sm70_qsa_page4_prefill(given["q"], given["k_cache"], given["v_cache"], *numbers[:1],
                *numbers)
        except NoRoute as error:
            print(error)
        print(repr(operators.load().reason))
    """
    gone = "the library has no operator `sm70_qsa_page4_prefill`"
    assert run(code, WITHOUT="1") == [gone, f"sm70_qsa_page4_prefill: {gone}", "''"]


def test_operator_of_another_form_is_not_called() -> None:
    code = "print(qsa.unusable_reason())"
    other = "(Tensor q, Tensor k_cache, Tensor v_cache, float softmax_scale) -> ()"
    assert run(code, OTHER=other) == [
        "the library has another `sm70_qsa_page4_prefill`: argument 4 is `float softmax_scale`, "
        "not `Tensor block_table`"
    ]


def test_traced_call_is_one_graph_that_knows_what_is_written() -> None:
    code = """
        given = case((4096,), (4200,), 16)
        def step(q):
            return qsa_prefill(**{**given, "q": q + 1}) * 2
        with torch.inference_mode():
            how = {"backend": "aot_eager", "fullgraph": True}
            print(torch.equal(torch.compile(step, **how)(given["q"]), step(given["q"])))
    """
    assert run(code) == ["True"]
