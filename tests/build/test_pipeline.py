# SPDX-License-Identifier: Apache-2.0
"""A maintainer's day with the command line: every stage, on a small series with real compiles."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.git.conftest import git, make_repo, write_files, write_lock

from patchctl.stages.toolchain import Toolchain

from .conftest import SM70

pytestmark = pytest.mark.nvcc

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "tests" / "data" / "verify"
BASELINE = {"LICENSE": b"none\n", "csrc/cutlass/include/here.h": b"\n"}
SCHEMAS = """\
namespace = "_vllm_fa2_C"
[[operators]]
schema = "varlen_fwd(Tensor! q, Tensor!? out, float softmax_scale) -> Tensor[]"
"""


@dataclass
class Shell:
    """Runs patchctl in a project as a user would."""

    root: Path
    cuda: Toolchain

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "patchctl", "-C", str(self.root), *words]
        if words[0] in ("build", "verify", "check", "status"):
            command += ["--cuda-home", str(self.cuda.home)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def ok(self, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self.run("--json", *words).stdout)

    def refused(self, code: int, said: str, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode == code, done.stdout + done.stderr
        assert said in done.stdout + done.stderr
        return done.stderr

    def current(self) -> dict[str, bool]:
        stages = self.json("status")["stages"]
        return {stage["stage"]: stage["current"] for stage in stages}


def series(upstream: Path) -> dict[str, bytes]:
    """Two patches, made by git: the operators, then the kernels."""
    steps = {
        "0001-add-operators.patch": {f"{SM70}/operators.cpp": "operators.cpp"},
        "0002-add-kernels.patch": {f"{SM70}/kernels.cu": "kernels.cu"},
    }
    patches = {}
    for name, files in steps.items():
        write_files(upstream, {to: (SOURCES / of).read_bytes() for to, of in files.items()})
        git(upstream, "add", "--force", "--all")
        git(upstream, "commit", "--quiet", "--message", name)
        text = git(upstream, "format-patch", "-1", "--stdout", "--zero-commit", "--full-index")
        patches[name] = text.encode() + b"\n"
    return patches


@pytest.fixture
def shell(cuda: Toolchain, tmp_path: Path) -> Shell:
    upstream, root = tmp_path / "upstream", tmp_path / "project"
    commit = make_repo(upstream, BASELINE)
    tree = git(upstream, "rev-parse", "HEAD^{tree}")
    where = {"url": "../upstream", "commit": commit}
    write_lock(root, {"kind": "git", **where, "tree": tree, "include": ["**"]})
    patches = series(upstream)
    write_files(root / "patches", {**patches, "series": "\n".join([*patches, ""]).encode()})
    (root / "build").mkdir()
    for name in ("sm70.toml", "sm70.abi.toml"):
        shutil.copy(ROOT / "build" / name, root / "build")
    (root / "build" / "sm70.schemas.toml").write_text(SCHEMAS)
    (root / "build" / "sm70.resources.toml").write_text("[limits]\nspill_stores = 999999\n")
    return Shell(root, cuda)


def test_from_nothing_to_verified_and_through_an_edit(shell: Shell) -> None:
    assert shell.current() == dict.fromkeys(("fetch", "replay", "build", "verify"), False)
    shell.refused(3, "hint: patchctl replay --lock", "replay")
    shell.ok("replay", "--lock")
    assert shell.json("build")["compiled"] == 2
    shell.refused(1, "it has no budget", "verify")
    shell.ok("verify", "--update")
    shell.ok("verify")
    assert all(shell.current().values())

    edited = shell.root / "build" / "out" / "src" / SM70 / "kernels.cu"
    before = edited.read_bytes()
    edited.write_bytes(before + b"__global__ void more(int *x) { *x = 1; }\n")
    assert shell.current() == {"fetch": True, "replay": False, "build": False, "verify": False}
    shell.refused(5, "changed by hand", "build")
    assert edited.read_bytes() != before
    assert shell.json("build", "--edited")["compiled"] == 1
    shell.refused(1, "edited by hand", "verify")
    shell.refused(1, "edited by hand", "install", "--python", sys.executable)

    shell.ok("replay", "--discard")
    assert edited.read_bytes() == before
    assert shell.json("build")["compiled"] == 1
    shell.ok("verify")
    assert all(shell.current().values())


def test_library_of_another_source_is_refused_though_it_was_verified(shell: Shell) -> None:
    install = ("install", "--python", sys.executable)
    shell.ok("replay", "--lock")
    shell.ok("build")
    shell.ok("verify", "--update")

    edited = shell.root / "build" / "out" / "src" / SM70 / "operators.cpp"
    edited.write_bytes(edited.read_bytes() + b"// the same code, so the same library\n")
    shell.ok("build", "--edited")
    shell.refused(1, "edited by hand", "verify")
    shell.refused(1, "edited by hand", *install)
    shell.ok("replay", "--discard")
    shell.ok("build")
    shell.ok("verify")

    shell.ok("replay", "--through", "0001-add-operators.patch")
    shell.refused(1, "but the replayed tree is", "verify")
    shell.refused(1, "but the replayed tree is", *install)
    shell.ok("replay")
    shell.ok("verify")

    target = shell.root / "build" / "sm70.toml"
    target.write_text(target.read_text() + "# a comment\n")
    shell.refused(1, "built before `build/sm70.toml` changed", "verify")
    shell.ok("build")
    shell.ok("verify")


def test_new_file_in_the_source_tree_is_never_compiled_unseen(shell: Shell, tmp_path: Path) -> None:
    shell.ok("replay", "--lock")
    shell.ok("build")
    source = shell.root / "build" / "out" / "src"
    (source / "notes.txt").write_text("no part of any library\n")
    shell.ok("build")
    (source / "notes.txt").unlink()

    (source / SM70 / "more.cu").write_text("__global__ void more(int *x) { *x = 1; }\n")
    refused = shell.refused(5, f"new: {SM70}/more.cu", "build")
    assert shell.json("build", "--edited")["compiled"] == 1

    (command,) = [line for line in refused.splitlines() if "read-tree" in line]
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    (tmp_path / "edits.diff").rename(shell.root / "patches" / "0003-more.patch")
    with (shell.root / "patches" / "series").open("a") as series:
        series.write("0003-more.patch\n")
    shell.ok("replay", "--lock")
    shell.ok("build")


def test_check_does_everything_elsewhere_and_leaves_the_project_alone(shell: Shell) -> None:
    shell.ok("replay", "--lock")
    shell.ok("build")
    shell.ok("verify", "--update")
    before = shell.json("status")
    done = shell.json("check", "--each-prefix")
    assert done["ok"] is True
    assert [(step["name"], step["verdict"]) for step in done["steps"]] == [
        (name, "ok")
        for name in (
            "toolchain",
            "fetch",
            "prefix 0001-add-operators.patch",
            "replay",
            "build",
            "verify",
            "emulate",
            "install",
        )
    ]
    prefix = "0001-add-operators.patch: "
    assert done["findings"] and all(f["subject"].startswith(prefix) for f in done["findings"])
    assert not (shell.root / "build" / "out" / "check").exists()
    assert shell.json("status") == before


def test_check_of_a_drifted_patch_names_it_and_runs_nothing_after(shell: Shell) -> None:
    shell.ok("replay", "--lock")
    patch = shell.root / "patches" / "0002-add-kernels.patch"
    patch.write_bytes(patch.read_bytes().replace(b"+// SPDX", b"+//  SPDX", 1))
    done = shell.run("check", "--json")
    assert done.returncode == 3
    error = json.loads(done.stdout)["error"]
    assert "0002-add-kernels.patch" in error["message"]
    verdicts = {step["name"]: step["verdict"] for step in error["data"]["steps"]}
    assert verdicts["replay"] == "failed"
    assert verdicts["build"] == verdicts["verify"] == verdicts["install"] == "not run"
    shell.refused(3, "0002-add-kernels.patch", "check")


def test_check_of_all_baselines_is_a_table_and_fails_with_its_worst_cell(shell: Shell) -> None:
    shell.ok("replay", "--lock")
    shell.ok("build")
    shell.ok("verify", "--update")
    # the second patch makes a file that this baseline has
    commit = make_repo(shell.root.parent / "other", {**BASELINE, f"{SM70}/kernels.cu": b"\n"})
    tree = git(shell.root.parent / "other", "rev-parse", "HEAD^{tree}")
    (shell.root / "vendor" / "other.lock.toml").write_text(
        f'[baseline]\nkind = "git"\nurl = "../other"\ncommit = "{commit}"\n'
        f'tree = "{tree}"\ninclude = ["**"]\n'
    )
    done = shell.run("check", "--all-baselines")
    assert done.returncode == 4
    rows = [line.split("  ") for line in done.stdout.splitlines() if line.startswith("000")]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert cells == [
        ["0001-add-operators.patch", "exact", "exact"],
        ["0002-add-kernels.patch", "exact, builds, verifies", "conflict"],
    ]
    assert "error: baseline other: patch `0002-add-kernels.patch`" in done.stderr
    assert "installing" in done.stderr  # the baseline that passes went all the way
