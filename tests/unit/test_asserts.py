# SPDX-License-Identifier: Apache-2.0
"""Promises in the trailers of a patch: how they are read, and when they are broken."""

from __future__ import annotations

import base64

import pytest

from patchctl.errors import PatchDoesNotApply
from patchctl.formats.asserts import (
    Built,
    Kind,
    Promise,
    check_built,
    check_tree,
    read_promises,
)

DIFF = b"---\ndiff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-Asserts: symbol x\n+y\n"


def mail(*trailers: str, body: str = "Why.\n\n", head: str = "") -> bytes:
    text = "".join(f"{line}\n" for line in trailers)
    return f"From: A <a@b.c>\nSubject: s\n{head}\n{body}{text}".encode() + DIFF


def one(value: str) -> Promise:
    (promise,) = read_promises("p.patch", mail(f"Asserts: {value}"))
    return promise


def test_promises_are_read_with_their_line() -> None:
    data = mail(
        "Signed-off-by: A <a@b.c>",
        "Asserts: symbol PyInit__vllm_fa2_C",
        "asserts: contains csrc/a.h: #define X 1",
    )
    assert read_promises("p.patch", data) == (
        Promise("p.patch", 7, Kind.SYMBOL, "PyInit__vllm_fa2_C"),
        Promise("p.patch", 8, Kind.CONTAINS, "csrc/a.h", "#define X 1"),
    )


def test_patch_without_promises_has_none() -> None:
    assert read_promises("p.patch", mail("Signed-off-by: A")) == ()
    assert read_promises("p.patch", b"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-Asserts: x\n+y\n") == ()


def test_promise_in_an_encoded_mail_is_read() -> None:
    head, _, body = mail("Asserts: schema varlen_fwd").partition(b"\n\n")
    coded = head + b"\nContent-Transfer-Encoding: base64\n\n" + base64.encodebytes(body)
    assert [p.kind for p in read_promises("p.patch", coded)] == [Kind.SCHEMA]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("symbl x", "`Asserts: symbl x` promises nothing that is known; known are `symbol NAME`"),
        ("symbol", "says nothing after its kind; expected `symbol NAME`"),
        ("kernel fwd<(", "not a regular expression"),
        ("contains csrc/a.h", "no path, colon, blank and text; expected `contains PATH: TEXT`"),
        ("compiles /etc/passwd", "not a path in the source tree; expected `compiles PATH`"),
        ("compiles csrc/../x.cu", "not a path in the source tree"),
        ("compiles csrc//x.cu", "not a path in the source tree"),
    ],
)
def test_wrong_promise_is_refused_with_file_and_line(value: str, says: str) -> None:
    with pytest.raises(PatchDoesNotApply) as caught:
        read_promises("p.patch", mail(f"Asserts: {value}"))
    assert caught.value.message.startswith("patch `p.patch` is malformed: line 6: ")
    assert says in caught.value.message
    assert caught.value.data == {"patch": "p.patch", "patch_line": 6}


def test_misspelt_kind_gets_a_hint() -> None:
    with pytest.raises(PatchDoesNotApply) as caught:
        read_promises("p.patch", mail("Asserts: compile csrc/x.cu"))
    assert caught.value.hint == "did you mean `compiles`?"


def test_promise_outside_of_the_trailers_is_not_lost_silently() -> None:
    with pytest.raises(PatchDoesNotApply, match="line 4: `Asserts:` outside of the trailers"):
        read_promises("p.patch", mail("Acked-by: B", body="Asserts: symbol x\n\n"))


def test_file_that_lacks_the_text_or_is_gone_breaks_a_promise() -> None:
    files = {b"csrc/a.h": b"// x\n#define X 1\n"}
    kept = [one("contains csrc/a.h: #define X 1"), one("compiles csrc/a.h"), one("symbol s")]
    assert check_tree(kept, files.get) == []
    (text,) = check_tree([one("contains csrc/a.h: #define X 2")], files.get)
    assert (text.gate, text.subject, text.message) == (
        "asserts",
        "p.patch",
        "`Asserts: contains csrc/a.h: #define X 2` in line 6 is not kept: "
        "no line of the file holds the text",
    )
    (gone,) = check_tree([one("compiles csrc/b.cu")], files.get)
    assert gone.message.endswith("there is no such file in the replayed tree")


BUILT = Built(
    symbols={"PyInit_m", "_ZN3fa23runEi", "fa2::run(int)"},
    kernels={"flash::fwd_kernel<(int)256, true>(flash::Params)", "flash::bwd(flash::Params)"},
    operators={"varlen_fwd", "_vllm_fa2_C::fwd_kvcache"},
    units={"csrc/a.cu"},
)


@pytest.mark.parametrize(
    "value",
    [
        "symbol PyInit_m",
        "symbol fa2::run",
        "symbol fa2::run(int)",
        "symbol _ZN3fa23runEi",
        "kernel flash::bwd",
        "kernel fwd_kernel<(int)256, true>",
        r"kernel ^flash::fwd_kernel<.*true>",
        "schema varlen_fwd",
        "schema fwd_kvcache",
        "schema _vllm_fa2_C::fwd_kvcache",
        "compiles csrc/a.cu",
        "contains x: y",
    ],
)
def test_kept_promise_gives_no_finding(value: str) -> None:
    assert check_built([one(value)], BUILT) == []


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("symbol fa2::runs", "no such symbol (the nearest is `fa2::run`)"),
        ("kernel ^fwd_kernel", "no kernel of the library has this name"),
        ("schema varlen_fwd2", "registers no such operator (the nearest is `varlen_fwd`)"),
        ("compiles csrc/b.cu", "the build does not compile it (the nearest is `csrc/a.cu`)"),
    ],
)
def test_broken_promise_names_patch_line_and_the_nearest(value: str, says: str) -> None:
    (finding,) = check_built([one(value)], BUILT)
    assert (finding.subject, finding.severity) == ("p.patch", "error")
    assert f"`Asserts: {value}` in line 6 is not kept: " in finding.message
    assert says in finding.message


def test_operators_that_could_not_be_read_keep_no_promise() -> None:
    (finding,) = check_built([one("schema varlen_fwd")], Built())
    assert "could not be read" in finding.message
    assert check_built([one("compiles csrc/b.cu")], Built()) == []
