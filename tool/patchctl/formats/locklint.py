# SPDX-License-Identifier: Apache-2.0
"""Whether a lock of the series is one of the series and of the baseline as they are now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from patchctl.errors import UsageError
from patchctl.formats.baseline import read_lock, require_locked
from patchctl.formats.lintmodel import Remark, from_error
from patchctl.formats.serieslock import read_series_lock

AREA = "locks"


def lint_baseline(text: bytes, *, file: str) -> Iterator[Remark]:
    """A baseline's lock: well formed, and no digest left open."""
    try:
        require_locked(read_lock(text, where=file), where=file)
    except UsageError as error:
        yield from_error(error, file, AREA, "baseline-lock")


def lint_series_lock(
    text: bytes | None, patches: Mapping[str, str], tree: str, *, file: str, relock: str
) -> Iterator[Remark]:
    """A series's lock against the patches (name to sha256, in order) and the baseline's tree.

    The trees and commits that it holds can only be checked by replaying.
    """

    def remark(key: str, message: str) -> Remark:
        return Remark(file, _line_of(text or b"", key), AREA, "stale-lock", message, hint=relock)

    if text is None:
        yield remark("", "there is no lock: nothing says what the series must produce")
        return
    try:
        lock = read_series_lock(text, where=file)
    except UsageError as error:
        yield from_error(error, file, AREA, "series-lock")
        return
    if tree and lock.baseline.tree != tree:
        yield remark(
            lock.baseline.tree, f"locks the baseline's tree {lock.baseline.tree}, it is {tree}"
        )
    locked = {patch.name: patch.sha256 for patch in lock.patches}
    for name, sha256 in patches.items():
        if name not in locked:
            yield remark("", f"does not have `{name}`, which the series names")
        elif locked[name] != sha256:
            yield remark(locked[name], f"`{name}` has sha256 {sha256}, the lock has {locked[name]}")
    for name in locked:
        if name not in patches:
            yield remark(name, f"has `{name}`, which the series does not name")
    both = [name for name in locked if name in patches]
    if both != [name for name in patches if name in locked]:
        yield remark("[[patches]]", "has the patches in another order than the series")
    last = lock.patches[-1].commit if lock.patches else lock.baseline.commit
    if lock.head != last:
        yield remark(lock.head, f"its head {lock.head} is not its last commit {last}")


def _line_of(text: bytes, key: str) -> int:
    lines = text.decode("utf-8", "replace").split("\n")
    return next((number for number, line in enumerate(lines, 1) if key and key in line), 1)
