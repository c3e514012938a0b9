# SPDX-License-Identifier: Apache-2.0
"""Wavefronts of shared-memory accesses on sm_70: 32 banks of 4 bytes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

WARP = 32
BANKS = 32


def warp_wavefronts(
    addresses: Sequence[int], active: Sequence[bool], size: int, is_load: bool
) -> int:
    """Wavefronts of one warp access of `size` bytes a thread; both sequences have 32 entries.

    Wide accesses run in half-warp (8 B) or quarter-warp (16 B) phases. A load whose neighbouring
    threads (t, t^1) or (t, t^2) read the same address needs half the phases (NVIDIA forum 77228,
    compute capability 7.x).
    """
    if not any(active):
        return 1
    lanes = WARP * 4 // max(4, size)
    if is_load and size > 4 and any(_pairs_agree(addresses, active, step) for step in (1, 2)):
        lanes *= 2
    total = 0
    for first in range(0, WARP, lanes):
        in_bank: dict[int, set[int]] = defaultdict(set)
        for lane in range(first, first + lanes):
            if active[lane]:
                for word in range(addresses[lane] // 4, (addresses[lane] + max(4, size)) // 4):
                    in_bank[word % BANKS].add(word)
        total += max((len(words) for words in in_bank.values()), default=1)
    return total


def least_wavefronts(size: int) -> int:
    """Wavefronts of an access of all lanes without any conflict."""
    return max(1, size // 4)


def _pairs_agree(addresses: Sequence[int], active: Sequence[bool], step: int) -> bool:
    return all(
        addresses[t] == addresses[t ^ step] for t in range(WARP) if active[t] and active[t ^ step]
    )
