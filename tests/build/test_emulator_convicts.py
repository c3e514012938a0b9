# SPDX-License-Identifier: Apache-2.0
"""A compiler that translates wrongly is convicted: its machine code and its PTX disagree."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from patchctl.emulator.engine import launch
from patchctl.emulator.findings import Findings
from patchctl.emulator.machine import Launch
from patchctl.emulator.memory import GlobalMemory
from patchctl.emulator.program import Program
from patchctl.emulator.ptx.lower import lower
from patchctl.emulator.ptx.parse import parse_module
from patchctl.emulator.run import Prepare
from patchctl.emulator.sass.constants import prepare
from patchctl.emulator.sass.kernel import program
from patchctl.formats.sasscode import parse_functions
from patchctl.stages.toolchain import Toolchain

pytestmark = pytest.mark.nvcc

SOURCE = Path(__file__).resolve().parents[1] / "data" / "emulator" / "pack.cu"
VALUES = np.array([0.0, 1.0, 2.5, 65504.0, 0.333, 2.0**-10, 7.0, 1e-3] * 8, np.float32)


@pytest.fixture(scope="module")
def listings(cuda: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """What the toolchain makes of the source: (machine code listing, PTX)."""
    folder = tmp_path_factory.mktemp("pack")
    cubin, ptx = folder / "pack.cubin", folder / "pack.ptx"
    for output, flags in ((cubin, ["-cubin", "-arch=sm_70"]), (ptx, ["-ptx", "-arch=compute_70"])):
        subprocess.run([cuda.nvcc, *flags, "-o", output, SOURCE], check=True)
    listed = subprocess.run(
        [cuda.cuobjdump, "-sass", cubin], check=True, capture_output=True, text=True
    )
    return listed.stdout, ptx.read_text()


def packed(code: Program, fill: Prepare) -> np.ndarray:  # type: ignore[type-arg]
    """What a kernel stores for `VALUES`."""
    memory, findings = GlobalMemory(), Findings()
    x = memory.add("x", VALUES)
    out = memory.add("packed", np.zeros(32, np.uint32), writable=True)
    start = Launch((1, 1, 1), (32, 1, 1), 0, parameters=struct.pack("<QQ", x.address, out.address))
    launch(code, fill(start, memory), memory, findings)
    assert findings.faults() == []
    return out.array(np.float16, (64,))


def both(listings: tuple[str, str], name: str) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """(from machine code, from PTX)."""
    (function,) = parse_functions(listings[0], lambda mangled: mangled == name)
    module = parse_module(listings[1])
    kernel = lower(module, module.entries[name])
    return packed(program(function), prepare(0, {})), packed(
        kernel.program, lambda start, memory: start
    )


def test_integer_packing_that_ptxas_folds_is_convicted(listings: tuple[str, str]) -> None:
    machine, ptx = both(listings, "pack")
    np.testing.assert_allclose(ptx, VALUES, rtol=1e-3)
    assert (machine == 0).all(), (
        "this ptxas translates it rightly: the hint in the docs is outdated"
    )
    assert machine.tobytes() != ptx.tobytes()


def test_safe_form_of_the_packing_agrees(listings: tuple[str, str]) -> None:
    machine, ptx = both(listings, "pack_safely")
    np.testing.assert_allclose(machine, VALUES, rtol=1e-3)
    assert machine.tobytes() == ptx.tobytes()
