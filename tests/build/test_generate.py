# SPDX-License-Identifier: Apache-2.0
"""Units generated from a table: compiled like the tree's own, gone when no row asks for them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from patchctl.errors import BuildFailed
from patchctl.stages import generate
from patchctl.stages.build import BuildResult, build, load_target
from patchctl.stages.toolchain import Toolchain
from patchctl.system.files import sha256_of, write_if_changed
from patchctl.system.project import Project
from patchctl.system.report import QuietReporter

from .conftest import ROOT, SM70, MakeTiny

pytestmark = pytest.mark.nvcc

DATA = ROOT / "tests" / "data" / "instances"
TABLE = f"{SM70}/instances.toml"


def with_table(project: Project) -> Project:
    """Let the tree have a table, and a header of the same name in a folder of `include`."""
    shutil.copytree(DATA, project.source / SM70, dirs_exist_ok=True)
    (project.source / SM70).parent.joinpath("fill.h").write_text('#error "the wrong fill.h"\n')
    return project


def make(project: Project, cuda: Toolchain, report: QuietReporter | None = None) -> BuildResult:
    target = load_target(project, "sm70")
    return build(project, target, cuda, report or QuietReporter(), jobs=2)


@pytest.fixture(scope="module")
def built(
    tmp_path_factory: pytest.TempPathFactory, cuda: Toolchain, make_tiny: MakeTiny
) -> Project:
    """A tiny project with a table, built; tests work on copies."""
    project = with_table(make_tiny(tmp_path_factory.mktemp("built") / "project"))
    assert make(project, cuda).compiled == 6
    return project


@pytest.fixture
def project(built: Project, tmp_path: Path) -> Project:
    """A copy with the time stamps of the built one."""
    shutil.copytree(built.root, tmp_path / "project", symlinks=True)
    return Project(tmp_path / "project", tmp_path / "project" / "build" / "out")


def edit(project: Project, name: str, old: str, new: str) -> None:
    path = project.source / SM70 / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def outputs(project: Project) -> list[str]:
    """The files of generated units: sources, objects and logs."""
    folder = project.objects("sm70")
    below = [folder / "generated", folder / "obj" / "generated"]
    return sorted(str(p.relative_to(folder)) for place in below for p in place.iterdir())


def symbols(library: Path) -> str:
    listed = ["nm", "--defined-only", "--demangle", library]
    return subprocess.run(listed, capture_output=True, text=True, check=True).stdout


ALL = [
    "generated/fill_16_sm70.cu",
    "generated/fill_8_sm70.cu",
    "generated/fill_table.cpp",
    "obj/generated/fill_16_sm70.cu.o",
    "obj/generated/fill_16_sm70.cu.o.ptxas.log",
    "obj/generated/fill_8_sm70.cu.o",
    "obj/generated/fill_8_sm70.cu.o.ptxas.log",
    "obj/generated/fill_table.cpp.o",
]


def test_generated_units_are_in_the_library_and_have_reports(built: Project) -> None:
    assert outputs(built) == ALL
    folder = built.objects("sm70")
    assert "sm70::fill_any" in symbols(folder / "_vllm_fa2_C.abi3.so")
    log = (folder / "obj" / "generated" / "fill_8_sm70.cu.o.ptxas.log").read_text()
    assert "fill_8_kernel" in log
    assert b"generated/fill_table.cpp" in (folder / "_vllm_fa2_C.abi3.so").read_bytes()  # __FILE__


def test_an_unchanged_tree_leaves_files_and_ninja_alone(project: Project, cuda: Toolchain) -> None:
    folder = project.objects("sm70")
    before = {name: (folder / name).stat().st_mtime_ns for name in outputs(project)}
    done = make(project, cuda)
    assert done.compiled == 0
    assert {name: (folder / name).stat().st_mtime_ns for name in outputs(project)} == before
    assert [log.name for log in done.logs if "generated" in str(log)] == [
        "fill_16_sm70.cu.o.ptxas.log",
        "fill_8_sm70.cu.o.ptxas.log",
    ]


def test_a_changed_row_compiles_that_unit_and_what_lists_them(
    project: Project, cuda: Toolchain
) -> None:
    edit(project, "instances.toml", "[8, 16]", "[8, 24]")
    assert make(project, cuda).compiled == 2
    assert outputs(project) == sorted(name.replace("16", "24") for name in ALL)


def test_a_changed_header_compiles_what_includes_it_and_a_changed_template_its_units(
    project: Project, cuda: Toolchain
) -> None:
    edit(project, "fill.h", "x[i] = kSize", "x[i] = 2 * kSize")
    assert make(project, cuda).compiled == 3
    edit(project, "fill.cu.jinja", "<<<1, 1>>>", "<<<1, {{ size }}>>>")
    assert make(project, cuda).compiled == 2
    edit(project, "fill.cu.jinja", "<<<1, {{ size }}>>>", "<<<1, {{ 8 if size == 8 else 1 }}>>>")
    assert make(project, cuda).compiled == 1


def test_a_removed_row_leaves_nothing_behind(project: Project, cuda: Toolchain) -> None:
    edit(project, "instances.toml", "[8, 16]", "[8]")
    done = make(project, cuda)
    assert done.compiled == 1  # the table
    assert outputs(project) == [name for name in ALL if "16" not in name]
    assert "fill<16>" not in symbols(done.library)
    assert "fill<8>" in symbols(done.library)


def test_a_removed_table_takes_all_with_it(
    project: Project, cuda: Toolchain, make_tiny: MakeTiny, tmp_path: Path
) -> None:
    (project.source / TABLE).unlink()
    done = make(project, cuda)
    assert done.compiled == 0
    assert outputs(project) == []
    assert len(done.logs) == 2
    assert done.sha256 == make(make_tiny(tmp_path / "never"), cuda).sha256


def test_two_folders_give_the_same_bytes(
    built: Project, cuda: Toolchain, make_tiny: MakeTiny, tmp_path: Path
) -> None:
    other = with_table(make_tiny(tmp_path / "a longer path with blanks" / "p"))
    make(other, cuda)
    digests = [
        {name: sha256_of(p.objects("sm70") / name) for name in outputs(p)} for p in (built, other)
    ]
    assert digests[0] == digests[1]
    libraries = [p.objects("sm70") / "_vllm_fa2_C.abi3.so" for p in (built, other)]
    assert sha256_of(libraries[0]) == sha256_of(libraries[1])


def test_a_template_error_is_a_failed_build_and_changes_nothing(
    project: Project, cuda: Toolchain
) -> None:
    library = project.objects("sm70") / "_vllm_fa2_C.abi3.so"
    before = (library.read_bytes(), outputs(project))
    edit(project, "instances.toml", "[8, 16]", "[32]")
    edit(project, "fill_table.cpp.jinja", "unit.size }}>,", "unit.sizes }}>,")
    with pytest.raises(BuildFailed) as caught:
        make(project, cuda)
    assert caught.value.exit_code == 7
    assert caught.value.message == (
        f"`{SM70}/fill_table.cpp.jinja`, line 11: `dict object` has no attribute `sizes`, "
        "for `fill_table.cpp`"
    )
    assert caught.value.hint
    assert (library.read_bytes(), outputs(project)) == before


def test_a_compile_error_says_what_the_unit_was_made_from(
    project: Project, cuda: Toolchain
) -> None:
    edit(project, "fill.cu.jinja", "fill_row<", "fill_rows<")
    with pytest.raises(BuildFailed) as caught:
        make(project, cuda)
    error = caught.value
    assert error.message.startswith("compiling `generated/fill_")
    assert any('identifier "fill_rows" is undefined' in line for line in error.details)
    size = "8" if "fill_8_" in error.message else "16"
    assert error.details[-2] == (
        f"`generated/fill_{size}_sm70.cu` is made from `fill.cu.jinja` (size = {size}) by `{TABLE}`"
    )


def test_an_edited_or_added_generated_file_is_put_right(project: Project, cuda: Toolchain) -> None:
    folder = project.objects("sm70") / "generated"
    digest = make(project, cuda).sha256
    (folder / "fill_8_sm70.cu").write_text("#error edited")
    (folder / "stray.cu").write_text("#error stray")
    (folder / "folder").mkdir()
    assert make(project, cuda).sha256 == digest
    assert outputs(project) == ALL


def test_two_tables_may_not_make_one_name(project: Project, cuda: Toolchain) -> None:
    target = project.target_file("sm70")
    old = f'tables = ["{TABLE}"]'
    assert old in target.read_text()
    second = "csrc/flash_attn/src/more/instances.toml"
    target.write_text(target.read_text().replace(old, f'tables = ["{TABLE}", "{second}"]'))
    assert make(project, cuda).compiled == 0  # a tree without the second
    shutil.copytree(DATA, (project.source / second).parent)
    with pytest.raises(BuildFailed, match=r"the name `fill_8_sm70\.cu` is taken") as caught:
        make(project, cuda)
    assert f"by `units[0]` of `{TABLE}`" in caught.value.message
    assert f"by `units[0]` of `{second}`" in caught.value.message


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_run_killed_while_it_writes_is_finished_by_the_next(
    after: int, project: Project, cuda: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = project.objects("sm70") / "_vllm_fa2_C.abi3.so"
    before = library.read_bytes()
    edit(project, "instances.toml", "[8, 16]", "[24, 32]")
    written: list[Path] = []

    def write_and_die(path: Path, text: str) -> bool:
        if len(written) == after:
            raise KeyboardInterrupt
        written.append(path)
        return write_if_changed(path, text)

    monkeypatch.setattr(generate, "write_if_changed", write_and_die)
    with pytest.raises(KeyboardInterrupt):
        make(project, cuda)
    assert library.read_bytes() == before
    monkeypatch.undo()
    edit(project, "instances.toml", "[24, 32]", "[8, 16]")
    done = make(project, cuda)
    assert library.read_bytes() == before
    assert done.compiled <= 1  # the list of units was written, or not
    assert outputs(project) == ALL


def test_a_run_killed_while_it_compiles_is_finished_by_the_next(
    project: Project, cuda: Toolchain
) -> None:
    library = project.objects("sm70") / "_vllm_fa2_C.abi3.so"
    before = library.read_bytes()
    edit(project, "instances.toml", "[8, 16]", "[24, 32]")
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from patchctl.stages.build import build, load_target\n"
        "from patchctl.stages.toolchain import find_toolchain\n"
        "from patchctl.system.project import Project\n"
        "from patchctl.system.report import QuietReporter\n"
        "root, home = map(Path, sys.argv[1:])\n"
        "project, report = Project(root, root / 'build' / 'out'), QuietReporter()\n"
        "toolchain = find_toolchain('sm_70', report, cuda_home=home)\n"
        "build(project, load_target(project, 'sm70'), toolchain, report, jobs=2)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, project.root, cuda.home])
    started = project.objects("sm70") / "obj" / "generated" / "fill_24_sm70.cu.o.ptxas.log.tmp"
    deadline = time.monotonic() + 60
    while not started.exists():
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert library.read_bytes() == before
    edit(project, "instances.toml", "[24, 32]", "[8, 24]")
    done = make(project, cuda)
    assert outputs(project) == sorted(name.replace("16", "24") for name in ALL)
    assert "fill<24>" in symbols(done.library)
    assert "fill<16>" not in symbols(done.library)
