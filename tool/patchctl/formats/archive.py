# SPDX-License-Identifier: Apache-2.0
"""Judging the members of a source archive before anything of it is used."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import NoReturn

from patchctl.errors import UsageError
from patchctl.formats.gitobjects import Mode, display
from patchctl.formats.globs import Include

MAX_LINKS = 40
"""How many symbolic links a path may pass through; Linux has the same limit."""

SameContent = Callable[[tarfile.TarInfo, tarfile.TarInfo], bool]


@dataclass(frozen=True)
class Member:
    """A file or symbolic link of the tree; `info` holds its bytes (a hard link: its target's)."""

    mode: Mode
    info: tarfile.TarInfo


@dataclass(frozen=True)
class Scan:
    """An archive that may be used: its tree without the one folder that holds it all."""

    members: dict[bytes, Member]
    notices: tuple[str, ...] = ()


class UnsafeArchive(UsageError):
    """An archive, or a tree, with something in it that must not be written to a disk."""


def scan_members(
    infos: Iterable[tarfile.TarInfo], same_content: SameContent, *, where: str
) -> Scan:
    """Judge every member; owners, times and odd modes are ignored.

    `same_content` is asked about two files of one name; `where` names the archive.

    Raises:
        UnsafeArchive: an absolute path, `..`, a link that leaves the tree, a device, two names
            that differ only by case, a member below a file or link, one name with two contents,
            `.git`; names the member.
    """
    members: dict[bytes, Member] = {}
    notices = []
    folders: set[bytes] = set()
    top: bytes | None = None
    for info in infos:
        parts = _parts(info, where)
        top = parts[0] if top is None else top
        if parts[0] != top:
            _refuse(info, f"is outside the one top folder, `{display(top)}`", where)
        path = b"/".join(parts[1:])
        if info.isdir():
            folders.add(path)
            continue
        if not path:
            _refuse(info, "is not in a folder", where)
        member = _member(info, members, top, where)
        if info.mode & 0o7000 and info.isreg():
            notices.append(f"`{display(path)}`: set-id and sticky bits are dropped")
        earlier = members.get(path)
        if earlier is None:
            members[path] = member
        elif earlier.mode is not member.mode or not same_content(earlier.info, member.info):
            _refuse(info, "is there twice, with different contents", where)
    if top is None:
        raise UnsafeArchive(f"`{where}` holds no files")
    check_paths({*members, *folders} - {b""}, where=where)
    links = {p: _name(m.info.linkname) for p, m in members.items() if m.mode is Mode.SYMLINK}
    _check_places(folders, members, where)
    check_links(links, where=where)
    return Scan(members, tuple(notices))


def check_paths(paths: Collection[bytes], *, where: str) -> None:
    """Refuse names that mean trouble on some disk: ``.git``, ``..``, names that fall together.

    Raises:
        UnsafeArchive: names the path.
    """
    seen: dict[str, bytes] = {}
    for path in sorted(paths):
        for name in path.split(b"/"):
            if name in (b"", b".", b"..") or name.lower() == b".git":
                raise UnsafeArchive(
                    f"`{where}` is refused: `{display(path)}` has a part `{display(name)}`"
                )
        for prefix in (*_parents(path), path):
            key = prefix.decode("utf-8", "surrogateescape").casefold()
            other = seen.setdefault(key, prefix)
            if other != prefix:
                raise UnsafeArchive(
                    f"`{where}` is refused: `{display(other)}` and `{display(prefix)}` "
                    "differ only by case"
                )


def check_links(links: dict[bytes, bytes], *, where: str) -> None:
    """Refuse symbolic links (path to target) that lead out of the tree, by whatever detour.

    Raises:
        UnsafeArchive: names the link.
    """
    for path, target in links.items():
        fault = _link_fault(path, target, links)
        if fault:
            raise UnsafeArchive(
                f"`{where}` is refused: the link `{display(path)}` -> `{display(target)}` {fault}"
            )


def empty_submodules(
    gitmodules: bytes, paths: Collection[bytes], include: Include
) -> Iterator[bytes]:
    """The submodules that `include` wants something of, and of which nothing is in `paths`."""
    for match in re.finditer(rb'^\s*path\s*=\s*"?([^"\r\n]+?)/?"?\s*$', gitmodules, re.MULTILINE):
        folder = match[1]
        below = folder + b"/"
        if include.reaches_into(folder) and not any(p.startswith(below) for p in paths):
            yield folder


def submodule_missing(folder: bytes, *, what: str) -> UsageError:
    """The error for a submodule that `what` ("archive", "commit") does not carry."""
    return UsageError(
        f"submodule {display(folder)} is empty in this {what}; use the sdist, "
        "or lock the submodule's commit too",
        data={"submodule": display(folder)},
    )


def _parts(info: tarfile.TarInfo, where: str) -> list[bytes]:
    name = _name(info.name)
    if name.startswith(b"/"):
        _refuse(info, "is an absolute path", where)
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        _refuse(info, "leaves the tree with `..`", where)
    return parts or [b"."]


def _member(info: tarfile.TarInfo, members: dict[bytes, Member], top: bytes, where: str) -> Member:
    if info.issym():
        return Member(Mode.SYMLINK, info)
    if info.islnk():
        name = _name(info.linkname)
        path = name.removeprefix(b"./").removeprefix(top + b"/")
        target = members.get(path)
        if target is None or path == name or target.mode is Mode.SYMLINK:
            _refuse(info, f"is a hard link to `{display(name)}`, no earlier file of it", where)
        return target
    if info.isreg():
        return Member(Mode.EXECUTABLE if info.mode & 0o100 else Mode.FILE, info)
    kinds = {"FIFO": info.isfifo(), "device": info.ischr() or info.isblk()}
    kind = next((k for k, yes in kinds.items() if yes), f"member of type {info.type!r}")
    _refuse(info, f"is a {kind}, neither file, folder nor link", where)


def _check_places(folders: set[bytes], members: dict[bytes, Member], where: str) -> None:
    """No file or link may be where a folder is, whether named or needed by what is below it."""
    needed = {parent: path for path in (*members, *folders) for parent in _parents(path)}
    for path, below in ({folder: folder for folder in folders} | needed).items():
        if path in members:
            kind = "link" if members[path].mode is Mode.SYMLINK else "file"
            clash = f"is below `{display(path)}`, which is a {kind}"
            raise UnsafeArchive(
                f"`{where}` is refused: `{display(below)}` "
                + (clash if below != path else f"is both a folder and a {kind}")
            )


def _link_fault(path: bytes, target: bytes, links: dict[bytes, bytes]) -> str:
    """Walk the target as the system would, through every link on the way."""
    if not target or target.startswith(b"/"):
        return "is absolute" if target else "is empty"
    here = path.split(b"/")[:-1]
    ahead = target.split(b"/")[::-1]
    passed = 0
    while ahead:
        part = ahead.pop()
        if part in (b"", b"."):
            continue
        if part == b"..":
            if not here:
                return "leaves the tree"
            here.pop()
            continue
        here.append(part)
        onward = links.get(b"/".join(here))
        if onward is not None:
            passed += 1
            if passed > MAX_LINKS:
                return "goes round in a circle"
            if onward.startswith(b"/"):
                return "leads to an absolute path"
            here.pop()
            ahead += onward.split(b"/")[::-1]
    return ""


def _parents(path: bytes) -> Iterator[bytes]:
    end = path.find(b"/")
    while end != -1:
        yield path[:end]
        end = path.find(b"/", end + 1)


def _name(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _refuse(info: tarfile.TarInfo, fault: str, where: str) -> NoReturn:
    raise UnsafeArchive(
        f"`{where}` is refused: member `{display(_name(info.name))}` {fault}",
        data={"member": display(_name(info.name))},
    )
