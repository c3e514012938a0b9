# SPDX-License-Identifier: Apache-2.0
"""PTX with one possible result, for comparing a device with the emulator bit for bit.

PTX leaves two things open: additions without a rounding modifier may be fused with
multiplications, and ``.approx`` instructions may differ in the last bits from one GPU to the next.
Pinned PTX has rounding modifiers everywhere, and exactly rounded instructions or polynomials
(built of ``fma.rn``) in place of the approximations. Its results are a little different and as
accurate. What is left open is how the matrix instruction adds (`mma.Accumulation`).
"""

from __future__ import annotations

import math
import re
import struct

from patchctl.emulator.machine import EmulatorError

_OPEN = re.compile(r"\b(add|sub|mul)((?:\.ftz|\.sat)*)\.f32\b")
_EX2 = re.compile(r"\bex2\.approx(?:\.ftz)?\.f32\s+(?P<d>[%$\w]+),\s*(?P<a>[%$\w]+)\s*;")
_EXACT = re.compile(r"\b(rcp|sqrt)\.approx((?:\.ftz)?)\.f32\b")
_QUOTIENT = re.compile(r"\bdiv\.(?:approx|full)((?:\.ftz)?)\.f32\b")
_LEFT = re.compile(r"\b\w+\.approx\S*")
_TERMS = 7


def pin(text: str) -> str:
    """The same module with nothing left open but the matrix instruction.

    Raises:
        EmulatorError: an approximation without a replacement.
    """
    text = _OPEN.sub(r"\1.rn\2.f32", text)
    text = _EXACT.sub(r"\1.rn\2.f32", text)
    text = _QUOTIENT.sub(r"div.rn\1.f32", text)
    text = _EX2.sub(lambda match: _power(match["d"], match["a"]), text)
    if left := _LEFT.search(text):
        raise EmulatorError(f"`{left[0]}` cannot be pinned")
    return text


def _hex(x: float) -> str:
    return f"0f{struct.unpack('<I', struct.pack('<f', x))[0]:08X}"


def _power(target: str, source: str) -> str:
    """2^x = 2^n * 2^f, n the nearest integer; the series of 2^f has an error below 2^-24.

    Below -127 the result is 0. A NaN becomes 0 as well: `max` drops it, so it is put back.
    """
    lines = [
        ".reg .f32 %x, %n, %f, %p, %s; .reg .b32 %i; .reg .pred %nan;",
        f"setp.nan.f32 %nan, {source}, {source};",
        f"max.f32 %x, {source}, {_hex(-127.0)}; min.f32 %x, %x, {_hex(128.0)};",
        "cvt.rni.f32.f32 %n, %x; sub.rn.f32 %f, %x, %n;",
        f"mov.f32 %p, {_hex(_coefficient(_TERMS))};",
        *(
            f"fma.rn.f32 %p, %p, %f, {_hex(_coefficient(term))};"
            for term in range(_TERMS - 1, -1, -1)
        ),
        "cvt.rzi.s32.f32 %i, %n; add.s32 %i, %i, 127; shl.b32 %i, %i, 23;",
        "mov.b32 %s, %i;",
        f"mul.rn.f32 %p, %p, %s; selp.f32 {target}, {_hex(math.nan)}, %p, %nan;",
    ]
    return "{ " + " ".join(lines) + " }"


def _coefficient(term: int) -> float:
    return math.log(2) ** term / math.factorial(term)
