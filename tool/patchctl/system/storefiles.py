# SPDX-License-Identifier: Apache-2.0
"""What the files of a store tell without git, which starts slowly."""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from pathlib import Path

from patchctl.system.files import TEMP_PREFIX

_OBJECT_ID = re.compile(rb"[0-9a-f]{40}\n")


def names_stored_commit(store: Path, ref: str, commit: str) -> bool:
    """Whether `ref` names `commit` and the store has it, seen from its files: git starts slowly."""
    lines = []
    with suppress(FileNotFoundError):
        lines = (store / "packed-refs").read_text(errors="replace").splitlines()
    named = next((line.split()[0] for line in lines if line.endswith(f" {ref}")), "")
    with suppress(FileNotFoundError):
        named = (store / ref).read_text(errors="replace").strip()
    objects = store / "objects"
    loose = objects / commit[:2] / commit[2:]
    return named == commit and (loose.exists() or any(objects.glob("pack/*.pack")))


def clear_leftovers(store: Path) -> None:
    """Remove what a killed run or a power cut left: locks, half objects, refs that name nothing.

    The caller holds the project's lock.
    """
    refs = [path for path in store.glob("refs/patchctl/**/*") if path.is_file()]
    for leftover in (
        *store.glob("*.lock"),
        *store.glob("refs/**/*.lock"),
        *store.glob("objects/obj*"),
        *store.glob("objects/pack/tmp_*"),
        *(path for path in refs if not _OBJECT_ID.fullmatch(path.read_bytes())),
    ):
        leftover.unlink(missing_ok=True)
    for half in store.parent.glob(f"{TEMP_PREFIX}{store.name}.*"):
        shutil.rmtree(half, ignore_errors=True)
