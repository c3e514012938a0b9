# SPDX-License-Identifier: Apache-2.0
"""Git's binary patches: base 85 lines, zlib, and deltas."""

from __future__ import annotations

import base64
import zlib

_LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""The first letter of a line is how many bytes it holds, from 1 to 52."""


def decode_lines(lines: list[bytes], size: int) -> bytes:
    """The content of one ``literal`` or ``delta`` block of `size` bytes.

    Raises:
        ValueError: a line or the compressed data is damaged, or the size is another.
    """
    packed = bytearray()
    for line in lines:
        length = _LETTERS.find(line[:1]) + 1
        try:
            chunk = base64.b85decode(line[1:])
        except ValueError as error:
            raise ValueError(f"not base 85: {error}") from None
        if not length or not 0 <= len(chunk) - length < 4 or len(line) % 5 != 1:
            raise ValueError("a line's length does not fit its content")
        packed += chunk[:length]
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(bytes(packed), size + 1)
    except zlib.error as error:
        raise ValueError(f"the data are damaged: {error}") from None
    if len(data) != size or not unpacker.eof:
        raise ValueError(f"the data do not have the {size} bytes that are announced")
    return data


def apply_delta(old: bytes, delta: bytes) -> bytes:
    """The content that `delta` makes from `old`.

    Raises:
        ValueError: the delta is damaged or belongs to other content.
    """
    position = 0

    def take() -> int:
        nonlocal position
        if position >= len(delta):
            raise ValueError("the delta ends early")
        position += 1
        return delta[position - 1]

    def number() -> int:
        value = shift = 0
        while True:
            byte = take()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def selected(flags: int, count: int) -> int:
        return sum(take() << 8 * i for i in range(count) if flags >> i & 1)

    if number() != len(old):
        raise ValueError("the delta belongs to content of another size")
    size = number()
    new = bytearray()
    while position < len(delta):
        command = take()
        if command & 0x80:
            offset = selected(command, 4)
            length = selected(command >> 4, 3) or 0x10000
            if offset + length > len(old):
                raise ValueError("the delta copies from behind the end")
            new += old[offset : offset + length]
        elif command:
            new += delta[position : position + command]
            position += command
        else:
            raise ValueError("the delta holds an unknown command")
    if len(new) != size:
        raise ValueError("the delta makes content of another size")
    return bytes(new)
