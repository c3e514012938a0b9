# SPDX-License-Identifier: Apache-2.0
"""``patchctl emulate`` on a small kernel that a real compiler made, right and wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from patchctl.cli.app import funnel
from patchctl.cli.main import main
from patchctl.emulator import params
from patchctl.stages.build import built_library, load_target
from patchctl.stages.emulategate import record_name
from patchctl.stages.toolchain import Toolchain
from patchctl.system.project import open_project
from patchctl.system.records import load_record

pytestmark = pytest.mark.nvcc

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "tests" / "data" / "emulator" / "naive.cu"
RULE = """
[[kernels]]
match = 'naive_fwd_kernel<(?P<head_dim>\\d+)>'
work = "attention"
rows = {rows}
can = ["plain", "right", "contiguous"]
routes = ["naive"]
"""

Compile = Callable[[int], Path]


@pytest.fixture(scope="module")
def compiled(cuda: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Object files of the kernel, by what is wrong with it."""
    folder = tmp_path_factory.mktemp("naive")

    def make(wrong: int) -> Path:
        output = folder / f"naive{wrong}.o"
        code = "-gencode=arch=compute_70,code=[sm_70,compute_70]"
        if not output.exists():
            flags = ["-std=c++17", "-O3", code, f"-DWRONG={wrong}", "-c"]
            subprocess.run([cuda.nvcc, *flags, "-o", output, SOURCE], check=True)
        return output

    return make


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a rule for the kernel."""
    for folder in ("patches", "vendor", "build"):
        (tmp_path / folder).mkdir()
    shutil.copy(ROOT / "build" / "sm70.toml", tmp_path / "build")
    (tmp_path / "build" / "sm70.emulator.toml").write_text(RULE.format(rows=32))
    return tmp_path


def emulate(project: Path, library: Path, *options: str) -> int:
    return funnel(main, ["-C", str(project), "emulate", "--library", str(library), *options])


def test_kernel_is_right_in_both_forms(
    project: Path, compiled: Compile, capsys: pytest.CaptureFixture[str]
) -> None:
    assert emulate(project, compiled(0), "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["findings"] == []
    names = [launch["problem"] for launch in data["launches"]]
    assert names == ["no mask", "causal, rows without a key"]
    for launch in data["launches"]:
        assert launch["equal"] is True
        assert set(launch["forms"]) == {"ptx", "sass"}
        for form in launch["forms"].values():
            assert form["max_error"] < 2e-3 and form["faults"] == 0 and form["steps"] > 100


def test_shape_and_route_choose_what_runs(
    project: Path, compiled: Compile, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = "q=3+4,k=9+20,heads=4/2,causal"
    assert emulate(project, compiled(0), "naive", "--shape", shape, "--form", "ptx") == 0
    out = capsys.readouterr().out
    assert shape in out and "naive_fwd_kernel<16>" in out
    assert " sass " not in out and "no findings" in out


def test_access_past_the_end_names_the_tensor(
    project: Path, compiled: Compile, capsys: pytest.CaptureFixture[str]
) -> None:
    assert emulate(project, compiled(1), "--shape", "q=5,k=9") == 1
    out, err = capsys.readouterr()
    assert "out_of_bounds: out:" in out and "0 bytes past the end" in out
    assert "st.global" in out and "STG" in out
    assert "does not pass the emulator" in err


def test_wrong_result_is_a_finding(
    project: Path, compiled: Compile, capsys: pytest.CaptureFixture[str]
) -> None:
    assert emulate(project, compiled(2), "--shape", "q=5,k=9", "--json") == 1
    findings = json.loads(capsys.readouterr().out)["error"]["data"]["findings"]
    assert [f["message"].split(":")[0] for f in findings] == ["ptx", "sass"]
    assert all("LSE 1.0e-02" in f["message"] or "LSE 9.9" in f["message"] for f in findings)


def test_wrong_number_of_rows_is_a_finding(
    project: Path, compiled: Compile, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "build" / "sm70.emulator.toml").write_text(RULE.format(rows=64))
    assert emulate(project, compiled(0), "--shape", "q=40,k=9", "--form", "ptx") == 1
    assert "values missing" in capsys.readouterr().out


def test_kernel_without_a_rule_is_a_finding(
    project: Path, compiled: Compile, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "build" / "sm70.emulator.toml").write_text("")
    assert emulate(project, compiled(0)) == 1
    assert "no rule says how it is launched" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["nobody"], "has no kernel `nobody`"),
        (["("], "is no pattern"),
        (["--shape", "casual"], "no `casual`"),
    ],
)
def test_what_is_not_there_is_refused(
    project: Path,
    compiled: Compile,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    assert emulate(project, compiled(0), *arguments) == 2
    assert message in capsys.readouterr().err


def test_without_a_library_the_build_is_named(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert funnel(main, ["-C", str(project), "emulate"]) == 2
    assert "patchctl build" in capsys.readouterr().err


def _gate(project: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, bool]:
    """Exit code, and whether nothing had to be run."""
    code = funnel(main, ["-C", str(project), "emulate", "--json", *options])
    return code, json.loads(capsys.readouterr().out).get("skipped") is True


def test_gate_runs_again_only_when_something_changed(
    project: Path, compiled: Compile, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = open_project(project)
    target = load_target(opened, "sm70")
    library = built_library(opened, target)
    library.parent.mkdir(parents=True)
    shutil.copy(compiled(0), library)
    assert _gate(project, capsys) == (0, False)
    assert _gate(project, capsys) == (0, True)
    assert _gate(project, capsys, "--again") == (0, False)
    rules = opened.emulator_file("sm70")
    rules.write_text(rules.read_text() + "# another digest\n")
    assert _gate(project, capsys) == (0, False)
    assert _gate(project, capsys, "--shape", "q=2,k=3") == (0, False)
    assert _gate(project, capsys) == (0, True)  # a single problem is not the gate
    shutil.copy(compiled(2), library)
    assert _gate(project, capsys) == (1, False)
    assert load_record(opened, record_name(target)) is None
    assert _gate(project, capsys) == (1, False)
    shutil.copy(compiled(0), library)
    assert _gate(project, capsys) == (0, False)


def test_opcodes_that_ran_are_listed(
    project: Path, compiled: Compile, capsys: pytest.CaptureFixture[str]
) -> None:
    assert emulate(project, compiled(0), "--shape", "q=2,k=3", "--opcodes") == 0
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line.split() for line in lines if line.startswith("MUFU.EX2")]
    assert int(row[1]) >= 1 and row[2] == "1"


def test_parameters_lie_where_the_source_puts_them(tmp_path: Path) -> None:
    """FA2's own header, when the project's tree is there."""
    header = ROOT / "build" / "out" / "src" / "csrc" / "flash_attn" / "src" / "flash.h"
    if not header.exists():
        pytest.skip("the tree is not replayed")
    lines = "".join(
        f'printf("{name} %zu\\n", offsetof(FLASH_NAMESPACE::Flash_fwd_params, {name}));'
        for name in params.FIELDS
    )
    (tmp_path / "cuda_runtime_api.h").write_text("typedef struct CUstream_st *cudaStream_t;")
    (tmp_path / "cuda.h").write_text("")
    source = tmp_path / "offsets.cpp"
    source.write_text(
        "#include <cstddef>\n#include <cstdint>\n#include <cstdio>\n"
        "#define FLASHATTENTION_STABLE_ABI\n"
        f'#include "{header}"\nint main() {{ {lines}\n'
        'printf("size %zu\\n", sizeof(FLASH_NAMESPACE::Flash_fwd_params)); }'
    )
    program = tmp_path / "offsets"
    flags = ["-std=c++17", "-Wno-invalid-offsetof", f"-I{tmp_path}"]
    subprocess.run(["g++", *flags, source, "-o", program], check=True)
    done = subprocess.run([program], check=True, capture_output=True, text=True)
    found = dict(line.split() for line in done.stdout.splitlines())
    assert found.pop("size") == str(params.SIZE)
    assert found == {name: str(field.offset) for name, field in params.FIELDS.items()}
