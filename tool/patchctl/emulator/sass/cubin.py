# SPDX-License-Identifier: Apache-2.0
"""Constant banks that a cubin fills: jump tables, literals and ``__constant__`` variables."""

from __future__ import annotations

import io
import re

from patchctl.emulator.machine import EmulatorError

_BANK = re.compile(r"\.nv\.constant(\d+)(?:\.(.+))?")
_PARAMETERS = 0
_ADDRESSES = 4


def constant_banks(cubin: bytes, kernel: str) -> dict[int, bytes]:
    """Banks by number: the kernel's own and the module's. Bank 0 is left to the launch.

    Bank 4 holds addresses of device variables; it is left out, so that its use is an error.

    Raises:
        EmulatorError: a bank with contents that only the driver could fill in.
    """
    from elftools.elf.elffile import ELFFile

    elf = ELFFile(io.BytesIO(cubin))
    moved = {s.name for s in elf.iter_sections() if s["sh_type"] in ("SHT_REL", "SHT_RELA")}
    banks: dict[int, bytes] = {}
    for section in elf.iter_sections():
        match = _BANK.fullmatch(section.name)
        if not match or match[2] not in (None, kernel):
            continue
        number = int(match[1])
        if number in (_PARAMETERS, _ADDRESSES):
            continue
        if f".rel{section.name}" in moved or f".rela{section.name}" in moved:
            raise EmulatorError(f"{kernel}: constant bank {number} needs relocation")
        banks[number] = section.data()
    return banks
