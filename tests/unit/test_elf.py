# SPDX-License-Identifier: Apache-2.0
"""Shared objects that are cut off or foreign are refused before they are loaded."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from patchctl.formats.elf import elf_problem, read_dynamic

CASE = Path(__file__).parents[1] / "data" / "cases" / "43"


def test_a_whole_library_is_sound() -> None:
    assert elf_problem((CASE / "whole.so").read_bytes(), "x86_64") == ""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("empty.so", "empty"),
        ("half.so", "should end at byte 15048, the file has 7524"),
        ("header-only.so", "40 bytes"),
        ("minus-one-page.so", "should end at byte 15048, the file has 10952"),
        ("text.so", "not an ELF file"),
        ("wrong-machine.so", "made for aarch64, this is x86_64"),
    ],
)
def test_a_damaged_library_is_refused_with_the_reason(name: str, words: str) -> None:
    assert words in elf_problem((CASE / name).read_bytes(), "x86_64")


def test_every_cut_of_a_library_is_noticed() -> None:
    whole = (CASE / "whole.so").read_bytes()
    for size in range(0, len(whole), 97):
        assert elf_problem(whole[:size], "x86_64"), size


def test_an_executable_and_a_32_bit_file_are_refused() -> None:
    whole = bytearray((CASE / "whole.so").read_bytes())
    executable = bytes(whole[:16] + b"\x02\x00" + whole[18:])
    assert "not a shared object" in elf_problem(executable, "x86_64")
    whole[4] = 1
    assert "64-bit" in elf_problem(bytes(whole), "x86_64")


def test_dynamic_symbols_of_a_library_are_read() -> None:
    dynamic = read_dynamic((CASE / "whole.so").read_bytes())
    assert (dynamic.needed, dynamic.runpath) == ((), ())
    assert dynamic.exported == {"answer", "far"}
    assert "__gmon_start__" in {s.name for s in dynamic.undefined}


def test_a_section_without_bytes_may_end_outside_of_the_file() -> None:
    """``.bss`` has a size and no place."""
    whole = bytearray((CASE / "whole.so").read_bytes())
    (table,) = struct.unpack_from("<Q", whole, 0x28)
    (count,) = struct.unpack_from("<H", whole, 0x3C)
    kinds = [table + 64 * i + 4 for i in range(count)]
    (bss,) = [at for at in kinds if struct.unpack_from("<I", whole, at)[0] == 8]
    struct.pack_into("<Q", whole, bss + 28, 1 << 40)
    assert elf_problem(bytes(whole), "x86_64") == ""
    struct.pack_into("<I", whole, bss, 1)
    assert "cut off: section" in elf_problem(bytes(whole), "x86_64")
