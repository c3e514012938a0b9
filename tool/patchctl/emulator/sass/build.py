# SPDX-License-Identifier: Apache-2.0
"""Takes an instruction's text apart for the function that knows its opcode.

An opcode's function asks for modifiers and operands in order; what it did not ask for is an error
when it is done, so a form that nobody wrote down is refused and never guessed.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from patchctl.emulator.machine import EmulatorError
from patchctl.emulator.program import Control, Operation
from patchctl.emulator.sass.operands import (
    PT,
    RZ,
    Address,
    Condition,
    Value,
    Wide,
    constant,
    literal,
)
from patchctl.formats.sasscode import Instruction

_REGISTER = re.compile(r"R(\d+|Z)")
_CONSTANT = re.compile(r"c\[0x([0-9a-f]+)\]\[(?:RZ\+?|(R\d+)\+?)?(-?0x[0-9a-f]+)?\]")
_INTEGER = re.compile(r"(-?)(?:0x([0-9a-f]+)|(\d+))")
_PREDICATE = re.compile(r"(!?)P([0-6T])")
_MEMORY = re.compile(r"\[(?:R(\d+|Z)((?:\.X\d+|\.U32|\.64)*))?\+?(-?0x[0-9a-f]+)?\]")
_FLOAT = re.compile(r"[+-]?(?:INF|QNAN|SNAN|[0-9.]+(?:e[+-]?\d+)?)")
_SIGN = np.uint32(0x80000000)

T = TypeVar("T")


class Build:
    """One instruction while its opcode's function reads it."""

    def __init__(self, inst: Instruction) -> None:
        self.inst = inst
        self._modifiers = list(inst.opcode[1:])
        self._operands = [op.replace(".reuse", "") for op in inst.operands]

    def error(self, problem: str) -> EmulatorError:
        return EmulatorError(
            f"`{self.inst.text}` at 0x{self.inst.address:x}: {problem} (docs/emulator.md tells how "
            "to add an instruction)"
        )

    # -- modifiers

    def flag(self, *names: str) -> bool:
        """Whether one of these modifiers is there; takes it."""
        for name in names:
            if name in self._modifiers:
                self._modifiers.remove(name)
                return True
        return False

    def choice(self, choices: dict[str, T], default: T | None = None) -> T:
        """The value of the first modifier that is in `choices`."""
        for modifier in self._modifiers:
            if modifier in choices:
                self._modifiers.remove(modifier)
                return choices[modifier]
        if default is None:
            raise self.error(f"none of the modifiers {', '.join(choices)}")
        return default

    def require(self, *names: str) -> None:
        """Modifiers that must be there."""
        for name in names:
            if not self.flag(name):
                raise self.error(f"modifier .{name} expected")

    # -- operands

    @property
    def left(self) -> int:
        """How many operands were not read yet."""
        return len(self._operands)

    def peek(self) -> str:
        return self._operands[0] if self._operands else ""

    def raw(self) -> str:
        """The next operand as text."""
        if not self._operands:
            raise self.error("an operand is missing")
        return self._operands.pop(0)

    def destination(self) -> int:
        """A register to write; RZ is a row whose content nobody reads (`Build.put`)."""
        text = self.raw()
        match = _REGISTER.fullmatch(text)
        if not match:
            raise self.error(f"`{text}` is no register")
        return RZ if match[1] == "Z" else int(match[1])

    def predicate_destination(self) -> int:
        """A predicate to write; PT is never written."""
        text = self.raw()
        match = _PREDICATE.fullmatch(text)
        if not match or match[1]:
            raise self.error(f"`{text}` is no predicate to write")
        return PT if match[2] == "T" else int(match[2])

    def optional_predicate_destination(self) -> int:
        """A carry or similar, if the next operand is a predicate."""
        return self.predicate_destination() if _PREDICATE.fullmatch(self.peek()) else PT

    def condition(self) -> Condition:
        text = self.raw()
        match = _PREDICATE.fullmatch(text)
        if not match:
            raise self.error(f"`{text}` is no predicate")
        return Condition(PT if match[2] == "T" else int(match[2]), bool(match[1]))

    def integer(self, *, wide: bool = False) -> Value:
        """A 32-bit integer; `-` is the two's complement, `~` the complement."""
        text = self.raw()
        prefix = text[0] if text[0] in "-~" and not _INTEGER.fullmatch(text) else ""
        plain = self._plain(text[len(prefix) :])
        if prefix == "-":
            return Value(lambda cta: (~plain.get(cta)) + np.uint32(1), plain.rows)
        if prefix == "~":
            return Value(lambda cta: ~plain.get(cta), plain.rows)
        return plain

    def negatable(self) -> tuple[Value, bool]:
        """An integer without its `-`, and whether that stood there."""
        text = self.peek()
        if text.startswith("-") and not _INTEGER.fullmatch(text):
            self._operands[0] = text[1:]
            return self.integer(), True
        return self.integer(), False

    def pair(self) -> Wide:
        """64 bits: a register pair, RZ, or 8 bytes of a constant bank."""
        text = self.raw()
        if match := _REGISTER.fullmatch(text):
            if match[1] == "Z":
                return Wide(lambda cta: np.zeros(1, np.uint64))
            row = int(match[1])
            return Wide(
                lambda cta: (
                    cta.regs[row].astype(np.uint64)
                    | cta.regs[row + 1].astype(np.uint64) << np.uint64(32)
                ),
                (row, row + 1),
            )
        match = _CONSTANT.fullmatch(text)
        if match and not match[2]:
            bank, offset = int(match[1], 16), int(match[3] or "0", 16)
            return Wide(lambda cta: constant(cta, bank, offset, 8).astype(np.uint64))
        raise self.error(f"`{text}` is no 64-bit operand")

    def single(self) -> Value:
        """A float32 as its bits; `-` and `|x|` act on the sign."""
        text = self.raw()
        negative = text.startswith("-") and not _FLOAT.fullmatch(text)
        body = text[1:] if negative else text
        absolute = body.startswith("|") and body.endswith("|")
        body = body.strip("|")
        plain = self._plain(body, real=True)
        if not negative and not absolute:
            return plain
        keep = ~_SIGN if absolute else np.uint32(0xFFFFFFFF)
        flip = _SIGN if negative else np.uint32(0)
        return Value(lambda cta: (plain.get(cta) & keep) ^ flip, plain.rows)

    def word(self) -> Value:
        """32 bits without any meaning: no sign, no complement."""
        return self._plain(self.raw())

    def short(self) -> Value:
        """A register, or a number of few bits that has a field of its own."""
        return literal(self.number()) if _INTEGER.fullmatch(self.peek()) else self.word()

    def named(self, text: str) -> Value:
        """A register or constant whose text was taken apart elsewhere."""
        return self._plain(text)

    def number(self) -> int:
        """An integer that is part of the instruction."""
        text = self.raw()
        match = _INTEGER.fullmatch(text)
        if not match:
            raise self.error(f"`{text}` is no integer")
        return int(text, 0)

    def memory(self) -> Address:
        text = self.raw()
        match = _MEMORY.fullmatch(text)
        if not match:
            raise self.error(f"`{text}` is no address")
        suffixes = [s for s in (match[2] or "").split(".") if s]
        scale = 1
        for suffix in suffixes:
            if suffix.startswith("X"):
                scale = int(suffix[1:])
            else:
                raise self.error(f"`.{suffix}` of an address")
        row = None if match[1] in (None, "Z") else int(match[1])
        offset = int(match[3] or "0", 16)
        return Address(row, "E" in self.inst.opcode and row is not None, scale, offset)

    def constant_address(self) -> tuple[int, int | None, int]:
        """(bank, register or None, offset) of ``c[bank][R+offset]``."""
        text = self.raw()
        match = _CONSTANT.fullmatch(text)
        if not match:
            raise self.error(f"`{text}` is no constant")
        row = int(match[2][1:]) if match[2] else None
        return int(match[1], 16), row, int(match[3] or "0", 16)

    def finish(self) -> None:
        """Refuse what nobody asked for."""
        if self._modifiers:
            raise self.error(f"modifier .{self._modifiers[0]} is not modelled")
        if self._operands:
            raise self.error(f"operand `{self._operands[0]}` is not modelled")

    def _plain(self, text: str, *, real: bool = False) -> Value:
        if match := _REGISTER.fullmatch(text):
            if match[1] == "Z":
                return literal(0)
            row = int(match[1])
            return Value(lambda cta: cta.regs[row], (row,))
        if (match := _CONSTANT.fullmatch(text)) and not match[2]:
            bank, offset = int(match[1], 16), int(match[3] or "0", 16)
            return Value(lambda cta: constant(cta, bank, offset, 4).astype(np.uint32))
        if not real and _INTEGER.fullmatch(text):
            value = int(text, 0) & 0xFFFFFFFF
            if value != self.inst.immediate and len(text.lstrip("-")) > 4:
                raise self.error("text and encoding disagree about the immediate")
            return literal(value)
        if real and _FLOAT.fullmatch(text):
            bits = self.inst.immediate
            shown = float(text.replace("QNAN", "nan").replace("SNAN", "nan"))
            held = struct.unpack("<f", struct.pack("<I", bits))[0]
            if shown == shown and np.float32(shown) != np.float32(held):
                raise self.error("text and encoding disagree about the immediate")
            return literal(bits)
        raise self.error(f"operand `{text}` is not modelled")


Reader = Callable[[Build], "Operation | None"]
ControlReader = Callable[[Build], Control]
_OPERATIONS: dict[str, Reader] = {}
_CONTROLS: dict[str, ControlReader] = {}


def operation(*names: str) -> Callable[[Reader], Reader]:
    """Registers the function that reads an opcode and returns what it computes."""

    def register(reader: Reader) -> Reader:
        for name in names:
            _OPERATIONS[name] = reader
        return reader

    return register


def control(*names: str) -> Callable[[ControlReader], ControlReader]:
    """The same for an opcode that decides where to go on."""

    def register(reader: ControlReader) -> ControlReader:
        for name in names:
            _CONTROLS[name] = reader
        return reader

    return register


def read(inst: Instruction) -> tuple[Operation | None, Control | None]:
    """What an instruction does.

    Raises:
        EmulatorError: nobody wrote that instruction or form down.
    """
    build = Build(inst)
    run: Operation | None = None
    steer: Control | None = None
    if reader := _OPERATIONS.get(inst.base):
        run = reader(build)
    elif controls := _CONTROLS.get(inst.base):
        steer = controls(build)
    else:
        raise build.error(f"{inst.base} is not modelled")
    build.finish()
    return run, steer
