# SPDX-License-Identifier: Apache-2.0
"""Which names of others the library may use: ``build/<target>.abi.toml`` and torch's headers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

from patchctl.formats.documents import Document
from patchctl.formats.elf import Dynamic, Symbol
from patchctl.formats.findings import Finding

GATE = "symbols"
_FEATURE = re.compile(
    r"#\s*if\s+TORCH_FEATURE_VERSION\s*>=\s*TORCH_VERSION_(?P<major>\d+)_(?P<minor>\d+)_\d+"
)
_DECLARED = re.compile(r"\b(?P<name>(?:aoti_)?torch_\w+)\s*\(")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)

Version = tuple[int, int]


class AbiRules(Document, frozen=True, kw_only=True):
    """What the library may leave undefined, need and search.

    `shims` are patterns of torch's C functions, each of which must be declared in torch's
    stable headers for the target's torch; `versions` are patterns of symbol versions
    (``GLIBC_*``); `symbols` are patterns of names without a version; `needed` of libraries.
    """

    shims: tuple[str, ...]
    versions: tuple[str, ...]
    symbols: tuple[str, ...]
    needed: tuple[str, ...]


def parse_shims(header: str) -> dict[str, Version]:
    """The C functions that a torch shim header declares, with the torch that brought each.

    A function outside every ``#if TORCH_FEATURE_VERSION >= ...`` has version (0, 0).
    """
    found: dict[str, Version] = {}
    conditions: list[Version] = []
    for line in _COMMENT.sub(" ", header).splitlines():
        text = line.strip()
        if match := _FEATURE.match(text):
            conditions.append((int(match["major"]), int(match["minor"])))
        elif re.match(r"#\s*if", text):
            conditions.append((0, 0))
        elif re.match(r"#\s*endif", text) and conditions:
            conditions.pop()
        elif match := _DECLARED.search(text):
            found.setdefault(match["name"], max(conditions, default=(0, 0)))
    return found


def check_symbols(
    dynamic: Dynamic,
    rules: AbiRules,
    shims: Mapping[str, Version],
    oldest: str,
    demangled: Mapping[str, str],
) -> list[Finding]:
    """Judge a library's dynamic section. `oldest` is the oldest torch it serves ("2.10")."""
    major, minor = (int(part) for part in oldest.split("."))
    findings = []
    for symbol in dynamic.undefined:
        name = demangled.get(symbol.name, symbol.name)
        why = _refused(symbol, name, rules, shims, (major, minor))
        if why:
            at = f"@{symbol.version}" if symbol.version else ""
            findings.append(
                Finding(
                    GATE,
                    name,
                    f"`{symbol.name}{at}` is undefined and {why}",
                    hint="use torch/csrc/stable only, in every file that includes torch",
                )
            )
    for library in dynamic.needed:
        if not _matches(library, rules.needed):
            findings.append(
                Finding(GATE, library, f"the library needs it; allowed: {', '.join(rules.needed)}")
            )
    for path in dynamic.runpath:
        if path and not path.startswith("$ORIGIN"):
            findings.append(
                Finding(GATE, path, "a search path of the machine that built the library")
            )
    return findings


def check_exports(dynamic: Dynamic, module: str) -> list[Finding]:
    """Whether ``import <module>`` finds its entry point."""
    entry = f"PyInit_{module}"
    if entry in dynamic.exported:
        return []
    near = sorted(n for n in dynamic.exported if n.startswith("PyInit_"))
    got = f"exported instead: {', '.join(near)}" if near else "nothing like it is exported"
    return [Finding(GATE, entry, f"`import {module}` would fail: not exported ({got})")]


def _refused(
    symbol: Symbol,
    demangled: str,
    rules: AbiRules,
    shims: Mapping[str, Version],
    oldest: Version,
) -> str:
    if symbol.version:
        return "" if _matches(symbol.version, rules.versions) else "its version is not allowed"
    if _matches(symbol.name, rules.shims):
        since = shims.get(symbol.name)
        if since is None:
            return "not in torch's stable headers"
        if since > oldest:
            return (
                f"is in torch {since[0]}.{since[1]} and later; "
                f"the library must serve {oldest[0]}.{oldest[1]}"
            )
        return ""
    if _matches(symbol.name, rules.symbols):
        return ""
    if re.search(r"\b(?:at|c10|torch)::", demangled):
        return "part of torch's C++ interface, which changes with every torch"
    return "not part of the stable ABI"


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
