# SPDX-License-Identifier: Apache-2.0
"""QSA page4: accuracy of every case, and its time beside the exact fallbacks in the same run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from attention import DEVICE
from markdown import table
from qsa_cases import ACCURACY, ODD, Call, Case, complaints, error

sys.path.append(str(Path(__file__).parents[2] / "tool"))

from vllm_fa2_sm70 import qsa_exact
from vllm_fa2_sm70.qsa import qsa_triton_reason

ACCURACY_COLUMNS = ["case", "relative L2", "largest error", "cosine", "same bits twice"]
SPEED_COLUMNS = [
    "selected", "selection", "tokens read, of those selected", "page4, ms", "paged, ms",
    "Triton, ms", "torch, ms", "page4 is faster than paged", "V100, model, ms",
]  # fmt: skip
MODEL = {  # docs/qsa.md says how
    (64, "neighbours"): "0.12", (512, "neighbours"): "0.45", (2048, "neighbours"): "1.5",
    (64, "random"): "0.21", (512, "random"): "1.2", (2048, "random"): "4.2",
}  # fmt: skip


def measure() -> tuple[list[str], bool]:
    lines, good = _accuracy()
    if DEVICE != "cuda":
        return lines, good
    return lines + _speed(), good


def _accuracy() -> tuple[list[str], bool]:
    rows, good = [], True
    for case in ACCURACY + ODD:
        call = Call(case)
        out, expected = call.launch(), call.reference()
        said, found = complaints(out, expected), error(out, expected)
        same = torch.equal(call.launch(), out)
        good &= same and not said
        rows.append([
            f"**{case}: {'; '.join(said)}**" if said else str(case), f"{found.relative_l2:.2e}",
            f"{found.largest:.2e}", f"{found.cosine:.9f}", "yes" if same else "**no**",
        ])  # fmt: skip
    return table(ACCURACY_COLUMNS, rows), good


def _speed() -> list[str]:
    rows = [
        _times(selected, selection)
        for selected in (64, 512, 2048)
        for selection in ("neighbours", "random")
    ]
    return [
        "4,096 rows of a request of 32,768 tokens, page 784, table and sort included. The GPU runs",
        "`compute_70` PTX, whose matrix instructions it emulates: these times compare routes on",
        "that GPU in that run and say nothing of a V100. The V100's time is an estimate by the",
        "loop model and counted traffic (docs/qsa.md), never measured.",
        "",
        *table(SPEED_COLUMNS, rows),
    ]


def _times(selected: int, selection: str) -> list[str]:
    call = Call(Case((4096,), (32768,), selected, 784, True, selection, poison=False))
    out = torch.empty_like(call.tensors["q"])
    times = {"page4": milliseconds(lambda: call.launch(out=out), 20)}
    times |= {name: milliseconds(run, 3) for name, run in _fallbacks(call, out).items()}
    groups = [np.unique(np.concatenate(call.seen[i : i + 4])) for i in range(0, 4096, 4)]
    read = sum(map(len, groups)) / sum(map(len, call.seen))
    return [
        str(selected), selection, f"{read:.0%}",
        *(f"{times[name]:.3f}" if name in times else "-" for name in ("page4", *FALLBACKS)),
        f"{times['paged'] / times['page4']:.2f}x", MODEL[selected, selection],
    ]  # fmt: skip


FALLBACKS = ("paged", "triton", "torch")


def _fallbacks(call: Call, out: torch.Tensor) -> dict[str, Callable[[], None]]:
    """Everything that a fallback does, selection included."""
    given = call.tensors
    names = ("indices", "row_to_request", "positions", "seq_lens", "block_table")

    def tensors() -> tuple:  # type: ignore[type-arg]
        selection = qsa_exact.select(*(given[name] for name in names), *given["k_cache"].shape[:2])
        return given["q"], given["k_cache"], given["v_cache"], selection, 0.0625, out

    def triton() -> None:
        from vllm_fa2_sm70.qsa_triton import attend_triton

        attend_triton(*tensors())

    found: dict[str, Callable[[], None]] = {
        "paged": lambda: qsa_exact.attend_paged(*tensors(), 16),
        "torch": lambda: qsa_exact.attend_torch(*tensors()),
    }
    return found if qsa_triton_reason() else found | {"triton": triton}


def milliseconds(run: Callable[[], object], times: int) -> float:
    """The median of some runs, after one."""
    run()
    found = []
    for _ in range(times):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end))
    return float(np.median(found))
