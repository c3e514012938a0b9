# SPDX-License-Identifier: Apache-2.0
"""Whether memory will do, asked before it is taken: what the caching allocator would need."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MIB = 2**20
HEADROOM = 128 * MIB
"""Left to what comes after the call."""

SMALL, SMALL_SEGMENT = MIB, 2 * MIB
MIDDLE, MIDDLE_SEGMENT = 10 * MIB, 20 * MIB
STEP = 2 * MIB


@dataclass(frozen=True)
class Memory:
    """Bytes of a device: `free` to everybody; `releasable`: unused, held by this process."""

    free: int
    releasable: int


def segment(size: int) -> int:
    """What torch's caching allocator asks the driver for when nothing it holds fits."""
    if size <= 0:
        return 0
    if size <= SMALL:
        return SMALL_SEGMENT
    if size < MIDDLE:
        return MIDDLE_SEGMENT
    return -(-size // STEP) * STEP


def shortage(wanted: Iterable[int], memory: Memory) -> str:
    """What is missing for allocations of these sizes and the headroom; empty if nothing is.

    Advisory: other threads and processes take memory meanwhile.
    """
    needed = sum(map(segment, wanted)) + HEADROOM
    if needed <= memory.free + memory.releasable:
        return ""
    return (
        f"{mib(needed)} are needed, {mib(HEADROOM)} of them headroom, "
        f"and {mib(memory.free)} are free, {mib(memory.releasable)} releasable"
    )


def mib(size: int) -> str:
    """Bytes for people."""
    return f"{size / MIB:.1f} MiB"
