# SPDX-License-Identifier: Apache-2.0
"""What an overlay put into a package, and what was there before: `manifest.json`."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from patchctl.errors import UsageError
from patchctl.formats.documents import Document

VERSION = 1


class State(StrEnum):
    """How far an overlay is. The first and the last are what a killed run leaves."""

    INSTALLING = "installing"
    INSTALLED = "installed"
    REMOVING = "removing"


class FileState(Document, frozen=True):
    """One file as it was found or put: `mode` holds permission bits, `mtime_ns` nanoseconds.

    `link` is where a symbolic link points (its `sha256` is that of the file behind it), and
    empty for a plain file.
    """

    name: str
    sha256: str
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    link: str = ""


class Manifest(Document, frozen=True):
    """An overlay in one folder of a package.

    `original` are the files that it replaced, kept in the folder ``original`` beside the
    manifest. `library` is what it puts. `previous` is the library of an earlier overlay that is
    being replaced by this one: the file to go back to when installing fails.
    """

    version: int
    tool: str
    state: State
    package: str
    folder: str
    library: FileState
    original: tuple[FileState, ...]
    previous: FileState | None = None


def read_manifest(data: bytes, *, where: str) -> Manifest:
    """Parse a manifest.

    Raises:
        UsageError: not JSON, an unknown or missing key, or made by a later patchctl.
    """
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"`{where}` is damaged: {error}", data={"file": where}) from error
    if manifest.version != VERSION:
        raise UsageError(
            f"`{where}` has version {manifest.version}; this patchctl reads {VERSION}",
            hint="use the patchctl that made the overlay",
            data={"file": where},
        )
    return manifest


def manifest_bytes(manifest: Manifest) -> bytes:
    """The manifest as a file that people can read."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"
