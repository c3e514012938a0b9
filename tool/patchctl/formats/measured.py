# SPDX-License-Identifier: Apache-2.0
"""The resources of each kernel, put together from ptxas logs and the final library.

Registers and shared memory come from the library, spills from the logs (the library does not
tell them), and where both speak they must agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from patchctl.formats.cuobjdump import CubinFunction
from patchctl.formats.findings import Finding, Severity
from patchctl.formats.ptxas import FunctionReport, PtxasLog
from patchctl.formats.sass import CodeUse

GATE = "resources"


@dataclass(frozen=True)
class Library:
    """What cuobjdump tells of a library; `threads` (launch bounds) by mangled name."""

    functions: tuple[CubinFunction, ...]
    threads: Mapping[str, int] = field(default_factory=dict)
    code: Mapping[tuple[str, str], CodeUse] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured:
    """A kernel, or a device function that was not inlined. Bytes, except registers and threads.

    None is unknown. `threads` is the most that a CTA may have by its launch bounds;
    `uses_shared`: its code touches shared memory.
    """

    name: str
    is_kernel: bool
    registers: int | None
    spill_stores: int | None
    spill_loads: int | None
    stack: int | None
    static_shared: int
    threads: int | None = None
    uses_shared: bool = False


@dataclass
class Measurement:
    """All functions by name, and what did not fit together."""

    functions: list[Measured] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def measure(
    library: Library,
    logs: Mapping[str, PtxasLog],
    keys: Mapping[str, str],
    arch: str,
) -> Measurement:
    """Join the library's functions of `arch` with the reports in `logs` (by the log's name).

    `keys` gives the name to lock for each mangled one.
    """
    result = Measurement()
    reports: dict[str, list[FunctionReport]] = {}
    for log_name, log in logs.items():
        if log.damaged:
            result.findings.append(
                Finding(GATE, log_name, "lines of several compilers run into each other")
            )
        elif log.interleaved:
            text = "several compilers wrote at once: registers are the library's alone"
            result.findings.append(Finding(GATE, log_name, text, Severity.NOTE))
        result.findings += _message_findings(log_name, log, keys)
        for report in log.functions:
            # an unknown architecture counts against this one
            if report.arch in (arch, None):
                reports.setdefault(report.name, []).append(report)
    kernels: dict[str, list[CubinFunction]] = {}
    for function in library.functions:
        if function.arch == arch and function.is_kernel:
            kernels.setdefault(function.name, []).append(function)
    for name in sorted(kernels, key=lambda n: keys[n]):
        use = library.code.get((name, arch), CodeUse(0, 0, 0))
        threads = library.threads.get(name)
        _join(result, keys[name], kernels[name], reports.get(name, []), threads, use)
    for name in sorted(set(reports) - set(kernels), key=lambda n: keys[n]):
        if any(r.is_entry for r in reports[name]):
            text = "a log reports this kernel and the library does not have it"
            result.findings.append(Finding(GATE, keys[name], text, hint="patchctl build"))
        else:
            result.functions.append(_device_function(keys[name], reports[name]))
    return result


def _join(
    result: Measurement,
    key: str,
    cubins: list[CubinFunction],
    reports: list[FunctionReport],
    threads: int | None,
    use: CodeUse,
) -> None:
    registers = max(c.registers for c in cubins)
    shared = max(c.static_shared for c in cubins)
    stacks = [_worst([c.stack for c in cubins]), _worst([r.stack for r in reports])]
    stacks.append(max((r.cumulative_stack or 0 for r in reports), default=0))
    stack = _worst(stacks[:2]) if None in stacks else max(s or 0 for s in stacks)
    result.functions.append(
        Measured(
            name=key,
            is_kernel=True,
            registers=registers,
            spill_stores=_worst([r.spill_stores for r in reports]),
            spill_loads=_worst([r.spill_loads for r in reports]),
            stack=stack,
            static_shared=shared,
            threads=threads,
            uses_shared=use.shared > 0,
        )
    )
    if use.local and stack == 0:
        text = f"its code has {use.local} accesses to local memory, and no stack is reported"
        result.findings.append(Finding(GATE, key, text, hint="patchctl build"))
    if not reports:
        text = "no ptxas log mentions it: its spills are not known"
        result.findings.append(Finding(GATE, key, text, hint="patchctl build"))
    for report in reports:
        for what, of_log, of_library in (
            ("registers", report.registers, registers),
            ("bytes of static shared memory", report.static_shared, shared),
        ):
            if of_log is not None and of_log != of_library:
                text = f"ptxas reports {of_log} {what}, the library has {of_library}"
                result.findings.append(Finding(GATE, key, text, hint="patchctl build"))
    if any(c.stack is None for c in cubins):
        text = "the size of its stack cannot be told (recursion or a call through a pointer)"
        result.findings.append(Finding(GATE, key, text))


def _device_function(key: str, reports: list[FunctionReport]) -> Measured:
    return Measured(
        name=key,
        is_kernel=False,
        registers=None,
        spill_stores=_worst([r.spill_stores for r in reports]),
        spill_loads=_worst([r.spill_loads for r in reports]),
        stack=_worst([r.stack for r in reports]),
        static_shared=0,
    )


def _worst(values: list[int | None]) -> int | None:
    """The largest, unknown if any is unknown or there is none."""
    known = [v for v in values if v is not None]
    return max(known) if known and len(known) == len(values) else None


def _message_findings(where: str, log: PtxasLog, keys: Mapping[str, str]) -> list[Finding]:
    severities = {"info": Severity.NOTE, "warning": Severity.WARNING}
    return [
        Finding(
            GATE,
            keys.get(m.function, m.function) or where,
            f"ptxas: {m.text}",
            severities.get(m.level, Severity.ERROR),
        )
        for m in log.messages
    ]
