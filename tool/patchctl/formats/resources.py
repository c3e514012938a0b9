# SPDX-License-Identifier: Apache-2.0
"""``build/<target>.resources.toml``: the budget of each kernel, its limits, and what differs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from patchctl.errors import UsageError
from patchctl.formats.documents import Document, read_toml, toml_text
from patchctl.formats.findings import Finding, Severity
from patchctl.formats.measured import GATE, Measured
from patchctl.formats.occupancy import MULTIPROCESSORS, ctas_per_sm

UPDATE = "patchctl verify --update"
DECLARE = f"write what its launch asks for as `dynamic_shared`, then {UPDATE}"
_HEADING = """\
# SPDX-License-Identifier: Apache-2.0
# Measured by `patchctl verify`, renewed by `patchctl verify --update`. By hand: `limits`, and of
# each kernel `dynamic_shared` (what its launch asks for), `threads` where the kernel has no
# launch bounds, and `since` (the patch that brings it). Sizes are in bytes.
"""


Amount = Annotated[int, msgspec.Meta(ge=0)]


class Limits(Document, frozen=True, kw_only=True):
    """What no kernel may break and no update can lock."""

    registers: Amount = 255
    spill_stores: Amount = 0
    spill_loads: Amount = 0
    stack: Amount = 0
    shared: Amount = 98304
    ctas_per_sm: Amount = 1


class Budget(Document, frozen=True, kw_only=True):
    """One kernel's locked resources; bytes, except `registers`, `threads` and `ctas_per_sm`."""

    name: str
    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    static_shared: int
    dynamic_shared: int
    threads: int
    ctas_per_sm: int
    since: str = ""


class Resources(Document, frozen=True, kw_only=True):
    """The file. `toolkit` is the CUDA version that gave the numbers."""

    toolkit: str = ""
    limits: Limits = Limits()
    kernels: tuple[Budget, ...] = ()


def read_resources(text: str | bytes, *, where: str) -> Resources:
    """Parse the file.

    Raises:
        UsageError: not TOML, an unknown key, a wrong type, or a kernel listed twice.
    """
    resources = read_toml(text, Resources, where=where)
    names = [k.name for k in resources.kernels]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"`{where}` at `kernels`: `{name}` is listed twice")
    return resources


def write_resources(resources: Resources) -> str:
    """The file's text, kernels by name."""
    data = msgspec.to_builtins(resources)
    data["kernels"] = [
        {k: v for k, v in kernel.items() if k != "since" or v}
        for kernel in sorted(data["kernels"], key=lambda k: k["name"])
    ]
    return toml_text(data, heading=_HEADING)


@dataclass(frozen=True)
class Row:
    """A kernel as measured, with what only the lock knows of its launch."""

    measured: Measured
    dynamic_shared: int
    threads: int | None
    ctas_per_sm: int | None

    @property
    def numbers(self) -> dict[str, int | None]:
        """What is compared with the budget, by its key there."""
        m = self.measured
        return {
            "registers": m.registers,
            "spill_stores": m.spill_stores,
            "spill_loads": m.spill_loads,
            "stack": m.stack,
            "static_shared": m.static_shared,
            "threads": self.threads,
            "ctas_per_sm": self.ctas_per_sm,
        }


def rows(functions: Sequence[Measured], locked: Resources, arch: str) -> list[Row]:
    """Every measured function with its launch: dynamic shared memory and CTAs an SM."""
    budgets = {b.name: b for b in locked.kernels}
    result = []
    for function in functions:
        budget = budgets.get(function.name)
        dynamic = budget.dynamic_shared if budget else 0
        threads = function.threads or (budget.threads if budget else 0) or None
        ctas = None
        if function.is_kernel and threads and function.registers and arch in MULTIPROCESSORS:
            shared = function.static_shared + dynamic
            ctas = ctas_per_sm(MULTIPROCESSORS[arch], threads, function.registers, shared)
        result.append(Row(function, dynamic, threads, ctas))
    return result


def check_limits(measured: Sequence[Row], limits: Limits) -> list[Finding]:
    """What breaks a hard limit, or cannot be shown not to."""
    findings = []
    for row in measured:
        function = row.measured
        checks: list[tuple[str, int | None, int]] = [
            ("bytes of spill stores", function.spill_stores, limits.spill_stores),
            ("bytes of spill loads", function.spill_loads, limits.spill_loads),
            ("bytes of stack", function.stack, limits.stack),
        ]
        if function.is_kernel:
            shared = function.static_shared + row.dynamic_shared
            checks.append(("registers", function.registers, limits.registers))
            checks.append(("bytes of shared memory", shared, limits.shared))
        broken = [f"{n} {what} (at most {most})" for what, n, most in checks if n and n > most]
        unknown = [f"{what} not known" for what, n, _ in checks if n is None]
        if function.is_kernel and row.threads is None:
            unknown.append("threads a CTA not known: no launch bounds, no `threads` in the lock")
        elif row.ctas_per_sm is not None and row.ctas_per_sm < limits.ctas_per_sm:
            broken.append(f"{row.ctas_per_sm} CTAs an SM (at least {limits.ctas_per_sm})")
        if broken or unknown:
            kind = "" if function.is_kernel else "device function: "
            text = f"{kind}over its limit: " if broken else kind
            findings.append(Finding(GATE, function.name, text + ", ".join(broken + unknown)))
    return findings


def compare(
    measured: Sequence[Row], locked: Resources, toolkit: str, applied: Collection[str] | None
) -> list[Finding]:
    """What differs from the lock, better or worse; unknown and vanished kernels.

    `applied` are the patches in the tree, None for all. The budgets are the whole series's: a
    later patch may change a kernel, so what differs in a part of the series is only noted. A
    kernel is missed there if it is `since` an applied patch.
    """
    drift = Severity.ERROR if applied is None else Severity.NOTE
    budgets = {b.name: b for b in locked.kernels}
    note = ""
    if locked.toolkit and locked.toolkit != toolkit:
        note = f" (measured with CUDA {toolkit}, locked with {locked.toolkit})"
    findings = []
    for row in measured:
        name = row.measured.name
        if not row.measured.is_kernel:
            continue
        budget = budgets.pop(name, None)
        if budget is None:
            text = "unknown kernel: it has no budget"
            findings.append(Finding(GATE, name, text, drift, hint=UPDATE if not applied else ""))
            continue
        if row.measured.uses_shared and row.measured.static_shared + row.dynamic_shared == 0:
            text = "its code uses shared memory and its budget has none"
            findings.append(Finding(GATE, name, text, hint=DECLARE))
        changes = differences(row, budget)
        if changes:
            text = "; ".join(changes) + note
            findings.append(Finding(GATE, name, text, drift, hint=UPDATE if not applied else ""))
    for name, budget in budgets.items():
        if applied is None or budget.since in applied:
            text = f"vanished: it has a budget and is not in the library{note}"
            findings.append(Finding(GATE, name, text, hint=UPDATE))
    if note and not findings:
        text = f"numbers equal the lock although the toolkit does not{note}"
        findings.append(Finding(GATE, "toolkit", text, Severity.NOTE))
    return findings


def differences(row: Row, budget: Budget) -> list[str]:
    """``registers 200, locked 190 (worse)``, for every number that differs."""
    said = []
    for key, now in row.numbers.items():
        was: int = getattr(budget, key)
        if now is None or now == was:
            continue
        what = {"ctas_per_sm": "CTAs an SM"}.get(key, key.replace("_", " "))
        if key == "threads":
            judged = ""
        else:
            judged = " (worse)" if (now > was) != (key == "ctas_per_sm") else " (better)"
        said.append(f"{what} {now}, locked {was}{judged}")
    return said


def renewed(
    measured: Sequence[Row], locked: Resources, toolkit: str, applied: Sequence[str] | None
) -> Resources:
    """The lock that fits what was measured; what people wrote by hand stays.

    Budgets of kernels that a patch outside `applied` brings are kept. A new kernel's `since` is
    the last applied patch, when only a part of the series is in the tree.
    """
    old = {b.name: b for b in locked.kernels}
    kernels = []
    for row in measured:
        if not row.measured.is_kernel:
            continue
        budget = old.pop(row.measured.name, None)
        since = budget.since if budget else (applied[-1] if applied else "")
        numbers = {key: value or 0 for key, value in row.numbers.items()}
        kernels.append(
            Budget(
                name=row.measured.name, dynamic_shared=row.dynamic_shared, since=since, **numbers
            )
        )
    kernels += [b for b in old.values() if applied is not None and b.since not in {"", *applied}]
    return Resources(toolkit=toolkit, limits=locked.limits, kernels=tuple(kernels))
