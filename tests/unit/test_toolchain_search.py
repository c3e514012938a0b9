# SPDX-License-Identifier: Apache-2.0
"""Which CUDA toolkit is taken, and what is said of those that are not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from patchctl.errors import ToolMissing
from patchctl.stages import toolchain as search
from patchctl.stages.toolchain import Origin, Toolchain, candidates, chosen, find_toolchain
from patchctl.system.report import QuietReporter

CASE = Path(__file__).resolve().parents[1] / "data" / "cases" / "32"


@pytest.fixture(autouse=True)
def nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without any toolkit."""
    monkeypatch.setenv("PATCHCTL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(search, "SYSTEM_FOLDER", tmp_path / "usr-local")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    tools = tmp_path / "path"
    tools.mkdir()
    for name in ("sh", "printf", "cat"):
        (tools / name).symlink_to(shutil.which(name) or "")
    monkeypatch.setenv("PATH", str(tools))


def toolkit(home: Path, stand_in: str, *, complete: bool = True) -> Path:
    """A toolkit in `home` with the stand-in for an nvcc."""
    (home / "bin").mkdir(parents=True)
    shutil.copy(CASE / stand_in / "bin" / "nvcc", home / "bin" / "nvcc")
    if complete:
        for name in ("include/cuda_runtime.h", "lib64/libcudart.so", "bin/cuobjdump"):
            (home / name).parent.mkdir(exist_ok=True)
            (home / name).touch()
    return home


def find(cuda_home: Path | None = None, report: QuietReporter | None = None) -> Toolchain:
    return find_toolchain("sm_70", report or QuietReporter(), cuda_home=cuda_home)


@pytest.mark.parametrize(("stand_in", "version"), [("cuda118", "11.8.88"), ("cuda129", "12.9.88")])
def test_a_toolkit_that_warns_or_lists_nothing_serves(
    stand_in: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(CASE / stand_in))
    toolchain = find()
    assert (toolchain.version, toolchain.origin) == (version, Origin.VARIABLE)


def test_cuda_13_alone_is_refused_with_what_was_found_and_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = toolkit(tmp_path / "cuda", "cuda13")
    monkeypatch.setenv("CUDA_HOME", str(home))
    with pytest.raises(ToolMissing) as caught:
        find()
    error = caught.value
    assert error.exit_code == 6
    assert error.message == (
        "no CUDA toolkit that compiles for sm_70: CUDA 13.0: nvcc lists no sm_70; the newest "
        f"that does is 12.9 (`{home}`)"
    )
    assert error.hint == "patchctl toolchain install"
    assert any(line.startswith("nvcc on PATH: none") for line in error.details)


def test_nothing_at_all_names_every_place_that_was_looked_at() -> None:
    with pytest.raises(ToolMissing) as caught:
        find()
    assert caught.value.details == (
        "CUDA_HOME: not set",
        "/usr/local/cuda-12*: none",
        "patchctl toolchain install: not installed",
        "nvcc on PATH: none",
    )


def test_an_explicit_toolkit_that_does_not_serve_is_an_error_though_another_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(toolkit(tmp_path / "good", "cuda129")))
    with pytest.raises(ToolMissing, match=r"--cuda-home .* CUDA 13.0: nvcc lists no sm_70"):
        find(toolkit(tmp_path / "explicit", "cuda13"))
    with pytest.raises(ToolMissing, match=r"--cuda-home .* no `.*/nowhere/bin/nvcc`"):
        find(tmp_path / "nowhere")


def test_the_order_is_option_variable_system_private_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path = toolkit(tmp_path / "on-path", "cuda129")
    (tmp_path / "path" / "nvcc").symlink_to(on_path / "bin" / "nvcc")
    assert find().origin is Origin.PATH
    toolkit(tmp_path / "cache" / "toolchains" / "cuda-12.4.131", "cuda129")
    assert find().origin is Origin.PROVISIONED
    toolkit(tmp_path / "usr-local" / "cuda-12.4", "cuda118")
    toolkit(tmp_path / "usr-local" / "cuda-12.10", "cuda129")
    assert find().home == tmp_path / "usr-local" / "cuda-12.10"
    monkeypatch.setenv("CUDA_HOME", str(toolkit(tmp_path / "variable", "cuda118")))
    assert find().origin is Origin.VARIABLE
    assert find(toolkit(tmp_path / "option", "cuda129")).origin is Origin.OPTION


def test_a_wrapper_script_on_path_leads_to_its_toolkit(tmp_path: Path) -> None:
    home = toolkit(tmp_path / "cuda", "cuda129")
    nvcc = home / "bin" / "nvcc"
    said = f'case " $* " in *--dryrun*) echo "#$ _HERE_={home}/bin" >&2; exit 0;; esac\n'
    first, rest = nvcc.read_text().split("\n", 1)
    nvcc.write_text(f"{first}\n{said}{rest}")
    wrapper = tmp_path / "path" / "nvcc"
    wrapper.write_text(f'#!/bin/sh\nexec {nvcc} "$@"\n')
    wrapper.chmod(0o755)
    assert find().home == home
    assert find().lacks == ()


def test_cuda_home_that_does_not_serve_is_passed_over_aloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(toolkit(tmp_path / "bad", "cuda13")))
    toolkit(tmp_path / "usr-local" / "cuda-12.9", "cuda129")
    report = QuietReporter()
    assert find(report=report).origin is Origin.SYSTEM
    (warning,) = report.warnings
    assert "CUDA_HOME" in warning
    assert "nvcc lists no sm_70" in warning


def test_a_whole_toolkit_goes_before_one_without_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = toolkit(tmp_path / "bare", "cuda129", complete=False)
    monkeypatch.setenv("CUDA_HOME", str(bare))
    assert find().lacks == ("cuda_runtime.h", "libcudart.so", "cuobjdump")
    toolkit(tmp_path / "usr-local" / "cuda-12.9", "cuda129")
    assert find().origin is Origin.SYSTEM


def test_an_nvcc_that_does_not_start_is_a_reason_not_a_crash(tmp_path: Path) -> None:
    nvcc = tmp_path / "usr-local" / "cuda-12.0" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    nvcc.chmod(0o755)
    with pytest.raises(ToolMissing) as caught:
        find()
    assert any("exit code 3: broken" in line for line in caught.value.details)


def test_answers_are_remembered_until_nvcc_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = toolkit(tmp_path / "cuda", "cuda13")
    nvcc = home / "bin" / "nvcc"
    log = tmp_path / "asked"
    first, rest = nvcc.read_text().split("\n", 1)
    nvcc.write_text(f'{first}\necho "$*" >>{log}\n{rest}')
    monkeypatch.setenv("CUDA_HOME", str(home))
    first_time = candidates("sm_70")
    questions = log.read_text()
    assert "--version" in questions
    assert candidates("sm_70") == first_time
    assert log.read_text() == questions
    shutil.copy(CASE / "cuda129" / "bin" / "nvcc", nvcc)
    choice = chosen(candidates("sm_70"))
    assert choice is not None
    assert choice.toolchain is not None
    assert choice.toolchain.version == "12.9.88"


def test_a_damaged_memory_of_answers_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(toolkit(tmp_path / "cuda", "cuda129")))
    find()
    (tmp_path / "cache" / "nvcc-answers.json").write_text("[]")
    assert find().version == "12.9.88"
