# SPDX-License-Identifier: Apache-2.0
"""A git commit as the baseline: its files, with those of its submodules in their places."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from patchctl.errors import LockMismatch, Unavailable, UsageError
from patchctl.formats.archive import check_links, check_paths, submodule_missing
from patchctl.formats.baseline import RELOCK_HINT, GitCommit, LockedSubmodule, resolve_url
from patchctl.formats.gitobjects import Entry, Mode, display
from patchctl.system.project import Project
from patchctl.system.report import Reporter

if TYPE_CHECKING:
    from patchctl.system.gitstore import Store


@dataclass
class TakenCommit:
    """The files that are kept, and the submodules that they come from too."""

    tree: dict[bytes, Entry] = field(default_factory=dict)
    submodules: list[LockedSubmodule] = field(default_factory=list)


def take_commit(
    project: Project,
    store: Store,
    source: GitCommit,
    report: Reporter,
    *,
    offline: bool,
    lock: bool,
) -> TakenCommit:
    """Bring the commit and its locked submodules into the store.

    A submodule is wanted when `include` reaches into it; its commit must be the one that the
    commit around it names. `lock` takes those that are there, and asks where they are.

    Raises:
        UsageError: a wanted submodule is not locked, or a locked one is not there; a tree that
            means trouble on a disk.
        LockMismatch: a submodule is at another commit than the locked one.
        Unavailable: a commit cannot be had.
    """
    return _Taker(project, store, source, report, offline, lock).take()


class _Taker:
    def __init__(
        self,
        project: Project,
        store: Store,
        source: GitCommit,
        report: Reporter,
        offline: bool,
        lock: bool,
    ) -> None:
        self._project, self._store, self._source = project, store, source
        self._report, self._offline, self._lock = report, offline, lock
        self._locked = {module.path.encode(): module for module in source.submodules}
        self._where = project.relative(project.baseline_lock)
        self._taken = TakenCommit()

    def take(self) -> TakenCommit:
        source = self._source
        self._fetch(source.url, source.commit, "baseline.url")
        self._add(source.commit, b"", source.url, self._local(source.url))
        found = {module.path.encode() for module in self._taken.submodules}
        for path in self._locked:
            if path not in found and not self._lock:
                raise UsageError(
                    f"`{self._where}` at `baseline.submodules`: `{display(path)}` is no submodule "
                    f"of {source} that `include` reaches into",
                    hint=RELOCK_HINT,
                )
        where = f"commit {source.commit}"
        tree = self._taken.tree
        check_paths(tree, where=where)
        links = {p: self._store.read_blob(e.id) for p, e in tree.items() if e.mode is Mode.SYMLINK}
        check_links(links, where=where)
        return self._taken

    def _add(self, commit: str, below: bytes, url: str, clone: Path | None) -> None:
        """Keep the files of `commit` as the folder `below` (with its slash), and go on inside."""
        kept = self._source.kept
        for path, entry in self._store.read_tree(commit, skip_submodules=True).items():
            if kept.matches(below + path):
                self._taken.tree[below + path] = entry
        modules = self._store.submodules(commit)
        wanted = {p: i for p, i in modules.items() if kept.reaches_into(below + p)}
        urls = self._store.submodule_urls(commit) if wanted else {}
        for path, linked in sorted(wanted.items()):
            module = self._choose(below + path, linked, resolve_url(url, urls.get(path, "")))
            checkout = clone / path.decode("utf-8", "surrogateescape") if clone else None
            self._fetch_submodule(module, checkout)
            self._taken.submodules.append(module)
            self._add(linked, below + path + b"/", module.url, checkout)

    def _choose(self, path: bytes, linked: str, url: str) -> LockedSubmodule:
        locked = self._locked.get(path)
        if self._lock:
            url = (locked.url if locked else "") or url
            if not url:
                raise UsageError(
                    f"`.gitmodules` of {self._source} does not say where {display(path)} is",
                    hint=f'add [[baseline.submodules]] with path = "{display(path)}" and `url` to '
                    f"`{self._where}`",
                )
            return LockedSubmodule(path=path.decode(), url=url, commit=linked)
        if locked is None:
            error = submodule_missing(path, what="commit")
            error.hint = f"{RELOCK_HINT} (locks commit {linked})"
            raise error
        if locked.commit != linked:
            raise LockMismatch(
                f"submodule {display(path)} of {self._source} is at another commit: "
                f"got {linked}, expected {locked.commit} (`{self._where}`)",
                hint=f"if that is meant: {RELOCK_HINT}",
                data={"submodule": display(path), "got": linked, "expected": locked.commit},
            )
        return locked

    def _fetch_submodule(self, module: LockedSubmodule, checkout: Path | None) -> None:
        """From the working copy in a local clone if it has the commit, else from its own place."""
        if checkout is not None and (checkout / ".git").exists():
            with suppress(Unavailable):
                self._store.fetch_commit(checkout, module.commit)
                return
        self._fetch(module.url, module.commit, f"url of submodule {module.path}")

    def _fetch(self, url: str, commit: str, key: str) -> None:
        if self._store.has(commit):
            return
        place = self._local(url) or self._remote(url, key)
        if self._offline and isinstance(place, str):
            raise Unavailable(
                f"commit {commit} of `{url}` is not on this machine, "
                "and --offline forbids to fetch it",
                hint=f"run once without --offline, or let the {key} be a local clone",
            )
        with self._report.task(f"fetching {url} at {commit}", 0):
            self._store.fetch_commit(place, commit)

    def _local(self, url: str) -> Path | None:
        """The folder on this machine that `url` means, if there is one."""
        path = self._project.root / Path(url.removeprefix("file://")).expanduser()
        return path.resolve() if path.exists() else None

    def _remote(self, url: str, key: str) -> str:
        # git's own rule: a colon before the first slash means another machine
        if "://" in url or ":" in url.split("/")[0]:
            return url
        raise UsageError(
            f"`{self._where}` at `{key}`: no folder `{self._project.root / url}`",
            hint="a path is relative to the project's folder",
        )
