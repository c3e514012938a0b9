# SPDX-License-Identifier: Apache-2.0
"""Run as ``PYTHON -c SOURCE``: what an interpreter is, as one line of JSON."""

import json
import os
import platform
import sys
import sysconfig
from pathlib import Path


def pip_version() -> str:
    try:
        import importlib.metadata as metadata

        return metadata.version("pip")
    except ImportError:
        return ""


def site_folders() -> "list[str]":
    import site

    folders = list(site.getsitepackages())
    folders += [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    return sorted({os.path.realpath(folder) for folder in folders})


def externally_managed() -> str:
    marker = Path(sysconfig.get_path("stdlib")) / "EXTERNALLY-MANAGED"
    in_environment = sys.prefix != sys.base_prefix
    return str(marker) if marker.is_file() and not in_environment else ""


try:
    glibc = os.confstr("CS_GNU_LIBC_VERSION") or ""
except (AttributeError, OSError, ValueError):
    glibc = ""
print(
    json.dumps(
        {
            "executable": sys.executable,
            "version": list(sys.version_info[:3]),
            "implementation": sys.implementation.name,
            "machine": platform.machine(),
            "glibc": glibc,
            "prefix": sys.prefix,
            "paths": sysconfig.get_paths(),
            "site": site_folders(),
            "externally_managed": externally_managed(),
            "pip": pip_version(),
        }
    )
)
