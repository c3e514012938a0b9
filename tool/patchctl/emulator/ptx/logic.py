# SPDX-License-Identifier: Apache-2.0
"""Comparisons, selection and bit fields."""

from __future__ import annotations

from typing import Any

import numpy as np

from patchctl.emulator import bits, fp
from patchctl.emulator.machine import Active, Cta
from patchctl.emulator.program import Operation
from patchctl.emulator.ptx.arithmetic import Function, compute, modifiers, type_of
from patchctl.emulator.ptx.module import Imm, Instruction, Pair
from patchctl.emulator.ptx.operands import (
    TYPES,
    Array,
    Layout,
    Target,
    Type,
    UnknownInstruction,
    known_of,
)

_U32 = TYPES["u32"]
_PRED = TYPES["pred"]

_COMPARE: dict[str, Function] = {
    "eq": np.equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
_COMBINE: dict[str, Function] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}


def _nan(a: Array, b: Array) -> Any:
    return np.isnan(a) | np.isnan(b)


def comparison(name: str, kind: Type) -> Function | None:
    """The comparison of this name; None when there is none for the type."""
    if name == "ne":
        # ordered for numbers with a NaN: then it is false
        return (lambda a, b: (a != b) & ~_nan(a, b)) if kind.is_float else np.not_equal
    if not kind.is_float:
        return _COMPARE.get(name)
    if name in ("num", "nan"):
        return _nan if name == "nan" else lambda a, b: ~_nan(a, b)
    if name == "neu":
        return np.not_equal
    if name.endswith("u") and name[:-1] in _COMPARE:
        ordered = _COMPARE[name[:-1]]
        return lambda a, b: ordered(a, b) | _nan(a, b)
    return _COMPARE.get(name) if len(name) == 2 and name not in ("lo", "ls", "hi", "hs") else None


def _relation(instruction: Instruction, kind: Type, found: list[str]) -> Function:
    compare = comparison(found[0], kind)
    if compare is None:
        raise UnknownInstruction(
            instruction, f"comparison .{found[0]} is not modelled for .{kind.name}"
        )
    if "ftz" in found:
        plain = compare
        compare = lambda a, b: plain(fp.flush(a), fp.flush(b))  # noqa: E731
    return compare


def setp(instruction: Instruction, layout: Layout) -> Operation:
    """p|q = (a compared with b) combined with c; q takes the opposite of the comparison."""
    modifiers(
        instruction,
        {
            *_COMPARE,
            *(f"{c}u" for c in _COMPARE),
            "ne",
            "neu",
            "num",
            "nan",
            "and",
            "or",
            "xor",
            "ftz",
        },
    )
    kind = type_of(instruction)
    found = list(instruction.opcode[1:-1])
    compare = _relation(instruction, kind, found)
    combine = next((_COMBINE[f] for f in found[1:] if f in _COMBINE), None)
    destination, *operands = instruction.operands
    pair = destination if isinstance(destination, Pair) else Pair(destination, destination)  # type: ignore[arg-type]
    first = layout.target(pair.first, instruction)
    second = (
        layout.target(pair.second, instruction)
        if isinstance(destination, Pair)
        else Target(None, 0)
    )
    sources = [layout.source(o, kind, instruction) for o in operands[:2]]
    sources += [layout.source(o, _PRED, instruction) for o in operands[2:]]
    if (combine is None) != (len(sources) == 2):
        raise UnknownInstruction(
            instruction, "a combining operand without an operator, or the reverse"
        )
    both = tuple(sources)

    def run(cta: Cta, active: Active) -> None:
        holds = compare(both[0].read(cta), both[1].read(cta))
        if holds.ndim == 2:  # two halves: p and q
            opposite, holds = holds[:, 1], holds[:, 0]
        else:
            opposite = ~holds
        known = known_of(cta, both)
        if combine is not None:
            other = both[2].read(cta)
            holds, opposite = combine(holds, other), combine(opposite, other)
        first.write(cta, holds, active, known)
        second.write(cta, opposite, active, known)

    return run


def set_value(instruction: Instruction, layout: Layout) -> Operation:
    """set: all ones (or 1.0) where the comparison holds."""
    modifiers(
        instruction,
        {*_COMPARE, *(f"{c}u" for c in _COMPARE), "ne", "neu", "num", "nan", "ftz"},
        types=2,
    )
    result, kind = type_of(instruction, -2), type_of(instruction)
    compare = _relation(instruction, kind, list(instruction.opcode[1:-2]))
    one = result.dtype.type(1) if result.is_float else np.array(-1).astype(result.dtype)
    target, a, b = instruction.operands
    return compute(
        lambda x, y: np.where(compare(x, y), one, result.dtype.type(0)),
        (layout.source(a, kind, instruction), layout.source(b, kind, instruction)),
        layout.target(target, instruction),
    )


def selp(instruction: Instruction, layout: Layout) -> Operation:
    """One of two values by a predicate; the one that is not taken need not be known."""
    modifiers(instruction, set())
    kind = _untyped(type_of(instruction))
    target, a, b, p = instruction.operands
    destination = layout.target(target, instruction)
    yes, no = layout.source(a, kind, instruction), layout.source(b, kind, instruction)
    choice = layout.source(p, _PRED, instruction)

    def run(cta: Cta, active: Active) -> None:
        picked = choice.read(cta)
        known = known_of(cta, (yes, no, choice))
        if known is not True:
            taken = np.where(picked, known_of(cta, (yes,)), known_of(cta, (no,)))
            known = np.logical_and(taken, known_of(cta, (choice,)))
        destination.write(cta, np.where(picked, yes.read(cta), no.read(cta)), active, known)

    return run


def _untyped(kind: Type) -> Type:
    return TYPES[f"b{kind.bits}"] if kind.bits > 1 else kind


def predicates(instruction: Instruction, layout: Layout) -> Operation:
    """and, or, xor, not and mov of predicates."""
    name = instruction.opcode[0]
    function: dict[str, Function] = {
        **_COMBINE,
        "not": np.logical_not,
        "mov": np.array,
    }
    target, *sources = instruction.operands
    return compute(
        function[name],
        tuple(layout.source(s, _PRED, instruction) for s in sources),
        layout.target(target, instruction),
    )


def shift(instruction: Instruction, layout: Layout) -> Operation:
    """shl and shr; the count is a u32 whatever the type is."""
    modifiers(instruction, set())
    kind = type_of(instruction)
    target, a, b = instruction.operands
    function = bits.shift_left if instruction.opcode[0] == "shl" else bits.shift_right
    return compute(
        function,
        (layout.source(a, kind, instruction), layout.source(b, _U32, instruction)),
        layout.target(target, instruction),
    )


def funnel(instruction: Instruction, layout: Layout) -> Operation:
    """shf.{l,r}.{wrap,clamp}."""
    found = modifiers(instruction, {"l", "r", "wrap", "clamp"})
    left, clamp = "l" in found, "clamp" in found
    return _words(instruction, layout, lambda a, b, c: bits.funnel(a, b, c, left=left, clamp=clamp))


def permute(instruction: Instruction, layout: Layout) -> Operation:
    """prmt, with or without one of its modes."""
    found = modifiers(instruction, {"b32", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16"}, types=0)
    found -= {"b32"}
    mode = next(iter(found), None)
    if mode is None:
        return _words(instruction, layout, bits.prmt)
    return _words(instruction, layout, lambda a, b, c: bits.prmt(a, b, bits.prmt_selector(mode, c)))


def lop3(instruction: Instruction, layout: Layout) -> Operation:
    """lop3 with its table as the last operand."""
    modifiers(instruction, set())
    *_, table = instruction.operands
    if not isinstance(table, Imm):
        raise UnknownInstruction(instruction, "the table is no constant")
    value = table.value
    return _words(instruction, layout, lambda a, b, c: bits.lop3(a, b, c, value), operands=3)


def _words(
    instruction: Instruction, layout: Layout, function: Function, operands: int | None = None
) -> Operation:
    target, *sources = instruction.operands
    return compute(
        function,
        tuple(layout.source(s, _U32, instruction) for s in sources[:operands]),
        layout.target(target, instruction),
    )


def fields(instruction: Instruction, layout: Layout) -> Operation:
    """bfe and bfi."""
    modifiers(instruction, set())
    kind = type_of(instruction)
    extracts = instruction.opcode[0] == "bfe"
    values = 1 if extracts else 2
    target, *sources = instruction.operands
    kinds = [kind] * values + [_U32] * 2
    return compute(
        bits.extract if extracts else bits.insert,
        tuple(layout.source(s, k, instruction) for s, k in zip(sources, kinds, strict=True)),
        layout.target(target, instruction),
    )


def count(instruction: Instruction, layout: Layout) -> Operation:
    """popc, clz, brev and bfind."""
    found = modifiers(instruction, {"shiftamt"})
    kind = type_of(instruction)
    name = instruction.opcode[0]
    function: dict[str, Function] = {
        "popc": bits.popc,
        "clz": bits.clz,
        "brev": bits.brev,
        "bfind": lambda x: bits.find_highest(x, shift_amount="shiftamt" in found),
    }
    target, source = instruction.operands
    return compute(
        function[name],
        (layout.source(source, kind, instruction),),
        layout.target(target, instruction),
    )


def testp(instruction: Instruction, layout: Layout) -> Operation:
    """testp: what kind of number it is."""
    kind = type_of(instruction)
    tiny = np.finfo(kind.dtype).tiny
    tests: dict[str, Function] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda x: ~np.isnan(x),
        "notanumber": np.isnan,
        "normal": lambda x: np.isfinite(x) & (np.abs(x) >= tiny),
        "subnormal": lambda x: (x != 0) & (np.abs(x) < tiny),
    }
    found = modifiers(instruction, set(tests))
    target, source = instruction.operands
    return compute(
        tests[next(iter(found))],
        (layout.source(source, kind, instruction),),
        layout.target(target, instruction),
    )
