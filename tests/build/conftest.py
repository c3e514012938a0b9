# SPDX-License-Identifier: Apache-2.0
"""A real CUDA toolchain, projects that compile in seconds, and small libraries to install."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from patchctl.errors import ToolMissing
from patchctl.formats.target import Target
from patchctl.stages.build import load_target
from patchctl.stages.toolchain import Toolchain, find_toolchain
from patchctl.stages.verify import verify_inputs
from patchctl.system.files import sha256_of
from patchctl.system.project import Project
from patchctl.system.records import Record, save_record
from patchctl.system.report import QuietReporter
from vllm_fa2_sm70.operators import SCHEMAS

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "tests" / "data" / "tiny"
SM70 = "csrc/flash_attn/src/sm70"

MakeTiny = Callable[[Path], Project]


@pytest.fixture(scope="session")
def cuda() -> Toolchain:
    """The toolchain that ``patchctl build`` would use here."""
    try:
        return find_toolchain("sm_70", QuietReporter())
    except ToolMissing as error:
        pytest.skip(f"{error.message}; {error.hint}")


@pytest.fixture(scope="session")
def make_tiny() -> MakeTiny:
    """Makes a project whose replayed tree holds two kernels and a module of three lines."""

    def make(root: Path) -> Project:
        project = Project(root, root / "build" / "out")
        for folder in ("patches", "vendor", "build"):
            (root / folder).mkdir(parents=True)
        shutil.copy(ROOT / "build" / "sm70.toml", root / "build")
        shutil.copy(ROOT / "vendor" / "cuda.lock.toml", root / "vendor")
        shutil.copytree(TINY, project.source / SM70)
        (project.source / "csrc" / "cutlass" / "include").mkdir(parents=True)
        return project

    return make


OPERATORS = """
#include <torch/csrc/stable/library.h>
static const char build[] __attribute__((used)) = "BUILD";
STABLE_TORCH_LIBRARY(_vllm_fa2_C, m) { DEFINITIONS }
"""

CompileLibrary = Callable[..., Path]


@pytest.fixture(scope="session")
def compile_library() -> CompileLibrary:
    """Makes a library that registers our operators without kernels; `build` changes its bytes."""

    def compile_it(
        path: Path, *, build: str = "one", schemas: dict[str, str] | None = None
    ) -> Path:
        import torch

        home = Path(torch.__file__).parent
        wanted = SCHEMAS if schemas is None else schemas
        definitions = "".join(f'm.def("{name}{text}");' for name, text in wanted.items())
        source = path.with_suffix(".cpp")
        source.write_text(OPERATORS.replace("DEFINITIONS", definitions).replace("BUILD", build))
        flags = ["-std=c++17", "-shared", "-fPIC", "-DTORCH_TARGET_VERSION=0x020a000000000000"]
        search = [f"-I{home / 'include'}", f"-L{home / 'lib'}"]
        link = ["-Wl,--as-needed", "-ltorch_cpu"]
        subprocess.run(["g++", *flags, source, *search, *link, "-o", path], check=True)
        return path

    return compile_it


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory, compile_library: CompileLibrary) -> Path:
    """A folder with ``one.so`` and ``two.so``: two builds of the same operators."""
    folder = tmp_path_factory.mktemp("libraries")
    for build in ("one", "two"):
        compile_library(folder / f"{build}.so", build=build)
    return folder


@pytest.fixture
def built(tmp_path: Path, libraries: Path) -> tuple[Project, Target]:
    """A project whose build gave ``one.so`` and whose verification passed it."""
    root = tmp_path / "project"
    for folder in ("patches", "vendor"):
        (root / folder).mkdir(parents=True)
    shutil.copytree(ROOT / "build", root / "build", ignore=shutil.ignore_patterns("out"))
    project = Project(root, root / "build" / "out")
    target = load_target(project, "sm70")
    approve(project, target, libraries / "one.so")
    return project, target


def record_build(project: Project, target: Target) -> None:
    """Let the library in place be what ``build`` made of the replayed tree (here: of none)."""
    library = project.objects(target.name) / target.filename
    inputs = {"source": "", "target": sha256_of(project.target_file(target.name))}
    outputs = {"library": sha256_of(library)}
    save_record(project, Record(stage=f"build-{target.name}", inputs=inputs, outputs=outputs))


def approve(project: Project, target: Target, library: Path) -> str:
    """Let `library` be what was built and verified; its sha256."""
    place = project.objects(target.name) / target.filename
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(library, place)
    outputs = {"library": sha256_of(place)}
    record_build(project, target)
    inputs = verify_inputs(project, target)
    save_record(project, Record(stage=f"verify-{target.name}", inputs=inputs, outputs=outputs))
    return outputs["library"]


@pytest.fixture
def approve_library() -> Callable[[Project, Target, Path], str]:
    """`approve`, for tests that change what was built."""
    return approve


MakeEnvironment = Callable[..., Path]


@pytest.fixture
def make_environment(tmp_path: Path) -> MakeEnvironment:
    """Makes a virtual environment and returns its python; `torch`: it sees this one's torch."""

    def make(name: str = "env", *, pip: bool = False, torch: bool = False) -> Path:
        folder = tmp_path / name
        options = [] if pip else ["--without-pip"]
        subprocess.run([sys.executable, "-m", "venv", *options, folder], check=True)
        if torch:
            (packages_of(folder) / "torch.pth").write_text(sysconfig.get_path("purelib") + "\n")
        return folder / "bin" / "python"

    return make


def packages_of(environment: Path) -> Path:
    """An environment's site-packages."""
    (found,) = environment.glob("lib/python3*/site-packages")
    return found
