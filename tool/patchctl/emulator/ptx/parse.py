# SPDX-License-Identifier: Apache-2.0
"""Reads PTX as nvcc 12 writes it for compute_70, or as ``cuobjdump -ptx`` prints it."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator

from patchctl.emulator.ptx.module import (
    Address,
    Entry,
    Guard,
    Imm,
    Instruction,
    Module,
    Not,
    Operand,
    Pair,
    Param,
    Reg,
    Space,
    Variable,
    Vector,
)
from patchctl.errors import PatchctlError, UsageError

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_NOTE = re.compile(
    r"^(?:Fatbin |=====|arch = |code version|host = |compile_size|compressed|producer|"
    r"ptxasOptions|identifier).*$",
    re.M,
)
_LINE = re.compile(r"^[ \t]*\.(?:version|target|address_size|loc|file)\b[^\n]*", re.M)
_LABEL = re.compile(r"([$%\w]+)\s*:(?!:)")
_GUARD = re.compile(r"@(!?)([%$\w]+)\s+")
_REG = re.compile(r"\.reg\s+\.(?P<type>\w+)\s+(?P<names>.+)$", re.DOTALL)
_COUNTED = re.compile(r"(?P<stem>[%$\w]+)<(?P<count>\d+)>$")
_VARIABLE = re.compile(
    r"(?:\.(?:visible|extern|weak|common|internal)\s+)*\.(?P<space>shared|local|global|const|param)\s+"
    r"(?:\.align\s+(?P<align>\d+)\s+)?(?:\.(?P<vector>v[24])\s+)?\.(?P<type>[a-z]+\d+)\s+"
    r"(?P<name>[%$\w]+)(?P<dims>(?:\[\d*\])*)\s*(?:=\s*(?P<init>.+))?$",
    re.DOTALL,
)
_ENTRY = re.compile(
    r"(?:\.(?:visible|weak|extern)\s+)*\.entry\s+(?P<name>[$\w]+)\s*(?:\((?P<params>[^)]*)\))?(?P<rest>.*)$",
    re.DOTALL,
)
_THREADS = re.compile(r"\.(?:maxntid|reqntid)\s+(?P<n>\d+(?:\s*,\s*\d+)*)")
_ADDRESS = re.compile(r"\[\s*(?P<base>[%$\w]+)?\s*(?:\+?\s*(?P<offset>[+-]?\w+))?\s*\]$")
_INTEGER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|0[0-7]*|[1-9]\d*)U?$")
_FLOAT = re.compile(r"0(?P<kind>[fFdD])(?P<bits>[0-9a-fA-F]{8}|[0-9a-fA-F]{16})$")
_IDENTIFIER = re.compile(r"[%$\w][\w$%.]*$")
_IGNORED = (".pragma", ".maxnreg")
_BITS = re.compile(r"[a-z]+(\d+)$")

Resolve = Callable[[str], str]


def parse_module(text: str) -> Module:
    """Read one module. Comment lines and cuobjdump's notes are skipped.

    Raises:
        UsageError: something in it is not understood; the message names line and text.
    """
    text = _NOTE.sub("", _COMMENT.sub(lambda m: "\n" * m[0].count("\n"), text))
    module = Module()
    if match := re.search(r"\.version\s+([\d.]+)", text):
        module.version = match[1]
    if match := re.search(r"\.target\s+([\w, ]+)", text):
        module.target = match[1].strip()
    text = _LINE.sub("", text)
    _Reader(module).read(text)
    return module


def parse_modules(text: str) -> list[Module]:
    """Read all modules in the output of ``cuobjdump -ptx``, or the only one of a PTX file."""
    starts = [m.start() for m in re.finditer(r"^\s*\.version\s", text, re.M)]
    ends = [*starts[1:], len(text)]
    return [parse_module(text[start:end]) for start, end in zip(starts, ends, strict=True)]


def _refuse(line: int, text: str, why: str) -> PatchctlError:
    return UsageError(f"PTX line {line}: {why}: `{' '.join(text.split())}`")


def _statements(text: str) -> Iterator[tuple[int, str, str]]:
    """(line, statement, what ended it: ``;``, ``{`` or ``}``).

    A brace inside of a statement belongs to it (a vector, an initialiser), unless the statement
    is the head of an entry or function.
    """
    line, start, depth, first = 1, 0, 0, 1
    for position, char in enumerate(text):
        if char == "\n":
            line += 1
            continue
        if char not in "{};":
            if not text[start:position].strip():
                first = line
            continue
        head = text[start:position].strip()
        if char == "{" and head and not _opens_body(head):
            depth += 1
        elif char == "}" and depth:
            depth -= 1
        elif char != ";" or not depth:
            yield first, head, char
            start, first = position + 1, line
    if text[start:].strip():
        raise _refuse(first, text[start:][:80], "the text ends inside of a statement")


def _opens_body(head: str) -> bool:
    return bool(re.match(r"(\.\w+\s+)*\.(entry|func|section)\b", head)) or bool(
        re.fullmatch(r"(\s*[$%\w]+\s*:\s*)+", head)
    )


class _Reader:
    """Walks over the statements; keeps the scopes, in which registers may have equal names."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.entry: Entry | None = None
        self.skipping = 0  # depth inside of a function's body
        self.scopes: list[dict[str, str]] = []
        self.scope_count = 0

    def read(self, text: str) -> None:
        for line, head, end in _statements(text):
            if self.skipping or re.match(r"(\.\w+\s+)*\.(func|section)\b", head):
                self.skipping += {"{": 1, "}": -1, ";": 0}[end]
            elif self.entry is None:
                self._outside(line, head, end)
            else:
                self._inside(self.entry, line, head, end)

    def _outside(self, line: int, head: str, end: str) -> None:
        if match := _ENTRY.match(head):
            if end != "{":
                return  # a declaration
            self.entry = Entry(match["name"], _params(line, match["params"] or ""))
            if threads := _THREADS.search(match["rest"]):
                self.entry.max_threads = 1
                for n in threads["n"].split(","):
                    self.entry.max_threads *= int(n)
            self.scopes = [{}]
        elif head and not head.startswith(_IGNORED):
            variable = _variable(line, head)
            self.module.variables[variable.name] = variable

    def _inside(self, entry: Entry, line: int, head: str, end: str) -> None:
        head = self._labels(entry, line, head)
        if head.startswith(".branchtargets"):
            raise _refuse(line, head, "branch targets without a label")
        if head.startswith(".reg"):
            self._registers(entry, line, head)
        elif head.startswith((".shared", ".local", ".param", ".const", ".global")):
            entry.variables.append(_variable(line, head))
        elif head and not head.startswith(_IGNORED):
            entry.instructions.append(_instruction(line, head, self._resolve))
        if end == "{":
            self.scope_count += 1
            self.scopes.append({})
        elif end == "}":
            self.scopes.pop()
            if not self.scopes:
                self.module.entries[entry.name] = entry
                self.entry = None

    def _labels(self, entry: Entry, line: int, head: str) -> str:
        while match := _LABEL.match(head):
            head = head[match.end() :].strip()
            if head.startswith(".branchtargets"):
                names = head.removeprefix(".branchtargets").split(",")
                entry.targets[match[1]] = tuple(n.strip() for n in names)
                return ""
            if match[1] in entry.labels:
                raise _refuse(line, match[1], "a second label of this name")
            entry.labels[match[1]] = len(entry.instructions)
        return head

    def _registers(self, entry: Entry, line: int, head: str) -> None:
        match = _REG.match(head)
        if not match:
            raise _refuse(line, head, "not a register declaration")
        for name in (n.strip() for n in match["names"].split(",")):
            counted = _COUNTED.match(name)
            names = (
                [f"{counted['stem']}{i}" for i in range(int(counted["count"]))]
                if counted
                else [name]
            )
            for each in names:
                unique = each if len(self.scopes) == 1 else f"{each}${self.scope_count}"
                self.scopes[-1][each] = unique
                entry.registers[unique] = match["type"]

    def _resolve(self, name: str) -> str:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return name


def _params(line: int, text: str) -> tuple[Param, ...]:
    params, offset = [], 0
    for part in (p.strip() for p in text.split(",")):
        if not part:
            continue
        # ``.ptr .global .align 4`` says what a pointer points to
        variable = _variable(line, re.sub(r"\.ptr\s+(\.\w+\s+)?(\.align\s+\d+\s+)?", "", part))
        size = variable.size or 0
        offset = -(-offset // variable.align) * variable.align
        params.append(Param(variable.name, offset, size))
        offset += size
    return tuple(params)


def _variable(line: int, text: str) -> Variable:
    match = _VARIABLE.match(text.strip())
    bits = _BITS.match(match["type"]) if match else None
    if not match or not bits:
        raise _refuse(line, text, "not understood")
    element = int(bits[1]) // 8 * int((match["vector"] or "v1")[1:])
    size: int | None = element
    for dim in re.findall(r"\[(\d*)\]", match["dims"]):
        size = size * int(dim) if dim and size is not None else None
    data = _initialiser(line, match["init"] or "", match["type"])
    align = int(match["align"] or element)
    return Variable(match["name"], Space(match["space"]), align, size, data)


def _initialiser(line: int, text: str, kind: str) -> bytes:
    bits = _BITS.match(kind)
    width = int(bits[1]) // 8 if bits else 0
    data = b""
    for item in (t.strip() for t in text.strip().strip("{}").split(",")):
        if not item:
            continue
        operand = _operand(line, item.strip("{} "), lambda name: name)
        if not isinstance(operand, Imm):
            raise _refuse(line, text, "an initialiser that is no number")
        data += (operand.value % (1 << 8 * width)).to_bytes(width, "little")
    return data


def _instruction(line: int, text: str, resolve: Resolve) -> Instruction:
    rest, guard = text, None
    if match := _GUARD.match(rest):
        guard = Guard(resolve(match[2]), bool(match[1]))
        rest = rest[match.end() :]
    opcode, _, arguments = rest.replace("\t", " ").replace("\n", " ").partition(" ")
    operands = tuple(_operand(line, a, resolve) for a in _split(arguments))
    return Instruction(tuple(opcode.split(".")), operands, guard, line, " ".join(text.split()))


def _split(text: str) -> Iterator[str]:
    """The operands between the commas that are outside of braces and brackets."""
    depth, start = 0, 0
    for position, char in enumerate(text):
        depth += (char in "{[(") - (char in "}])")
        if char == "," and depth == 0:
            yield text[start:position].strip()
            start = position + 1
    if text[start:].strip():
        yield text[start:].strip()


def _operand(line: int, text: str, resolve: Resolve) -> Operand:
    if text.startswith("{") and text.endswith("}"):
        return Vector(tuple(_operand(line, t, resolve) for t in _split(text[1:-1])))
    if text.startswith("["):
        return _address(line, text, resolve)
    if text.startswith("!"):
        return Not(Reg(resolve(text[1:].strip())))
    if "|" in text:
        first, second = (Reg(resolve(t.strip())) for t in text.split("|", 1))
        return Pair(first, second)
    if match := _FLOAT.match(text):
        value, bits = int(match["bits"], 16), 32 if match["kind"] in "fF" else 64
        if len(match["bits"]) * 4 == bits:
            return Imm(value, bits)
    if _INTEGER.match(text):
        return Imm(_integer(text))
    if re.fullmatch(r"[+-]?\d+\.\d+", text):
        return Imm(struct.unpack("<Q", struct.pack("<d", float(text)))[0], 64)
    if _IDENTIFIER.match(text):
        return Reg(resolve(text))
    raise _refuse(line, text, "an operand that is not understood")


def _address(line: int, text: str, resolve: Resolve) -> Address:
    match = _ADDRESS.match(text)
    if not match:
        raise _refuse(line, text, "an address that is not understood")
    base, offset = match["base"], match["offset"]
    if base is not None and _INTEGER.match(base):
        return Address(None, _integer(base) + _integer(offset or "0"))
    return Address(resolve(base) if base else None, _integer(offset or "0"))


def _integer(text: str) -> int:
    return int(text.removesuffix("U"), 0 if not re.fullmatch(r"[+-]?0\d+U?", text) else 8)
