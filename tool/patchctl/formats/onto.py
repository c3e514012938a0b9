# SPDX-License-Identifier: Apache-2.0
"""What ``rebase --onto`` names, and the baseline lock that follows from it.

Three forms, told apart without looking at any disk:

- ``NAME==VERSION``: a source distribution of a package index;
- ``PATH-OR-URL@COMMIT``: a git repository and a full commit id;
- ``NAME-VERSION.tar.gz`` (or another archive): a source archive on this machine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath

import tomli_w

from patchctl.errors import UsageError
from patchctl.formats.baseline import GitCommit, Sdist, read_lock, relock

FORMS = "NAME==VERSION, PATH-OR-URL@COMMIT or a file NAME-VERSION.tar.gz"
_ARCHIVE = re.compile(r"(?P<name>.+)-(?P<version>[^-]+?)\.(?:tar\.gz|tgz|tar\.bz2|tar\.xz|tar)$")


@dataclass(frozen=True)
class Release:
    """A version in a package index; `archive` is the file to take it from, if it is at hand."""

    name: str
    version: str
    archive: str = ""

    def names(self, name: str, version: str) -> bool:
        """Whether another spelling of name and version means the same release."""
        from packaging.utils import canonicalize_name, canonicalize_version

        same = canonicalize_name(name) == canonicalize_name(self.name)
        return same and canonicalize_version(version) == canonicalize_version(self.version)


@dataclass(frozen=True)
class Commit:
    """A commit of the git repository at `url`, which may be a path."""

    url: str
    commit: str


Onto = Release | Commit


def parse_onto(text: str) -> Onto:
    """Read the value of ``--onto``.

    Raises:
        UsageError: it has none of the three forms.
    """
    url, _, commit = text.rpartition("@")
    if url and re.fullmatch("[0-9a-f]{40}", commit):
        return Commit(url, commit)
    if url and re.fullmatch("[0-9a-f]{4,39}", commit):
        raise _refused(text, f"`{commit}` is a short commit id", "give all its 40 digits")
    archive = _ARCHIVE.match(PurePath(text).name)
    if archive is not None and "==" not in text:
        return _release(text, archive["name"].replace("_", "-"), archive["version"], text)
    name, equals, version = text.partition("==")
    if equals:
        return _release(text, name.strip(), version.strip(), "")
    raise _refused(text, "it is in none of the known forms", f"--onto takes {FORMS}")


def _release(text: str, name: str, version: str, archive: str) -> Release:
    from packaging.version import InvalidVersion, Version

    if not re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", name):
        raise _refused(text, f"`{name}` is no package's name", f"--onto takes {FORMS}")
    try:
        Version(version)
    except InvalidVersion:
        raise _refused(text, f"`{version}` is no version", f"--onto takes {FORMS}") from None
    return Release(name, version, archive)


def _refused(text: str, what: str, hint: str) -> UsageError:
    return UsageError(f"--onto `{text}`: {what}", hint=hint)


def lock_for(onto: Onto, current: str, *, where: str) -> str:
    """The text of a baseline lock for `onto` with empty digests.

    It keeps what it can of the `current` lock: the globs and the comments, and every byte else
    where the kind of source is the same.

    Raises:
        UsageError: the current lock is wrong, or cannot be edited.
    """
    old = read_lock(current, where=where)
    if isinstance(onto, Release):
        values = {"name": onto.name, "version": onto.version, "sha256": "", "tree": ""}
        kind: type[Sdist | GitCommit] = Sdist
    else:
        values = {"url": onto.url, "commit": onto.commit, "tree": ""}
        kind = GitCommit
    if isinstance(old, kind):
        return relock(current, values, where=where)
    head = current[: current.index("[baseline]")]
    comments = "".join(line for line in head.splitlines(keepends=True) if line.startswith("#"))
    baseline = {"kind": kind.__struct_config__.tag, **values, "include": list(old.include)}
    return comments + tomli_w.dumps({"baseline": baseline})
