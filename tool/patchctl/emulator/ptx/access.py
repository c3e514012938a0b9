# SPDX-License-Identifier: Apache-2.0
"""ld, st, atom and red in every state space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from patchctl.emulator import fp
from patchctl.emulator.machine import Active, Cta, EmulatorError, Known
from patchctl.emulator.program import Operation
from patchctl.emulator.ptx.module import Address, Instruction, Operand, Reg, Space, Vector
from patchctl.emulator.ptx.operands import (
    LOCAL_WINDOW,
    PARAM_WINDOW,
    SHARED_WINDOW,
    TYPES,
    Array,
    Layout,
    Source,
    Target,
    Type,
    UnknownInstruction,
    full,
    known_of,
)

_SPACES = {"global", "shared", "local", "param", "const"}
# they say how, when or for whom; one CTA at a time sees no difference
_HINTS = {
    *("volatile", "weak", "relaxed", "acquire", "release", "acq_rel", "cta", "gpu", "sys"),
    *("ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc"),
}
_OPERATIONS = {"add", "min", "max", "inc", "dec", "exch", "cas", "and", "or", "xor"}


@dataclass(frozen=True)
class _Access:
    space: str
    """"" for a generic address."""
    vector: int
    kind: Type
    operation: str = ""

    @property
    def size(self) -> int:
        """Bytes per thread."""
        return self.vector * self.kind.bits // 8


def _parse(instruction: Instruction, *, atomic: bool = False) -> _Access:
    space, vector, operation = "", 1, ""
    for part in instruction.opcode[1:-1]:
        if part in _SPACES:
            space = part
        elif part in ("v2", "v4"):
            vector = int(part[1])
        elif atomic and part in _OPERATIONS:
            operation = part
        elif atomic and part == "noftz":
            continue
        elif part not in _HINTS and not part.startswith(("L1::", "L2::")):
            raise UnknownInstruction(instruction, f"modifier .{part} is not modelled")
    name = instruction.opcode[-1]
    if name not in TYPES:
        raise UnknownInstruction(instruction, f"type .{name} is not modelled")
    return _Access(space, vector, TYPES[name], operation)


def _address(instruction: Instruction, layout: Layout, operand: Operand, space: str) -> Source:
    """The address inside of its state space, as int64 (shared, local) or uint64."""
    if not isinstance(operand, Address):
        raise UnknownInstruction(instruction, "an address belongs here")
    offset = np.array([operand.offset], np.int64)
    if operand.base is None:
        return Source(lambda cta: offset.view(np.uint64))
    if operand.base in layout.rows:
        bits = layout.rows[operand.base][1]
        base = layout.source(Reg(operand.base), TYPES[f"u{bits}"], instruction)
    else:
        base = layout.address_of(operand.base, instruction)
        where = layout.symbols[operand.base][0]
        if not space and where in (Space.SHARED, Space.LOCAL):
            raise UnknownInstruction(instruction, f"a generic access to .{where} by name")
    if operand.offset == 0:
        return Source(lambda cta: base.read(cta).astype(np.uint64), base.rows)
    return Source(lambda cta: base.read(cta).astype(np.uint64) + offset.view(np.uint64), base.rows)


def _by_space(
    cta: Cta, space: str, addresses: Array, active: Active
) -> list[tuple[str, Array, Active]]:
    """The spaces that a generic access goes to, each with its addresses and threads."""
    if space:
        return [(space, addresses, active)]
    window = addresses >> np.uint64(60)
    found: list[tuple[str, Array, Active]] = []
    mask = cta.mask(active)
    for name, start in (
        ("global", 0),
        ("shared", SHARED_WINDOW),
        ("local", LOCAL_WINDOW),
        ("param", PARAM_WINDOW),
    ):
        here = mask & (window == np.uint64(start >> 60))
        if here.any():
            same = active if (here == mask).all() else here
            found.append((name, addresses - np.uint64(start), same))
    return found


def _load(cta: Cta, space: str, addresses: Array, size: int, active: Active) -> Array:
    if space in ("global", "const"):
        return cta.memory.load(cta, addresses, size, active)
    if space == "shared":
        return cta.shared.load(cta, addresses.astype(np.int64), size, active)
    if space == "local":
        return cta.local.load(cta, addresses.astype(np.int64), size, active)
    return _parameters(cta, addresses, size, active)


def _parameters(cta: Cta, addresses: Array, size: int, active: Active) -> Array:
    buffer = np.frombuffer(cta.launch.parameters, np.uint8)
    where = addresses[cta.mask(active)].astype(np.int64)
    if where.size and (where.min() < 0 or where.max() + size > buffer.size):
        raise EmulatorError(
            f"{cta.site.text}: {size} bytes at byte {int(where.max())} of the parameters, "
            f"which have {buffer.size}"
        )
    start = np.where(cta.mask(active), addresses.astype(np.int64), 0)
    raw = np.zeros((cta.threads, max(4, size)), np.uint8)
    raw[:, :size] = buffer[start[:, None] + np.arange(size)]
    return np.ascontiguousarray(raw.view(np.uint32).T)


def load(instruction: Instruction, layout: Layout) -> Operation:
    """ld and ldu."""
    access = _parse(instruction)
    destination, operand = instruction.operands
    items = destination.items if isinstance(destination, Vector) else (destination,)
    targets = [layout.target(item, instruction) for item in items]
    if len(targets) != access.vector:
        raise UnknownInstruction(instruction, f"{len(targets)} registers for .v{access.vector}")
    address = _address(instruction, layout, operand, access.space)
    size, space = access.size, access.space

    def run(cta: Cta, active: Active) -> None:
        cta.need(known_of(cta, (address,)), active, "the address")
        addresses = full(cta, address.read(cta))
        words: Array | None = None
        for name, where, threads in _by_space(cta, space, addresses, active):
            part = _load(cta, name, where, size, threads)
            words = part if words is None or threads is None else np.where(threads, part, words)
        if words is not None:
            for i, target in enumerate(targets):
                target.write(cta, _element(words, i, access.kind), active)

    return run


def _element(words: Array, index: int, kind: Type) -> Array:
    """Number `index` of a vector that was read as 32-bit words."""
    if kind.bits == 32:
        word: Array = words[index].view(kind.dtype)
        return word
    if kind.bits == 64:
        low, high = words[2 * index].astype(np.uint64), words[2 * index + 1].astype(np.uint64)
        both: Array = (low | high << np.uint64(32)).view(kind.dtype)
        return both
    bit = index * kind.bits
    part: Array = (words[bit // 32] >> np.uint32(bit % 32)).astype(f"u{kind.bits // 8}")
    return part.view(kind.dtype)


def store(instruction: Instruction, layout: Layout) -> Operation:
    """st."""
    access = _parse(instruction)
    operand, value = instruction.operands
    items = value.items if isinstance(value, Vector) else (value,)
    kind = TYPES[f"b{access.kind.bits}"]
    sources = tuple(layout.source(item, kind, instruction) for item in items)
    if len(sources) != access.vector:
        raise UnknownInstruction(instruction, f"{len(sources)} registers for .v{access.vector}")
    address = _address(instruction, layout, operand, access.space)
    size, space = access.size, access.space

    def run(cta: Cta, active: Active) -> None:
        cta.need(known_of(cta, (address,)), active, "the address")
        addresses = full(cta, address.read(cta))
        words = _words(cta, sources, kind, size)
        known = known_of(cta, sources)
        for name, where, threads in _by_space(cta, space, addresses, active):
            _store(cta, name, where, size, words, threads, known)

    return run


def _words(cta: Cta, sources: tuple[Source, ...], kind: Type, size: int) -> Array:
    words = np.zeros((max(1, size // 4), cta.threads), np.uint32)
    for i, source in enumerate(sources):
        value = source.read(cta)
        if kind.bits == 64:
            words[2 * i] = value.astype(np.uint32)
            words[2 * i + 1] = (value >> np.uint64(32)).astype(np.uint32)
        else:
            bit = i * kind.bits
            words[bit // 32] |= value.astype(np.uint32) << np.uint32(bit % 32)
    return words


def _store(
    cta: Cta, space: str, where: Array, size: int, words: Array, active: Active, known: Known
) -> None:
    if space == "shared":
        cta.shared.store(cta, where.astype(np.int64), size, words, active, known)
    elif space == "local":
        cta.local.store(cta, where.astype(np.int64), size, words, active, known)
    elif space == "global":
        cta.need(known, active, "the value that is stored")
        cta.memory.store(cta, where, size, words, active)
    else:
        raise EmulatorError(f"{cta.site.text}: a store into .{space}")


def atomic(instruction: Instruction, layout: Layout) -> Operation:
    """atom and red: the lanes take their turns in the order of their numbers."""
    access = _parse(instruction, atomic=True)
    returns = instruction.opcode[0] == "atom"
    operands = list(instruction.operands)
    target = layout.target(operands.pop(0), instruction) if returns else Target(None, 0)
    address = _address(instruction, layout, operands.pop(0), access.space)
    kind = access.kind
    if kind.pack != 1 or kind.bits not in (32, 64) or not access.operation:
        raise UnknownInstruction(instruction, "not modelled")
    sources = tuple(layout.source(o, kind, instruction) for o in operands)

    def run(cta: Cta, active: Active) -> None:
        cta.need(known_of(cta, (address, *sources)), active, "an operand of an atomic")
        addresses = full(cta, address.read(cta))
        values = [full(cta, source.read(cta)) for source in sources]
        old = np.zeros(cta.threads, kind.dtype)
        for name, where, threads in _by_space(cta, access.space, addresses, active):
            for lanes, index, memory in _places(cta, name, where, kind, threads):
                for lane, place in zip(lanes.tolist(), index.tolist(), strict=True):
                    old[lane] = memory[place]
                    memory[place] = _update(
                        access.operation, memory[place], [v[lane] for v in values]
                    )
        target.write(cta, old, active)

    return run


def _places(
    cta: Cta, space: str, where: Array, kind: Type, active: Active
) -> list[tuple[Array, Array, Array]]:
    """(threads, element, elements) per piece of memory."""
    size = kind.bits // 8
    if space == "shared":
        lanes, _, elements = cta.shared.atomic(cta, where.astype(np.int64), size, active)
        return [(lanes, where[lanes].astype(np.int64) // size, elements.view(kind.dtype))]
    if space != "global":
        raise EmulatorError(f"{cta.site.text}: an atomic on .{space}")
    return [
        (lanes, offsets // size, tensor.data[: tensor.data.size // size * size].view(kind.dtype))
        for tensor, lanes, offsets in cta.memory.update(cta, where, size, active)
    ]


def _update(operation: str, old: Any, values: list[Any]) -> Any:
    value = values[0]
    match operation:
        case "add":
            with np.errstate(over="ignore"):
                return old + value
        case "exch":
            return value
        case "cas":
            return values[1] if old == value else old
        case "inc":
            return 0 if old >= value else old + 1
        case "dec":
            return value if old == 0 or old > value else old - 1
        case "min" | "max":
            if isinstance(old, np.floating):
                pick = fp.minimum if operation == "min" else fp.maximum
                return pick(np.array([old]), np.array([value]))[0]
            return min(old, value) if operation == "min" else max(old, value)
        case "and":
            return old & value
        case "or":
            return old | value
    return old ^ value
