# SPDX-License-Identifier: Apache-2.0
"""A series that brings a table: each prefix, blame, promises, strays and status."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from patchctl.stages.toolchain import Toolchain

from .conftest import ROOT, SM70
from .test_blame import SOURCES, Shell, make_shell

pytestmark = pytest.mark.nvcc

DATA = {p.name: p.read_bytes() for p in (ROOT / "tests" / "data" / "instances").iterdir()}
TEMPLATE, HEADER, TABLE = (DATA[name] for name in ("fill.cu.jinja", "fill.h", "instances.toml"))
SHARED = TEMPLATE.replace(
    b"{ fill_row",
    b"{\n  __shared__ float y[{{ size }}];\n  y[threadIdx.x] = x[1];\n  __syncthreads();\n"
    b"  x[2] = y[threadIdx.x ^ 1];\n  fill_row",
)
MORE_SHARED = HEADER.replace(
    b"  for (",
    b"  __shared__ float z[64];\n  z[threadIdx.x] = x[3];\n  __syncthreads();\n"
    b"  x[4] = z[threadIdx.x ^ 1];\n  for (",
)
STEPS = {
    "0001-operators.patch": {"operators.cpp": (SOURCES / "operators.cpp").read_bytes()},
    "0002-table.patch": DATA,
    "0003-template.patch": {"fill.cu.jinja": SHARED},
    "0004-header.patch": {"fill.h": MORE_SHARED},
    "0005-row.patch": {"instances.toml": TABLE.replace(b"[8, 16]", b"[16, 32]")},
}
EIGHT, SIXTEEN, MORE = (f"fill_{n}_kernel" for n in (8, 16, 32))


@pytest.fixture(scope="module")
def shell(cuda: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return make_shell(tmp_path_factory.mktemp("generate"), cuda, STEPS)


@pytest.fixture
def copy(shell: Shell, tmp_path: Path) -> Shell:
    """A copy in which a test may change the series."""
    shutil.copytree(shell.root.parent / "upstream", tmp_path / "upstream")
    return Shell(shutil.copytree(shell.root, tmp_path / "project", symlinks=True), shell.cuda)


def kernel(name: str) -> str:
    return name.removeprefix("sm70::(anonymous namespace)::").partition("(")[0]


def test_each_patch_is_blamed_for_what_its_template_header_or_row_did(shell: Shell) -> None:
    done = shell.json("resources", "--by-patch")
    assert done["built"] == list(STEPS)
    states: dict[str, dict[str, Any]] = {
        p["patch"][5:-6]: {kernel(k["name"]): k for k in p["kernels"]} for p in done["patches"]
    }
    assert states["operators"] == {}
    assert {n: k["state"] for n, k in states["table"].items()} == {EIGHT: "new", SIXTEEN: "new"}
    shared = {
        step: {name: k["changed"].get("static_shared", {}) for name, k in states[step].items()}
        for step in ("template", "header")
    }
    assert shared["template"] == {
        EIGHT: {"before": 0, "after": 32},
        SIXTEEN: {"before": 0, "after": 64},
    }
    assert shared["header"] == {
        EIGHT: {"before": 32, "after": 288},
        SIXTEEN: {"before": 64, "after": 320},
    }
    assert {n: k["state"] for n, k in states["row"].items()} == {
        EIGHT: "gone",
        SIXTEEN: "kept",
        MORE: "new",
    }


def test_build_verify_and_status_know_generated_units(copy: Shell) -> None:
    built = copy.json("build")
    assert [Path(log).parent.name for log in built["logs"]] == ["generated", "generated"]
    assert copy.run("verify", "--update").returncode == 0
    budgets = (copy.root / "build" / "sm70.resources.toml").read_text()
    assert f"{SIXTEEN}(float*)" in budgets
    assert f"{EIGHT}(" not in budgets
    assert copy.json("verify")["skipped"]
    assert copy.json("status")["current"]
    assert copy.json("build")["compiled"] == 0
    done = copy.json("check", "--each-prefix")
    verdicts = {step["name"].removeprefix("prefix "): step for step in done["steps"]}
    assert {step["verdict"] for step in verdicts.values()} == {"ok"}
    assert "; 0 kernels" in verdicts["0001-operators.patch"]["summary"]
    assert "; 2 kernels" in verdicts["0002-table.patch"]["summary"]


def test_files_beside_the_table_that_are_not_of_the_series_are_refused(copy: Shell) -> None:
    stray = copy.root / "build" / "out" / "src" / SM70 / "stray.cu.jinja"
    stray.write_text("// mine")
    done = copy.run("build")
    assert done.returncode == 5
    assert f"new: {SM70}/stray.cu.jinja" in done.stderr


@pytest.mark.parametrize(("unit", "kept"), [("fill_16_sm70.cu", True), ("fill_8_sm70.cu", False)])
def test_a_patch_can_promise_a_generated_unit(unit: str, kept: bool, copy: Shell) -> None:
    path = copy.root / "patches" / "0005-row.patch"
    promise = f"Subject: [PATCH] 0005-row.patch\n\nAsserts: compiles generated/{unit}\n".encode()
    text = path.read_bytes()
    assert b"Subject: [PATCH] 0005-row.patch\n" in text
    path.write_bytes(text.replace(b"Subject: [PATCH] 0005-row.patch\n", promise))
    done = copy.run("replay", "--lock")
    assert done.returncode == 0, done.stderr
    assert copy.run("build").returncode == 0
    done = copy.run("verify", "--update")
    said = f"`Asserts: compiles generated/{unit}` in line"
    assert (said in done.stdout + done.stderr) is not kept
    assert done.returncode == (0 if kept else 1)


def test_bisect_build_finds_the_patch_whose_template_cannot_be_rendered(copy: Shell) -> None:
    path = copy.root / "patches" / "0003-template.patch"
    text = path.read_bytes()
    assert text.count(b"y[{{ size }}]") == 1
    path.write_bytes(text.replace(b"y[{{ size }}]", b"y[{{ sizes }}]"))
    assert copy.run("replay", "--lock").returncode == 0
    done = copy.run("build")
    assert done.returncode == 7
    assert f"`{SM70}/fill.cu.jinja`, line 8: `sizes` is undefined" in done.stderr
    assert "hint: did you mean `size`?" in done.stderr
    found = copy.json("bisect", "build", code=1)
    assert found["patch"] == "0003-template.patch"
    assert found["findings"][0]["subject"] == "fill_8_sm70.cu"
