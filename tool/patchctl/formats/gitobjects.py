# SPDX-License-Identifier: Apache-2.0
"""Git's object formats: trees and commits as bytes, ids as hex sha1."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Mode(StrEnum):
    """The file modes that a tree of ours may hold."""

    FILE = "100644"
    EXECUTABLE = "100755"
    SYMLINK = "120000"


TREE_MODE = "40000"
SUBMODULE_MODE = "160000"


@dataclass(frozen=True)
class Entry:
    """A file in a tree: its mode and the id of its blob."""

    mode: Mode
    id: str


Tree = Mapping[bytes, Entry]
"""A whole tree, flat: path (bytes, ``/`` between folders, no leading ``/``) to entry."""


@dataclass(frozen=True)
class Identity:
    """A person and a moment, as a commit records them.

    `when` is in seconds since the epoch, `zone` is ``+hhmm``.
    """

    name: str
    email: str
    when: int
    zone: str = "+0000"

    def line(self) -> str:
        """``Name <email> seconds zone``."""
        return f"{self.name} <{self.email}> {self.when} {self.zone}"


def object_id(kind: str, data: bytes) -> str:
    """The id git gives to an object."""
    return hashlib.sha1(b"%s %d\0" % (kind.encode(), len(data)) + data).hexdigest()


def blob_id(data: bytes) -> str:
    """The id of a file's content."""
    return object_id("blob", data)


def tree_content(folders: Mapping[bytes, str], files: Mapping[bytes, Entry]) -> bytes:
    """One tree object: its folders' tree ids and its files, by name."""
    # git sorts a folder as if its name ended in a slash
    lines = [(name + b"/", _line(TREE_MODE, name, hex_id)) for name, hex_id in folders.items()]
    lines += [(name, _line(e.mode, name, e.id)) for name, e in files.items()]
    return b"".join(line for _, line in sorted(lines))


def _line(mode: str, name: bytes, hex_id: str) -> bytes:
    return mode.encode() + b" " + name + b"\0" + bytes.fromhex(hex_id)


def commit_object(
    tree: str, parents: tuple[str, ...], author: Identity, committer: Identity, message: bytes
) -> bytes:
    """The content of a commit; `message` is kept byte for byte (a final newline is added)."""
    head = [f"tree {tree}", *(f"parent {p}" for p in parents)]
    head += [f"author {author.line()}", f"committer {committer.line()}"]
    body = message if message.endswith(b"\n") else message + b"\n"
    return "\n".join(head).encode() + b"\n\n" + body


_PACK_KINDS = {"commit": 1, "tree": 2, "blob": 3}


def pack(objects: Sequence[tuple[str, bytes]]) -> bytes:
    """A pack file of different objects, each given as kind and content; none as a delta."""
    parts = [b"PACK" + (2).to_bytes(4, "big") + len(objects).to_bytes(4, "big")]
    for kind, data in objects:
        size = len(data)
        byte = _PACK_KINDS[kind] << 4 | size & 15
        size >>= 4
        head = bytearray()
        while size:
            head.append(byte | 0x80)
            byte = size & 0x7F
            size >>= 7
        head.append(byte)
        parts += (bytes(head), zlib.compress(data, 1))
    content = b"".join(parts)
    return content + hashlib.sha1(content).digest()


def display(path: bytes) -> str:
    """A path for people; bytes that are no UTF-8, and control characters, are escaped."""
    text = path.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
