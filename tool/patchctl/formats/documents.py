# SPDX-License-Identifier: Apache-2.0
"""Reading TOML into frozen, typed structures; a wrong key or value names itself."""

from __future__ import annotations

import difflib
import re
from typing import Any, TypeVar

import msgspec

from patchctl.errors import UsageError


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every structure that is read from a file: frozen, and no key goes unread."""


D = TypeVar("D", bound=Document)

_PATH = re.compile(r"(?P<what>.*?)(?: - at `(?P<path>.*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<key>.*)`")


def read_toml(text: str | bytes, kind: type[D], *, where: str) -> D:
    """Parse `text` as a `kind`.

    Raises:
        UsageError: not TOML, an unknown or missing key, or a value of the wrong type; names
            `where`, the key, and the nearest known key.
    """
    try:
        return msgspec.toml.decode(text, type=kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"`{where}` {_explain(str(error), kind)}", data={"file": where}) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"`{where}` is not valid TOML: {error}", data={"file": where}) from error


def _explain(message: str, kind: type[Document]) -> str:
    match = _PATH.match(message)
    what, path = (match["what"], match["path"] or "$") if match else (message, "$")
    place = path.removeprefix("$").removeprefix(".") or "top level"
    unknown = _UNKNOWN.match(what)
    if unknown is None:
        return f"at `{place}`: {what[0].lower()}{what[1:]}"
    known = _fields_at(kind, place)
    near = difflib.get_close_matches(unknown["key"], known, n=1)
    guess = f"; did you mean `{near[0]}`?" if near else ""
    allowed = f" (known: {', '.join(known)})" if known and not near else ""
    return f"at `{place}`: unknown key `{unknown['key']}`{guess}{allowed}"


def _fields_at(kind: Any, place: str) -> list[str]:
    """The field names of the structure that `place` (``a.b[0].c``) points at."""
    current: Any = kind
    if place != "top level":
        for part in re.findall(r"[^.\[\]]+|\[[^\]]*\]", place):
            current = _step(current, part)
    if isinstance(current, type) and issubclass(current, msgspec.Struct):
        return [field.encode_name for field in msgspec.structs.fields(current)]
    return []


def _step(current: Any, part: str) -> Any:
    if isinstance(current, type) and issubclass(current, msgspec.Struct):
        for field in msgspec.structs.fields(current):
            if field.encode_name == part:
                return _without_none(field.type)
        return None
    arguments = getattr(current, "__args__", ())
    item = next((a for a in reversed(arguments) if a is not Ellipsis), None)
    return _without_none(item)


def _without_none(annotation: Any) -> Any:
    choices = [a for a in getattr(annotation, "__args__", ()) if a is not type(None)]
    is_union = type(annotation).__name__ in ("UnionType", "Union", "_UnionGenericAlias")
    return choices[0] if is_union and choices else annotation
