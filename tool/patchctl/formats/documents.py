# SPDX-License-Identifier: Apache-2.0
"""Reading TOML into frozen, typed structures; a wrong key or value names itself."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec
import tomli_w

from patchctl.errors import UsageError
from patchctl.formats.wording import did_you_mean


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
    except (ValueError, RecursionError) as error:
        # ValueError: msgspec's, of the UTF-8 decoder, or of an integer with thousands of digits
        raise UsageError(f"`{where}` is not valid TOML: {error}", data={"file": where}) from error


def toml_text(data: Document | dict[str, Any], *, heading: str) -> str:
    """`data` as TOML below `heading`, which is lines of comment."""
    return heading + tomli_w.dumps(msgspec.to_builtins(data))


def _explain(message: str, kind: type[Document]) -> str:
    match = _PATH.match(message)
    what, path = (match["what"], match["path"] or "$") if match else (message, "$")
    place = path.removeprefix("$").removeprefix(".") or "top level"
    unknown = _UNKNOWN.match(what)
    if unknown is None:
        tags = _tags_at(kind, place) if what.startswith("Invalid value") else []
        expected = f", expected one of: {', '.join(tags)}" if tags else ""
        return f"at `{place}`: {what[0].lower()}{what[1:]}{expected}"
    known = _fields_at(kind, place)
    guess = did_you_mean(unknown["key"], known)
    help = f"; {guess}" if guess else f" (known: {', '.join(known)})" if known else ""
    return f"at `{place}`: unknown key `{unknown['key']}`{help}"


def _fields_at(kind: Any, place: str) -> list[str]:
    """The field names of the structures that `place` (``a.b[0].c``) can hold."""
    fields = [f for struct in _structs_at(kind, place) for f in msgspec.structs.fields(struct)]
    return list(dict.fromkeys(field.encode_name for field in fields))


def _tags_at(kind: Any, place: str) -> list[str]:
    """The values that tell structures apart, where `place` is the key that holds them."""
    parent, _, key = place.rpartition(".")
    structs = _structs_at(kind, parent or "top level")
    configs = [s.__struct_config__ for s in structs]
    return [str(config.tag) for config in configs if config.tag_field == key]


def _structs_at(kind: Any, place: str) -> list[type[msgspec.Struct]]:
    current = [kind]
    if place != "top level":
        for part in re.findall(r"[^.\[\]]+|\[[^\]]*\]", place):
            current = [found for one in current for found in _step(one, part)]
    return [c for c in current if isinstance(c, type) and issubclass(c, msgspec.Struct)]


def _step(current: Any, part: str) -> list[Any]:
    if isinstance(current, type) and issubclass(current, msgspec.Struct):
        fields = msgspec.structs.fields(current)
        return [c for f in fields if f.encode_name == part for c in _choices(f.type)]
    arguments = getattr(current, "__args__", ())
    item = next((a for a in reversed(arguments) if a is not Ellipsis), None)
    return _choices(item)


def _choices(annotation: Any) -> list[Any]:
    is_union = type(annotation).__name__ in ("UnionType", "Union", "_UnionGenericAlias")
    return list(annotation.__args__) if is_union else [annotation]
