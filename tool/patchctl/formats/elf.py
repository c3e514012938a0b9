# SPDX-License-Identifier: Apache-2.0
"""A shared object's bytes: whether they are all there, and what it wants from others."""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass

MACHINES = {"x86_64": 62, "aarch64": 183, "ppc64le": 21}
"""ELF's number for each machine, as ``platform.machine()`` names it."""

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SHARED_OBJECT = 3
_NO_BITS = 8


def elf_problem(data: bytes, machine: str) -> str:
    """Why loading `data` would crash or fail, or "" when headers and bounds are sound.

    An interrupted link or copy leaves a file whose segments end outside of it; loading that
    kills the process with SIGBUS. `machine` is the one that would load it; one that `MACHINES`
    lacks is not compared.
    """
    if not data:
        return "the file is empty"
    if data[:4] != b"\x7fELF":
        return f"not an ELF file: it begins with {data[:16]!r}"
    if len(data) < _HEADER.size:
        return f"cut off: {len(data)} bytes, an ELF header has {_HEADER.size}"
    ident, kind, number, _, _, phoff, shoff, _, _, phsize, phnum, shsize, shnum, _ = (
        _HEADER.unpack_from(data)
    )
    if ident[4:6] != b"\x02\x01":
        return "not a 64-bit little-endian ELF file"
    if number != MACHINES.get(machine, number):
        name = next((n for n, value in MACHINES.items() if value == number), f"machine {number}")
        return f"made for {name}, this is {machine}"
    if kind != _SHARED_OBJECT:
        return f"not a shared object (ELF type {kind})"
    if phnum == 0 or phsize != _SEGMENT.size or (shnum and shsize != _SECTION.size):
        return "no program headers, or headers of an unknown size"
    ends = [("the program headers", phoff + phnum * phsize)]
    ends.append(("the section table", shoff + shnum * shsize))
    if problem := _outside(ends, len(data)):
        return problem
    for i in range(phnum):
        segment = _SEGMENT.unpack_from(data, phoff + i * phsize)
        ends.append((f"segment {i}", segment[2] + segment[5]))
    for i in range(shnum):
        section = _SECTION.unpack_from(data, shoff + i * shsize)
        if section[1] != _NO_BITS:
            ends.append((f"section {i}", section[4] + section[5]))
    return _outside(ends, len(data))


def _outside(ends: list[tuple[str, int]], size: int) -> str:
    for what, end in ends:
        if end > size:
            return f"cut off: {what} should end at byte {end}, the file has {size}"
    return ""


@dataclass(frozen=True)
class Symbol:
    """A dynamic symbol; `version` is ``GLIBC_2.2.5`` or "" where it has none."""

    name: str
    version: str = ""


@dataclass(frozen=True)
class Dynamic:
    """What the dynamic linker reads: libraries needed, search paths, undefined and exported."""

    needed: tuple[str, ...]
    runpath: tuple[str, ...]
    undefined: tuple[Symbol, ...]
    exported: frozenset[str]


def read_dynamic(data: bytes) -> Dynamic:
    """Read the dynamic section of a sound ELF image (see `elf_problem`)."""
    from elftools.elf.dynamic import DynamicSection
    from elftools.elf.elffile import ELFFile
    from elftools.elf.gnuversions import GNUVerNeedSection, GNUVerSymSection
    from elftools.elf.sections import SymbolTableSection

    elf = ELFFile(io.BytesIO(data))
    needed: list[str] = []
    runpath: list[str] = []
    undefined: list[Symbol] = []
    exported: set[str] = set()
    versions: dict[int, str] = {}
    indexes: list[int] = []
    sections = list(elf.iter_sections())
    for section in sections:
        if isinstance(section, GNUVerNeedSection):
            for _, auxiliaries in section.iter_versions():
                versions |= {a["vna_other"]: a.name for a in auxiliaries}
        elif isinstance(section, GNUVerSymSection):
            # the hidden bit (15) is no part of the index; 0 and 1 are local and global
            indexes = [
                int(s["ndx"]) & 0x7FFF if isinstance(s["ndx"], int) else 0
                for s in section.iter_symbols()
            ]
    for section in sections:
        if isinstance(section, DynamicSection):
            for tag in section.iter_tags():
                # pyelftools adds the text as an attribute named after the tag
                if tag.entry.d_tag == "DT_NEEDED":
                    needed.append(vars(tag)["needed"])
                elif tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH"):
                    runpath += vars(tag)[tag.entry.d_tag[3:].lower()].split(":")
        elif isinstance(section, SymbolTableSection) and section.name == ".dynsym":
            for index, symbol in enumerate(section.iter_symbols()):
                if not symbol.name:
                    continue
                if symbol["st_shndx"] == "SHN_UNDEF":
                    version = versions.get(indexes[index], "") if index < len(indexes) else ""
                    undefined.append(Symbol(symbol.name, version))
                elif symbol["st_info"]["bind"] != "STB_LOCAL":
                    exported.add(symbol.name)
    return Dynamic(tuple(needed), tuple(runpath), tuple(undefined), frozenset(exported))


def defined_symbols(data: bytes) -> frozenset[str]:
    """The names that a sound ELF image defines, local ones included while it is not stripped."""
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import SymbolTableSection

    return frozenset(
        symbol.name
        for section in ELFFile(io.BytesIO(data)).iter_sections()
        if isinstance(section, SymbolTableSection)
        for symbol in section.iter_symbols()
        if symbol.name and symbol["st_shndx"] != "SHN_UNDEF"
    )
