# SPDX-License-Identifier: Apache-2.0
"""What the machine code itself shows of memory use, from ``cuobjdump -sass``."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ARCH = re.compile(r"arch = (sm_\w+)")
_FUNCTION = re.compile(r"\s*Function : (?P<name>\S+)")
_INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ +)?(?P<opcode>[A-Z][A-Z0-9]*)")
_LOCAL = frozenset({"LDL", "STL"})
_SHARED = frozenset({"LDS", "STS", "ATOMS", "LDSM"})


@dataclass(frozen=True)
class CodeUse:
    """Instructions in the code of one function: all, and those on local and shared memory.

    A kernel that spills or has a stack has local ones, whatever a log says.
    """

    instructions: int
    local: int
    shared: int


def parse_sass(text: str) -> dict[tuple[str, str], CodeUse]:
    """Count by (mangled name, architecture); several cubins follow each other."""
    found: dict[tuple[str, str], CodeUse] = {}
    arch, name = "", ""
    for line in text.splitlines():
        if match := _INSTRUCTION.match(line):
            opcode = match["opcode"]
            use = found.get((name, arch), CodeUse(0, 0, 0))
            found[name, arch] = CodeUse(
                use.instructions + 1,
                use.local + (opcode in _LOCAL),
                use.shared + (opcode in _SHARED),
            )
        elif match := _ARCH.match(line):
            arch = match[1]
        elif match := _FUNCTION.match(line):
            name = match["name"]
    return found
