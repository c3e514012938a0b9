# SPDX-License-Identifier: Apache-2.0
"""Whether a shared object is whole. Mapping a truncated one ends the process (SIGBUS)."""

from __future__ import annotations

import struct
from pathlib import Path

MACHINE_X86_64 = 62
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_LOAD = 1


def damage(path: Path) -> str:
    """Why the file cannot be a shared object for this machine; empty if nothing is wrong.

    Raises:
        OSError: the file cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_HEADER.size)
        if head[:4] != b"\x7fELF":
            return f"not an ELF file ({size} bytes)"
        if len(head) < _HEADER.size:
            return f"its header is cut off ({size} bytes)"
        fields = _HEADER.unpack(head)
        machine, segments_at, sections_at = fields[2], fields[5], fields[6]
        segment_size, segments, section_size, sections = fields[9:13]
        if head[4:6] != b"\x02\x01" or machine != MACHINE_X86_64:
            return f"built for another machine (ELF machine {machine}, not {MACHINE_X86_64})"
        table = segments_at + segments * segment_size
        if segments == 0 or segment_size != _SEGMENT.size or table > size:
            return f"its segment table is cut off (it has {size} bytes)"
        file.seek(segments_at)
        ends = [table, sections_at + sections * section_size]
        for _ in range(segments):
            kind, _, offset, _, _, length, _, _ = _SEGMENT.unpack(file.read(_SEGMENT.size))
            ends += [offset + length] if kind == _LOAD else []
    if max(ends) > size:
        return f"truncated: it has {size} bytes and its headers speak of {max(ends)}"
    return ""
