# SPDX-License-Identifier: Apache-2.0
"""Run as ``PYTHON -c SOURCE PACKAGE.SUBPACKAGE``: where it is, without importing it."""

import importlib.machinery
import importlib.metadata
import importlib.util
import json
import os
import sys
import urllib.parse
from importlib.machinery import ModuleSpec


def folders_inside(spec: "ModuleSpec | None", parts: "list[str]") -> "list[str]":
    """The folders of the package `parts` below a found top package."""
    found = list(spec.submodule_search_locations or []) if spec else []
    name = spec.name if spec else ""
    for part in parts:
        name += "." + part
        spec = importlib.machinery.PathFinder.find_spec(name, found)
        found = list(spec.submodule_search_locations or []) if spec else []
    return found


def editable_sources() -> "dict[str, str]":
    """The checkouts of editable installs: folder to distribution."""
    sources = {}
    for distribution in importlib.metadata.distributions():
        text = distribution.read_text("direct_url.json")
        record = json.loads(text) if text else {}
        if record.get("dir_info", {}).get("editable"):
            path = urllib.parse.unquote(urllib.parse.urlparse(record.get("url", "")).path)
            sources[os.path.realpath(path)] = distribution.metadata["Name"]
    return sources


top, *rest = sys.argv[1].split(".")
imported = folders_inside(importlib.util.find_spec(top), rest)
copies = []
for entry in sys.path:
    for folder in folders_inside(importlib.machinery.PathFinder.find_spec(top, [entry]), rest):
        if folder not in copies:
            copies.append(folder)
print(
    json.dumps(
        {
            "found": importlib.util.find_spec(top) is not None,
            "imported": imported,
            "copies": copies,
            "editable": editable_sources(),
        }
    )
)
