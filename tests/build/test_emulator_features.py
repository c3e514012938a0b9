# SPDX-License-Identifier: Apache-2.0
"""PTX and the machine code that ptxas makes of it, on random numbers: the same bits."""

from __future__ import annotations

import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patchctl.emulator.engine import launch
from patchctl.emulator.findings import Finding, Findings, Kind
from patchctl.emulator.machine import Launch
from patchctl.emulator.memory import GlobalMemory
from patchctl.emulator.ptx.contract import contract
from patchctl.emulator.ptx.lower import lower
from patchctl.emulator.ptx.parse import parse_module
from patchctl.emulator.sass.constants import prepare
from patchctl.emulator.sass.cubin import constant_banks
from patchctl.emulator.sass.kernel import program
from patchctl.formats.cuobjdump import parse_resource_usage
from patchctl.formats.sasscode import parse_functions
from patchctl.stages.toolchain import Toolchain

pytestmark = pytest.mark.nvcc

SOURCE = Path(__file__).resolve().parents[1] / "data" / "emulator" / "features.cu"
THREADS = 64
Words = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Built:
    """What the toolchain made."""

    cubin: bytes
    listing: str
    usage: str
    ptx: str


@pytest.fixture(scope="module")
def built(cuda: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("features")
    cubin, ptx = folder / "features.cubin", folder / "features.ptx"
    for output, flags in ((cubin, ["-cubin", "-arch=sm_70"]), (ptx, ["-ptx", "-arch=compute_70"])):
        subprocess.run([cuda.nvcc, *flags, "-o", output, SOURCE], check=True)

    def ask(option: str) -> str:
        command = [cuda.cuobjdump, option, cubin]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    return Built(cubin.read_bytes(), ask("-sass"), ask("-res-usage"), ptx.read_text())


def numbers(kind: str, seed: int) -> Words:
    """[4, threads] words: random bits, or floats of all sizes with the special ones."""
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 1 << 32, (4, THREADS), np.uint64).astype(np.uint32)
    if kind == "small":
        words %= np.uint32(50)
    elif kind == "float":
        values = rng.standard_normal((4, THREADS)) * 2.0 ** rng.integers(-30, 31, (4, THREADS))
        words = values.astype(np.float32).view(np.uint32)
    elif kind == "special":
        special = np.array(
            [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 2.0**-149, -(2.0**-130), 3.4e38, 0.5],
            np.float32,
        )
        words = rng.choice(special, (4, THREADS)).view(np.uint32)
    elif kind == "half":
        words = rng.standard_normal((4, 2 * THREADS)).astype(np.float16).view(np.uint32)
    return words


def run_sass(built: Built, name: str, given: Words) -> tuple[Words, list[Finding]]:
    (function,) = parse_functions(built.listing, lambda mangled: mangled == name)
    (usage,) = (f for f in parse_resource_usage(built.usage) if f.name == name)
    stack = usage.stack or 0
    code = program(function, local_bytes=stack)
    fill = prepare(stack, constant_banks(built.cubin, name))
    memory, findings = GlobalMemory(), Findings()
    start = _launch(memory, given, usage.static_shared)
    launch(code, fill(start, memory), memory, findings)
    return memory.tensors["out"].array(np.uint32, (16, THREADS)), findings.faults()


def run_ptx(built: Built, name: str, given: Words) -> tuple[Words, list[Finding]]:
    module = parse_module(built.ptx)
    kernel = lower(module, contract(module.entries[name]))
    memory, findings = GlobalMemory(), Findings()
    start = _launch(memory, given, kernel.static_shared)
    kernel.add_variables(memory)
    launch(kernel.program, start, memory, findings, intra_warp=True)
    return memory.tensors["out"].array(np.uint32, (16, THREADS)), findings.faults()


def _launch(memory: GlobalMemory, given: Words, shared: int) -> Launch:
    source = memory.add("in", given)
    out = memory.add("out", np.zeros((16, THREADS), np.uint32), writable=True)
    parameters = struct.pack("<QQ", source.address, out.address)
    return Launch((1, 1, 1), (THREADS, 1, 1), shared, parameters=parameters)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("integers", kind) for kind in ("bits", "small")),
        *(("reals", kind) for kind in ("float", "special", "bits")),
        *(("halves", kind) for kind in ("half", "special", "bits")),
        *(("lanes", kind) for kind in ("bits", "small")),
    ],
)
def test_machine_code_and_ptx_give_the_same_bits(built: Built, name: str, kind: str) -> None:
    for seed in range(3):
        given = numbers(kind, seed)
        machine, machine_faults = run_sass(built, name, given)
        ptx, ptx_faults = run_ptx(built, name, given)
        np.testing.assert_array_equal(machine, ptx)
        kinds = {found.kind for found in machine_faults + ptx_faults}
        assert kinds <= ({Kind.NAN_BORN} if name in ("reals", "halves") else set())
