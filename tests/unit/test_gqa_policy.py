# SPDX-License-Identifier: Apache-2.0
"""The route `gqa_prefill`: each admission, each refusal, and all reasons of a refusal at once."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import combinations

import pytest
from tests.unit.gqa_rows import ADMISSIONS, REFUSALS, ROWS, Row, family

from vllm_fa2_sm70.calls import Call
from vllm_fa2_sm70.gqa import FUSED, gqa_refusals
from vllm_fa2_sm70.reasons import kind_of
from vllm_fa2_sm70.routes import ROUTES, choose, explain, explanation

FALLBACK = ROUTES[-1]


def test_the_table_is_large_and_its_names_differ() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS) >= 150
    assert {kind for row in REFUSALS for kind, _ in row.refusals} == {
        *("capture", "device", "dtype", "environment", "function", "gradient", "layout"),
        *("library", "mask", "option", "paged", "scale", "shape", "traced"),
    }


@pytest.mark.parametrize("row", ADMISSIONS, ids=lambda row: row.name)
def test_admitted(row: Row) -> None:
    choice = choose(row.call)
    assert choice.route is not None and choice.refusals == {}
    assert (choice.route.name, choice.route.operator(row.call)) == ("gqa_prefill", row.operator)
    assert explain(row.call) == "gqa_prefill: taken"


@pytest.mark.parametrize("row", REFUSALS, ids=lambda row: row.name)
def test_refused_for_all_reasons_and_no_other(row: Row) -> None:
    reasons = gqa_refusals(row.call)
    assert [kind_of(reason) for reason in reasons] == [kind for kind, _ in row.refusals], reasons
    for reason, (_, words) in zip(reasons, row.refusals, strict=True):
        assert words in reason


@pytest.mark.parametrize("row", REFUSALS, ids=lambda row: row.name)
def test_refused_call_takes_the_route_that_it_took_before(row: Row) -> None:
    choice = choose(row.call)
    alone = FALLBACK.refusals(row.call)
    assert choice.route is (None if alone else FALLBACK)
    assert list(map(str, choice.refusals["gqa_prefill"])) == list(map(str, gqa_refusals(row.call)))
    said = explanation(row.call)
    assert said["taken"] == (None if alone else "dense")
    assert [r["reason"] for r in said["routes"][0]["refusals"]] == gqa_refusals(row.call)


def changes(call: Call) -> dict[str, object]:
    plain = family()
    names = [field.name for field in fields(Call)]
    return {n: getattr(call, n) for n in names if getattr(call, n) != getattr(plain, n)}


def test_reasons_of_two_mistakes_are_those_of_each() -> None:
    """Over all pairs of rows that change different things."""
    mistakes = [(row, changes(row.call)) for row in REFUSALS if row.name != "traced"]
    looked_at = 0
    for (one, first), (other, second) in combinations(mistakes, 2):
        shapes = {"q", "k", "v", "out"}
        if first.keys() & second.keys() or (first.keys() & shapes and second.keys() & shapes):
            continue
        if {"unusable", "library_operators"} <= first.keys() | second.keys():
            continue  # without a library nothing is said of its operators
        both = set(gqa_refusals(replace(family(), **first, **second)))  # type: ignore[arg-type]
        expected = set(gqa_refusals(one.call)) | set(gqa_refusals(other.call))
        left_over = {text for text in both ^ expected if "max_seqlen_" not in text}
        assert not left_over, (one.name, other.name)
        looked_at += 1
    assert looked_at > 5000


def test_a_traced_call_looks_at_no_shape() -> None:
    class Unreadable:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"{name} was looked at")

    unreadable = Unreadable()
    call = family(traced=True, q=unreadable, k=unreadable, v=unreadable, window=unreadable)
    assert [kind_of(reason) for reason in gqa_refusals(call)] == ["traced"]


def test_dense_is_the_last_route_and_gqa_the_default() -> None:
    assert [route.name for route in ROUTES] == ["gqa_prefill", "dense"]
    route = choose(family()).route
    assert route is not None and route.operator(family()) == FUSED
