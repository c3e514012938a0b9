# SPDX-License-Identifier: Apache-2.0
"""The sweep's results for each setting of each row of the table of what must work."""

from __future__ import annotations

import sys
from statistics import median
from typing import Any

from combinations import FACTORS, Case, cases
from markdown import table
from sweep import Result, run

COLUMNS = [
    "", "combinations", "relative L2: median", "worst", "worst error",
    "PyTorch: relative L2, worst", "worst error", "largest ratio of relative L2", "LSE error",
]  # fmt: skip
TITLES = {
    "head_dim": "head size", "mask": "mask", "softcap": "softcap", "alibi": "ALiBi slopes",
    "heads": "query heads / KV heads", "queries": "Q rows", "keys": "keys", "lengths": "lengths",
    "empty": "empty sequences", "page": "page size (0: not paged)", "kv": "K and V in memory",
    "q": "Q in memory", "out": "output", "num_splits": "num_splits (0: chosen)",
    "append": "appended to the cache", "cache_batch_idx": "cache_batch_idx",
}  # fmt: skip

Measured = list[tuple[Case, Result]]


def measure() -> tuple[list[str], bool]:
    measured: Measured = []
    failed: list[str] = []
    for case in cases():
        result = run(case)
        measured.append((case, result))
        if result.complaints:
            failed.append(f"- **{'; '.join(result.complaints)}** in {case}")
            print(failed[-1], file=sys.stderr, flush=True)
    lines = [
        f"{len(measured)} combinations that contain every possible pair of the settings below. All",
        "of each output and LSE was compared, rows that see no key and memory beside outputs and",
        f"appended tokens included. {len(failed)} of the combinations break a bound.",
        "",
        *failed[:30],
        "",
        *table(["operator", *COLUMNS[1:]], _rows(measured, "operator")),
    ]
    for name in FACTORS:
        if name != "operator":
            lines += table([TITLES[name], *COLUMNS[1:]], _rows(measured, name))
    return lines, not failed


def _rows(measured: Measured, name: str) -> list[list[str]]:
    return [
        _row(setting, [result for case, result in measured if case.settings[name] == setting])
        for setting in FACTORS[name]
    ]


def _row(setting: Any, results: list[Result]) -> list[str]:
    ratios = [r.ours.relative_l2 / r.theirs.relative_l2 for r in results if r.theirs.relative_l2]
    return [
        str(setting),
        str(len(results)),
        f"{median(r.ours.relative_l2 for r in results):.2e}",
        f"{max(r.ours.relative_l2 for r in results):.2e}",
        f"{max(r.ours.worst for r in results):.2e}",
        f"{max(r.theirs.relative_l2 for r in results):.2e}",
        f"{max(r.theirs.worst for r in results):.2e}",
        f"{max(ratios, default=0):.2f}",
        f"{max(r.lse for r in results):.1e}",
    ]
