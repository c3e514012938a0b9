# SPDX-License-Identifier: Apache-2.0
"""Which patch did it: real compiles of each prefix of a small series."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.git.conftest import git, make_repo, write_files, write_lock

from patchctl.stages.toolchain import Toolchain

from .conftest import SM70

pytestmark = pytest.mark.nvcc

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "tests" / "data" / "verify"
SCHEMAS = """\
namespace = "_vllm_fa2_C"
[[operators]]
schema = "varlen_fwd(Tensor! q, Tensor!? out, float softmax_scale) -> Tensor[]"
"""
SMALL = b"""\
__global__ void __launch_bounds__(32) small(float *x) { x[threadIdx.x] = 1.f; }
__global__ void __launch_bounds__(32) steady(float *x) { x[threadIdx.x] = 3.f; }
"""
MANY = b"""\
float v[24];
#pragma unroll
for (int i = 0; i < 24; ++i) v[i] = x[threadIdx.x + i * 32];
__syncthreads();
#pragma unroll
for (int i = 0; i < 24; ++i) x[threadIdx.x * 7 + i] = v[23 - i] * v[i];
"""
LARGER = SMALL.replace(b"{ x[threadIdx.x] = 1.f; }", b"{\n" + MANY + b"}")
KERNEL = "small(float*)"
NAMES = ("0001-operators.patch", "0002-small.patch", "0003-larger.patch", "0004-words.patch")


class Shell:
    """A project with four patches; `run` is the command line in it."""

    def __init__(self, root: Path, cuda: Toolchain) -> None:
        self.root, self.cuda = root, cuda

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "patchctl", "-C", str(self.root), *words]
        if words[-1] != "--lock":
            command += ["--cuda-home", str(self.cuda.home)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def json(self, *words: str, code: int = 0) -> Any:
        done = self.run(*words, "--json")
        assert done.returncode == code, done.stdout + done.stderr
        data = json.loads(done.stdout)
        return data["error"]["data"] if code else data

    def budget(self, registers: int | None, spill: int = 0) -> None:
        """Write the budgets: those measured by `resources`, `small` with that many registers."""
        text = f"[limits]\nspill_stores = {spill}\n"
        if registers is not None:
            numbers = "spill_stores = 0\nspill_loads = 0\nstack = 0\nstatic_shared = 0\n"
            for name, count in ((KERNEL, registers), ("steady(float*)", self.steady)):
                text += f'[[kernels]]\nname = "{name}"\nregisters = {count}\n{numbers}'
                text += 'dynamic_shared = 0\nthreads = 32\nctas_per_sm = 32\nsince = ""\n'
            text = f'toolkit = "{self.cuda.version}"\n' + text
        (self.root / "build" / "sm70.resources.toml").write_text(text)

    steady = 0


def make_shell(folder: Path, cuda: Toolchain, steps: dict[str, dict[str, bytes]]) -> Shell:
    """A project in `folder`; each patch, by its name, writes these files below sm70/."""
    upstream, root = folder / "upstream", folder / "project"
    baseline = {"LICENSE": b"none\n", "csrc/cutlass/include/here.h": b"\n"}
    commit = make_repo(upstream, baseline)
    tree = git(upstream, "rev-parse", "HEAD^{tree}")
    lock = {"kind": "git", "url": "../upstream", "commit": commit, "tree": tree, "include": ["**"]}
    write_lock(root, lock)
    patches = {}
    for name, files in steps.items():
        write_files(upstream, {f"{SM70}/{to}": content for to, content in files.items()})
        git(upstream, "add", "--force", "--all")
        git(upstream, "commit", "--quiet", "--message", name)
        text = git(upstream, "format-patch", "-1", "--stdout", "--zero-commit", "--full-index")
        patches[name] = text.encode() + b"\n"
    write_files(root / "patches", {**patches, "series": "\n".join([*patches, ""]).encode()})
    (root / "build").mkdir()
    for file in ("sm70.toml", "sm70.abi.toml"):
        shutil.copy(ROOT / "build" / file, root / "build")
    (root / "build" / "sm70.schemas.toml").write_text(SCHEMAS)
    made = Shell(root, cuda)
    made.budget(None)
    done = made.run("replay", "--lock")
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture(scope="module")
def shell(cuda: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    operators = (SOURCES / "operators.cpp").read_bytes()
    steps = ({"operators.cpp": operators}, {"small.cu": SMALL}, {"small.cu": LARGER})
    files = (*steps, {"words.h": b"// nothing\n"})
    folder = tmp_path_factory.mktemp("blame")
    return make_shell(folder, cuda, dict(zip(NAMES, files, strict=True)))


@pytest.fixture(scope="module")
def by_patch(shell: Shell) -> dict[str, dict[str, Any]]:
    """The kernels after each patch."""
    done = shell.json("resources", "--by-patch")
    assert done["built"] == list(NAMES)
    return {p["patch"]: {k["name"]: k for k in p["kernels"]} for p in done["patches"]}


def test_each_patch_is_blamed_for_what_it_changed(by_patch: dict[str, dict[str, Any]]) -> None:
    assert list(by_patch) == list(NAMES)
    assert by_patch[NAMES[0]] == {}
    assert {k["state"] for k in by_patch[NAMES[1]].values()} == {"new"}
    small, larger = by_patch[NAMES[1]][KERNEL], by_patch[NAMES[2]][KERNEL]
    assert larger["registers"] > small["registers"]
    assert larger["changed"] == {
        "registers": {"before": small["registers"], "after": larger["registers"]}
    }
    assert by_patch[NAMES[2]]["steady(float*)"]["changed"] == {}
    assert {k["state"] for k in by_patch[NAMES[3]].values()} == {"kept"}
    assert not any(k["changed"] for k in by_patch[NAMES[3]].values())


def test_second_run_builds_nothing_and_says_the_same(
    shell: Shell, by_patch: dict[str, dict[str, Any]]
) -> None:
    objects = shell.root / "build" / "out" / "blame" / "sm70" / "obj"
    shutil.rmtree(objects)
    again = shell.json("resources", "--by-patch")
    assert again["built"] == []
    assert {p["patch"]: {k["name"]: k for k in p["kernels"]} for p in again["patches"]} == by_patch
    assert not objects.exists()


def test_table_shows_what_changed_and_all_on_request(
    shell: Shell, by_patch: dict[str, dict[str, Any]]
) -> None:
    lines = shell.run("resources", "--by-patch").stdout.splitlines()
    gained = by_patch[NAMES[2]][KERNEL]["changed"]["registers"]
    more = gained["after"] - gained["before"]
    at = lines.index(f"{NAMES[2]}: 1 kernel as before")
    assert lines[at + 1].startswith("small ") and lines[at + 1].endswith(f"registers +{more}")
    assert lines[at + 2] == f"{NAMES[3]}: 2 kernels as before"
    assert f"{NAMES[0]}: no kernel" in lines
    assert sum("steady" in line for line in lines) == 1
    everything = shell.run("resources", "--by-patch", "--all").stdout.splitlines()
    assert sum("steady" in line for line in everything) == 3


def test_bisect_finds_the_patch_that_left_the_budget(
    shell: Shell, by_patch: dict[str, dict[str, Any]]
) -> None:
    shell.steady = by_patch[NAMES[1]]["steady(float*)"]["registers"]
    shell.budget(by_patch[NAMES[1]][KERNEL]["registers"])
    found = shell.json("bisect", "resources", code=1)
    assert (found["patch"], found["number"]) == (NAMES[2], 3)
    assert [f["subject"] for f in found["findings"]] == [KERNEL]
    assert found["assumed"] is True  # the first was not asked
    assert NAMES[0] not in found["asked"]
    in_order = shell.json("bisect", "resources", "--in-order", code=1)
    assert (in_order["patch"], in_order["assumed"]) == (NAMES[2], False)


def test_bisect_of_a_gate_that_passes_asks_everything(
    shell: Shell, by_patch: dict[str, dict[str, Any]]
) -> None:
    shell.steady = by_patch[NAMES[1]]["steady(float*)"]["registers"]
    shell.budget(by_patch[NAMES[2]][KERNEL]["registers"])
    found = shell.json("bisect", "resources")
    assert (found["patch"], len(found["asked"])) == (None, 4)
    done = shell.run("bisect", "resources")
    assert done.stdout == "resources: passes after every patch of the series\n"


def test_bisect_of_schemas_finds_the_patch_with_the_wrong_operator(
    shell: Shell, by_patch: dict[str, dict[str, Any]]
) -> None:
    schemas = shell.root / "build" / "sm70.schemas.toml"
    schemas.write_text(SCHEMAS.replace("float softmax_scale", "int softmax_scale"))
    try:
        found = shell.json("bisect", "schemas", code=1)
    finally:
        schemas.write_text(SCHEMAS)
    assert found["patch"] == NAMES[0]


def test_bisect_build_finds_the_patch_that_does_not_compile(
    shell: Shell, by_patch: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    broken = Shell(tmp_path / "project", shell.cuda)
    shutil.copytree(shell.root, broken.root)
    shutil.rmtree(broken.root / "build" / "out" / "blame")  # and there is no upstream beside it
    patch = broken.root / "patches" / NAMES[2]
    patch.write_bytes(patch.read_bytes().replace(b"x[threadIdx.x + i * 32]", b"y[threadIdx.x]"))
    assert broken.run("replay", "--lock").returncode == 0
    found = broken.json("bisect", "build", code=1)
    assert found["patch"] == NAMES[2]
    assert "small.cu" in found["findings"][0]["subject"]
    other = broken.run("bisect", "resources")
    assert other.returncode == 7
    assert "hint: patchctl bisect build" in other.stderr


def test_series_that_is_not_locked_is_refused(shell: Shell) -> None:
    path = shell.root / "patches" / "series"
    before = path.read_bytes()
    path.write_bytes(before.replace(NAMES[3].encode() + b"\n", b""))
    patch = shell.root / "patches" / NAMES[3]
    text = patch.read_bytes()
    patch.unlink()
    try:
        done = shell.run("bisect", "resources")
    finally:
        path.write_bytes(before)
        patch.write_bytes(text)
    assert done.returncode == 3
    assert "hint: patchctl replay --lock" in done.stderr
