# SPDX-License-Identifier: Apache-2.0
"""Reading a source archive straight from its stream; nothing is unpacked to the disk."""

from __future__ import annotations

import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from patchctl.errors import UsageError
from patchctl.formats.archive import Scan, empty_submodules, scan_members, submodule_missing
from patchctl.formats.gitobjects import Entry, Mode
from patchctl.formats.globs import Include
from patchctl.system.report import Reporter

SUFFIXES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar")
"""The archives that can be read."""


@dataclass(frozen=True)
class Contents:
    """What `include` keeps of an archive, and what a user should know about it."""

    tree: dict[bytes, Entry]
    notices: tuple[str, ...]


def read_archive(
    path: Path, include: Include, keep: Callable[[bytes], str], report: Reporter
) -> Contents:
    """Scan the whole archive, then hand each kept file's bytes to `keep`, which gives its id.

    Raises:
        UsageError: no complete tar archive, a member that is refused, or an empty submodule.
    """
    with _opened(path) as tar:
        # the scan comes first and is complete: gzip checks its sum only at the end of the stream
        with report.task(f"scanning {path.name}", 0):
            infos = tar.getmembers()
            _check_end(tar, path)

        def same(one: tarfile.TarInfo, other: tarfile.TarInfo) -> bool:
            return one.size == other.size and _content(tar, one) == _content(tar, other)

        scan = scan_members(infos, same, where=path.name)
        _check_submodules(tar, scan, include)
        kept = {p: m for p, m in scan.members.items() if include.matches(p)}
        tree = {}
        with report.task(f"reading {path.name}", len(kept), unit="file") as task:
            # in the order of the stream, so that it is decompressed once
            for name, member in sorted(kept.items(), key=lambda item: item[1].info.offset):
                tree[name] = Entry(member.mode, keep(_content(tar, member.info)))
                task.advance()
    return Contents(tree, scan.notices)


@contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(path, "r:*", encoding="utf-8", errors="surrogateescape") as tar:
            yield tar
    except (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the system; gzip and bz2 have none for a damaged stream
        raise UsageError(
            f"`{path.name}` is not a complete tar archive: {error}", data={"path": str(path)}
        ) from error


def _check_end(tar: tarfile.TarFile, path: Path) -> None:
    """tarfile takes a damaged header for the end; a whole archive ends in zeros."""
    assert tar.fileobj is not None
    tar.fileobj.seek(tar.offset)
    rest = tar.fileobj.read(-1)
    if len(rest) < tarfile.BLOCKSIZE or rest.strip(b"\0"):
        raise tarfile.ReadError("its end is missing or damaged")


def _content(tar: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    if info.issym():
        return info.linkname.encode("utf-8", "surrogateescape")
    stream = tar.extractfile(info)
    assert stream is not None
    with stream:
        content = stream.read()
    if len(content) != info.size:
        raise tarfile.ReadError(f"`{info.name}` is cut short")
    return content


def _check_submodules(tar: tarfile.TarFile, scan: Scan, include: Include) -> None:
    listing = scan.members.get(b".gitmodules")
    if listing is None or listing.mode is Mode.SYMLINK:
        return
    content = _content(tar, listing.info)
    for folder in empty_submodules(content, scan.members, include):
        raise submodule_missing(folder, what="archive")
