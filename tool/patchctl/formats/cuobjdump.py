# SPDX-License-Identifier: Apache-2.0
"""What cuobjdump prints about the device code inside an object or library."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass

_ARCH = re.compile(r"arch = (sm_\w+)")
_FUNCTION = re.compile(r" *Function (?P<name>\S+):$")
_ITEM = re.compile(r"(?P<key>[A-Z]+(?:\[\d+\])?):(?P<value>\d+|UNKNOWN)")
_EMBEDDED = re.compile(
    r"(?P<kind>ELF|PTX) file +\d+: .*\.(?:sm|compute)_(?P<arch>\w+)\.(?:cubin|ptx)$"
)
_INFO = re.compile(r"\.nv\.info\.(?P<name>\S+)$")
_ATTRIBUTE = re.compile(r"\s*Attribute:\s*EIATTR_(?P<attribute>MAX_THREADS|REQNTID)$")
_VALUE = re.compile(r"\s*Value:\s*(?P<numbers>(?:0x[0-9a-f]+\s*)+)$")


@dataclass(frozen=True)
class CubinFunction:
    """One function of one embedded cubin, mangled. Bytes, except registers.

    `stack` is None where cuobjdump prints UNKNOWN. It says nothing of spills: LOCAL is 0 even
    for a kernel that spills. `is_kernel`: it has parameters; a linked device function has none.
    """

    name: str
    arch: str
    registers: int
    stack: int | None
    static_shared: int
    is_kernel: bool


def parse_resource_usage(text: str) -> tuple[CubinFunction, ...]:
    """Read ``cuobjdump --dump-resource-usage``; several cubins follow each other."""
    functions = []
    arch, name = "", ""
    for line in text.splitlines():
        if match := _ARCH.match(line):
            arch = match[1]
        elif match := _FUNCTION.match(line):
            name = match["name"]
        elif name and "REG:" in line:
            items = {m["key"]: m["value"] for m in _ITEM.finditer(line)}
            stack = items.get("STACK", "UNKNOWN")
            functions.append(
                CubinFunction(
                    name=name,
                    arch=arch,
                    registers=int(items["REG"]),
                    stack=None if stack == "UNKNOWN" else int(stack),
                    static_shared=int(items.get("SHARED", "0")),
                    is_kernel="CONSTANT[0]" in items,
                )
            )
            name = ""
    return tuple(functions)


@dataclass(frozen=True)
class Embedded:
    """How many SASS and PTX images there are for each architecture (``sm_70``, ``compute_70``)."""

    sass: dict[str, int]
    ptx: dict[str, int]


def parse_embedded(text: str) -> Embedded:
    """Read ``cuobjdump --list-elf`` and ``--list-ptx``, one after the other in any order."""
    found: dict[str, Counter[str]] = {"ELF": Counter(), "PTX": Counter()}
    for line in text.splitlines():
        if match := _EMBEDDED.match(line.strip()):
            found[match["kind"]][match["arch"]] += 1
    return Embedded(
        {f"sm_{arch}": n for arch, n in found["ELF"].items()},
        {f"compute_{arch}": n for arch, n in found["PTX"].items()},
    )


def parse_thread_limits(text: str) -> dict[str, int]:
    """The most threads a CTA of each kernel may have, from ``cuobjdump -elf``.

    A kernel without launch bounds is not in the result.
    """
    limits: dict[str, int] = {}
    name, wanted = "", False
    for line in text.splitlines():
        if line.startswith("."):
            match = _INFO.match(line.rstrip())
            name, wanted = (match["name"] if match else ""), False
        elif name and _ATTRIBUTE.match(line.rstrip()):
            wanted = True
        elif wanted and (match := _VALUE.match(line)):
            limits[name] = math.prod(int(n, 16) for n in match["numbers"].split())
            wanted = False
    return limits
