# SPDX-License-Identifier: Apache-2.0
"""Budgets: what differs from the lock, what breaks a limit, what an update writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from patchctl.errors import UsageError
from patchctl.formats.cuobjdump import CubinFunction, parse_resource_usage
from patchctl.formats.findings import Severity, has_errors
from patchctl.formats.measured import Library, Measured, measure
from patchctl.formats.ptxas import parse_ptxas
from patchctl.formats.resources import (
    Budget,
    Limits,
    Resources,
    check_limits,
    compare,
    read_resources,
    renewed,
    rows,
    write_resources,
)
from patchctl.formats.sass import CodeUse, parse_sass

CASES = Path(__file__).parents[1] / "data" / "cases"
TOOLKIT = "12.4.131"

GOOD = Measured("k(int)", True, 128, 0, 0, 0, 1024, 256)
BUDGET = Budget(
    name="k(int)",
    registers=128,
    spill_stores=0,
    spill_loads=0,
    stack=0,
    static_shared=1024,
    dynamic_shared=32768,
    threads=256,
    ctas_per_sm=2,
)
LOCKED = Resources(toolkit=TOOLKIT, kernels=(BUDGET,))


def drift(function: Measured, locked: Resources = LOCKED, toolkit: str = TOOLKIT) -> list[str]:
    """What `compare` says about one function."""
    found = compare(rows([function], locked, "sm_70"), locked, toolkit, None)
    return [f"{f.severity}: {f.message}" for f in found]


def limits(function: Measured, locked: Resources = LOCKED) -> list[str]:
    """What `check_limits` says about one function."""
    return [f.message for f in check_limits(rows([function], locked, "sm_70"), locked.limits)]


def test_numbers_equal_to_the_lock_are_no_finding() -> None:
    assert drift(GOOD) == []
    assert limits(GOOD) == []


def test_worse_and_better_than_the_lock_are_both_drift() -> None:
    worse = replace(GOOD, registers=136)
    assert drift(worse) == [
        "error: registers 136, locked 128 (worse); CTAs an SM 1, locked 2 (worse)"
    ]
    assert drift(replace(GOOD, registers=120)) == ["error: registers 120, locked 128 (better)"]
    assert drift(replace(GOOD, static_shared=0)) == ["error: static shared 0, locked 1024 (better)"]
    assert drift(replace(GOOD, threads=128)) == ["error: threads 128, locked 256"]


def test_dynamic_shared_memory_counts_for_occupancy() -> None:
    tight = Resources(kernels=(Budget(**{**as_dict(BUDGET), "dynamic_shared": 65536}),))
    (row,) = rows([GOOD], tight, "sm_70")
    assert row.ctas_per_sm == 1


def as_dict(budget: Budget) -> dict[str, object]:
    """The fields of a budget."""
    return {name: getattr(budget, name) for name in budget.__struct_fields__}


def test_unknown_and_vanished_kernels_are_findings() -> None:
    found = drift(replace(GOOD, name="other(int)"))
    assert found == [
        "error: unknown kernel: it has no budget",
        "error: vanished: it has a budget and is not in the library",
    ]


def test_a_kernel_of_a_later_patch_has_not_vanished() -> None:
    later = Resources(kernels=(Budget(**{**as_dict(BUDGET), "since": "0003-c.patch"}),))
    assert compare([], later, TOOLKIT, ("0001-a.patch", "0002-b.patch")) == []
    assert len(compare([], later, TOOLKIT, ("0001-a.patch", "0003-c.patch"))) == 1
    assert len(compare([], later, TOOLKIT, None)) == 1


def test_numbers_of_a_part_of_the_series_are_only_noted() -> None:
    grown = replace(GOOD, registers=136)
    other = replace(GOOD, name="other(int)")
    found = compare(rows([grown, other], LOCKED, "sm_70"), LOCKED, TOOLKIT, ("0001-a.patch",))
    assert [str(f.severity) for f in found] == ["note", "note"]


def test_another_toolkit_is_said() -> None:
    (note,) = drift(GOOD, toolkit="12.6.85")
    assert note.startswith("note: numbers equal the lock")
    (text,) = drift(replace(GOOD, registers=130), toolkit="12.6.85")
    assert text.endswith("(measured with CUDA 12.6.85, locked with 12.4.131)")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"spill_stores": 4}, "over its limit: 4 bytes of spill stores (at most 0)"),
        ({"spill_loads": 8}, "over its limit: 8 bytes of spill loads (at most 0)"),
        ({"stack": 16}, "over its limit: 16 bytes of stack (at most 0)"),
        ({"static_shared": 65537}, "98305 bytes of shared memory (at most 98304), 0 CTAs an SM"),
        ({"registers": 255, "threads": 512}, "over its limit: 0 CTAs an SM (at least 1)"),
        ({"spill_stores": None}, "bytes of spill stores not known"),
    ],
)
def test_a_broken_limit_is_an_error_even_when_locked(
    change: dict[str, int | None], words: str
) -> None:
    (text,) = limits(replace(GOOD, **change))  # type: ignore[arg-type]
    assert words in text


def test_a_kernel_without_known_threads_is_an_error() -> None:
    (text,) = limits(replace(GOOD, name="new()", threads=None))
    assert "threads a CTA not known" in text
    assert limits(replace(GOOD, threads=None)) == []  # the lock declares them


def test_a_device_function_that_spills_breaks_the_limit() -> None:
    callee = Measured("fib(int)", False, None, 20, 20, 24, 0)
    (text,) = limits(callee)
    assert text.startswith("device function: over its limit: 20 bytes of spill stores")
    assert drift(callee)[0].startswith("error: vanished")  # and it is no unknown kernel
    assert len(drift(callee)) == 1


def test_an_update_keeps_what_people_wrote_and_fits_what_was_measured() -> None:
    old = Resources(
        toolkit="12.0.1",
        limits=Limits(registers=200),
        kernels=(BUDGET, Budget(**{**as_dict(BUDGET), "name": "gone()"})),
    )
    measured = rows([replace(GOOD, registers=96), replace(GOOD, name="new()")], old, "sm_70")
    new = renewed(measured, old, TOOLKIT, None)
    assert compare(measured, new, TOOLKIT, None) == []
    assert (new.toolkit, new.limits.registers) == (TOOLKIT, 200)
    by_name = {b.name: b for b in new.kernels}
    assert set(by_name) == {"k(int)", "new()"}
    assert by_name["k(int)"].dynamic_shared == 32768
    assert by_name["k(int)"].registers == 96


def test_an_update_on_a_part_of_the_series_keeps_later_kernels() -> None:
    later = Budget(**{**as_dict(BUDGET), "since": "0003-c.patch"})
    measured = rows([replace(GOOD, name="new()")], LOCKED, "sm_70")
    new = renewed(measured, Resources(kernels=(later,)), TOOLKIT, ("0001-a.patch", "0002-b.patch"))
    assert {(b.name, b.since) for b in new.kernels} == {
        ("k(int)", "0003-c.patch"),
        ("new()", "0002-b.patch"),
    }


def test_the_file_reads_back_as_written() -> None:
    text = write_resources(LOCKED)
    assert read_resources(text, where="x") == LOCKED
    assert text.startswith("# SPDX-License-Identifier: Apache-2.0\n")
    assert "since" not in text.split("\n\n", 1)[1]


def test_unknown_keys_and_double_kernels_are_refused() -> None:
    with pytest.raises(UsageError, match="did you mean `registers`"):
        read_resources("[limits]\nregister = 3\n", where="x")
    double = write_resources(Resources(kernels=(BUDGET, BUDGET)))
    with pytest.raises(UsageError, match="`k\\(int\\)` is listed twice"):
        read_resources(double, where="x")


def joined(case: str, log: str, usage: str) -> tuple[dict[str, Measured], list[str]]:
    """Functions and errors of a case, joined for sm_70, under their mangled names."""
    logs = {log: parse_ptxas((CASES / case / log).read_text())}
    library = parse_resource_usage((CASES / case / usage).read_text())
    names = {f.name for f in library} | {f.name for f in logs[log].functions}
    found = measure(Library(library), logs, {n: n for n in names}, "sm_70")
    errors = [f"{f.subject}: {f.message}" for f in found.findings if has_errors([f])]
    return {f.name: f for f in found.functions}, errors


def test_only_the_targets_architecture_counts() -> None:
    functions, errors = joined(
        "34", "nvcc12.4-two-archs.log", "nvcc12.4-two-archs.resource-usage.txt"
    )
    live = functions["_ZN4demo11live_kernelILi96EEEvPKfPfi"]
    assert (live.stack, live.spill_stores, live.spill_loads) == (896, 1824, 1844)
    assert errors == []


def test_an_interleaved_log_is_completed_from_the_library() -> None:
    functions, errors = joined("34", "interleaved-sm70.log", "interleaved-sm70.resource-usage.txt")
    tail = functions["_Z8bwd_tailPf"]
    assert (tail.registers, tail.static_shared, tail.spill_stores) == (10, 384, 0)
    assert functions["_Z8bwd_liveILi80EEvPKfPfi"].spill_stores == 1040
    assert errors == []


def test_a_callees_spill_breaks_a_zero_budget_and_unknown_stack_is_said() -> None:
    functions, errors = joined("35", "callee.log", "callee.resource-usage.txt")
    broken = check_limits(rows(list(functions.values()), Resources(), "sm_70"), Limits())
    said = {f.subject: f.message for f in broken}
    assert "20 bytes of spill stores" in said["_Z3fibi"]
    assert "spill" not in said["plain_entry"]
    assert any("stack cannot be told" in e for e in errors)


def test_ptxas_warnings_are_findings_that_do_not_fail() -> None:
    log = "warn.log"
    logs = {log: parse_ptxas((CASES / "35" / log).read_text())}
    library = parse_resource_usage((CASES / "35" / "warn.resource-usage.txt").read_text())
    found = measure(Library(library), logs, {f.name: f.name for f in library}, "sm_70")
    warnings = [f for f in found.findings if f.severity is Severity.WARNING]
    assert {"_Z15too_many_blocksPf", "_Z6spillsILi96EEvPKfPfi"} <= {f.subject for f in warnings}
    assert not has_errors(found.findings)


def test_log_and_library_must_agree_and_cover_each_other() -> None:
    log = (
        "ptxas info    : Compiling entry function 'a' for 'sm_70'\n"
        "ptxas info    : Function properties for a\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 32 registers, 360 bytes cmem[0]\n"
    )
    stale = log.replace("'a'", "'old'").replace("for a\n", "for old\n")
    library = (
        CubinFunction("a", "sm_70", 40, 0, 0, True),
        CubinFunction("b", "sm_70", 40, 0, 0, True),
    )
    names = {n: n for n in ("a", "b", "old")}
    found = measure(Library(library), {"x.log": parse_ptxas(log + stale)}, names, "sm_70")
    texts = [f"{f.subject}: {f.message}" for f in found.findings]
    assert texts == [
        "a: ptxas reports 32 registers, the library has 40",
        "b: no ptxas log mentions it: its spills are not known",
        "old: a log reports this kernel and the library does not have it",
    ]
    assert [f.spill_stores for f in found.functions] == [0, None]


SASS = """\
arch = sm_70
\t\tFunction : k
        /*0000*/                   IMAD.MOV.U32 R1, RZ, RZ, c[0x0][0x28] ;   /* 0x00 */
                                                                            /* 0x00 */
        /*0010*/              @!PT STL.64 [R1+0x8], R2 ;                     /* 0x00 */
        /*0020*/              @P0  LDS.U.128 R4, [R3.X4] ;                   /* 0x00 */
        /*0030*/                   EXIT ;                                    /* 0x00 */
"""


def test_local_and_shared_accesses_are_counted_in_the_code() -> None:
    assert parse_sass(SASS) == {("k", "sm_70"): CodeUse(instructions=4, local=1, shared=1)}


def test_code_that_uses_local_memory_contradicts_a_log_without_stack() -> None:
    library = Library((CubinFunction("k", "sm_70", 8, 0, 0, True),), {"k": 32}, parse_sass(SASS))
    log = parse_ptxas(
        "ptxas info    : Compiling entry function 'k' for 'sm_70'\n"
        "ptxas info    : Function properties for k\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 8 registers, 360 bytes cmem[0]\n"
    )
    found = measure(library, {"k.log": log}, {"k": "k"}, "sm_70")
    assert [f.message for f in found.findings] == [
        "its code has 1 accesses to local memory, and no stack is reported"
    ]
    assert found.functions[0].uses_shared


def test_shared_memory_that_no_budget_declares_is_a_finding() -> None:
    hidden = replace(GOOD, static_shared=0, uses_shared=True)
    none = Resources(
        kernels=(Budget(**{**as_dict(BUDGET), "static_shared": 0, "dynamic_shared": 0}),)
    )
    (text,) = drift(hidden, none)
    assert text.startswith("error: its code uses shared memory and its budget has none")
    declared = Resources(kernels=(Budget(**{**as_dict(BUDGET), "static_shared": 0}),))
    assert drift(hidden, declared) == []


def test_an_interleaved_log_says_so() -> None:
    log = parse_ptxas((CASES / "34" / "interleaved-sm70.log").read_text())
    names = {f.name: f.name for f in log.functions}
    found = measure(Library(()), {"x.log": log}, names, "sm_70").findings
    assert ("x.log", Severity.NOTE) in {(f.subject, f.severity) for f in found}


def test_a_damaged_log_is_an_error() -> None:
    log = parse_ptxas("ptxas info    : Used 8 regptxas info    : 0 bytes gmem\n")
    (finding,) = measure(Library(()), {"x.log": log}, {}, "sm_70").findings
    assert (finding.subject, finding.severity) == ("x.log", Severity.ERROR)
    assert "run into each other" in finding.message


def report(name: str, arch: str, stack: int, cumulative: int) -> str:
    """What ptxas says of one kernel."""
    return (
        f"ptxas info    : Compiling entry function '{name}' for '{arch}'\n"
        f"ptxas info    : Function properties for {name}\n"
        f"    {stack} bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        f"ptxas info    : Used 32 registers, {cumulative} bytes cumulative stack size\n"
    )


def test_the_stack_of_what_a_kernel_calls_counts() -> None:
    library = Library((CubinFunction("k", "sm_70", 32, 0, 0, True),))
    found = measure(library, {"l": parse_ptxas(report("k", "sm_70", 0, 48))}, {"k": "k"}, "sm_70")
    assert found.functions[0].stack == 48


def test_the_worst_of_two_copies_of_a_kernel_is_measured() -> None:
    """The same template in two units: the linker keeps both images."""
    copies = [CubinFunction("k", "sm_70", n, 0, shared, True) for n, shared in ((32, 64), (40, 0))]
    log = report("k", "sm_70", 0, 0)
    for library in (Library(tuple(copies)), Library(tuple(reversed(copies)))):
        found = measure(library, {"l": parse_ptxas(log)}, {"k": "k"}, "sm_70")
        assert (found.functions[0].registers, found.functions[0].static_shared) == (40, 64)
        assert has_errors(found.findings)


def test_a_device_function_of_an_unknown_architecture_counts_against_the_target() -> None:
    log = (
        report("k", "sm_70", 0, 0)
        + report("k", "sm_80", 0, 0)
        + (
            "ptxas info    : Function properties for helper\n"
            "    8 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads\n"
        )
    )
    library = Library((CubinFunction("k", "sm_70", 32, 0, 0, True),))
    names = {"k": "k", "helper": "helper"}
    found = measure(library, {"l": parse_ptxas(log)}, names, "sm_70")
    assert {f.name: f.spill_stores for f in found.functions} == {"k": 0, "helper": 8}
