# SPDX-License-Identifier: Apache-2.0
"""Promises of patches (``Asserts:``) about the library that was built."""

from __future__ import annotations

import pytest

from .conftest import SM70
from .test_pipeline import Shell, shell

__all__ = ["shell"]
pytestmark = pytest.mark.nvcc

OPERATORS = (
    "symbol PyInit__vllm_fa2_C",
    "schema varlen_fwd",
    f"compiles {SM70}/operators.cpp",
)
KERNELS = (f"compiles {SM70}/kernels.cu", "kernel KERNEL")


def promise(shell: Shell, name: str, *promises: str) -> None:
    """Put the promises into the message of a patch, as its only trailers."""
    path = shell.root / "patches" / name
    head, dashes, diff = path.read_bytes().partition(b"\n---\n")
    kept = [line for line in head.split(b"\n") if not line.startswith(b"Asserts:")]
    text = b"\n".join(kept).rstrip()
    lines = "".join(f"\nAsserts: {p}" for p in promises).encode()
    path.write_bytes(text + (b"\n" + lines if promises else b"") + dashes + diff)


def test_promises_are_checked_on_the_library_and_with_the_patches_applied(shell: Shell) -> None:
    first, second = "0001-add-operators.patch", "0002-add-kernels.patch"
    shell.ok("replay", "--lock")
    shell.ok("build")
    shell.ok("verify", "--update")
    shell.ok("verify")
    kernel = shell.json("verify", "--force")["resources"][0]["name"]
    kernels = tuple(p.replace("KERNEL", kernel) for p in KERNELS)
    promise(shell, first, *OPERATORS)
    promise(shell, second, *kernels)
    shell.ok("replay", "--lock")
    shell.ok("verify")
    assert all(shell.current().values())

    promise(shell, second, *kernels, "kernel ^no_such_kernel$", "symbol no_such_symbol")
    shell.ok("replay", "--lock")
    assert shell.current()["verify"] is False
    said = shell.run("verify").stdout
    assert f"error: asserts: {second}: `Asserts: kernel ^no_such_kernel$` in line" in said
    assert f"error: asserts: {second}: `Asserts: symbol no_such_symbol` in line" in said
    assert "2 errors" in said

    # only the patches in the tree count: the broken promises are of the second
    error = shell.json("check", "--each-prefix")["error"]
    verdicts = {step["name"]: step["verdict"] for step in error["data"]["steps"]}
    assert (verdicts[f"prefix {first}"], verdicts["verify"]) == ("ok", "failed")


def test_file_that_the_build_no_longer_takes_breaks_a_promise(shell: Shell) -> None:
    shell.ok("replay", "--lock")
    promise(shell, "0002-add-kernels.patch", f"compiles {SM70}/kernels.cu")
    shell.ok("replay", "--lock")
    target = shell.root / "build" / "sm70.toml"
    target.write_text(target.read_text().replace(f'"{SM70}/*.cu"', f'"{SM70}/*.none.cu"'))
    shell.ok("build")
    said = shell.run("verify").stdout
    assert "error: asserts: 0002-add-kernels.patch: `Asserts: compiles" in said
    assert "the build does not compile it" in said
