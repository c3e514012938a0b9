#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Is the emulator right about PTX? Launches it on a GPU and compares bytes.

    emulated.py prepare BUNDLE     with the tool and a built library, no GPU: what to launch and
                                   what the emulator says comes out
    emulated.py run BUNDLE         with a GPU and its driver, Python alone: the same launches

Every case must agree to the bit: PTX as the emulator's instruction table has it, and the library's
kernels, pinned (`ptx/pin.py`: nothing is left to the compiler; the matrix instruction adds as
GPUs without it do). The kernels as they are may differ in last bits, since the GPU's ex2 is its
own and the compiler may fuse: those cases say how many half words differ.
"""

from __future__ import annotations

import ctypes
import gzip
import pickle
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def prepare(path: Path) -> None:
    cases = [*_instructions(), *_kernels()]
    path.write_bytes(gzip.compress(pickle.dumps(cases)))
    print(f"{len(cases)} launches in {path}")


def _instructions() -> list[dict[str, object]]:
    import numpy as np

    from patchctl.emulator.ptx.cases import parse_cases
    from patchctl.emulator.ptx.snippet import LANES, module_text

    table = (ROOT / "tests" / "data" / "emulator" / "ptx-instructions.txt").read_text()
    cases: list[dict[str, object]] = []
    for case in parse_cases(table):
        expected = np.ascontiguousarray(case.expected())
        source = np.ascontiguousarray(case.values())
        cases.append(
            {
                "name": case.snippet.body.replace("\n", " "),
                "ptx": module_text([case.snippet]),
                "entry": case.snippet.name,
                "grid": (1, 1, 1),
                "threads": LANES,
                "shared": 0,
                "tensors": {
                    "source": source.tobytes() or bytes(8),
                    "target": bytes(expected.nbytes),
                },
                "parameters": bytes(16),
                "pointers": {0: "source", 8: "target"},
                "expected": {"target": expected.tobytes()},
                "exact": ".approx" not in case.snippet.body,
            }
        )
    return cases


def _kernels() -> list[dict[str, object]]:
    from patchctl.emulator.ptx.parse import parse_modules
    from patchctl.emulator.ptx.pin import pin
    from patchctl.emulator.suite import short_list
    from patchctl.stages.build import built_library, load_target
    from patchctl.stages.emulate import project_code
    from patchctl.stages.toolchain import find_toolchain
    from patchctl.system.process import run as run_program
    from patchctl.system.project import Project
    from patchctl.system.report import QuietReporter

    project = Project(ROOT, ROOT / "build" / "out")
    target = load_target(project, "sm70")
    toolchain = find_toolchain(target.arch, QuietReporter())
    library = built_library(project, target)
    codes, _ = project_code(project, target, toolchain, library)
    listing = run_program([toolchain.cuobjdump, "-ptx", library]).out
    texts = {}
    for part in listing.split("Fatbin ptx code:")[1:]:
        text = part[part.index(".version") :]
        for name in parse_modules("Fatbin ptx code:" + part)[0].entries:
            texts[name] = text
    cases = []
    for code in codes:
        for trial in short_list(code.kernel):
            for exact in (True, False):
                text = texts[code.entry.name]
                text = pin(text) if exact else text
                case = _launch(code, trial, text)
                kind = "pinned" if exact else "as it is"
                cases.append(
                    case | {"name": f"{code.kernel.name}, {trial.name}, {kind}", "exact": exact}
                )
                print(cases[-1]["name"], flush=True)
    return cases


def _launch(code: object, trial: object, text: str) -> dict[str, object]:
    """What a launch needs before, and what the emulator finds after it."""
    from patchctl.emulator.engine import launch
    from patchctl.emulator.examine import Code
    from patchctl.emulator.findings import Findings
    from patchctl.emulator.machine import Launch
    from patchctl.emulator.memory import GlobalMemory
    from patchctl.emulator.mma import Accumulation
    from patchctl.emulator.ptx.lower import lower
    from patchctl.emulator.ptx.parse import parse_module
    from patchctl.emulator.run import Shape
    from patchctl.emulator.suite import Trial

    assert isinstance(code, Code) and isinstance(trial, Trial)
    module = parse_module(text)
    kernel = lower(module, module.entries[code.entry.name], model=Accumulation.CHAIN)
    memory = GlobalMemory()
    rule = code.kernel.rule
    placed = trial.task.place(
        memory, Shape(rule.rows, code.threads, code.shared_bytes, rule.splits_on, rule.page_size)
    )
    before = {name: t.data.tobytes() for name, t in memory.tensors.items()}
    start = Launch(
        placed.grid, (code.threads, 1, 1), code.shared_bytes, parameters=placed.parameters
    )
    findings = Findings()
    launch(kernel.program, start, memory, findings, intra_warp=True)
    assert not findings.faults(), findings.faults()
    pointers = {}
    addresses = {t.address: name for name, t in memory.tensors.items()}
    for offset in range(0, len(placed.parameters) - 7, 8):
        value = int.from_bytes(placed.parameters[offset : offset + 8], "little")
        if value in addresses:
            pointers[offset] = addresses[value]
    return {
        "ptx": text,
        "entry": code.entry.name,
        "grid": placed.grid,
        "threads": code.threads,
        "shared": code.shared_bytes - kernel.static_shared,
        "tensors": before,
        "parameters": placed.parameters,
        "pointers": pointers,
        "expected": {name: memory.tensors[name].data.tobytes() for name in placed.outputs},
    }


@dataclass
class Driver:
    """The few functions of the CUDA driver that a launch needs."""

    library: ctypes.CDLL

    def call(self, name: str, *arguments: object) -> None:
        code = getattr(self.library, name)(*arguments)
        if code:
            raise SystemExit(f"error: {name} returned {code}")

    def context(self) -> None:
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def function(self, ptx: str, entry: str) -> ctypes.c_void_p:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), ptx.encode() + b"\0")
        self.call("cuModuleGetFunction", ctypes.byref(function), module, entry.encode())
        return function

    def upload(self, data: bytes) -> int:
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(len(data)))
        self.call("cuMemcpyHtoD_v2", pointer, data, ctypes.c_size_t(len(data)))
        return pointer.value

    def download(self, pointer: int, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", buffer, ctypes.c_uint64(pointer), ctypes.c_size_t(size))
        return buffer.raw

    def free(self, pointer: int) -> None:
        self.call("cuMemFree_v2", ctypes.c_uint64(pointer))


def run_case(driver: Driver, case: dict) -> dict[str, bytes]:  # type: ignore[type-arg]
    """Launch it; what the outputs hold then."""
    function = driver.function(case["ptx"], case["entry"])
    if case["shared"]:
        driver.call("cuFuncSetAttribute", function, 8, case["shared"])
    places = {name: driver.upload(data) for name, data in case["tensors"].items()}
    parameters = bytearray(case["parameters"])
    for offset, name in case["pointers"].items():
        parameters[offset : offset + 8] = places[name].to_bytes(8, "little")
    buffer = ctypes.create_string_buffer(bytes(parameters), len(parameters))
    size = ctypes.c_size_t(len(parameters))
    extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), None)
    driver.call(
        "cuLaunchKernel", function, *case["grid"], case["threads"], 1, 1, case["shared"],
        None, None, extra,
    )  # fmt: skip
    driver.call("cuCtxSynchronize")
    found = {n: driver.download(places[n], len(data)) for n, data in case["expected"].items()}
    for pointer in places.values():
        driver.free(pointer)
    return found


def differences(found: bytes, expected: bytes) -> int:
    """Half words that differ."""
    return sum(found[i : i + 2] != expected[i : i + 2] for i in range(0, len(found), 2))


def run(path: Path) -> int:
    driver = Driver(ctypes.CDLL("libcuda.so.1"))
    driver.context()
    failed = exact = 0
    cases = pickle.loads(gzip.decompress(path.read_bytes()))
    for case in cases:
        found = run_case(driver, case)
        counts = {n: differences(found[n], data) for n, data in case["expected"].items()}
        total = sum(len(data) // 2 for data in case["expected"].values())
        different = sum(counts.values())
        exact += case["exact"]
        failed += bool(case["exact"] and different)
        if different or not case["entry"].startswith("case"):
            verdict = "FAIL" if case["exact"] and different else "ok"
            print(f"{verdict}  {case['name']}: {different} of {total} half words differ")
    print(f"{exact} cases must agree, {failed} do not; {len(cases) - exact} compared loosely")
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("prepare", "run"):
        raise SystemExit(__doc__)
    action = prepare if sys.argv[1] == "prepare" else run
    sys.exit(action(Path(sys.argv[2])))
