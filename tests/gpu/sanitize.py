# SPDX-License-Identifier: Apache-2.0
"""A few launches for compute-sanitizer, which makes everything some hundred times slower:

compute-sanitizer --tool memcheck  --error-exitcode 1 python3 tests/gpu/sanitize.py
compute-sanitizer --tool racecheck --error-exitcode 1 python3 tests/gpu/sanitize.py
"""

from __future__ import annotations

import math
import sys

import attention
import torch
from attention import HEAD_DIM, cumulative, errors, kvcache, randn, split_reference, varlen

# lengths of Q, lengths of K, Hq, Hk: tails on both sides, empty sequences, more queries than keys
CASES = [
    ([1, 30, 0, 5], [1, 70, 9, 0], 6, 1),
    ([129, 40], [65, 200], 2, 2),
]


def main() -> int:
    reason = attention.why_not_loadable() or attention.why_no_gpu()
    if reason:
        print(f"nothing to check: {reason}", file=sys.stderr)
        return 1
    attention.load_library()
    worst = 0.0
    for lengths_q, lengths_k, heads, heads_k in CASES:
        q = randn(sum(lengths_q), heads, HEAD_DIM)
        k, v = (randn(sum(lengths_k), heads_k, HEAD_DIM, seed=seed) for seed in (1, 2))
        for causal in (False, True):
            out, _ = varlen(
                q, k, v, cumulative(lengths_q), cumulative(lengths_k), max(lengths_q),
                max(lengths_k), causal=causal, out=torch.full_like(q, math.nan),
            )  # fmt: skip
            expected, _ = split_reference(q, k, v, lengths_q, lengths_k, causal=causal)
            worst = max(worst, errors(out, expected).worst)
    q, k = randn(2, 20, 3, HEAD_DIM), randn(2, 90, 1, HEAD_DIM, seed=1)
    lengths = torch.tensor([90, 33], dtype=torch.int32, device="cuda")
    kvcache(q, k, k, causal=True, seqlens_k=lengths)
    torch.cuda.synchronize()
    print(f"worst error {worst:.2e}")
    return 0 if worst <= attention.WORST_BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
