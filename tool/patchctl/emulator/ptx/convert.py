# SPDX-License-Identifier: Apache-2.0
"""mov, cvt and cvta."""

from __future__ import annotations

import numpy as np

from patchctl.emulator import fp
from patchctl.emulator.machine import Active, Cta
from patchctl.emulator.program import Operation
from patchctl.emulator.ptx.arithmetic import Function, compute, modifiers, type_of
from patchctl.emulator.ptx.logic import predicates
from patchctl.emulator.ptx.module import Instruction, Vector
from patchctl.emulator.ptx.operands import (
    LOCAL_WINDOW,
    PARAM_WINDOW,
    SHARED_WINDOW,
    TYPES,
    Array,
    Layout,
    Type,
    UnknownInstruction,
    known_of,
)

_WINDOWS = {
    "global": 0,
    "const": 0,
    "shared": SHARED_WINDOW,
    "local": LOCAL_WINDOW,
    "param": PARAM_WINDOW,
}
_INTEGRAL = {"rni", "rzi", "rmi", "rpi"}


def mov(instruction: Instruction, layout: Layout) -> Operation:
    """A copy, or several registers packed into one or the reverse."""
    modifiers(instruction, set())
    kind = type_of(instruction)
    target, source = instruction.operands
    if kind.bits == 1:
        return predicates(instruction, layout)
    kind = TYPES[f"b{kind.bits}"]
    if isinstance(target, Vector):
        return _unpack(instruction, layout, kind, target)
    if isinstance(source, Vector):
        return _pack(instruction, layout, kind, source)
    return compute(
        lambda x: x, (layout.source(source, kind, instruction),), layout.target(target, instruction)
    )


def _parts(instruction: Instruction, kind: Type, vector: Vector) -> Type:
    name = f"b{kind.bits // len(vector.items)}"
    if name not in TYPES:
        raise UnknownInstruction(instruction, f"{len(vector.items)} parts of {kind.bits} bits")
    return TYPES[name]


def _pack(instruction: Instruction, layout: Layout, kind: Type, vector: Vector) -> Operation:
    part = _parts(instruction, kind, vector)

    def join(*values: Array) -> Array:
        result = np.zeros(1, kind.dtype)
        for i, value in enumerate(values):
            result = result | value.astype(kind.dtype) << kind.dtype.type(i * part.bits)
        return result

    sources = tuple(layout.source(item, part, instruction) for item in vector.items)
    return compute(join, sources, layout.target(instruction.operands[0], instruction))


def _unpack(instruction: Instruction, layout: Layout, kind: Type, vector: Vector) -> Operation:
    part = _parts(instruction, kind, vector)
    source = layout.source(instruction.operands[1], kind, instruction)
    targets = [layout.target(item, instruction) for item in vector.items]

    def run(cta: Cta, active: Active) -> None:
        value, known = source.read(cta), known_of(cta, (source,))
        for i, target in enumerate(targets):
            bits = (value >> kind.dtype.type(i * part.bits)).astype(part.dtype)
            target.write(cta, bits, active, known)

    return run


def cvt(instruction: Instruction, layout: Layout) -> Operation:
    """Between types, with rounding, flushing and clamping."""
    allowed = {"rn", "rz", "rm", "rp", *_INTEGRAL, "ftz", "sat"}
    found = modifiers(instruction, allowed, types=2)
    to, kind = type_of(instruction, -2), type_of(instruction)
    target, source = instruction.operands
    return compute(
        _conversion(kind, to, found),
        (layout.source(source, kind, instruction),),
        layout.target(target, instruction),
    )


def _conversion(kind: Type, to: Type, found: set[str]) -> Function:
    integral = next(iter(found & _INTEGRAL), "")
    mode = fp.Round(next(iter(found & {"rn", "rz", "rm", "rp"}), "rn"))
    flushes = "ftz" in found
    saturates = "sat" in found

    def from_float(x: Array) -> Array:
        if flushes and kind.bits == 32:
            x = fp.flush(x)
        if not to.is_float:
            return fp.to_integer(x, integral or "rzi", to.dtype)
        if integral:
            x = fp.integral(x, integral)
        result = (
            fp.narrow(x, to.dtype, mode)
            if to.bits < kind.bits
            else fp.canonical(x.astype(to.dtype))
        )
        if flushes and to.bits == 32:
            result = fp.flush(result)
        return fp.saturate(result) if saturates else result

    def from_integer(x: Array) -> Array:
        if to.is_float:
            result = fp.from_integer(x, to.dtype, mode)
            return fp.saturate(result) if saturates else result
        if saturates:
            low, high = np.iinfo(to.dtype).min, np.iinfo(to.dtype).max
            own = np.iinfo(kind.dtype)
            x = np.clip(x, max(low, own.min), min(high, own.max))
        return x.astype(to.dtype)

    return from_float if kind.is_float else from_integer


def cvta(instruction: Instruction, layout: Layout) -> Operation:
    """To or from a generic address."""
    found = modifiers(instruction, {"to", *_WINDOWS})
    kind = type_of(instruction)
    window = np.uint64(_WINDOWS[next(iter(found - {"to"}))])
    target, source = instruction.operands
    if kind.bits != 64:
        raise UnknownInstruction(instruction, "addresses have 64 bits")
    to = "to" in found
    return compute(
        lambda x: x - window if to else x + window,
        (layout.source(source, kind, instruction),),
        layout.target(target, instruction),
    )
