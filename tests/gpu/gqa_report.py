# SPDX-License-Identifier: Apache-2.0
"""Long prefills: accuracy of all shapes, the paired gate, and times beside dense in one run."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from attention import DEVICE
from gqa_cases import (
    HOSTILE,
    KEYS,
    LONGEST,
    MODES,
    SHORTEST,
    accuracy,
    by,
    normal,
    paired,
    shim,
)
from markdown import table

RUNS = 9
SECONDS = 25.0
"""After which no further shape is timed."""

ACCURACY_COLUMNS = [
    "KV", "operator", "float64, sampled rows: relative L2", "largest error",
    "dense, all elements: relative L2", "largest difference", "finite", "LSE error",
]  # fmt: skip
PAIRED_COLUMNS = ["inputs", "KV", "dense", "fused", "ratio", "workspace", "ratio"]
TIME_COLUMNS = ["KV", "dense, ms", "fused, ms", "workspace, ms", "dense / fused", "/ workspace"]


def measure() -> tuple[list[str], bool]:
    lines, good = _accuracy()
    more, also_good = _paired()
    lines += more
    lines += _times() if DEVICE == "cuda" else []
    shim.release_memory()
    return lines, good and also_good


def _accuracy() -> tuple[list[str], bool]:
    rows, good = [], True
    for keys in KEYS:
        for mode, found in accuracy(keys).items():
            said = found.complaints()
            good &= not said
            rows.append([
                f"**{keys}: {'; '.join(said)}**" if said else str(keys), mode,
                f"{found.sampled.relative_l2:.2e}", f"{found.sampled.largest:.2e}",
                f"{found.against_dense.relative_l2:.2e}", f"{found.against_dense.largest:.2e}",
                "yes" if found.sampled.finite and found.against_dense.finite else "**no**",
                f"{found.lse:.1e}",
            ])  # fmt: skip
    return ["Unit-normal inputs, Q = 8000:", "", *table(ACCURACY_COLUMNS, rows)], good


def _paired() -> tuple[list[str], bool]:
    rows, good = [], True
    for name, keys in [*((n, SHORTEST) for n in HOSTILE), ("outlier channels x50", LONGEST)]:
        dense, found = paired(name, keys)
        said = [f"{mode}: {what}" for mode in MODES for what in found[mode][1]]
        good &= not said
        row = [f"**{name}: {'; '.join(said)}**" if said else name, str(keys)]
        row.append(f"{dense.relative_l2:.2e}")
        for mode in MODES:
            ours = found[mode][0].relative_l2
            ratio = f"{ours / dense.relative_l2:.2f}" if dense.relative_l2 else "-"
            row += [f"{ours:.2e}", ratio]
        rows.append(row)
    head = "Hostile inputs: relative L2 against float64 on sampled rows, of finite elements:"
    return [head, "", *table(PAIRED_COLUMNS, rows)], good


def _times() -> list[str]:
    started, rows = time.monotonic(), {}
    for keys in sorted(KEYS, key=lambda keys: keys not in (SHORTEST, LONGEST)):
        if rows and time.monotonic() - started > SECONDS:
            continue
        rows[keys] = _time(keys)
    return [
        f"Medians of {RUNS}, interleaved, in one run. The GPU runs `compute_70` PTX, whose matrix",
        "instructions it does not have: these times compare routes on that GPU and say nothing of",
        "a V100. The loop model's estimate for a V100 is in docs/gqa-prefill.md.",
        "",
        *table(TIME_COLUMNS, [rows[keys] for keys in sorted(rows)]),
    ]


def _time(keys: int) -> list[str]:
    inputs = normal(keys)
    out = torch.empty_like(inputs.q)
    times: dict[str, list[float]] = {mode: [] for mode in ("dense", *MODES)}
    for run in range(RUNS + 1):
        for mode, found in times.items():
            took = _milliseconds(lambda mode=mode: by(mode, inputs, out))  # type: ignore[misc]
            if run:
                found.append(took)
    of = {mode: median(found) for mode, found in times.items()}
    return [
        str(keys), *(f"{of[mode]:.2f}" for mode in times),
        *(f"{of['dense'] / of[mode]:.2f}x" for mode in MODES),
    ]  # fmt: skip


def _milliseconds(run: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))
