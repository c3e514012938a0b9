# SPDX-License-Identifier: Apache-2.0
"""Arithmetic and logic: what an instruction computes, as a function of arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from patchctl.emulator import bits, fp
from patchctl.emulator.findings import Kind
from patchctl.emulator.machine import Active, Cta
from patchctl.emulator.program import Operation
from patchctl.emulator.ptx.module import Instruction
from patchctl.emulator.ptx.operands import (
    TYPES,
    Array,
    Layout,
    Source,
    Target,
    Type,
    UnknownInstruction,
    known_of,
)

Function = Callable[..., Any]

_ROUNDS = {str(r) for r in fp.Round}


def modifiers(instruction: Instruction, allowed: set[str], *, types: int = 1) -> set[str]:
    """The modifiers between the name and the `types` types at the end.

    Raises:
        UnknownInstruction: one of them is not among `allowed`.
    """
    found = set(instruction.opcode[1 : len(instruction.opcode) - types])
    if extra := found - allowed:
        raise UnknownInstruction(instruction, f"modifier .{sorted(extra)[0]} is not modelled")
    return found


def type_of(instruction: Instruction, place: int = -1) -> Type:
    """The type at `place` of the opcode."""
    name = instruction.opcode[place]
    if name not in TYPES:
        raise UnknownInstruction(instruction, f"type .{name} is not modelled")
    return TYPES[name]


def compute(function: Function, sources: tuple[Source, ...], target: Target) -> Operation:
    """An operation that writes what `function` makes of the sources."""
    reads = tuple(source.read for source in sources)
    rows = tuple(row for source in sources for row in source.rows)
    plain = not any(source.preds for source in sources)

    def run(cta: Cta, active: Active) -> None:
        arguments = [read(cta) for read in reads]
        result = function(*arguments)
        known = cta.known(*rows) if plain else known_of(cta, sources)
        if result.dtype.kind == "f":
            result = watched(cta, active, result, arguments)
        target.write(cta, result, active, known)

    return run


def watched(cta: Cta, active: Active, result: Array, arguments: list[Array]) -> Array:
    """`result` with the GPU's NaN; a finding for one that no argument had."""
    flat = result.reshape(-1)
    # a sum of squares is NaN only when a term is; cheaper than a look at each
    if result.dtype != np.float16:
        square = np.dot(flat, flat)
        if square == square:
            return result
    born: Any = np.isnan(result)
    if not born.any():
        return result
    for argument in arguments:
        if argument.dtype.kind == "f":
            born = born & ~np.isnan(argument)
    if born.ndim == 2:
        born = born.any(axis=1)
    born = np.broadcast_to(born, (cta.threads,)) & cta.mask(active)
    if born.any():
        cta.note(Kind.NAN_BORN, born, "NaN from operands that are none")
    return fp.canonical(result)


def _round(found: set[str]) -> fp.Round:
    return fp.Round(next(iter(found & _ROUNDS), "rn"))


def _floating(function: Function, found: set[str]) -> Function:
    """`function` with the flushing and clamping that the modifiers ask for."""
    inner = function
    if "ftz" in found:
        inner = lambda *a: fp.flush(function(*(fp.flush(x) for x in a)))  # noqa: E731
    if "sat" in found:
        return lambda *a: fp.saturate(inner(*a))
    return inner


# -- functions of integers


def _divide(a: Array, b: Array) -> Array:
    zero = b == 0
    divisor = np.where(zero, b.dtype.type(1), b)
    quotient: Array = (a - np.fmod(a, divisor)) // divisor
    return np.where(zero, ~b.dtype.type(0), quotient)


def _remainder(a: Array, b: Array) -> Array:
    return np.where(b == 0, a, np.fmod(a, np.where(b == 0, b.dtype.type(1), b)))


def _wide(a: Array, b: Array) -> Array:
    wide = np.dtype(f"{a.dtype.kind}{a.dtype.itemsize * 2}")
    return a.astype(wide) * b.astype(wide)  # type: ignore[no-any-return]


def _high(a: Array, b: Array) -> Array:
    if a.dtype.itemsize == 2:
        return (_wide(a, b) >> 16).astype(a.dtype)
    return bits.multiply_high(a, b)


_PRODUCTS: dict[str, Function] = {"lo": np.multiply, "hi": _high, "wide": _wide}
_INTEGER: dict[str, Function] = {
    "add": np.add,
    "sub": np.subtract,
    "div": _divide,
    "rem": _remainder,
    "min": np.minimum,
    "max": np.maximum,
    "abs": np.abs,
    "neg": np.negative,
    "sad": lambda a, b, c: c + (np.maximum(a, b) - np.minimum(a, b)).astype(c.dtype),
}
_LOGIC: dict[str, Function] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "cnot": lambda a: (a == 0).astype(a.dtype),
}
_APPROXIMATE: dict[str, Function] = {
    "ex2": fp.ex2,
    "lg2": fp.lg2,
    "rsqrt": fp.rsqrt,
    "sin": lambda x: fp.approximate(np.sin, x),
    "cos": lambda x: fp.approximate(np.cos, x),
    "tanh": lambda x: fp.approximate(np.tanh, x),
}


def _quick_quotient(a: Array, b: Array) -> Array:
    """div.approx: a divisor above 2^126 gives zero, as the PTX ISA says."""
    big = (np.abs(b) > np.float32(2.0**126)) & np.isfinite(b)
    return np.where(
        big, np.where(np.isinf(a), np.float32(np.nan), np.copysign(np.float32(0), a * b)), a / b
    )


def _float_function(name: str, found: set[str], instruction: Instruction) -> Function:
    mode = _round(found)
    exact: dict[str, Function] = {
        "add": lambda a, b: fp.add(a, b, mode),
        "sub": np.subtract if mode is fp.Round.NEAREST else lambda a, b: fp.add(a, -b, mode),
        "mul": lambda a, b: fp.mul(a, b, mode),
        "fma": lambda a, b, c: fp.fma(a, b, c, mode),
        "mad": lambda a, b, c: fp.fma(a, b, c, mode),
        "min": fp.minimum,
        "max": fp.maximum,
        "abs": np.abs,
        "neg": np.negative,
        "copysign": lambda a, b: np.copysign(b, a),
    }
    if name in exact:
        return exact[name]
    if name in _APPROXIMATE and "approx" in found:
        return _APPROXIMATE[name]
    if name in ("div", "rcp", "sqrt") and mode is fp.Round.NEAREST:
        if name == "div" and "approx" in found:
            return _quick_quotient
        inexact: dict[str, Function] = {
            "div": np.divide,
            "rcp": lambda a: a.dtype.type(1) / a,
            "sqrt": np.sqrt,
        }
        return inexact[name]
    raise UnknownInstruction(instruction, "not modelled")


_FLOAT_MODIFIERS = {*_ROUNDS, "ftz", "sat", "approx", "full"}


def simple(instruction: Instruction, layout: Layout) -> Operation:
    """One type for everything: add, mul, fma, min, and, rcp, ..."""
    name, kind = instruction.opcode[0], type_of(instruction)
    if kind.is_float:
        found = modifiers(instruction, _FLOAT_MODIFIERS)
        function = _floating(_float_function(name, found, instruction), found)
    elif name in ("mul", "mad"):
        return _product(instruction, layout, kind)
    else:
        modifiers(instruction, set())
        function = (_LOGIC if name in _LOGIC else _INTEGER)[name]
    target, *sources = instruction.operands
    return compute(
        function,
        tuple(layout.source(s, kind, instruction) for s in sources),
        layout.target(target, instruction),
    )


def _product(instruction: Instruction, layout: Layout, kind: Type) -> Operation:
    found = modifiers(instruction, {"lo", "hi", "wide"})
    multiply = _PRODUCTS[next(iter(found), "lo")]
    target, *operands = instruction.operands
    sources = [layout.source(o, kind, instruction) for o in operands[:2]]
    function = multiply
    if instruction.opcode[0] == "mad":
        wide = TYPES[f"{kind.name[0]}{kind.bits * 2}"] if "wide" in found else kind
        sources.append(layout.source(operands[2], wide, instruction))
        function = lambda a, b, c: multiply(a, b) + c  # noqa: E731
    return compute(function, tuple(sources), layout.target(target, instruction))


def sign_bit(instruction: Instruction, layout: Layout) -> Operation:
    """neg and abs of floating-point numbers change one bit, also of a NaN."""
    kind = type_of(instruction)
    if not kind.is_float:
        return simple(instruction, layout)
    found = modifiers(instruction, {"ftz"})
    function = _floating(np.negative if instruction.opcode[0] == "neg" else np.abs, found)
    target, source = instruction.operands
    read = layout.source(source, kind, instruction)
    return compute(
        # as integers, so that no NaN is looked for or replaced
        lambda a: np.ascontiguousarray(function(a)).view(f"u{a.dtype.itemsize}"),
        (read,),
        layout.target(target, instruction),
    )
