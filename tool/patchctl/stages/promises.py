# SPDX-License-Identifier: Apache-2.0
"""Holding the replayed tree to what its patches promise (``Asserts:``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from patchctl.errors import GateFailed
from patchctl.formats.asserts import Promise, check_tree, read_promises
from patchctl.formats.gitobjects import Entry
from patchctl.formats.wording import counted
from patchctl.system.seriesfiles import PatchSource


def promises_of(patches: Iterable[PatchSource]) -> tuple[Promise, ...]:
    """What these patches promise.

    Raises:
        PatchDoesNotApply: a promise cannot be read.
    """
    return tuple(p for patch in patches for p in read_promises(patch.name, patch.data))


def require_in_tree(
    promises: Sequence[Promise], files: Mapping[bytes, Entry], read_blob: Callable[[str], bytes]
) -> None:
    """Refuse a replayed tree that breaks a promise about its files.

    Raises:
        GateFailed: names the patch and the promise.
    """

    def read(path: bytes) -> bytes | None:
        entry = files.get(path)
        return None if entry is None else read_blob(entry.id)

    findings = check_tree(promises, read)
    if findings:
        raise GateFailed(
            f"the replayed tree breaks {counted(len(findings), 'promise')} of the series",
            details=tuple(f"{f.subject}: {f.message}" for f in findings),
            hint=findings[0].hint,
            data={"findings": [f.as_json() for f in findings]},
        )
