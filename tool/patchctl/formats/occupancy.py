# SPDX-License-Identifier: Apache-2.0
"""How many CTAs of a kernel fit on a multiprocessor, by CUDA's occupancy rules."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Multiprocessor:
    """What one SM has. Shared memory in bytes; the defaults are those of sm_70."""

    registers: int = 65536
    registers_unit: int = 256  # a warp's registers are allotted in units of this
    partitions: int = 4  # each with its own quarter of the registers
    registers_per_thread: int = 255
    shared: int = 98304
    shared_per_cta: int = 98304
    shared_unit: int = 256
    warps: int = 64
    ctas: int = 32
    threads_per_cta: int = 1024


MULTIPROCESSORS = {"sm_70": Multiprocessor()}
"""By architecture; one that is not here has no occupancy gate."""


def ctas_per_sm(sm: Multiprocessor, threads: int, registers: int, shared: int) -> int:
    """CTAs of `threads` threads with `registers` a thread and `shared` bytes that fit; 0: none.

    `shared` is static and dynamic together.
    """
    if not 0 < threads <= sm.threads_per_cta or shared > sm.shared_per_cta:
        return 0
    warps = -(-threads // 32)
    by_warps = sm.warps // warps
    by_shared = sm.shared // _round_up(shared, sm.shared_unit) if shared else sm.ctas
    by_registers = sm.ctas
    if registers:
        of_a_warp = _round_up(registers * 32, sm.registers_unit)
        # a launch is checked as if every partition held as many warps as the fullest one
        if (
            registers > sm.registers_per_thread
            or of_a_warp * _round_up(warps, sm.partitions) > sm.registers
        ):
            return 0
        of_a_partition = sm.registers // sm.partitions // of_a_warp
        by_registers = of_a_partition * sm.partitions // warps
    return min(sm.ctas, by_warps, by_shared, by_registers)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
