# SPDX-License-Identifier: Apache-2.0
"""``build/<target>.toml``: what to compile, for which architecture, against which ABI."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated

import msgspec

from patchctl.errors import UsageError
from patchctl.formats.documents import Document, read_toml

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Arch = Annotated[str, msgspec.Meta(pattern=r"^sm_[0-9]+[a-z]?$")]
Ptx = Annotated[str, msgspec.Meta(pattern=r"^compute_[0-9]+[a-z]?$")]
Version = Annotated[str, msgspec.Meta(pattern=r"^[0-9]+\.[0-9]+$")]
Globs = Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]


class Units(Document, frozen=True):
    """One group of translation units: globs, include folders and flags of its compiler."""

    sources: Globs
    include: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


class Generate(Document, frozen=True):
    """The tables by which translation units are generated; a tree without one generates none."""

    tables: tuple[str, ...] = ()


class Abi(Document, frozen=True):
    """The oldest torch (stable ABI) and Python (limited API) that the library serves."""

    torch: Version
    python: Version

    @property
    def torch_macro(self) -> str:
        """The value of ``TORCH_TARGET_VERSION``: major and minor in the two highest bytes."""
        major, minor = (int(part) for part in self.torch.split("."))
        return f"0x{major:02x}{minor:02x}000000000000"

    @property
    def python_macro(self) -> str:
        """The value of ``Py_LIMITED_API``."""
        major, minor = (int(part) for part in self.python.split("."))
        return f"0x{major:02x}{minor:02x}0000"


class Link(Document, frozen=True):
    """What the shared object is linked with."""

    libraries: tuple[str, ...]
    flags: tuple[str, ...] = ()


class Limits(Document, frozen=True):
    """What one compile needs."""

    memory_mib: Annotated[int, msgspec.Meta(gt=0)]


class Target(Document, frozen=True):
    """One library for one GPU architecture."""

    name: str
    library: Name
    arch: Arch
    ptx: Ptx
    kernels: Units
    host: Units
    abi: Abi
    link: Link
    limits: Limits
    generate: Generate = Generate()

    @property
    def filename(self) -> str:
        """The name of the shared object."""
        return f"{self.library}.abi3.so"


def read_target(text: str | bytes, *, name: str, where: str) -> Target:
    """Parse the description of target `name`.

    Raises:
        UsageError: not TOML, an unknown key, a value of the wrong form, a path that leaves the
            tree, or a `name` that is not the file's.
    """
    target = read_toml(text, Target, where=where)
    if target.name != name:
        raise UsageError(f"`{where}` at `name`: got `{target.name}`, expected `{name}`")
    for group, units in (("kernels", target.kernels), ("host", target.host)):
        for key, paths in (("sources", units.sources), ("include", units.include)):
            for path in paths:
                _check_inside(path, f"`{where}` at `{group}.{key}`")
    for path in target.generate.tables:
        _check_inside(path, f"`{where}` at `generate.tables`")
    return target


def _check_inside(path: str, place: str) -> None:
    parts = PurePosixPath(path)
    if not path or parts.is_absolute() or ".." in parts.parts or re.search(r"[\0\\]", path):
        raise UsageError(f"{place}: `{path}` is not a path inside the replayed tree")
