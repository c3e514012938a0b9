# SPDX-License-Identifier: Apache-2.0
"""ptxas logs: right numbers or none."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from patchctl.formats.ptxas import FunctionReport, Topic, parse_ptxas

DATA = Path(__file__).parents[1] / "data"
CASE_34 = DATA / "cases" / "34"
CASE_35 = DATA / "cases" / "35"
FIELDS = ("stack", "spill_stores", "spill_loads", "registers", "static_shared")


def expected(folder: Path, key: str) -> list[dict[str, Any]]:
    """The case's numbers under our names."""
    rows = json.loads((folder / "expected.json").read_text())[key]
    names = {"stack_frame": "stack", "static_smem": "static_shared"}
    return [{names.get(k, k): v for k, v in row.items()} for row in rows]


def check(report: FunctionReport, row: dict[str, Any]) -> None:
    """Every number of the case's row is in the report."""
    assert report.name == row.get("entry", row.get("device_function"))
    assert report.arch == row["arch"]
    assert report.is_entry == ("entry" in row)
    for field in FIELDS:
        assert getattr(report, field) == row.get(field), (report.name, field)
    if "cumulative_stack" in row:
        assert report.cumulative_stack == row["cumulative_stack"]


@pytest.mark.parametrize(
    ("folder", "log"),
    [
        (CASE_34, "nvcc12.4-two-archs.log"),
        (CASE_35, "callee.log"),
        (CASE_35, "lambda.log"),
        (CASE_35, "warn.log"),
    ],
)
def test_numbers_equal_the_cases_for_each_kernel_and_architecture(folder: Path, log: str) -> None:
    parsed = parse_ptxas((folder / log).read_text())
    rows = expected(folder, log)
    assert len(parsed.functions) == len(rows)
    for report, row in zip(parsed.functions, rows, strict=True):
        check(report, row)
    assert not parsed.interleaved
    assert not parsed.damaged


def test_two_compilers_on_one_stream_give_spills_and_no_registers() -> None:
    parsed = parse_ptxas((CASE_34 / "interleaved-sm70.log").read_text())
    rows = expected(CASE_34, "interleaved-sm70.log (truth, from separate runs)")
    truth = {r["entry"]: r for r in rows}
    assert parsed.interleaved
    assert {f.name for f in parsed.functions} == set(truth)
    for report in parsed.functions:
        for field in ("stack", "spill_stores", "spill_loads"):
            assert getattr(report, field) == truth[report.name][field]
        # the last kernel stood alone; the others did not
        assert report.registers in (None, truth[report.name]["registers"])
    alone = "_ZN4demo10fwd_kernelINS_6TraitsILi64ELb0EEELb0EEEvPKfPfi"
    assert [f.name for f in parsed.functions if f.registers is not None] == [alone]


def test_callee_after_used_line_keeps_its_spill() -> None:
    parsed = parse_ptxas((CASE_35 / "callee.log").read_text())
    fib = next(f for f in parsed.functions if f.name == "_Z3fibi")
    assert (fib.spill_stores, fib.spill_loads, fib.after) == (20, 20, "_Z13calls_helpersPfi")
    assert next(f for f in parsed.functions if f.name == "plain_entry").spill_stores == 0


def test_warnings_are_collected_with_their_function() -> None:
    parsed = parse_ptxas((CASE_35 / "warn.log").read_text())
    found = {(m.level, m.topic, m.function) for m in parsed.messages}
    spills = "_Z6spillsILi96EEvPKfPfi"
    assert ("warning", Topic.SPILL, spills) in found
    assert ("warning", Topic.LOCAL_MEMORY, spills) in found
    assert ("warning", Topic.LAUNCH_BOUNDS, "_Z15too_many_blocksPf") in found
    assert ("warning", Topic.REGISTER_LIMIT, "") in found
    assert ("info", Topic.REGISTER_LIMIT, "_Z7globalsPf") in found


def test_cuda_13_wording_is_understood() -> None:
    parsed = parse_ptxas((DATA / "ptxas" / "nvcc13.0-two-archs.log").read_text())
    entries = [f for f in parsed.functions if f.is_entry]
    assert {f.arch for f in entries} == {"sm_80", "sm_90"}
    assert len(entries) == 8
    assert all(f.registers and f.barriers == 0 and f.spill_stores == 0 for f in entries)
    # which architecture a device function belongs to, nothing in the log says
    assert {f.arch for f in parsed.functions if not f.is_entry} == {None}
    assert parsed.messages == ()


def test_relocatable_code_lists_device_functions_before_any_caller() -> None:
    parsed = parse_ptxas((DATA / "ptxas" / "nvcc12.4-relocatable.log").read_text())
    helper = next(f for f in parsed.functions if not f.is_entry)
    assert helper.arch == "sm_70"
    assert helper.name.endswith("6helperEfi")
    assert all(f.registers for f in parsed.functions if f.is_entry)


# Written by hand after CUDA 11.8's wording: no cumulative stack size, no barriers.
CUDA_11_8 = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z1aPf' for 'sm_70'
ptxas info    : Function properties for _Z1aPf
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 32 registers, 1024 bytes smem, 360 bytes cmem[0], 8 bytes cmem[2]
"""


def test_cuda_11_wording_is_understood() -> None:
    (report,) = parse_ptxas(CUDA_11_8).functions
    assert report == FunctionReport("_Z1aPf", "sm_70", True, 16, 8, 12, 32, 1024)


def test_c75xx_notes_are_kept_and_start_no_kernel() -> None:
    note = (
        "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
        "serialized due to non wgmma instructions in the function '_Z1aPf'\n"
    )
    lines = CUDA_11_8.splitlines(keepends=True)
    parsed = parse_ptxas("".join([*lines[:2], note, *lines[2:4], note, lines[4]]))
    assert parsed.functions == parse_ptxas(CUDA_11_8).functions
    assert [m.level for m in parsed.messages] == ["info", "info"]
    assert "C7510" in parsed.messages[0].text


def test_compiler_noise_and_carriage_returns_are_passed_over() -> None:
    noisy = "x.cu(3): warning #177-D: unused\r\n" + CUDA_11_8.replace("\n", "\r\n") + "\r\n"
    assert parse_ptxas(noisy).functions == parse_ptxas(CUDA_11_8).functions


def test_lines_that_run_into_each_other_give_no_number() -> None:
    glued = CUDA_11_8 + "ptxas info    : Used 10 reptxas info    : Used 8 registers\n"
    parsed = parse_ptxas(glued)
    assert parsed.damaged
    assert [(f.registers, f.spill_stores) for f in parsed.functions] == [(None, None)]


def test_a_log_cut_short_gives_no_registers_to_its_last_kernel() -> None:
    parsed = parse_ptxas(CUDA_11_8 + "\n".join(CUDA_11_8.splitlines()[1:3]) + "\n")
    assert [f.registers for f in parsed.functions] == [32, None]
    assert parsed.functions[1].spill_stores is None


@dataclass(frozen=True)
class Kernel:
    """What a simulated compiler reports."""

    name: str
    arch: str
    registers: int
    shared: int
    stack: int
    stores: int
    loads: int
    callees: tuple[tuple[str, int], ...]

    def messages(self) -> list[str]:
        """Each element is one write of ptxas."""
        info = "ptxas info    : "

        def properties(name: str, stack: int, stores: int, loads: int) -> str:
            return (
                f"{info}Function properties for {name}\n    {stack} bytes stack frame, "
                f"{stores} bytes spill stores, {loads} bytes spill loads\n"
            )

        shared = f", {self.shared} bytes smem" if self.shared else ""
        return [
            f"{info}Compiling entry function '{self.name}' for '{self.arch}'\n",
            properties(self.name, self.stack, self.stores, self.loads),
            f"{info}Used {self.registers} registers{shared}, 360 bytes cmem[0]\n",
            *(properties(name, n, n, n) for name, n in self.callees),
        ]


def random_stream(rng: random.Random, tag: str, arch: str) -> list[Kernel]:
    """One compiler's kernels; names are shared between compilers now and then."""
    kernels = []
    for i in range(rng.randint(1, 4)):
        name = f"_Z6shared{i}v" if rng.random() < 0.4 else f"_Z6only{tag}{i}v"
        callees = tuple(
            (f"_Z4call{tag}{i}{j}v", rng.randrange(100)) for j in range(rng.randint(0, 2))
        )
        numbers = [rng.randrange(1, 256), *(rng.randrange(4096) for _ in range(4))]
        kernels.append(Kernel(name, arch, *numbers, callees))
    return kernels


@pytest.mark.parametrize("seed", range(300))
def test_random_interleavings_never_give_a_wrong_number(seed: int) -> None:
    rng = random.Random(seed)
    archs = ["sm_70", "sm_80", "sm_90"]
    compilers = [random_stream(rng, "abc"[i], archs[i]) for i in range(rng.randint(1, 3))]
    streams = [[m for kernel in kernels for m in kernel.messages()] for kernels in compilers]
    if rng.random() < 0.2:
        streams[0] = streams[0][: rng.randrange(len(streams[0]) + 1)]  # killed
    text = ""
    while any(streams):
        stream = rng.choice([s for s in streams if s])
        for _ in range(rng.randint(1, 5)):
            text += stream.pop(0) if stream else ""
    truth = {(k.name, k.arch): k for kernels in compilers for k in kernels}
    callees = {name: n for k in truth.values() for name, n in k.callees}
    for report in parse_ptxas(text).functions:
        if report.is_entry:
            kernel = truth[report.name, report.arch or ""]
            assert report.registers in (None, kernel.registers)
            assert report.static_shared in (None, kernel.shared)
            assert report.stack in (None, kernel.stack)
            assert report.spill_stores in (None, kernel.stores)
            assert report.spill_loads in (None, kernel.loads)
        else:
            assert report.spill_stores == callees[report.name]
            owner = next(k for k in truth.values() if report.name in dict(k.callees))
            assert report.arch in (None, owner.arch)


@pytest.mark.parametrize("seed", range(30))
def test_permuted_kernels_of_one_compiler_keep_all_numbers(seed: int) -> None:
    rng = random.Random(seed)
    kernels = random_stream(rng, "a", "sm_70") + random_stream(rng, "b", "sm_70")
    kernels = list({k.name: k for k in kernels}.values())
    rng.shuffle(kernels)
    parsed = parse_ptxas("".join(m for k in kernels for m in k.messages()))
    got = {f.name: f for f in parsed.functions if f.is_entry}
    for kernel in kernels:
        report = got[kernel.name]
        assert (report.registers, report.static_shared) == (kernel.registers, kernel.shared)
        assert (report.stack, report.spill_stores) == (kernel.stack, kernel.stores)
    assert not parsed.interleaved
