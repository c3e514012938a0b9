# SPDX-License-Identifier: Apache-2.0
"""``vendor/cuda.lock.toml``: the packages that the private CUDA toolchain is made of."""

from __future__ import annotations

from typing import Annotated

import msgspec

from patchctl.formats.documents import Document, read_toml

Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
Size = Annotated[int, msgspec.Meta(gt=0)]
Word = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+~:_-]*$")]


class DebianPackage(Document, frozen=True):
    """One package of the Debian archive; `size` in bytes."""

    suite: Word
    component: Word
    name: Word
    version: Word
    architecture: Word
    size: Size
    sha256: Sha256

    @property
    def filename(self) -> str:
        """The name under which apt saves it (an epoch's colon is quoted)."""
        version = self.version.replace(":", "%3a")
        return f"{self.name}_{version}_{self.architecture}.deb"


class WheelPackage(Document, frozen=True):
    """One wheel of a Python package index; `size` in bytes."""

    name: Word
    version: Word
    size: Size
    sha256: Sha256


class ToolchainLock(Document, frozen=True):
    """The toolchain's CUDA version, the machine it runs on, and its packages."""

    version: Word
    machine: Word
    debian: DebianPackage
    wheels: tuple[WheelPackage, ...]

    @property
    def folder(self) -> str:
        """The name of the folder it is installed in."""
        return f"cuda-{self.version}"

    @property
    def size(self) -> int:
        """Bytes to download."""
        return self.debian.size + sum(wheel.size for wheel in self.wheels)


def read_toolchain_lock(text: str | bytes, *, where: str) -> ToolchainLock:
    """Parse the lock.

    Raises:
        UsageError: not TOML, an unknown key, or a value of the wrong form.
    """
    return read_toml(text, ToolchainLock, where=where)
