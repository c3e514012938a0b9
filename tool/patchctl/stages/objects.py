# SPDX-License-Identifier: Apache-2.0
"""The compilers' output as the last build left it: what was changed since, or is of no unit any
more, goes away before the next one.

Ninja looks at time stamps alone: an emptied ptxas log is new, and so up to date.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from patchctl.formats.ninjafile import OBJECT_FOLDER, Sources
from patchctl.system.files import sha256_of, write_file

_FILE = "object-digests.json"


def settle_objects(folder: Path, sources: Sources) -> None:
    """Remove from the build folder's objects and logs what cannot be used.

    That is what is of another unit than those in `sources`, or of none; what differs from what
    the last build left; and, where a killed one left no digests, what is empty.
    """
    wanted = {*sources.objects, *sources.logs}
    digests = _digests(folder)
    for path in _files(folder):
        name = path.relative_to(folder).as_posix()
        is_whole = sha256_of(path) == digests[name] if name in digests else path.stat().st_size > 0
        if name not in wanted or not is_whole:
            path.unlink()


def forget_objects(folder: Path) -> None:
    """Forget them, before compilers write new ones."""
    (folder / _FILE).unlink(missing_ok=True)


def remember_objects(folder: Path) -> None:
    """Remember them as they are, after compilers wrote them."""
    digests = {path.relative_to(folder).as_posix(): sha256_of(path) for path in _files(folder)}
    if digests != _digests(folder):
        write_file(folder / _FILE, msgspec.json.encode(digests), sync=False)


def _digests(folder: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode((folder / _FILE).read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError):
        return {}


def _files(folder: Path) -> list[Path]:
    found = os.walk(folder / OBJECT_FOLDER)
    return sorted(Path(place, name) for place, _, names in found for name in names)
