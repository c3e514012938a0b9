# SPDX-License-Identifier: Apache-2.0
"""Integer and bit instructions over arrays of uint32 (unless said otherwise)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_U32 = np.uint32
_U64 = np.uint64
_BYTE_REVERSED = np.array([int(f"{i:08b}"[::-1], 2) for i in range(256)], np.uint8)


def prmt(a: Array, b: Array, selector: Array) -> Array:
    """Four bytes out of the eight of b:a; bit 3 of a selector spreads the byte's sign instead."""
    source = a.astype(_U64) | b.astype(_U64) << _U64(32)
    result = np.zeros(a.shape, _U32)
    for i in range(4):
        nibble = selector >> _U32(4 * i) & _U32(15)
        byte = (source >> ((nibble & _U32(7)).astype(_U64) * _U64(8)) & _U64(255)).astype(_U32)
        sign = np.where(byte & _U32(128), _U32(255), _U32(0))
        result |= np.where(nibble & _U32(8), sign, byte) << _U32(8 * i)
    return result


def prmt_selector(mode: str, c: Array) -> Array:
    """The selector that one of prmt's modes (``f4e`` and so on) makes of its last operand."""
    nibbles = {
        "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
        "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
        "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
        "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
        "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
        "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
    }[mode]
    selector: Array = np.array(nibbles, _U32)[c & _U32(3)]
    return selector


def lop3(a: Array, b: Array, c: Array, table: int) -> Array:
    """Any function of three bits: bit ``4a + 2b + c`` of `table`."""
    result = np.zeros(a.shape, a.dtype)
    for index in range(8):
        if table >> index & 1:
            result |= (a if index & 4 else ~a) & (b if index & 2 else ~b) & (c if index & 1 else ~c)
    return result


def shift_left(x: Array, count: Array) -> Array:
    """x << count; 0 where the count is not below the width."""
    width = x.itemsize * 8
    far = count >= width
    shifted: Array = x << np.where(far, 0, count).astype(x.dtype)
    return np.where(far, x.dtype.type(0), shifted) if far.any() else shifted


def shift_right(x: Array, count: Array) -> Array:
    """x >> count, arithmetic for a signed type; a count above the width shifts everything out."""
    width = x.itemsize * 8
    if x.dtype.kind == "i":
        signed: Array = x >> np.minimum(count, width - 1).astype(x.dtype)
        return signed
    far = count >= width
    shifted: Array = x >> np.where(far, 0, count).astype(x.dtype)
    return np.where(far, x.dtype.type(0), shifted) if far.any() else shifted


def funnel(low: Array, high: Array, count: Array, *, left: bool, clamp: bool) -> Array:
    """high:low shifted; the upper half of it to the left, the lower half to the right."""
    n = np.minimum(count, _U32(32)) if clamp else count & _U32(31)
    both = low.astype(_U64) | high.astype(_U64) << _U64(32)
    wide = n.astype(_U64)
    return ((both << wide) >> _U64(32) if left else both >> wide).astype(_U32)


def extract(x: Array, position: Array, length: Array) -> Array:
    """bfe: `length` bits from `position` on, sign-extended for a signed type."""
    width = x.itemsize * 8
    p, n = (position & _U32(255)).astype(np.int64), (length & _U32(255)).astype(np.int64)
    uint: Any = np.dtype(f"u{x.itemsize}").type
    bits = x.view(uint)
    result = shift_right(bits, p)
    keep = np.where(n >= width, ~uint(0), shift_left(np.full(x.shape, 1, uint), n) - uint(1))
    result = result & keep
    if x.dtype.kind == "i":
        top = np.minimum(p + n - 1, width - 1)
        sign = shift_right(bits, np.maximum(top, 0)) & uint(1)
        # bits past the sign bit are copies of it
        known = np.clip(width - p, 0, n)
        fill = np.where(
            known >= width, uint(0), ~(shift_left(np.full(x.shape, 1, uint), known) - uint(1))
        )
        result = np.where((sign == 1) & (n > 0), result | fill, result)
    signed: Array = result.view(x.dtype)
    return signed


def insert(a: Array, b: Array, position: Array, length: Array) -> Array:
    """bfi: the lowest `length` bits of a put into b at `position`."""
    width = a.itemsize * 8
    p, n = position & _U32(255), length & _U32(255)
    one = np.full(a.shape, 1, a.dtype)
    low = np.where(n >= width, ~a.dtype.type(0), shift_left(one, n) - a.dtype.type(1))
    mask = shift_left(low, p)
    return (b & ~mask) | (shift_left(a, p) & mask)


def popc(x: Array) -> Array:
    """The number of bits that are set, as uint32."""
    return np.bitwise_count(x).astype(_U32)


def clz(x: Array) -> Array:
    """The number of zeros above the highest bit that is set, as uint32."""
    width = x.itemsize * 8
    smeared = x.copy()
    for step in (1, 2, 4, 8, 16, 32)[: width.bit_length() - 1]:
        smeared |= smeared >> x.dtype.type(step)
    return _U32(width) - popc(smeared)


def find_highest(x: Array, *, shift_amount: bool) -> Array:
    """bfind: the position of the highest bit that differs from the sign, or all ones."""
    if x.dtype.kind == "i":
        x = np.where(x < 0, ~x, x).view(f"u{x.itemsize}")
    zeros, width = clz(x), x.itemsize * 8
    found = zeros if shift_amount else _U32(width - 1) - zeros
    return np.where(zeros == width, _U32(0xFFFFFFFF), found)


def brev(x: Array) -> Array:
    """The bits in the opposite order."""
    swapped = _BYTE_REVERSED[x.view(np.uint8)].view(x.dtype)
    return swapped.byteswap()


def multiply_high(a: Array, b: Array) -> Array:
    """The upper half of the product of two integers of one type."""
    if a.itemsize == 4:
        wide = np.int64 if a.dtype.kind == "i" else _U64
        return (a.astype(wide) * b.astype(wide) >> wide(32)).astype(a.dtype)
    exact = a.astype(object) * b.astype(object)
    mask = (1 << 64) - 1
    return np.array([int(v) >> 64 & mask for v in exact], _U64).view(a.dtype)


def shuffle_source(mode: str, lane: Array, b: Array, c: Array) -> tuple[Array, Array]:
    """shfl: the lane that each lane reads from, and whether that is inside of its segment.

    `c` holds the clamp in bits 0..4 and the segment mask in bits 8..12, as in the PTX ISA.
    """
    count = (b & _U32(31)).astype(np.int64)
    clamp = (c & _U32(31)).astype(np.int64)
    segment = (c >> _U32(8) & _U32(31)).astype(np.int64)
    own = lane.astype(np.int64)
    last = (own & segment) | (clamp & ~segment)
    first = own & segment
    if mode == "up":
        source = own - count
        # for `up` the clamp is the lowest lane
        valid = source >= last
    else:
        source = {"down": own + count, "bfly": own ^ count, "idx": first | (count & ~segment)}[mode]
        valid = source <= last
    return np.where(valid, source, own), valid
