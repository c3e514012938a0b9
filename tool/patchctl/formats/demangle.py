# SPDX-License-Identifier: Apache-2.0
"""Names of functions that stay the same from one build folder to the next.

The demangling itself is a program's work; this is what goes in front of it and behind it.
"""

from __future__ import annotations

import re

_STATIC = re.compile(r"__nv_static_(?P<length>\d+)_")
_CLONE = re.compile(r"(?P<base>.+?)(?P<clone>(?:\$|\.(?:constprop|isra|part|clone)\.)\d+)$")
# `_GLOBAL__N__<hash of the path>_<length>_<file>_...`; the file's name does not change
_UNIT = re.compile(
    r"(?:_GLOBAL__N_|_INTERNAL)_(?P<hash>_?[0-9a-f]{8})_(?P<length>\d+)_(?P<rest>\w+)"
)
_HASHED_NAMESPACE = re.compile(r"(?:_GLOBAL__N_|_INTERNAL)_+[0-9a-f]{8}_\d+_\w+?::")
_HASHED_FREE = re.compile(r"((?:_GLOBAL__N_|_INTERNAL)_+)[0-9a-f]{8}(?=_\d+_)")
_LAMBDA = re.compile(r"\[lambda(?P<args>\(.*?\)) \(instance (?P<number>\d+)\)\]")


def demanglable(mangled: str) -> tuple[str, str]:
    """The part of a linker name that a demangler reads, and a suffix for clones (or "").

    Statics of relocatable code and ptxas's numbered clones are spelt in ways of their own.
    """
    name = mangled
    if match := _STATIC.match(name):
        tail = name[match.end() + int(match["length"]) :]
        name = tail.removeprefix("_") if tail.startswith("__Z") else tail or name
    clone = ""
    if match := _CLONE.match(name):
        name, clone = match["base"], f" [clone {match['clone'].lstrip('.$')}]"
    return name, clone


def normalise(demangled: str) -> str:
    """One spelling of a demangled name, whichever program and build folder it came from.

    No leading ``void``, no path hashes, ``{lambda(int)#2}``, ``a*`` not ``a *``, ``>>``.
    """
    name = demangled.strip().removeprefix("void ")
    name = name.replace("<unnamed>::", "(anonymous namespace)::")
    name = _HASHED_NAMESPACE.sub(
        lambda m: "(anonymous namespace)::" if m[0].startswith("_GLOBAL") else "", name
    )
    name = _HASHED_FREE.sub(r"\g<1>00000000", name)
    name = _LAMBDA.sub(lambda m: f"{{lambda{m['args']}#{m['number']}}}", name)
    name = re.sub(r" +([*&])", r"\1", name)
    name = re.sub(r"\((?:unsigned )?(?:int|long|short|char)\)(-?\d+)", r"\1", name)
    name = name.replace("(bool)1", "true").replace("(bool)0", "false")
    while "> >" in name:
        name = name.replace("> >", ">>")
    return name


def unit_of(mangled: str) -> str:
    """The source file that an internal name was made in (``fwd_cu``), or ""."""
    match = _UNIT.search(mangled)
    return match["rest"][: int(match["length"])] if match else ""


def keys(demangled: dict[str, str]) -> dict[str, str]:
    """The name under which each mangled name is locked, from what a demangler made of it.

    `demangled` maps a mangled name to the demangled `demanglable` part, or to itself where the
    demangler failed. Internal names of different files that look the same get their file's name.
    """
    result: dict[str, str] = {}
    for mangled, text in demangled.items():
        result[mangled] = normalise(text) + demanglable(mangled)[1]
    seen: dict[str, list[str]] = {}
    for mangled, key in result.items():
        seen.setdefault(key, []).append(mangled)
    for key, several in seen.items():
        if len(several) > 1:
            for mangled in several:
                unit = unit_of(mangled)
                result[mangled] = f"{key} [{unit}]" if unit else f"{key} [{mangled}]"
    return result


def short(key: str) -> str:
    """A key without its parameter list, for tables."""
    if not key.endswith(")"):
        return key
    depth = 0
    for place in range(len(key) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(key[place], 0)
        if depth == 0:
            return key[:place] or key
    return key
