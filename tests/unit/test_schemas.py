# SPDX-License-Identifier: Apache-2.0
"""Schemas are compared by meaning."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchctl.errors import UsageError
from patchctl.formats.findings import Severity
from patchctl.formats.schemas import (
    ExpectedSchemas,
    Operator,
    Registered,
    compare_operators,
    compare_schema,
    read_schemas,
)
from patchctl.formats.schematext import parse_schema

ROOT = Path(__file__).parents[2]
PAIRS = ROOT / "tests" / "data" / "cases" / "38" / "pairs.tsv"


def pairs() -> list[tuple[str, ...]]:
    """Declared, printed by torch, verdict."""
    return [tuple(line.split("\t")) for line in PAIRS.read_text().splitlines()[1:]]


@pytest.mark.parametrize(("declared", "printed", "verdict"), pairs())
def test_verdicts_equal_the_case(declared: str, printed: str, verdict: str) -> None:
    findings = compare_schema(parse_schema(declared), parse_schema(printed))
    severities = {f.severity for f in findings}
    expected = {
        "same": set(),
        "same-mutation-different-annotation": {Severity.WARNING},
        "same-for-torch-different-text": {Severity.WARNING},
        "different": {Severity.ERROR},
    }
    assert severities == expected[verdict]


BASE = "f(Tensor! q, Tensor k, Tensor!? out, float s, int w=-1, *, bool b=False) -> Tensor[]"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            BASE.replace("float s, ", "float s, int splits, "),
            "argument `int splits` was added at position 4",
        ),
        (BASE.replace("Tensor k, ", ""), "argument 1 `k` was removed"),
        (BASE.replace("Tensor k", "Tensor key"), "argument 1 `k` was renamed to `key`"),
        (
            BASE.replace("Tensor k, Tensor!? out", "Tensor!? out, Tensor k"),
            "argument `k` moved from position 1 to 2",
        ),
        (
            BASE.replace("float s", "int s"),
            "argument `s` has type int, expected float",
        ),
        (BASE.replace("w=-1", "w=0"), "argument `w` has =0, expected =-1"),
        (BASE.replace("w=-1", "w"), "argument `w` has no default, expected =-1"),
        (BASE.replace("b=False", "b=True"), "argument `b` has =True, expected =False"),
        (BASE.replace("*, ", ""), "argument `b` became positional"),
        (BASE.replace("Tensor! q", "Tensor q"), "argument `q` is no longer mutable"),
        (BASE.replace("Tensor k", "Tensor! k"), "argument `k` is written to, expected read only"),
        (
            BASE.replace("Tensor!? out", "Tensor! out"),
            "argument `out` has type Tensor, expected Tensor?",
        ),
        (BASE.replace("Tensor[]", "Tensor"), "return 0 has type Tensor, expected Tensor[]"),
        (BASE.replace("Tensor[]", "(Tensor, Tensor)"), "returns 2 values, expected 1"),
    ],
)
def test_each_change_is_named(changed: str, words: str) -> None:
    findings = compare_schema(parse_schema(BASE), parse_schema(changed))
    assert [f.message for f in findings] == [words]
    assert findings[0].severity is Severity.ERROR


def test_the_fate_of_callers_is_said() -> None:
    old, new = parse_schema("f(int a) -> int"), parse_schema("f(int a, int b=1) -> int")
    assert "callers keep working" in compare_schema(old, new, True)[0].message
    assert "callers break" in compare_schema(old, new, False)[0].message


def test_lists_defaults_and_aliases_are_read() -> None:
    schema = parse_schema(
        "ns::f.ov(Tensor(a!)[] x, int[2]? p=[1, 2], float e=1e-05, str m='a, b', "
        "Dict(str, Tensor) d, (int, Tensor) t, Tensor(b -> *) y) -> (Tensor(a!) first, Tensor)"
    )
    assert (schema.name, schema.overload) == ("f", "ov")
    x, p, e, m, d, t, _ = schema.arguments
    assert (x.type, x.mutable, x.alias) == ("Tensor[]", True, "a!")
    assert (p.type, p.length, p.default) == ("int[]?", 2, [1, 2])
    assert (e.default, m.default) == (1e-5, "a, b")
    assert (d.type, t.type) == ("Dict(str, Tensor)", "(int, Tensor)")
    assert [r.name for r in schema.returns] == ["first", ""]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("f(Tensor q", "column 11: got `the end`, expected `,`"),
        ("f(Tensor) -> ()", "expected the argument's name"),
        ("f() -> () x", "expected the end"),
        ("f q", "expected `name(`"),
        ("f(Tensor(a! q) -> ()", "column 16: got `-> ()`, expected the argument's name"),
        ("f(Tensor(a!", "expected an annotation"),
        ("f(int a=) -> ()", "expected a default value"),
    ],
)
def test_a_text_that_is_no_schema_names_the_place(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_schema(text)
    assert words in caught.value.message


def test_the_locked_schemas_are_those_of_the_design() -> None:
    expected = read_schemas((ROOT / "build" / "sm70.schemas.toml").read_bytes(), where="x")
    schemas = {parse_schema(o.schema).name: parse_schema(o.schema) for o in expected.operators}
    varlen, kvcache = schemas["varlen_fwd"], schemas["fwd_kvcache"]
    assert (len(varlen.arguments), len(kvcache.arguments)) == (22, 20)
    mutable = [[a.name for a in s.arguments if a.mutable] for s in (varlen, kvcache)]
    assert mutable == [["q", "out"], ["q", "out"]]
    assert expected.namespace == "_vllm_fa2_C"


def registered(text: str, *dispatch: str) -> Registered:
    """An operator as the library registered it."""
    return Registered(parse_schema(text), dispatch)


EXPECTED = ExpectedSchemas(
    namespace="ns",
    operators=(
        Operator(schema="f(int a) -> int"),
        Operator(schema="sm70_g(int a) -> int", since="0004-g.patch"),
    ),
)


def test_operators_missing_unknown_and_without_kernel_are_findings() -> None:
    found = {
        "f": registered("f(int a) -> int", "CPU"),
        "h": registered("h(int a) -> int", "CUDA"),
    }
    texts = [f"{f.subject}: {f.message}" for f in compare_operators(EXPECTED, found, None)]
    assert texts == [
        "f: has no kernel for CUDA (it has: CPU)",
        "sm70_g: is not registered by the library",
        "h: is registered and is not in `ns`'s list",
    ]


def test_an_operator_of_a_later_patch_is_not_missed() -> None:
    found = {"f": registered("f(int a) -> int", "CUDA")}
    assert compare_operators(EXPECTED, found, ("0001-f.patch",)) == []
    assert len(compare_operators(EXPECTED, found, ("0001-f.patch", "0004-g.patch"))) == 1


def test_a_schema_listed_twice_or_wrong_names_the_file() -> None:
    entry = '[[operators]]\nschema = "f(int a) -> int"\n'
    with pytest.raises(UsageError, match=r"operators\[1\].*listed twice"):
        read_schemas('namespace = "n"\n' + entry * 2, where="x.toml")
    with pytest.raises(UsageError, match=r"`x.toml` at `operators\[0\].schema`: schema `f`"):
        read_schemas('namespace = "n"\n[[operators]]\nschema = "f"\n', where="x.toml")


@pytest.mark.parametrize(("old", "new"), [("=1", "=True"), ("=0", "=False"), ("=1", "=1.0")])
def test_default_that_python_calls_equal_and_torch_does_not_is_a_change(old: str, new: str) -> None:
    wanted, got = (parse_schema(f"f(Scalar a{default}) -> ()") for default in (old, new))
    (finding,) = compare_schema(wanted, got)
    assert f"has {new}, expected {old}" in finding.message
