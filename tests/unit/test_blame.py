# SPDX-License-Identifier: Apache-2.0
"""Searching the prefixes of a series, and what a gate holds against one of them."""

from __future__ import annotations

import pytest

from patchctl.formats.blame import complaints, first_failing, first_in_order, kernel_changes
from patchctl.formats.findings import Finding, Severity
from patchctl.formats.measured import Measured
from patchctl.formats.resources import Budget, Row


def row(name: str, registers: int | None = 100, ctas: int = 2, *, kernel: bool = True) -> Row:
    return Row(Measured(name, kernel, registers, 0, 0, 0, 0, 256), 0, 256, ctas)


def budget(name: str, registers: int) -> Budget:
    rest = {"spill_stores": 0, "spill_loads": 0, "stack": 0, "static_shared": 0}
    return Budget(
        name=name, registers=registers, dynamic_shared=0, threads=256, ctas_per_sm=2, **rest
    )


def note(name: str, text: str) -> Finding:
    return Finding("resources", name, text, Severity.NOTE)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 300])
def test_border_is_found_wherever_it_is(count: int) -> None:
    for border in range(1, count + 1):
        asked: list[int] = []

        def fails(number: int, border: int = border, asked: list[int] = asked) -> bool:
            asked.append(number)
            return number >= border

        assert first_failing(count, fails) == (border, True)
        assert len(asked) <= count.bit_length() + 1


def test_series_that_passes_is_asked_in_order_up_to_the_first_that_fails() -> None:
    asked: list[int] = []

    def fails(number: int) -> bool:
        asked.append(number)
        return number in (2, 4)

    assert first_failing(5, fails) == (2, False)
    assert asked == [5, 1, 2]
    assert first_failing(3, lambda number: False) == (None, False)
    assert first_in_order(4, lambda number: number in (3, 2)) == 2


def test_drift_of_another_kernel_is_not_held_against_a_prefix() -> None:
    head = [Finding("resources", "k", "registers 120, locked 100 (worse)")]
    rows = [row("k", 100), row("other", 90)]
    said = [note("other", "registers 90, locked 80 (worse)"), Finding("schemas", "x", "y")]
    assert complaints("resources", said, rows, [budget("k", 100), budget("other", 80)], head) == []


def test_better_in_a_prefix_is_growth_to_come_and_worse_is_not() -> None:
    head = [Finding("resources", "k", "registers 120, locked 100 (worse)")]
    better, worse = (note("k", f"registers {n}, locked 100") for n in (90, 110))
    assert complaints("resources", [better], [row("k", 90)], [budget("k", 100)], head) == []
    assert complaints("resources", [worse], [row("k", 110)], [budget("k", 100)], head) == [worse]


def test_kernel_without_budget_is_held_against_the_patch_that_brings_it() -> None:
    text = "unknown kernel: it has no budget"
    head = [Finding("resources", "k", text)]
    assert complaints("resources", [note("k", text)], [row("k")], [], head) == [note("k", text)]


def test_error_in_a_prefix_counts_whatever_the_head_says() -> None:
    spill = Finding("resources", "k", "over its limit")
    assert complaints("resources", [spill], [row("k")], [budget("k", 100)], []) == [spill]


def test_changes_of_kernels_are_named() -> None:
    before = [row("same"), row("more", 100, 2), row("gone"), row("unknown", None)]
    after = [row("same"), row("more", 130, 1), row("fresh"), row("unknown", 7)]
    said = {change.name: str(change) for change in kernel_changes(before, after)}
    assert said == {
        "same": "as before",
        "more": "registers +30, CTAs an SM -1",
        "fresh": "new",
        "unknown": "registers ? -> 7",
        "gone": "gone",
    }
    assert not kernel_changes(before, before)[0].changed


def test_device_functions_are_no_kernels() -> None:
    assert kernel_changes([], [row("helper", kernel=False)]) == []
