# SPDX-License-Identifier: Apache-2.0
"""``patchctl toolchain show`` and ``patchctl build`` where no toolkit serves."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from patchctl.cli.app import funnel
from patchctl.cli.main import main
from patchctl.stages import toolchain as search

ROOT = Path(__file__).resolve().parents[2]
CASE = ROOT / "tests" / "data" / "cases" / "32"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project on a machine where nothing but CUDA_HOME can name a toolkit."""
    root = tmp_path / "project"
    for folder in ("patches", "vendor", "build"):
        (root / folder).mkdir(parents=True)
    shutil.copy(ROOT / "build" / "sm70.toml", root / "build")
    shutil.copy(ROOT / "vendor" / "cuda.lock.toml", root / "vendor")
    monkeypatch.setenv("PATCHCTL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(search, "SYSTEM_FOLDER", tmp_path / "usr-local")
    monkeypatch.setattr(search.shutil, "which", lambda name: None)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    return root


def patchctl(project: Path, *arguments: str) -> int:
    return funnel(main, ["-C", str(project), *arguments])


def test_show_marks_the_chosen_toolkit(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(CASE / "cuda129"))
    assert patchctl(project, "toolchain", "show") == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("*")]
    assert line.split()[:4] == ["*", "CUDA_HOME", str(CASE / "cuda129"), "12.9.88"]


def test_show_of_cuda_13_alone_lists_it_and_says_what_helps(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(CASE / "cuda13"))
    assert patchctl(project, "toolchain", "show") == 6
    said = capsys.readouterr()
    assert "CUDA 13.0: nvcc lists no sm_70; the newest that does is 12.9" in said.out
    assert "hint: patchctl toolchain install" in said.err
    assert "nvcc on PATH" not in said.err  # the table has said it


def test_show_as_json_is_one_object_and_the_code_still_says_no(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(CASE / "cuda13"))
    assert patchctl(project, "toolchain", "show", "--json") == 6
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["exit"], error["data"]["chosen"]) == (6, None)
    assert [c["origin"] for c in error["data"]["candidates"]] == [
        "CUDA_HOME",
        "/usr/local/cuda-12*",
        "patchctl toolchain install",
        "nvcc on PATH",
    ]


def test_build_without_a_toolkit_stops_before_any_work(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert patchctl(project, "build", "--json") == 6
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["message"] == "no CUDA toolkit that compiles for sm_70"
    assert not (project / "build" / "out").exists()


def test_build_with_an_explicit_toolkit_that_does_not_serve_names_it(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert patchctl(project, "build", "--cuda-home", str(CASE / "cuda13")) == 6
    assert f"error: --cuda-home `{CASE / 'cuda13'}` cannot serve" in capsys.readouterr().err


def test_an_unknown_target_names_those_that_are_there(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert patchctl(project, "--target", "sm80", "build") == 2
    said = capsys.readouterr().err
    assert "there is no target `sm80`: no `build/sm80.toml`" in said
    assert "hint: --target with one of: sm70" in said


def test_a_wrong_key_in_the_toolchain_lock_is_refused(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = project / "vendor" / "cuda.lock.toml"
    lock.write_text(lock.read_text().replace("component =", "componant ="))
    assert patchctl(project, "toolchain", "install") == 2
    assert (
        "`vendor/cuda.lock.toml` at `debian`: unknown key `componant`; did you mean `component`?"
        in capsys.readouterr().err
    )


def test_a_missing_toolchain_lock_is_named(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "vendor" / "cuda.lock.toml").unlink()
    assert patchctl(project, "toolchain", "install") == 2
    assert "error: `vendor/cuda.lock.toml` is missing" in capsys.readouterr().err
