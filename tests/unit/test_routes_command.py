# SPDX-License-Identifier: Apache-2.0
"""`patchctl routes`: the route of a call that is only described."""

from __future__ import annotations

import json
from typing import Any

import pytest

from patchctl.cli.app import funnel
from patchctl.cli.main import main
from vllm_fa2_sm70.calls import ENVIRONMENT, GQA_VARIABLE
from vllm_fa2_sm70.routes import ROUTES

FAMILY = ["--q", "8000", "--kv", "128000"]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert funnel(main, ["routes", *arguments]) == code
    return capsys.readouterr().out


def data(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said(capsys, *arguments, "--json"))
    return found


def test_list_names_every_route_and_variable(capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv(GQA_VARIABLE, "off")
    text = said(capsys, "list")
    for route in ROUTES:
        assert route.name in text and all(name in text for name in route.operators)
        assert route.summary in text != ""
    assert f"{GQA_VARIABLE} = off" in text
    found = data(capsys, "list")
    assert [route["name"] for route in found["routes"]] == [route.name for route in ROUTES]
    assert found["variables"][GQA_VARIABLE] == "off"


def test_explain_says_the_route_and_its_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "explain", *FAMILY).splitlines() == [
        "gqa_prefill: taken (sm70_gqa_prefill_fused)",
        "dense: would serve it, too",
        "memory: 16.8 MiB retained, 23.6 MiB a call; the first call asks for 172.0 MiB, "
        "128.0 MiB of them headroom",
    ]
    found = data(capsys, "explain", *FAMILY, "--out", "--set", f"{GQA_VARIABLE}=workspace")
    assert found["taken"] == "gqa_prefill"
    assert found["routes"][0]["operator"] == "sm70_gqa_prefill_workspace"
    assert found["environment"] == {GQA_VARIABLE: "workspace"}


def test_explain_says_every_reason(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "explain", "--q", "7999", "--kv", "41000", "--not-causal", "--capturing")
    assert text.splitlines() == [
        "gqa_prefill: a CUDA graph is being captured: its replays would share the buffer with "
        "later calls [capture]",
        "gqa_prefill: q has 7999 rows, not 8000 [shape]",
        "gqa_prefill: k has 41000 rows, which is not 40000 to 128000 in steps of 8000 [shape]",
        "gqa_prefill: it is not causal [mask]",
        "dense: taken (varlen_fwd)",
    ]


OPTIONS: dict[str, list[str]] = {
    "shape": ["--heads", "8"],
    "paged": ["--page", "784"],
    "dtype": ["--dtype", "bfloat16"],
    "scale": ["--scale", "0.1"],
    "mask": ["--window", "128", "0"],
    "option": ["--softcap", "50"],
    "layout": ["--strides", "q=1540,256,1"],
    "device": ["--capability", "9.0"],
    "capture": ["--capturing"],
    "traced": ["--traced"],
    "function": ["--function", "fwd_kvcache"],
    "environment": ["--set", f"{GQA_VARIABLE}=off"],
    "library": ["--without", "sm70_gqa_prefill_fused"],
}
MORE: list[tuple[str, list[str]]] = [
    ("option", ["--alibi"]),
    ("option", ["--dropout", "0.5"]),
    ("option", ["--num-splits", "2"]),
    ("shape", ["--sequences", "2"]),
    ("shape", ["--kv-heads", "2"]),
    ("shape", ["--head-dim", "128"]),
    ("layout", ["--offset", "v=4"]),
    ("layout", ["--out", "--offset", "out=4"]),
]


@pytest.mark.parametrize(("kind", "options"), [*OPTIONS.items(), *MORE])
def test_every_option_counts(
    capsys: pytest.CaptureFixture[str], kind: str, options: list[str]
) -> None:
    found = data(capsys, "explain", *FAMILY, *options)
    assert found["taken"] != "gqa_prefill"
    assert kind in {refusal["kind"] for refusal in found["routes"][0]["refusals"]}


def test_environment_counts(capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv(GQA_VARIABLE, "rapid")
    assert "is `rapid`, not one of fused" in said(capsys, "explain", *FAMILY)


def test_expected_route_is_a_gate(capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "explain", *FAMILY, "--expect", "gqa_prefill")
    said(capsys, "explain", *FAMILY, "--dtype", "bfloat16", "--expect", "none")
    assert funnel(main, ["routes", "explain", *FAMILY, "--expect", "dense"]) == 1
    assert "the call takes gqa_prefill, expected dense" in capsys.readouterr().err
    assert funnel(main, ["routes", "explain", *FAMILY, "--expect", "dense", "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["data"]["taken"] == "gqa_prefill"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "FOO=1"], "unknown variable `FOO`"),
        (["--set", "FOO"], "`FOO` is not NAME=VALUE"),
        (["--without", "x"], "unknown operator `x`"),
        (["--strides", "x=1"], "unknown tensor `x`"),
        (["--strides", "q=1,2"], "q has 3 dimensions, not 2 strides"),
        (["--strides", "q=a"], "`q=a` is not TENSOR=N,N,N"),
        (["--capability", "seven"], "`seven` is not MAJOR.MINOR"),
    ],
)
def test_mistakes_are_named(
    capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert funnel(main, ["routes", "explain", *FAMILY, *options]) == 2
    assert message in capsys.readouterr().err
