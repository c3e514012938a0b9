# SPDX-License-Identifier: Apache-2.0
"""PTX registers as rows of a CTA's table, and operands as functions that read or write them.

A register of up to 32 bits is one row, one of 64 bits two rows (low, high); predicates have a table
of their own. Operands are resolved once, when the kernel is lowered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from patchctl.emulator.machine import Active, Cta, EmulatorError, Known
from patchctl.emulator.ptx.module import (
    Entry,
    Imm,
    Instruction,
    Module,
    Not,
    Operand,
    Reg,
    Space,
    Variable,
)

Array = npt.NDArray[Any]

SHARED_WINDOW, LOCAL_WINDOW, PARAM_WINDOW = 1 << 60, 2 << 60, 3 << 60
"""Where generic addresses find the other state spaces."""


class UnknownInstruction(EmulatorError):
    """An instruction, a modifier or an operand that is not modelled."""

    def __init__(self, instruction: Instruction, why: str) -> None:
        super().__init__(f"PTX line {instruction.line}: {why}: `{instruction.text}`")


@dataclass(frozen=True)
class Type:
    """A PTX type. `pack`: how many numbers of `dtype` it holds."""

    name: str
    bits: int
    dtype: np.dtype[Any]
    pack: int = 1

    @property
    def is_float(self) -> bool:
        return self.dtype.kind == "f"

    @property
    def is_signed(self) -> bool:
        return self.dtype.kind == "i"


TYPES = {
    f"{kind}{bits}": Type(f"{kind}{bits}", bits, np.dtype(f"{code}{bits // 8}"))
    for kind, code in (("b", "u"), ("u", "u"), ("s", "i"))
    for bits in (8, 16, 32, 64)
} | {
    "f16": Type("f16", 16, np.dtype(np.float16)),
    "f32": Type("f32", 32, np.dtype(np.float32)),
    "f64": Type("f64", 64, np.dtype(np.float64)),
    "f16x2": Type("f16x2", 32, np.dtype(np.float16), pack=2),
    "pred": Type("pred", 1, np.dtype(bool)),
}


@dataclass(frozen=True)
class Source:
    """A value to read, with the rows that it depends on. Constants are arrays of length 1."""

    read: Callable[[Cta], Array]
    rows: tuple[int, ...] = ()
    preds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Target:
    """A register to write; it extends what is narrower than it. `row` is None for ``_``."""

    row: int | None
    bits: int

    def write(self, cta: Cta, value: Array, active: Active, known: Known = True) -> None:
        if self.row is None:
            return
        if self.bits == 1:
            cta.put_pred(self.row, value, active, known)
            return
        if value.ndim == 2:  # a packed type
            value = np.ascontiguousarray(value).reshape(-1).view(np.uint32)
        size = value.dtype.itemsize
        if size * 8 > self.bits:
            raise EmulatorError(
                f"a value of {size} bytes does not fit a register of {self.bits} bits"
            )
        if size < 4:
            # a 16-bit register keeps its row's upper half clear
            wide = (
                value.astype(np.int32 if value.dtype.kind == "i" else np.uint32)
                if (value.dtype.kind in "iu")
                else value.view(np.uint16).astype(np.uint32)
            )
            value = wide.view(np.uint32)
            if self.bits == 16:
                value = value & np.uint32(0xFFFF)
            elif self.bits == 64 and wide.dtype.kind == "i":
                value = wide.astype(np.int64)
        if self.bits < 64:
            cta.put(self.row, value.view(np.uint32), active, known)
            return
        if value.dtype.itemsize < 8:
            value = value.astype(np.int64 if value.dtype.kind == "i" else np.uint64)
        bits = value.view(np.uint64)
        cta.put(self.row, bits.astype(np.uint32), active, known)
        cta.put(self.row + 1, (bits >> np.uint64(32)).astype(np.uint32), active, known)


def known_of(cta: Cta, sources: tuple[Source, ...]) -> Known:
    """Which threads have written all that the sources depend on."""
    result: Known = True
    for source in sources:
        for part in (
            cta.known(*source.rows) if source.rows else True,
            cta.pred_known(*source.preds) if source.preds else True,
        ):
            if part is not True:
                result = part if result is True else np.logical_and(result, part)
    return result


def full(cta: Cta, value: Array) -> Array:
    """One value per thread, also of a constant."""
    return value if value.shape[0] == cta.threads else np.broadcast_to(value, (cta.threads,))


def _special(name: str) -> Callable[[Cta], Array] | None:
    stem, _, axis = name.partition(".")
    index = {"x": 0, "y": 1, "z": 2}.get(axis)
    if stem == "%tid" and index is not None:

        def thread(cta: Cta) -> Array:
            x, y, _ = cta.launch.block
            return (cta.tid // np.uint32((1, x, x * y)[index])) % np.uint32(cta.launch.block[index])

        return thread
    if stem in ("%ntid", "%nctaid", "%ctaid") and index is not None:
        return lambda cta: np.array(
            [
                {"%ntid": cta.launch.block, "%nctaid": cta.launch.grid, "%ctaid": cta.index}[stem][
                    index
                ]
            ],
            np.uint32,
        )
    one = np.uint32(1)
    return {
        "%laneid": lambda cta: cta.lane,
        "%warpid": lambda cta: cta.tid // np.uint32(32),
        "%nwarpid": lambda cta: np.array([cta.warps], np.uint32),
        "%lanemask_eq": lambda cta: one << cta.lane,
        "%lanemask_lt": lambda cta: (one << cta.lane) - one,
        "%lanemask_le": lambda cta: (one << cta.lane) | ((one << cta.lane) - one),
        "%lanemask_gt": lambda cta: ~((one << cta.lane) | ((one << cta.lane) - one)),
        "%lanemask_ge": lambda cta: ~((one << cta.lane) - one),
        "%total_smem_size": lambda cta: np.array([cta.launch.shared_bytes], np.uint32),
    }.get(name)


@dataclass
class Layout:
    """Where an entry's registers, parameters and variables are."""

    module: Module
    entry: Entry
    rows: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Row and bits of each register; 1 bit: a predicate."""
    symbols: dict[str, tuple[Space, int]] = field(default_factory=dict)
    registers: int = 0
    predicates: int = 0
    static_shared: int = 0
    local_bytes: int = 0

    def __post_init__(self) -> None:
        for name, kind in self.entry.registers.items():
            bits = TYPES[kind].bits if kind in TYPES else 0
            if bits not in (1, 16, 32, 64):
                raise EmulatorError(f"register {name} has the type {kind}, which is not modelled")
            if bits == 1:
                self.rows[name] = (self.new_predicate(), 1)
            else:
                self.rows[name] = (self.registers, bits)
                self.registers += bits // 32 or 1
        for param in self.entry.params:
            self.symbols[param.name] = (Space.PARAM, param.offset)
        self._place([*self.module.variables.values(), *self.entry.variables])

    def _place(self, variables: list[Variable]) -> None:
        """Shared memory: what has a size first, then what is as long as the launch says."""
        used = {Space.SHARED: 0, Space.LOCAL: 0}
        for variable in sorted(variables, key=lambda v: v.size is None):
            if variable.space in (Space.GLOBAL, Space.CONST):
                self.symbols[variable.name] = (variable.space, 0)
                continue
            start = -(-used[variable.space] // variable.align) * variable.align
            self.symbols[variable.name] = (variable.space, start)
            if variable.size is not None:
                used[variable.space] = start + variable.size
            else:
                self.static_shared = max(self.static_shared, start)
        self.static_shared = max(self.static_shared, used[Space.SHARED])
        self.local_bytes = used[Space.LOCAL]

    def new_predicate(self) -> int:
        """A further predicate row."""
        self.predicates += 1
        return self.predicates - 1

    def address_of(self, name: str, instruction: Instruction) -> Source:
        """The address of a symbol inside of its state space, as uint64."""
        if name not in self.symbols:
            raise UnknownInstruction(instruction, f"`{name}` is not declared")
        space, offset = self.symbols[name]
        if space in (Space.GLOBAL, Space.CONST):
            return Source(lambda cta: np.array([cta.memory.tensors[name].address], np.uint64))
        value = np.array([offset], np.uint64)
        return Source(lambda cta: value)

    def source(self, operand: Operand, kind: Type, instruction: Instruction) -> Source:
        """An operand of type `kind`; a wider register gives its low bits."""
        if isinstance(operand, Not):
            inner = self.source(operand.reg, kind, instruction)
            return Source(lambda cta: ~inner.read(cta), inner.rows, inner.preds)
        if isinstance(operand, Imm):
            value = _constant(operand, kind)
            return Source(lambda cta: value)
        if not isinstance(operand, Reg):
            raise UnknownInstruction(instruction, f"operand {operand} where a value belongs")
        name = operand.name
        if name in self.rows:
            return _register(*self.rows[name], kind, instruction)
        if name == "WARP_SZ":
            return self.source(Imm(32), kind, instruction)
        if special := _special(name):
            read = special
            return Source(lambda cta: read(cta).astype(kind.dtype))
        address = self.address_of(name, instruction)
        return Source(lambda cta: address.read(cta).astype(kind.dtype))

    def target(self, operand: Operand, instruction: Instruction) -> Target:
        """A register to write."""
        if not isinstance(operand, Reg):
            raise UnknownInstruction(instruction, f"destination {operand} is no register")
        if operand.name == "_":
            return Target(None, 0)
        if operand.name not in self.rows:
            raise UnknownInstruction(instruction, f"`{operand.name}` is not declared")
        return Target(*self.rows[operand.name])


def _constant(operand: Imm, kind: Type) -> Array:
    if kind.name == "pred":
        return np.array([bool(operand.value)])
    value, bits = operand.value, operand.float_bits
    if bits and bits != kind.bits:  # 0d... as f32 and the like
        number = np.array([value], f"u{bits // 8}").view(f"f{bits // 8}")
        return number.astype(kind.dtype)
    raw = np.array([value % (1 << kind.bits)], f"u{kind.bits // 8}")
    if kind.is_float and not bits:
        return np.array([value], kind.dtype)
    return raw.view(kind.dtype).reshape(-1, 2) if kind.pack == 2 else raw.view(kind.dtype)


def _register(row: int, bits: int, kind: Type, instruction: Instruction) -> Source:
    dtype = kind.dtype
    if (bits == 1) != (kind.bits == 1) or kind.bits > bits:
        raise UnknownInstruction(instruction, f"a register of {bits} bits as {kind.name}")
    if kind.bits == 1:
        return Source(lambda cta: cta.preds[row], (), (row,))
    if kind.pack == 2:
        return Source(lambda cta: cta.regs[row].view(dtype).reshape(-1, 2), (row,))
    if kind.bits == 64:
        return Source(
            lambda cta: (
                cta.regs[row].astype(np.uint64)
                | cta.regs[row + 1].astype(np.uint64) << np.uint64(32)
            ).view(dtype),
            (row, row + 1),
        )
    if kind.bits == 32:
        if dtype == np.uint32:
            return Source(lambda cta: cta.regs[row], (row,))
        return Source(lambda cta: cta.regs[row].view(dtype), (row,))
    uint = np.dtype(f"u{kind.bits // 8}")
    return Source(lambda cta: cta.regs[row].astype(uint).view(dtype), (row,))
