# SPDX-License-Identifier: Apache-2.0
"""A PTX module as data: entries, their registers, instructions, labels and memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Space(StrEnum):
    """A PTX state space that can be declared."""

    PARAM = "param"
    SHARED = "shared"
    LOCAL = "local"
    GLOBAL = "global"
    CONST = "const"


@dataclass(frozen=True)
class Reg:
    """A register, a special register, ``_`` (no register), or the name of a symbol or label."""

    name: str


@dataclass(frozen=True)
class Not:
    """``!%p1``."""

    reg: Reg


@dataclass(frozen=True)
class Imm:
    """A constant: the integer's value, or for ``0f``/``0d`` the bits (`width` 32 or 64)."""

    value: int
    float_bits: int = 0


@dataclass(frozen=True)
class Address:
    """``[base+offset]``; the base is a register, a symbol, or None for a plain number."""

    base: str | None
    offset: int


@dataclass(frozen=True)
class Vector:
    """``{a, b}``."""

    items: tuple[Operand, ...]


@dataclass(frozen=True)
class Pair:
    """``%p1|%p2``: two destinations."""

    first: Reg
    second: Reg


Operand = Reg | Not | Imm | Address | Vector | Pair


@dataclass(frozen=True)
class Guard:
    """``@%p1`` or ``@!%p1``."""

    reg: str
    negated: bool


@dataclass(frozen=True)
class Instruction:
    """One statement. `opcode` is split at the dots; `line` counts in the module's text, from 1."""

    opcode: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Guard | None
    line: int
    text: str

    @property
    def name(self) -> str:
        """The opcode with all its modifiers, as in the text."""
        return ".".join(self.opcode)


@dataclass(frozen=True)
class Variable:
    """Declared memory, in bytes. `size` None: ``extern``, as long as the launch says."""

    name: str
    space: Space
    align: int
    size: int | None
    data: bytes = b""


@dataclass(frozen=True)
class Param:
    """A kernel parameter: where it is in the parameter buffer, in bytes."""

    name: str
    offset: int
    size: int


@dataclass
class Entry:
    """A kernel. `registers`: name to type (``b32``); `labels`: name to instruction index."""

    name: str
    params: tuple[Param, ...] = ()
    max_threads: int | None = None
    registers: dict[str, str] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    targets: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def param_bytes(self) -> int:
        """Size of the parameter buffer."""
        return max((p.offset + p.size for p in self.params), default=0)


@dataclass
class Module:
    """What one PTX text holds."""

    version: str = ""
    target: str = ""
    entries: dict[str, Entry] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
