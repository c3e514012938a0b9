# SPDX-License-Identifier: Apache-2.0
"""Constant bank 0 of sm_70: launch facts first, the kernel's parameters from 0x160 on."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace

from patchctl.emulator.machine import Launch
from patchctl.emulator.memory import GlobalMemory

PARAMETERS = 0x160
_BLOCK = 0x0
_GRID = 0xC
_STACK = 0x28


def bank0(
    grid: tuple[int, int, int], block: tuple[int, int, int], parameters: bytes, local_bytes: int
) -> bytes:
    """Bank 0 of a launch. Local memory is addressed from 0 on, the stack grows down to there.

    What ptxas never reads in kernels without printf and nested launches stays 0.
    """
    data = bytearray(PARAMETERS + len(parameters))
    struct.pack_into("<3I", data, _BLOCK, *block)
    struct.pack_into("<3I", data, _GRID, *grid)
    struct.pack_into("<I", data, _STACK, local_bytes)
    data[PARAMETERS:] = parameters
    return bytes(data)


def prepare(local_bytes: int, banks: dict[int, bytes]) -> Callable[[Launch, GlobalMemory], Launch]:
    """What machine code needs besides the parameters (`run.run`): constant banks.

    `banks`: the kernel's own and the module's, as the cubin holds them (`cubin.py`).
    """

    def add(launch: Launch, memory: GlobalMemory) -> Launch:
        first = bank0(launch.grid, launch.block, launch.parameters, local_bytes)
        return replace(launch, constants={0: first, **banks})

    return add
