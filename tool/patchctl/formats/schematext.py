# SPDX-License-Identifier: Apache-2.0
"""Operator schemas as text and as structures.

Reads both what people write (``varlen_fwd(Tensor! q, Tensor!? out) -> Tensor[]``) and what torch
prints, which torch itself cannot read back (``Tensor($0! -> ) q``).
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from patchctl.errors import UsageError

Default = None | bool | int | float | str | list["Default"]


@dataclass(frozen=True)
class Argument:
    """One argument or return.

    `type` has no annotations (``Tensor?``, ``int[]``); `length` is the N of ``int[N]``. `alias`
    is what it shares memory with: "" nothing, ``"!"`` a mutation without a name, else the alias
    sets, renamed in order of appearance so that ``(a!)`` and ``(b!)`` are the same.
    """

    name: str
    type: str
    length: int | None = None
    mutable: bool = False
    alias: str = ""
    has_default: bool = False
    default: Default = None
    kwarg_only: bool = False


@dataclass(frozen=True)
class Schema:
    """An operator: `name` without namespace, `overload` or ""."""

    name: str
    overload: str
    arguments: tuple[Argument, ...]
    returns: tuple[Argument, ...]


_HEAD = re.compile(r"\s*(?:(?P<ns>\w+)::)?(?P<name>\w+)(?:\.(?P<overload>\w+))?\s*\(")
_NAME = re.compile(r"[A-Za-z_][\w.]*")
_SUFFIX = re.compile(r"\s*(?:(?P<optional>\?)|(?P<bare>!)|\[\s*(?P<length>\d*)\s*\])")
_ALIAS = re.compile(r"\((?P<sets>[\w$!|*\s]*(?:->[\w|*\s]*)?)\)")
_SYMBOLIC_NAMES = {
    # torch keeps these enumerations as numbers
    "contiguous_format": 0,
    "preserve_format": 1,
    "channels_last": 2,
    "strided": 0,
}


class _Text:
    """A cursor over a schema; errors show the place."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.aliases: dict[str, str] = {}

    def fail(self, expected: str) -> UsageError:
        rest = self.text[self.at : self.at + 20] or "the end"
        return UsageError(
            f"schema `{self.text}`, column {self.at + 1}: got `{rest}`, expected {expected}"
        )

    def space(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def take(self, token: str) -> bool:
        self.space()
        if self.text.startswith(token, self.at):
            self.at += len(token)
            return True
        return False

    def need(self, token: str) -> None:
        if not self.take(token):
            raise self.fail(f"`{token}`")

    def name(self, what: str) -> str:
        self.space()
        match = _NAME.match(self.text, self.at)
        if match is None:
            raise self.fail(what)
        self.at = match.end()
        return match[0]


def parse_schema(text: str) -> Schema:
    """Read one schema, as declared or as torch prints it.

    Raises:
        UsageError: not a schema; names the column and what was expected there.
    """
    head = _HEAD.match(text)
    cursor = _Text(text)
    if head is None:
        raise cursor.fail("`name(`")
    cursor.at = head.end()
    arguments = _arguments(cursor)
    cursor.need("->")
    returns = _returns(cursor)
    cursor.space()
    if cursor.at != len(text):
        raise cursor.fail("the end")
    return Schema(head["name"], head["overload"] or "", tuple(arguments), tuple(returns))


def _arguments(cursor: _Text) -> list[Argument]:
    found: list[Argument] = []
    kwarg_only = False
    if cursor.take(")"):
        return found
    while True:
        if cursor.take("*"):
            kwarg_only = True
        else:
            found.append(_argument(cursor, kwarg_only))
        if cursor.take(")"):
            return found
        cursor.need(",")


def _argument(cursor: _Text, kwarg_only: bool) -> Argument:
    kind, length, mutable, alias = _type(cursor)
    name = cursor.name("the argument's name")
    has_default = cursor.take("=")
    default = with_type(_default(cursor), kind, length) if has_default else None
    return Argument(name, kind, length, mutable, alias, has_default, default, kwarg_only)


def _returns(cursor: _Text) -> list[Argument]:
    if not cursor.take("("):
        return [_return(cursor)]
    found: list[Argument] = []
    if cursor.take(")"):
        return found
    while True:
        found.append(_return(cursor))
        if cursor.take(")"):
            return found
        cursor.need(",")


def _return(cursor: _Text) -> Argument:
    kind, length, mutable, alias = _type(cursor)
    cursor.space()
    named = _NAME.match(cursor.text, cursor.at)
    name = cursor.name("a name") if named else ""
    return Argument(name, kind, length, mutable, alias)


def _type(cursor: _Text) -> tuple[str, int | None, bool, str]:
    if cursor.take("("):
        parts = [_type(cursor)[0]]
        while cursor.take(","):
            parts.append(_type(cursor)[0])
        cursor.need(")")
        kind = f"({', '.join(parts)})"
    else:
        kind = cursor.name("a type")
        if kind == "Dict" and cursor.take("("):
            key = _type(cursor)[0]
            cursor.need(",")
            kind = f"Dict({key}, {_type(cursor)[0]})"
            cursor.need(")")
    length: int | None = None
    mutable, alias = False, ""
    while True:
        cursor.space()
        if cursor.text.startswith("(", cursor.at):
            mutable, alias = _annotation(cursor)
            continue
        match = _SUFFIX.match(cursor.text, cursor.at)
        if match is None:
            return kind, length, mutable, alias
        cursor.at = match.end()
        if match["optional"]:
            kind += "?"
        elif match["bare"]:
            mutable, alias = True, "!"
        else:
            kind += "[]"
            length = int(match["length"]) if match["length"] else None


def _annotation(cursor: _Text) -> tuple[bool, str]:
    match = _ALIAS.match(cursor.text, cursor.at)
    if match is None:
        raise cursor.fail("an annotation such as `(a!)`")
    before, _, after = match["sets"].partition("->")
    cursor.at = match.end()
    mutable = "!" in before
    names = [n.strip() for n in before.replace("!", "").split("|") if n.strip()]
    return mutable, alias_text(names, after.split("|"), mutable, cursor.aliases)


def alias_text(before: list[str], after: list[str], mutable: bool, known: dict[str, str]) -> str:
    """One spelling of an alias annotation; `known` carries the renaming through a schema."""
    if mutable and (not before or all(n.startswith("$") for n in before)):
        return "!"

    def rename(name: str) -> str:
        return name if name == "*" else known.setdefault(name, chr(ord("a") + len(known) % 26))

    text = "|".join(sorted(rename(n) for n in before)) + ("!" if mutable else "")
    later = sorted(rename(n.strip()) for n in after if n.strip())
    return f"{text} -> {'|'.join(later)}" if later else text


def with_type(value: Default, kind: str, length: int | None) -> Default:
    """A default as its argument takes it: ``float s=1`` is 1.0, ``int[2] p=1`` is ``[1, 1]``."""
    if isinstance(value, list):
        return [with_type(v, kind.replace("[]", "", 1), None) for v in value]
    if isinstance(value, int) and not isinstance(value, bool) and kind.startswith("float"):
        value = float(value)
    return [value] * length if length and value is not None else value


def _default(cursor: _Text) -> Default:
    cursor.space()
    match = re.compile(r"\[[^\]]*\]|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^,()\s]+").match(
        cursor.text, cursor.at
    )
    if match is None:
        raise cursor.fail("a default value")
    value = _literal(match[0])
    if isinstance(value, _Unreadable):
        raise cursor.fail("a default value")
    cursor.at = match.end()
    return value


class _Unreadable:
    pass


def _literal(text: str) -> Default | _Unreadable:
    if text in _SYMBOLIC_NAMES:
        return _SYMBOLIC_NAMES[text]
    words = {"true": "True", "false": "False"}
    try:
        value = ast.literal_eval(re.sub(r"\b(true|false)\b", lambda m: words[m[0]], text))
    except (SyntaxError, ValueError):
        try:
            return float(text)
        except ValueError:
            return text if re.fullmatch(r"[A-Za-z_]\w*", text) else _Unreadable()
    if isinstance(value, (bool, int, float, str, list)) or value is None:
        return value
    return _Unreadable()
