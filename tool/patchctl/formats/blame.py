# SPDX-License-Identifier: Apache-2.0
"""Which patch did it: searching the prefixes of a series, and what each patch did to a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from patchctl.formats.findings import Finding, Severity
from patchctl.formats.resources import Budget, Row

SHOWN = ("registers", "spill_stores", "spill_loads", "stack", "static_shared", "ctas_per_sm")
"""The numbers of a kernel that a patch is blamed for; bytes but for the first and the last."""


def first_failing(count: int, fails: Callable[[int], bool]) -> tuple[int | None, bool]:
    """The number (from 1) of the first prefix that fails, and whether monotony was assumed.

    The whole series is asked first. If it fails, the border between passing and failing is
    halved: few prefixes are built, and that is right if what a patch breaks stays broken. If it
    passes, nothing says where to look, and the prefixes are asked one after the other.
    """
    if count and fails(count):
        low, high = 0, count  # the pristine source passes: there is nothing of ours in it
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if fails(middle) else (middle, high)
        return high, True
    return first_in_order(count - 1, fails), False


def first_in_order(count: int, fails: Callable[[int], bool]) -> int | None:
    """The number of the first prefix that fails, all before it having been asked."""
    return next((number for number in range(1, count + 1) if fails(number)), None)


def complaints(
    gate: str,
    findings: Sequence[Finding],
    rows: Sequence[Row],
    budgets: Sequence[Budget],
    head: Sequence[Finding],
) -> list[Finding]:
    """What a gate holds against a prefix.

    That is its errors; and, as budgets are the whole series's and drift from them is only noted
    in a part of it, also what is noted of something that fails at the `head` of the series: if
    it is the same, or if it is worse than its budget.
    """
    failing = {f.subject for f in head}
    same = {(f.subject, f.message) for f in head}
    by_name = {budget.name: budget for budget in budgets}
    worse = {r.measured.name for r in rows if _is_worse(r, by_name.get(r.measured.name))}
    return [
        f
        for f in findings
        if f.gate == gate
        and (
            f.severity is Severity.ERROR
            or (f.subject, f.message) in same
            or (f.subject in failing and f.subject in worse)
        )
    ]


def _is_worse(row: Row, budget: Budget | None) -> bool:
    if budget is None:
        return False
    numbers = {key: value for key, value in row.numbers.items() if key in SHOWN}
    return any(
        now is not None
        and now != (was := getattr(budget, key))
        and (now > was) != (key == "ctas_per_sm")
        for key, now in numbers.items()
    )


@dataclass(frozen=True)
class KernelChange:
    """A kernel after a patch: `row` is None where the patch removed it, `before` where it is new.

    `moved` holds (what, before, after) for each number that the patch changed.
    """

    name: str
    row: Row | None
    before: Row | None
    moved: tuple[tuple[str, int | None, int | None], ...] = ()

    @property
    def changed(self) -> bool:
        """Whether the patch did anything to it."""
        return self.row is None or self.before is None or bool(self.moved)

    def __str__(self) -> str:
        if self.row is None:
            return "gone"
        if self.before is None:
            return "new"
        return ", ".join(_said(*move) for move in self.moved) or "as before"


def kernel_changes(before: Sequence[Row], after: Sequence[Row]) -> list[KernelChange]:
    """What a patch did to each kernel, those that are gone last."""
    old = {row.measured.name: row for row in before if row.measured.is_kernel}
    found = []
    for row in (row for row in after if row.measured.is_kernel):
        was = old.pop(row.measured.name, None)
        moved = _moved(was, row) if was else ()
        found.append(KernelChange(row.measured.name, row, was, moved))
    return found + [KernelChange(name, None, row) for name, row in old.items()]


def _moved(before: Row, after: Row) -> tuple[tuple[str, int | None, int | None], ...]:
    was, now = before.numbers, after.numbers
    return tuple((key, was[key], now[key]) for key in SHOWN if was[key] != now[key])


def _said(key: str, before: int | None, after: int | None) -> str:
    what = {"ctas_per_sm": "CTAs an SM"}.get(key, key.replace("_", " "))
    if before is None or after is None:
        return f"{what} {'?' if before is None else before} -> {'?' if after is None else after}"
    return f"{what} {after - before:+d}"
