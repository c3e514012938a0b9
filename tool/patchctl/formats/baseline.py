# SPDX-License-Identifier: Apache-2.0
"""The baseline lock: where the pristine source comes from and what it must hash to."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import ClassVar

import msgspec
import tomli_w

from patchctl.errors import UsageError
from patchctl.formats.documents import Document, read_toml
from patchctl.formats.globs import Include, glob_fault

RELOCK_HINT = "patchctl fetch --lock"


class LockedSubmodule(Document, frozen=True, kw_only=True):
    """A submodule whose files are part of the baseline, at `path` of it.

    `url` may be a path, relative to the project's root; an empty one, or an empty `commit`, is
    filled in from what the repository says by ``fetch --lock``.
    """

    path: str
    url: str = ""
    commit: str = ""


class _Source(Document, frozen=True, kw_only=True, tag_field="kind"):
    """What both kinds have: the files to keep and the git tree id that they make."""

    include: tuple[str, ...]
    tree: str = ""

    digests: ClassVar[dict[str, int]] = {"tree": 40}
    """The keys that hold hex digests, and their lengths."""

    @property
    def kept(self) -> Include:
        """The files that are kept."""
        return Include(self.include)


class Sdist(_Source, frozen=True, kw_only=True, tag="sdist"):
    """A source distribution of a package index."""

    name: str
    version: str
    sha256: str = ""

    digests = {"tree": 40, "sha256": 64}  # noqa: RUF012  (a ClassVar of the base)

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


class GitCommit(_Source, frozen=True, kw_only=True, tag="git"):
    """A commit of a git repository; `url` may be a path, relative to the project's root."""

    url: str
    commit: str
    submodules: tuple[LockedSubmodule, ...] = ()

    digests = {"tree": 40, "commit": 40}  # noqa: RUF012  (a ClassVar of the base)

    def __str__(self) -> str:
        return f"{self.url} at {self.commit}"


class BaselineLock(Document, frozen=True, kw_only=True):
    """The whole lock file."""

    baseline: Sdist | GitCommit


def describes_baseline(text: bytes, *, where: str) -> bool:
    """Whether a lock file is one of a baseline: it has a ``[baseline]`` table.

    Raises:
        UsageError: not TOML.
    """
    try:
        return "baseline" in msgspec.toml.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"`{where}` is not valid TOML: {error}", data={"file": where}) from error


def resolve_url(base: str, url: str) -> str:
    """Where a submodule is: git's rule for ``./`` and ``../`` against the place around it."""
    base = base.rstrip("/")
    relative = url.startswith(("./", "../"))
    separator = "/"
    while url.startswith(("./", "../")):
        step, _, url = url.partition("/")
        if step == "..":
            cut = max(base.rfind("/"), base.rfind(":"))
            base, separator = (base[:cut], base[cut]) if cut > 0 else (".", "/")
    return f"{base}{separator}{url}" if relative else url


def read_lock(text: str | bytes, *, where: str) -> Sdist | GitCommit:
    """Parse the lock file; digests may still be empty (see `require_locked`).

    Raises:
        UsageError: not TOML, a wrong key or value, a malformed digest or glob.
    """
    source = read_toml(text, BaselineLock, where=where).baseline
    if isinstance(source, GitCommit) and not source.commit:
        raise UsageError(f"`{where}` at `baseline.commit`: empty, expected a full commit id")
    for key, length in source.digests.items():
        value = getattr(source, key)
        if value and not re.fullmatch(f"[0-9a-f]{{{length}}}", value):
            raise UsageError(
                f"`{where}` at `baseline.{key}`: got `{value}`, "
                f"expected {length} lower-case hex digits",
                hint="" if key == "commit" else f'set it to "" and run: {RELOCK_HINT}',
            )
    if isinstance(source, GitCommit):
        _check_submodules(source.submodules, where)
    if not source.include:
        raise UsageError(f"`{where}` at `baseline.include`: no glob, so no file would be kept")
    for position, glob in enumerate(source.include):
        fault = glob_fault(glob)
        if fault:
            raise UsageError(f"`{where}` at `baseline.include[{position}]`: `{glob}` {fault}")
    return source


def _check_submodules(submodules: tuple[LockedSubmodule, ...], where: str) -> None:
    seen = set()
    for position, module in enumerate(submodules):
        place = f"`{where}` at `baseline.submodules[{position}]"
        parts = module.path.split("/")
        if not all(parts) or {".", ".."} & set(parts):
            raise UsageError(f"{place}.path`: `{module.path}` is no path inside the tree")
        if module.path in seen:
            raise UsageError(f"{place}.path`: `{module.path}` is listed twice")
        seen.add(module.path)
        if module.commit and not re.fullmatch("[0-9a-f]{40}", module.commit):
            raise UsageError(
                f"{place}.commit`: got `{module.commit}`, expected 40 lower-case hex digits"
            )


def require_locked(source: Sdist | GitCommit, *, where: str) -> None:
    """Refuse a lock that does not say what the baseline must be.

    Raises:
        UsageError: a digest is empty.
    """
    for key in source.digests:
        if not getattr(source, key):
            raise UsageError(
                f"`{where}` at `baseline.{key}`: empty, so nothing says what is right",
                hint=f"{RELOCK_HINT}, then review the difference",
            )
    for module in source.submodules if isinstance(source, GitCommit) else ():
        if not (module.url and module.commit):
            raise UsageError(
                f"`{where}` at `baseline.submodules`: `{module.path}` has no url or no commit",
                hint=f"{RELOCK_HINT}, then review the difference",
            )


def lock_inputs(source: Sdist | GitCommit) -> dict[str, str]:
    """What the baseline depends on, by names that people understand."""
    digests = {key: getattr(source, key) for key in source.digests}
    include = hashlib.sha256("\n".join(source.include).encode()).hexdigest()
    modules = source.submodules if isinstance(source, GitCommit) else ()
    commits = {f"submodule {module.path}": module.commit for module in modules}
    return {"source": str(source), "include": include, **digests, **commits}


def relock(
    text: str,
    values: Mapping[str, str],
    *,
    where: str,
    submodules: tuple[LockedSubmodule, ...] | None = None,
) -> str:
    """The lock file with new `values` of keys in ``[baseline]``; the rest stays byte for byte.

    New `submodules` are written at the end, in place of those that were there.

    Raises:
        UsageError: the file is not laid out in lines of ``key = "value"`` below ``[baseline]``.
    """
    expected = read_toml(text, BaselineLock, where=where)
    for key, value in values.items():
        text = _set_key(text, key, value)
    wanted = msgspec.structs.replace(expected.baseline, **values)
    if submodules is not None:
        wanted = msgspec.structs.replace(wanted, submodules=submodules)
        text = _set_submodules(text, submodules)
    if read_toml(text, BaselineLock, where=where).baseline != wanted:
        raise UsageError(
            f"patchctl cannot edit `{where}`: expected lines of key and value below `[baseline]`",
            hint="set " + ", ".join(f'{key} = "{value}"' for key, value in values.items()),
        )
    return text


def _set_key(text: str, key: str, value: str) -> str:
    line = re.compile(rf'^(\s*{key}\s*=\s*)(?:"[^"\n]*"|\'[^\'\n]*\')', re.MULTILINE)
    changed, count = line.subn(rf'\g<1>"{value}"', text, count=1)
    if count:
        return changed
    header = re.compile(r"^\[baseline\][^\n]*$", re.MULTILINE)
    return header.sub(rf'\g<0>\n{key} = "{value}"', text, count=1)


def _set_submodules(text: str, submodules: tuple[LockedSubmodule, ...]) -> str:
    kept: list[str] = []
    inside = False
    for line in text.splitlines(keepends=True):
        if line.lstrip().startswith("["):
            inside = re.match(r"\s*\[\[\s*baseline\.submodules\s*\]\]", line) is not None
        if not inside:
            kept.append(line)
    blocks = [
        "\n[[baseline.submodules]]\n" + tomli_w.dumps(msgspec.to_builtins(module))
        for module in submodules
    ]
    return "".join(kept).rstrip("\n") + "\n" + "".join(blocks)
