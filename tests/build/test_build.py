# SPDX-License-Identifier: Apache-2.0
"""Building with a real nvcc: incremental, reproducible, and whole whatever happens."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from patchctl.errors import BuildFailed, ToolMissing, Unavailable, UsageError
from patchctl.stages import build as stage
from patchctl.stages import hostcompiler
from patchctl.stages.build import BuildResult, build, build_inputs, load_target
from patchctl.stages.objects import forget_objects
from patchctl.stages.toolchain import Toolchain
from patchctl.stages.torchpackage import TorchPackage
from patchctl.system.files import sha256_of
from patchctl.system.project import Project
from patchctl.system.records import load_record
from patchctl.system.report import QuietReporter

from .conftest import SM70, MakeTiny

pytestmark = pytest.mark.nvcc


@pytest.fixture(scope="module")
def built(
    tmp_path_factory: pytest.TempPathFactory, cuda: Toolchain, make_tiny: MakeTiny
) -> Project:
    """A tiny project that is built; tests work on copies."""
    project = make_tiny(tmp_path_factory.mktemp("built") / "project")
    assert make(project, cuda).compiled == 3
    return project


@pytest.fixture
def project(built: Project, tmp_path: Path) -> Project:
    """A copy with the time stamps of the built one."""
    shutil.copytree(built.root, tmp_path / "project", symlinks=True)
    return Project(tmp_path / "project", tmp_path / "project" / "build" / "out")


def make(
    project: Project, cuda: Toolchain, *, report: QuietReporter | None = None, jobs: int = 2
) -> BuildResult:
    target = load_target(project, "sm70")
    return build(project, target, cuda, report or QuietReporter(), jobs=jobs)


def source(project: Project, name: str) -> Path:
    return project.source / SM70 / name


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_the_library_loads_under_cpu_torch_and_as_a_module(built: Project, cuda: Toolchain) -> None:
    library = built.objects("sm70") / "_vllm_fa2_C.abi3.so"
    code = (
        "import importlib.machinery, importlib.util, sys, torch\n"
        "loader = importlib.machinery.ExtensionFileLoader('_vllm_fa2_C', sys.argv[1])\n"
        "spec = importlib.util.spec_from_loader('_vllm_fa2_C', loader)\n"
        "print(importlib.util.module_from_spec(spec).__name__)\n"
        "print(torch.ops._vllm_fa2_C.scale_.default._schema)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, library],
        env={**os.environ, "LD_LIBRARY_PATH": str(cuda.lib64)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == "_vllm_fa2_C"
    assert "scale_(Tensor(a!) x, float by)" in done.stdout


def test_only_the_targets_architecture_is_inside(built: Project, cuda: Toolchain) -> None:
    library = built.objects("sm70") / "_vllm_fa2_C.abi3.so"
    for question, expected in (("--list-elf", "sm_70"), ("--list-ptx", "sm_70")):
        said = subprocess.run(
            [cuda.cuobjdump, question, library], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        assert len(said) == 2
        assert all(expected in line for line in said)


def test_nothing_to_do_compiles_nothing_and_changes_nothing(
    project: Project, cuda: Toolchain
) -> None:
    library = project.objects("sm70") / "_vllm_fa2_C.abi3.so"
    log = project.objects("sm70") / "build.log"
    before = (library.stat().st_ino, log.read_text(), load_record(project, "build-sm70"))
    assert make(project, cuda).compiled == 0
    assert (library.stat().st_ino, log.read_text(), load_record(project, "build-sm70")) == before


def test_an_edit_compiles_only_what_includes_it_and_the_report_stays_whole(
    project: Project, cuda: Toolchain
) -> None:
    edit(source(project, "other.cu"), "x[0] = 1", "x[0] = 2")
    done = make(project, cuda)
    assert done.compiled == 1
    assert len(done.logs) == 2
    assert all("Compiling entry function" in log.read_text() for log in done.logs)
    edit(source(project, "scale.h"), "#pragma once", "#pragma once\n// edited")
    assert make(project, cuda).compiled == 2  # scale.cu and module.cpp


def test_a_new_and_a_removed_unit_are_noticed(project: Project, cuda: Toolchain) -> None:
    source(project, "other.cu").rename(source(project, "third.cu"))
    done = make(project, cuda)
    assert done.compiled == 1
    names = [log.name for log in done.logs]
    assert names == ["scale.cu.o.ptxas.log", "third.cu.o.ptxas.log"]
    assert not list(project.objects("sm70").rglob("other.cu*"))


def test_two_folders_give_the_same_bytes(
    built: Project, cuda: Toolchain, make_tiny: MakeTiny, tmp_path: Path
) -> None:
    other = make_tiny(tmp_path / "a longer path with blanks" / "p")
    make(other, cuda, jobs=1)
    digests = []
    for project in (built, other):
        folder = project.objects("sm70")
        files = [p for p in folder.rglob("*") if p.suffix in (".o", ".so", ".log")]
        digests.append(
            {str(p.relative_to(folder)): sha256_of(p) for p in files if p.name != "build.log"}
        )
    assert len(digests[0]) == 7  # three objects, two logs, the library and what the linker made
    assert digests[0] == digests[1]


def test_a_lost_ptxas_log_is_made_again(project: Project, cuda: Toolchain) -> None:
    (log, *_) = make(project, cuda).logs
    log.unlink()
    assert make(project, cuda).compiled == 1
    assert log.exists()


@pytest.mark.parametrize("content", [b"", b"ptxas info    : 0 bytes gmem\n"])
@pytest.mark.parametrize("damaged", ["other.cu.o.ptxas.log", "other.cu.o"])
def test_an_output_of_a_compiler_that_was_changed_is_made_again_and_only_that(
    damaged: str, content: bytes, project: Project, cuda: Toolchain
) -> None:
    done = make(project, cuda)
    path = project.objects("sm70") / "obj" / SM70 / damaged
    before = path.read_bytes()
    path.write_bytes(content)
    again = make(project, cuda)
    assert (again.compiled, again.sha256) == (1, done.sha256)
    assert path.read_bytes() == before
    assert make(project, cuda).compiled == 0


def test_an_empty_ptxas_log_is_made_again_after_a_killed_build_too(
    project: Project, cuda: Toolchain
) -> None:
    (log, *_) = make(project, cuda).logs
    forget_objects(project.objects("sm70"))
    log.write_text("")
    assert make(project, cuda).compiled == 1
    assert "Compiling entry function" in log.read_text()


def test_what_belongs_to_no_unit_is_removed_though_there_is_nothing_to_do(
    project: Project, cuda: Toolchain
) -> None:
    make(project, cuda)
    folder = project.objects("sm70") / "obj" / SM70
    for name in ("gone.cu.o", "gone.cu.o.ptxas.log", "scale.cpp1.ii"):
        (folder / name).write_text("left by a killed build")
    assert make(project, cuda).compiled == 0
    assert {p.name.split(".")[0] for p in folder.iterdir()} == {"module", "other", "scale"}
    assert len(list(folder.iterdir())) == 5


def test_older_time_stamps_with_other_content_compile_everything(
    project: Project, cuda: Toolchain
) -> None:
    make(project, cuda)
    path = source(project, "other.cu")
    edit(path, "x[0] = 1", "x[0] = 3")
    os.utime(path, ns=(10**18, 10**18))
    report = QuietReporter()
    assert make(project, cuda, report=report).compiled == 3
    assert "without a newer time stamp" in report.warnings[0]


def test_changed_torch_headers_compile_the_host_units_whatever_their_time_stamps(
    project: Project, cuda: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = build_inputs(project, load_target(project, "sm70"), cuda)
    monkeypatch.setattr(hostcompiler, "_headers_digest", lambda package: "0" * 64)
    assert make(project, cuda).compiled == 1
    after = build_inputs(project, load_target(project, "sm70"), cuda)
    assert {name for name in after if after[name] != before[name]} == {"torch"}


@pytest.mark.parametrize("damaged", ["_vllm_fa2_C.abi3.so", "link/_vllm_fa2_C.abi3.so"])
@pytest.mark.parametrize("how", ["half", "empty", "gone"])
def test_a_damaged_library_is_not_up_to_date(
    damaged: str, how: str, project: Project, cuda: Toolchain
) -> None:
    path = project.objects("sm70") / damaged
    whole = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(whole[: len(whole) // 2] if how == "half" else b"")
    done = make(project, cuda)
    assert done.compiled == 0
    assert path.read_bytes() == whole
    assert done.library.read_bytes() == whole


def test_a_compile_error_shows_the_first_error_and_keeps_the_last_library(
    project: Project, cuda: Toolchain
) -> None:
    library = project.objects("sm70") / "_vllm_fa2_C.abi3.so"
    before = library.read_bytes()
    edit(source(project, "other.cu"), "x[0] = 1", "x[0] = undeclared")
    with pytest.raises(BuildFailed) as caught:
        make(project, cuda)
    error = caught.value
    assert error.exit_code == 7
    assert error.message.startswith(f"compiling `{SM70}/other.cu` failed")
    assert any('identifier "undeclared" is undefined' in line for line in error.details)
    log = project.objects("sm70") / "build.log"
    assert error.details[-1] == f"full log: {log}"
    assert "undeclared" in log.read_text()
    assert library.read_bytes() == before
    edit(source(project, "other.cu"), "x[0] = undeclared", "x[0] = 1")
    assert make(project, cuda).library.read_bytes() == before


def test_warnings_do_not_stay_in_the_log_unseen(project: Project, cuda: Toolchain) -> None:
    edit(source(project, "other.cu"), "x[0] = 1", "int unused; x[0] = 1")
    report = QuietReporter()
    make(project, cuda, report=report)
    assert report.warnings == ["1 warning of compilers; see `build/out/sm70/build.log`"]


def test_a_link_error_names_the_library(project: Project, cuda: Toolchain) -> None:
    edit(project.target_file("sm70"), '"dl"]', '"no_such_library"]')
    with pytest.raises(BuildFailed) as caught:
        make(project, cuda)
    assert caught.value.message.startswith("linking `link/_vllm_fa2_C.abi3.so` failed")
    assert any("no_such_library" in line for line in caught.value.details)


def stand_in_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A g++ that answers questions like the real one and does `script` for a compile."""
    real = shutil.which("g++")
    path = folder / "g++"
    path.write_text(f'#!/bin/sh\ncase " $* " in *" -c "*.cpp*) {script};; esac\nexec {real} "$@"\n')
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))


def test_a_killed_compiler_is_called_lack_of_memory(
    project: Project, cuda: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in_compiler(tmp_path, monkeypatch, "kill -9 $$")
    with pytest.raises(BuildFailed) as caught:
        make(project, cuda)
    assert "most likely for lack of memory" in caught.value.message
    assert caught.value.hint == "patchctl build -j 1"


def test_a_full_disk_is_no_build_failure(
    project: Project, cuda: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "echo 'fatal error: error writing to x.s: No space left on device' >&2; exit 1"
    stand_in_compiler(tmp_path, monkeypatch, said)
    with pytest.raises(Unavailable) as caught:
        make(project, cuda)
    assert caught.value.exit_code == 8


def test_a_compiler_that_fails_without_a_word_on_a_full_disk_is_no_build_failure(
    project: Project, cuda: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in_compiler(tmp_path, monkeypatch, "exit 1")
    with pytest.raises(BuildFailed):
        make(project, cuda)
    full = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr(stage.shutil, "disk_usage", lambda path: full)
    with pytest.raises(Unavailable, match="no space left on the disk"):
        make(project, cuda)


def test_ctrl_c_leaves_no_compiler_and_no_half_library(
    project: Project, cuda: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = project.objects("sm70") / "_vllm_fa2_C.abi3.so"
    before = library.read_bytes()
    mark = tmp_path / "compiling"
    stand_in_compiler(
        tmp_path, monkeypatch, f"echo $$ >'{mark}.t'; mv '{mark}.t' '{mark}'; sleep 60"
    )
    edit(source(project, "module.cpp"), "must be contiguous", "must be dense")
    code = (
        "import signal, sys\n"
        "from pathlib import Path\n"
        "from patchctl.cli.app import funnel\n"
        "from patchctl.stages.build import build, load_target\n"
        "from patchctl.stages.toolchain import find_toolchain\n"
        "from patchctl.system.project import Project\n"
        "from patchctl.system.report import QuietReporter\n"
        "root, home = map(Path, sys.argv[1:])\n"
        "project, report = Project(root, root / 'build' / 'out'), QuietReporter()\n"
        "toolchain = find_toolchain('sm_70', report, cuda_home=home)\n"
        "try:\n"
        "    build(project, load_target(project, 'sm70'), toolchain, report)\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(130)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, project.root, cuda.home])
    deadline = time.monotonic() + 60
    while not mark.exists():
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    assert child.wait(30) == 130
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)
    assert library.read_bytes() == before
    monkeypatch.delenv("CXX")
    # with the kernels that another compiler was used for in between, as far as it came
    assert make(project, cuda).compiled >= 1
    assert library.read_bytes() != before


def test_nothing_that_matches_is_an_error_not_an_empty_library(
    project: Project, cuda: Toolchain
) -> None:
    shutil.rmtree(project.source / SM70)
    with pytest.raises(UsageError, match="nothing to compile"):
        make(project, cuda)


def test_a_host_compiler_that_the_toolkit_does_not_take_is_refused_first(
    project: Project, cuda: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "g++-15"
    path.write_text(
        '#!/bin/sh\necho "#define __GNUC__ 15"\necho "#define __VERSION__ \\"15.1\\""\n'
    )
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    with pytest.raises(ToolMissing) as caught:
        make(project, cuda)
    assert "does not take GCC 15" in caught.value.message
    assert "allows up to 13" in caught.value.message or not cuda.version.startswith("12.4")
    assert caught.value.hint.startswith("apt install g++-")


def test_a_missing_python_header_says_which_package_has_it(
    project: Project, cuda: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostcompiler.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(ToolMissing, match=r"Python\.h") as caught:
        make(project, cuda)
    assert caught.value.hint == "apt install python3-dev"


def test_no_compiler_says_which_package_has_it(
    project: Project, cuda: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissing, match=r"no C\+\+ compiler") as caught:
        make(project, cuda)
    assert caught.value.hint == "apt install g++"


@pytest.mark.parametrize(("torch_cuda", "refused"), [(11, True), (12, False), (13, False)])
def test_a_toolkit_of_another_major_than_torchs_is_refused_where_one_could_serve_both(
    torch_cuda: int, refused: bool, cuda: Toolchain
) -> None:
    package = TorchPackage(Path(), f"2.10.0+cu{torch_cuda}8", f"{torch_cuda}.8")
    torch = hostcompiler.Torch(package, "")
    if refused:
        with pytest.raises(ToolMissing, match=r"does not fit torch 2\.10\.0\+cu118"):
            hostcompiler._check_torch(torch, cuda)
    else:
        hostcompiler._check_torch(torch, cuda)
