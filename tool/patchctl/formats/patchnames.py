# SPDX-License-Identifier: Apache-2.0
"""Names of patch files: ``NNNN-area-verb-object.patch``, and what people type for one."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from patchctl.errors import UsageError
from patchctl.formats.wording import did_you_mean

_NUMBER = re.compile(r"(\d+)-")
_LONGEST = 60


def find_patch(names: Sequence[str], typed: str, *, where: str) -> str:
    """The patch that `typed` means: its name, with or without ``.patch``, or its number.

    Raises:
        UsageError: there is none, or more than one.
    """
    if typed in names:
        return typed
    bare = typed.rpartition("/")[2] if typed.startswith("patches/") else typed
    matches = [n for n in names if n == bare or n.rsplit(".", 1)[0] == bare]
    if not matches and bare.isdigit():
        matches = [n for n in names if _number(n) == int(bare)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UsageError(
            f"`{typed}` is more than one patch: {', '.join(f'`{n}`' for n in matches)}"
        )
    raise UsageError(
        f"`{where}` names no patch `{typed}`",
        hint=did_you_mean(bare, names) or "patchctl series lists them",
    )


def name_patch(text: str, existing: Collection[str], *, after: str | None) -> str:
    """A name in house style for a new patch behind `after` (None: the first).

    `text` is a subject or a name; a number in front of it is taken if it is free. Else the
    number is the one after that of `after`, or the highest plus one where that is taken.

    Raises:
        UsageError: `text` has no letter or digit, or the name it gives is taken.
    """
    words = re.sub(r"\.(patch|diff)$", "", text.strip())
    match = _NUMBER.match(words)
    numbers = {_number(name) for name in existing} - {None}
    slug = re.sub(r"[^A-Za-z0-9._+]+", "-", words[match.end() :] if match else words)
    slug = re.sub(r"(-|\.)[-.]+", "-", slug).strip("-.").lower()[:_LONGEST].rstrip("-.")
    if not slug:
        raise UsageError(f"`{text}` makes no file name: it has no letter or digit")
    if match and int(match[1]) not in numbers:
        number = int(match[1])
    else:
        number = (_number(after) if after else 0) or 0
        number += 1
        if number in numbers:
            number = max(n for n in numbers if n is not None) + 1
    name = f"{number:04}-{slug}.patch"
    if name in existing:
        raise UsageError(f"`{name}` is there already", hint=f"patchctl edit {name}")
    return name


def subject_of(name: str) -> str:
    """A first subject for a patch that has only a name: ``sm70: add m8n8k4 mainloop``."""
    words = _NUMBER.sub("", name.rsplit(".", 1)[0], count=1).split("-")
    area, rest = words[0], " ".join(words[1:])
    return f"{area}: {rest}" if rest else area


def _number(name: str) -> int | None:
    match = _NUMBER.match(name.rpartition("/")[2])
    return int(match[1]) if match else None
