# SPDX-License-Identifier: Apache-2.0
"""Writing a wheel: the same files always give the same bytes."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from patchctl.formats.templates import render

EPOCH = (1980, 1, 1, 0, 0, 0)
"""The time stamp of every member: the oldest that a zip archive can hold."""

FILE_MODE = 0o100644
OLDEST_GLIBC = (2, 5)
"""The first glibc that a platform tag can name."""


@dataclass(frozen=True)
class WheelName:
    """A wheel's identity; `distribution` is written with underscores."""

    distribution: str
    version: str
    python: str
    abi: str
    platform: str

    @property
    def tag(self) -> str:
        """``cp310-abi3-manylinux_2_34_x86_64``."""
        return f"{self.python}-{self.abi}-{self.platform}"

    @property
    def filename(self) -> str:
        """The file's name, from which installers read the tags."""
        return f"{self.distribution}-{self.version}-{self.tag}.whl"

    @property
    def dist_info(self) -> str:
        """The folder of the metadata."""
        return f"{self.distribution}-{self.version}.dist-info"


@dataclass(frozen=True)
class Metadata:
    """What a package index or ``pip show`` says about a wheel."""

    name: str
    version: str
    summary: str
    license: str
    requires_python: str
    requires: tuple[str, ...]
    description: str

    def text(self) -> str:
        """The METADATA file."""
        return render("METADATA", metadata=self)


def platform_tag(versions: Iterable[str], machine: str) -> str:
    """The oldest platform that has every symbol version in `versions` (``GLIBC_2.34``, ...).

    ``linux_<machine>`` when none of them is glibc's: then nothing is known.
    """
    needed = []
    for version in versions:
        family, _, number = version.partition("_")
        parts = number.split(".")
        if family == "GLIBC" and len(parts) > 1 and all(p.isdigit() for p in parts):
            needed.append((int(parts[0]), int(parts[1])))
    if not needed:
        return f"linux_{machine}"
    major, minor = max(*needed, OLDEST_GLIBC)
    return f"manylinux_{major}_{minor}_{machine}"


def wheel_bytes(name: WheelName, metadata: Metadata, files: Mapping[str, bytes]) -> bytes:
    """The archive with `files` (path inside site-packages to content) and its metadata."""
    info = name.dist_info
    # metadata last, as installers like to find it
    members = dict(sorted(files.items(), key=lambda f: (f[0].startswith(f"{info}/"), f[0])))
    members[f"{info}/METADATA"] = metadata.text().encode()
    members[f"{info}/WHEEL"] = render("WHEEL", name=name).encode()
    members[f"{info}/RECORD"] = record_text(members, f"{info}/RECORD").encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, data in members.items():
            member = zipfile.ZipInfo(path, EPOCH)
            member.create_system = 3  # Unix, wherever this runs: the mode counts
            member.external_attr = FILE_MODE << 16
            archive.writestr(member, data, zipfile.ZIP_DEFLATED, compresslevel=6)
    return buffer.getvalue()


def record_text(files: Mapping[str, bytes], record: str) -> str:
    """The RECORD file: path, digest and size in bytes of each file, and itself without."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
        writer.writerow((path, f"sha256={digest.decode()}", len(data)))
    writer.writerow((record, "", ""))
    return buffer.getvalue()
