# SPDX-License-Identifier: Apache-2.0
"""Files of package indexes, found as the user's pip would find them, kept by their sha256."""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from patchctl import __version__
from patchctl.errors import LockMismatch, Unavailable
from patchctl.system.files import AtomicFile, sha256_of, sweep
from patchctl.system.pipsettings import PipSettings, pip_settings
from patchctl.system.project import cache_folder
from patchctl.system.report import Reporter

if TYPE_CHECKING:
    from unearth import Link, PackageFinder
    from unearth.fetchers import Fetcher

T = TypeVar("T")

ATTEMPTS = 3
"""How often a request is made before a network failure counts."""
PAUSE = 0.5
"""Seconds before the second attempt; longer before each further one."""
CHUNK = 1 << 18  # bytes


@dataclass(frozen=True)
class Wanted:
    """A file of an index: its project, its version, how its name may end, and its sha256.

    An empty `sha256` takes the first file that is found.
    """

    name: str
    version: str
    suffixes: tuple[str, ...]
    sha256: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True)
class Obtained:
    """A file in the user's cache, its digest, and where it came from."""

    path: Path
    sha256: str
    origin: str


class DigestMismatch(LockMismatch):
    """What the index has is not what the lock says; `found` is kept under its own digest."""

    def __init__(self, wanted: Wanted, found: Obtained) -> None:
        super().__init__(
            f"`{found.path.name}` from {found.origin} is not the file that was locked: "
            f"got sha256 {found.sha256}, expected {wanted.sha256}",
            data={"got": found.sha256, "expected": wanted.sha256, "origin": found.origin},
        )
        self.found = found


def obtain(wanted: Wanted, report: Reporter, *, offline: bool) -> Obtained:
    """Get a file: from our cache, find-links, then the indexes; `offline` asks no other machine.

    Raises:
        DigestMismatch: the file is there with another digest, and nowhere with the right one.
        Unavailable: no source has it, or none can be reached.
    """
    cached = _cached(wanted.sha256, report)
    if cached is not None:
        return cached
    settings = pip_settings()
    wrong: list[Obtained] = []
    failures: list[str] = []
    # ValueError: a page that does not parse, or a find-links place that is not there
    failing: tuple[type[Exception], ...] = (*_network_errors(), ValueError)
    with _session(settings) as finder_for, _warnings_of_unearth() as warnings:
        for kind, source in _sources(settings, offline=offline):
            try:
                for link in _candidates(finder_for(kind, source), wanted):
                    found = _take(finder_for(kind, source), link, report)
                    if wanted.sha256 in ("", found.sha256):
                        return found
                    wrong.append(found)
            except failing as error:
                failures.append(f"{_redacted(source)}: {_said(error)}")
            failures += warnings
            warnings.clear()
    if wrong:
        raise DigestMismatch(wanted, wrong[0])
    raise _not_found(wanted, settings, failures, offline=offline)


def adopt(path: Path) -> Obtained:
    """Put a file of this machine into the user's cache, where `obtain` finds it by its digest.

    Raises:
        Unavailable: it cannot be read.
    """
    try:
        sha256 = sha256_of(path)
        kept = _archives() / sha256 / path.name
        if not kept.exists():
            with path.open("rb") as source, AtomicFile(kept).open() as handle:
                shutil.copyfileobj(source, handle)
    except OSError as error:
        raise Unavailable(f"cannot read `{path}`: {error.strerror}") from error
    return Obtained(kept, sha256, str(path))


def _not_found(
    wanted: Wanted, settings: PipSettings, failures: list[str], *, offline: bool
) -> Unavailable:
    asked = _sources(settings, offline=offline)
    looked = [f"looked in the cache: {_archives()}"]
    looked += [f"looked in {_redacted(source)}" for _, source in asked]
    if offline:
        message = f"{wanted} is not on this machine, and --offline forbids to fetch it"
        hint = "run once without --offline, or set PIP_FIND_LINKS to a folder that holds it"
    elif failures:
        message = f"cannot get {wanted}: no source that answered has it"
        hint = (
            "check the network, or set PIP_FIND_LINKS to a folder that holds it and use --offline"
        )
    else:
        message = f"cannot get {wanted}: no file {' or '.join(wanted.suffixes)} of it was found"
        hint = "check name and version in the lock, and pip's index settings: pip config list"
    return Unavailable(message, details=(*looked, *failures), hint=hint)


def _archives() -> Path:
    return cache_folder() / "archives"


def _cached(sha256: str, report: Reporter) -> Obtained | None:
    """The file with this digest, if the cache has it whole."""
    for path in sorted((_archives() / sha256).glob("[!.]*")) if sha256 else ():
        if sha256_of(path) == sha256:
            return Obtained(path, sha256, "the cache")
        report.warn(f"`{path}` was damaged and is removed")
        path.unlink()
    return None


def _sources(settings: PipSettings, *, offline: bool) -> list[tuple[str, str]]:
    """Each find-links place and index as (kind, URL or path), in pip's order."""
    sources = [("find_links", s) for s in settings.find_links]
    sources += [("index", s) for s in settings.index_urls]
    return [s for s in sources if not offline or _is_local(s[1])]


def _is_local(source: str) -> bool:
    return source.startswith("file:") or "://" not in source


class _Finders:
    """One HTTP session, and a finder for each source, so that one failure spares the others."""

    def __init__(self, settings: PipSettings) -> None:
        from unearth.auth import MultiDomainBasicAuth
        from unearth.fetchers.sync import PyPIClient

        self._settings = settings
        verify = _tls(settings)
        try:
            self.client = PyPIClient(
                trusted_hosts=settings.trusted_hosts,
                verify=verify,
                timeout=settings.timeout,
                proxy=settings.proxy,
                follow_redirects=True,
                headers={"User-Agent": f"patchctl/{__version__}"},
            )
        except Exception as error:  # its own classes, which are no interface
            raise Unavailable(
                f"the proxy setting does not work: {error}",
                hint="correct PIP_PROXY, HTTP_PROXY, HTTPS_PROXY or ALL_PROXY",
            ) from error
        self.client.auth = MultiDomainBasicAuth(prompting=False, index_urls=settings.index_urls)

    def __call__(self, kind: str, source: str) -> PackageFinder:
        from unearth import PackageFinder

        return PackageFinder(
            session=cast("Fetcher", self.client),
            index_urls=[source] if kind == "index" else [],
            find_links=[source] if kind == "find_links" else [],
            trusted_hosts=self._settings.trusted_hosts,
            # a locked file is the right one, whatever interpreter it was made for
            ignore_compatibility=True,
        )


@contextmanager
def _session(settings: PipSettings) -> Iterator[_Finders]:
    finders = _Finders(settings)
    with finders.client:
        yield finders


def _tls(settings: PipSettings) -> ssl.SSLContext | bool:
    if settings.cert is None and settings.client_cert is None:
        return True
    folder = settings.cert is not None and settings.cert.is_dir()
    try:
        context = ssl.create_default_context(
            cafile=None if folder else settings.cert, capath=settings.cert if folder else None
        )
        if settings.client_cert is not None:
            context.load_cert_chain(settings.client_cert)
    except (OSError, ssl.SSLError) as error:
        raise Unavailable(
            f"pip's certificate setting does not work: {settings.cert or settings.client_cert}: "
            f"{error}",
            hint="correct PIP_CERT, or `cert` in pip's configuration",
        ) from error
    return context


def _candidates(finder: PackageFinder, wanted: Wanted) -> Iterable[Link]:
    packages = _retrying(
        lambda: list(
            finder.find_matches(
                f"{wanted.name}=={wanted.version}", allow_yanked=True, allow_prereleases=True
            )
        )
    )
    links = [p.link for p in packages if p.link.filename.endswith(wanted.suffixes)]
    # the index says which file has the digest: the others need no download
    right = [link for link in links if wanted.sha256 and _stated_sha256(link) == wanted.sha256]
    return right or links


def _stated_sha256(link: Link) -> str:
    return next(iter((link.hash_option or {}).get("sha256", [])), "")


def _take(finder: PackageFinder, link: Link, report: Reporter) -> Obtained:
    cached = _cached(_stated_sha256(link), report)
    if cached is not None:
        return cached
    return _retrying(lambda: _download(finder, link, report))


def _download(finder: PackageFinder, link: Link, report: Reporter) -> Obtained:
    """Bring one file into the cache, under the digest that it really has."""
    sweep(_archives())
    incoming = AtomicFile(_archives() / link.filename)
    digest = hashlib.sha256()
    # as it is: a server that packs it once more would change the digest
    as_is = {"Accept-Encoding": "identity"}
    stream = finder.session.get_stream(link.normalized, headers=as_is)
    with stream as response, incoming.open() as handle:
        response.raise_for_status()
        total = int(response.headers.get("Content-Length") or 0)
        with report.task(f"downloading {link.filename}", total, unit="B") as task:
            for chunk in response.iter_bytes(CHUNK):
                handle.write(chunk)
                digest.update(chunk)
                task.advance(len(chunk))
        sha256 = digest.hexdigest()
        incoming.path = _archives() / sha256 / link.filename
    return Obtained(incoming.path, sha256, link.redacted)


def _retrying(attempt: Callable[[], T]) -> T:
    for attempts in range(1, ATTEMPTS):
        try:
            return attempt()
        except _network_errors():
            time.sleep(PAUSE * attempts)
    return attempt()


def _network_errors() -> tuple[type[Exception], ...]:
    from unearth.preparer import HTTPErrors

    return HTTPErrors


def _said(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _redacted(source: str) -> str:
    from unearth import Link

    try:
        return Link(source).redacted if "://" in source else source
    except ValueError:  # no URL after all
        return re.sub(r"//[^@/]*@", "//***@", source)


@contextmanager
def _warnings_of_unearth() -> Iterator[list[str]]:
    """unearth only logs that a source failed; collect that for our own message."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("unearth")
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield said
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate
