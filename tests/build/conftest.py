# SPDX-License-Identifier: Apache-2.0
"""A real CUDA toolchain, and a project so small that it compiles in seconds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from patchctl.errors import ToolMissing
from patchctl.stages.toolchain import Toolchain, find_toolchain
from patchctl.system.project import Project
from patchctl.system.report import QuietReporter

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
