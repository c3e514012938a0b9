# SPDX-License-Identifier: Apache-2.0
"""Every kind of kernel at every tile, small, for compute-sanitizer (some hundred times slower):

PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --error-exitcode 1 \\
    python3 tests/gpu/sanitize.py [PART OF A NAME]

racecheck, initcheck and synccheck likewise. Without torch's cache of memory each tensor is an
allocation of its own, so that a step over its end is seen. Results are compared on the CPU, so that
hardly any kernels but ours run.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import Any

import attention
import gqa_small
import qsa_cases
import torch
from attention import TILES
from combinations import Case
from errors import complaints, errors
from storage import Rows
from sweep import Call

PLAIN = {
    "operator": "varlen_fwd", "mask": "causal", "softcap": 0.0, "alibi": "none", "heads": "6/2",
    "lengths": "plain", "page": 0, "kv": "separate", "q": "contiguous", "out": "given",
    "num_splits": 1, "append": "none", "cache_batch_idx": False,
}  # fmt: skip
SCORES = {"mask": "both", "softcap": 2.5, "alibi": "heads"}
CACHE = {"operator": "fwd_kvcache", "lengths": "used"}
WINDOW = (20, 3)


@dataclass(frozen=True)
class Kind:
    """A kind of call. `narrow`: the head size is 8 below the tile."""

    name: str
    lengths_q: list[int]
    cached: list[int]
    settings: dict[str, Any] = field(default_factory=dict)
    appended: int = 0
    narrow: bool = False

    def case(self, index: int, tile: int) -> Case:
        head_dim = tile - 8 * self.narrow
        settings = PLAIN | self.settings | {"head_dim": head_dim}
        rotary_dim = head_dim // 16 * 16 if "rotary" in settings["append"] else 0
        window = WINDOW if settings["mask"] == "both" else (-1, -1)
        leftpad = [5 if "leftpad" in settings["lengths"] else 0] * len(self.cached)
        return Case(
            index, settings, self.lengths_q, self.cached, self.appended, leftpad, window, rotary_dim
        )


KINDS = [
    Kind("prefill", [1, 50, 0, 5], [1, 70, 9, 0]),
    Kind("paged prefill", [50, 3], [70, 150], {"page": 16, "kv": "interleaved"}),
    Kind("general prefill", [45, 9], [40, 90], SCORES | {"lengths": "leftpad"}, narrow=True),
    Kind("split prefill", [45, 9], [140, 150], {"num_splits": 2, "out": "strided"}),
    Kind("paged general prefill", [50, 3], [70, 150], SCORES | {"page": 48}),
    Kind("decode", [1, 1], [150, 33], CACHE),
    Kind("split decode", [4, 4], [300, 33], CACHE | {"num_splits": 3}),
    Kind(
        "paged general decode", [5, 5], [300, 20],
        CACHE | SCORES | {"num_splits": 4, "page": 48, "kv": "interleaved"}, narrow=True,
    ),
    Kind(
        "append", [3, 3], [60, 0],
        CACHE | {"append": "rotary", "cache_batch_idx": True, "lengths": "used, leftpad"},
        appended=3,
    ),
    Kind(
        "paged append", [2, 2], [60, 0],
        CACHE | {"append": "rotary interleaved", "page": 16}, appended=2, narrow=True,
    ),
]  # fmt: skip


def run(case: Case) -> list[str]:
    call = Call(case)
    out, _ = call.launch()
    slopes = None if call.scoring.slopes is None else call.scoring.slopes.cpu()
    tokens = (call.queries.cpu(), *(values.cpu() for values in call.values))
    lengths = torch.tensor([case.lengths_q, case.lengths_k]).T
    expected, _ = attention.reference(*tokens, replace(call.scoring, slopes=slopes), lengths)
    rows = Rows(*(x.cpu() for x in (call.out_rows.block, call.out_rows.row, call.out_rows.used)))
    got = rows.take(out.cpu()[None] if call.varlen else out.cpu())
    return complaints(errors(got[rows.used], expected[rows.used]), None, case.head_dim)


def main() -> int:
    reason = attention.why_not_loadable()
    if reason:
        print(f"nothing to check: {reason}", file=sys.stderr)
        return 1
    attention.load_library()
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    failed = count = 0
    for tile in TILES:
        for index, kind in enumerate(KINDS):
            name = f"{kind.name}, head size {tile - 8 * kind.narrow}"
            if wanted not in name:
                continue
            count += 1
            found = run(kind.case(index + 100 * tile, tile))
            failed += bool(found)
            if found:
                print(f"{name}: {'; '.join(found)}")
    for mode in ("fused", "workspace"):
        for small in gqa_small.CASES:
            name = f"gqa {mode}: {small}"
            if wanted not in name or not hasattr(torch.ops._vllm_fa2_C, f"sm70_gqa_prefill_{mode}"):
                continue
            count += 1
            found = gqa_small.run(mode, small)
            failed += bool(found)
            if found:
                print(f"{name}: {'; '.join(found)}")
    for small in qsa_cases.SMALL:
        name = f"QSA, {small}"
        if wanted not in name or not hasattr(torch.ops._vllm_fa2_C, "sm70_qsa_page4_prefill"):
            continue
        count += 1
        call = qsa_cases.Call(small)
        found = qsa_cases.complaints(call.launch(), call.reference())
        failed += bool(found)
        if found:
            print(f"{name}: {'; '.join(found)}")
    print(f"{count} calls, {failed} of them wrong")
    return 0 if failed == 0 < count else 1


if __name__ == "__main__":
    sys.exit(main())
