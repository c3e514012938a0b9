# SPDX-License-Identifier: Apache-2.0
"""``build/<target>.schemas.toml`` and what differs between two schemas, argument by argument."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from patchctl.errors import UsageError
from patchctl.formats.documents import Document, read_toml
from patchctl.formats.findings import Finding, Severity
from patchctl.formats.schematext import Argument, Schema, parse_schema

GATE = "schemas"


class Operator(Document, frozen=True, kw_only=True):
    """An operator that the library must register, as text, and its dispatch keys.

    `since` names the patch that brings it.
    """

    schema: str
    dispatch: tuple[str, ...] = ("CUDA",)
    since: str = ""


class ExpectedSchemas(Document, frozen=True, kw_only=True):
    """The operators of one namespace; no other may be registered there."""

    namespace: str
    operators: tuple[Operator, ...]


def read_schemas(text: str | bytes, *, where: str) -> ExpectedSchemas:
    """Parse the file and every schema in it.

    Raises:
        UsageError: not TOML, an unknown key, a text that is no schema, or a name given twice.
    """
    expected = read_toml(text, ExpectedSchemas, where=where)
    seen: set[str] = set()
    for number, operator in enumerate(expected.operators):
        place = f"`{where}` at `operators[{number}].schema`"
        try:
            schema = parse_schema(operator.schema)
        except UsageError as error:
            raise UsageError(f"{place}: {error.message}") from error
        if full_name(schema) in seen:
            raise UsageError(f"{place}: operator `{full_name(schema)}` is listed twice")
        seen.add(full_name(schema))
    return expected


def full_name(schema: Schema) -> str:
    """``name`` or ``name.overload``."""
    return f"{schema.name}.{schema.overload}" if schema.overload else schema.name


@dataclass(frozen=True)
class Registered:
    """An operator as the library registered it.

    `compatible` is torch's own word: callers of the expected schema keep working.
    """

    schema: Schema
    dispatch: tuple[str, ...]
    compatible: bool | None = None


def compare_operators(
    expected: ExpectedSchemas, registered: Mapping[str, Registered], applied: Collection[str] | None
) -> list[Finding]:
    """Judge every operator of the namespace.

    `applied` are the patches in the tree, or None when all are: what comes `since` a later
    one is not missed.
    """
    findings: list[Finding] = []
    known = set()
    for operator in expected.operators:
        wanted = parse_schema(operator.schema)
        name = full_name(wanted)
        known.add(name)
        got = registered.get(name)
        if got is None:
            if applied is None or not operator.since or operator.since in applied:
                findings.append(Finding(GATE, name, "is not registered by the library"))
            continue
        findings += compare_schema(wanted, got.schema, got.compatible)
        for key in operator.dispatch:
            if key not in got.dispatch:
                had = ", ".join(got.dispatch) or "none"
                findings.append(Finding(GATE, name, f"has no kernel for {key} (it has: {had})"))
    for name in registered:
        if name not in known:
            findings.append(
                Finding(
                    GATE,
                    name,
                    f"is registered and is not in `{expected.namespace}`'s list",
                    hint="add it to the schemas file, with the patch that brings it as `since`",
                )
            )
    return findings


def compare_schema(wanted: Schema, got: Schema, compatible: bool | None = None) -> list[Finding]:
    """What differs, one finding for each argument or return; spelling does not count."""
    subject = full_name(wanted)
    fate = {
        None: "",
        True: "; callers keep working by torch's rule",
        False: "; callers break by torch's rule",
    }[compatible]
    errors = _compare_arguments(wanted.arguments, got.arguments)
    errors += _compare_returns(wanted.returns, got.returns)
    warnings = []
    for old, new in zip(wanted.arguments, got.arguments, strict=False):
        if old.name == new.name and not _differences(old, new):
            warnings += _spellings(old, new)
    return [
        *(Finding(GATE, subject, text + fate) for text in errors),
        *(Finding(GATE, subject, text, Severity.WARNING) for text in warnings),
    ]


def _compare_arguments(old: tuple[Argument, ...], new: tuple[Argument, ...]) -> list[str]:
    olds, news = {a.name: a for a in old}, {a.name: a for a in new}
    said = []
    for place, argument in enumerate(old):
        if argument.name in news:
            continue
        other = new[place] if place < len(new) else None
        if other and other.name not in olds and not _differences(argument, other):
            said.append(f"argument {place} `{argument.name}` was renamed to `{other.name}`")
            del news[other.name]
        else:
            said.append(f"argument {place} `{argument.name}` was removed")
    for place, argument in enumerate(new):
        if argument.name in news and argument.name not in olds:
            text = f"{argument.type} {argument.name}{_default_text(argument)}"
            said.append(f"argument `{text}` was added at position {place}")
    common_old = [a.name for a in old if a.name in news]
    common_new = [a.name for a in new if a.name in olds]
    for name in _moved(common_old, common_new):
        was, now = [a.name for a in old].index(name), [a.name for a in new].index(name)
        said.append(f"argument `{name}` moved from position {was} to {now}")
    for name in common_old:
        said += [f"argument `{name}` {text}" for text in _differences(olds[name], news[name])]
    return said


def _moved(old: list[str], new: list[str]) -> list[str]:
    """The names outside the longest part that both orders share."""
    length = [[0] * (len(new) + 1) for _ in range(len(old) + 1)]
    for i in reversed(range(len(old))):
        for j in reversed(range(len(new))):
            same = old[i] == new[j]
            length[i][j] = (
                1 + length[i + 1][j + 1] if same else max(length[i + 1][j], length[i][j + 1])
            )
    kept, i, j = set(), 0, 0
    while i < len(old) and j < len(new):
        if old[i] == new[j]:
            kept.add(old[i])
            i, j = i + 1, j + 1
        elif length[i + 1][j] >= length[i][j + 1]:
            i += 1
        else:
            j += 1
    return [name for name in old if name not in kept]


def _compare_returns(old: tuple[Argument, ...], new: tuple[Argument, ...]) -> list[str]:
    if len(old) != len(new):
        return [f"returns {len(new)} values, expected {len(old)}"]
    return [
        f"return {place} {text}"
        for place, (a, b) in enumerate(zip(old, new, strict=True))
        for text in _differences(a, b)
    ]


def _differences(old: Argument, new: Argument) -> list[str]:
    """What matters to a caller and differs; the types ``int`` and ``SymInt`` are one to torch."""
    said = []
    if _plain(old.type) != _plain(new.type) or old.length != new.length:
        said.append(f"has type {_typed(new)}, expected {_typed(old)}")
    if old.mutable != new.mutable:
        said.append("is written to, expected read only" if new.mutable else "is no longer mutable")
    elif old.alias != new.alias and "!" not in (old.alias, new.alias):
        said.append(f"aliases ({new.alias or 'nothing'}), expected ({old.alias or 'nothing'})")
    if old.kwarg_only != new.kwarg_only:
        said.append("became keyword-only" if new.kwarg_only else "became positional")
    # by spelling: to Python True equals 1
    if old.has_default != new.has_default or repr(old.default) != repr(new.default):
        got = _default_text(new) or "no default"
        said.append(f"has {got}, expected {_default_text(old) or 'no default'}")
    return said


def _spellings(old: Argument, new: Argument) -> list[str]:
    said = []
    if old.type != new.type:
        said.append(f"argument `{old.name}` is {new.type}, listed as {old.type}: the same to torch")
    if old.alias != new.alias:
        said.append(
            f"argument `{old.name}` is annotated ({new.alias}), listed as ({old.alias}): "
            "the same mutation"
        )
    return said


def _plain(kind: str) -> str:
    return kind.replace("SymInt", "int")


def _typed(argument: Argument) -> str:
    return argument.type.replace("[]", f"[{argument.length or ''}]", 1)


def _default_text(argument: Argument) -> str:
    return f"={argument.default!r}" if argument.has_default else ""
