# SPDX-License-Identifier: Apache-2.0
"""apt's two forms of sources, ``deb822`` and one line each: where this machine's Debian is."""

from __future__ import annotations

import re
from dataclasses import dataclass

from patchctl.formats.templates import render

# Codenames and their aliases; anything else (Ubuntu, other archives) is not Debian's main archive.
_CODENAMES = ("stretch", "buster", "bullseye", "bookworm", "trixie", "forky", "duke", "sid")
_ALIASES = ("oldoldstable", "oldstable", "stable", "testing", "unstable")
_DEBIAN_SUITES = frozenset((*_CODENAMES, *_ALIASES))
_ONE_LINE = re.compile(r"^deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s")


@dataclass(frozen=True)
class Archive:
    """An archive: its URI, a suite that it has, and the keys it is checked with.

    `signed_by` is a path, a fingerprint, an embedded key (with its line ends), or "" for apt's
    common keys.
    """

    uri: str
    suite: str
    signed_by: str = ""


def debian_archives(text: str, *, deb822: bool) -> list[Archive]:
    """The Debian main archives that a sources file names, in order; disabled ones left out."""
    found = _stanzas(text) if deb822 else _lines(text)
    return [a for a in found if a.suite in _DEBIAN_SUITES and not a.uri.startswith("cdrom:")]


def sources_text(archive: Archive, *, suite: str, component: str, architecture: str) -> str:
    """A ``deb822`` source for one suite and component of `archive`."""
    return render(
        "debian.sources",
        archive=archive,
        suite=suite,
        component=component,
        architecture=architecture,
    )


def _stanzas(text: str) -> list[Archive]:
    found = []
    for stanza in re.split(r"\n[ \t]*\n", text.replace("\r\n", "\n")):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.split("\n"):
            if line.startswith("#"):
                continue
            if line[:1] in (" ", "\t"):
                fields[name] = f"{fields.get(name, '')}\n{line}"
            elif ":" in line:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        if fields.get("enabled", "yes").lower() in ("no", "false", "0", "off"):
            continue
        if "deb" not in fields.get("types", "").split():
            continue
        signed_by = fields.get("signed-by", "")
        found += [
            Archive(uri, suite, signed_by)
            for uri in fields.get("uris", "").split()
            for suite in fields.get("suites", "").split()
        ]
    return found


def _lines(text: str) -> list[Archive]:
    found = []
    for line in text.splitlines():
        match = _ONE_LINE.match(line.strip() + " ")
        if match:
            pairs = (o.partition("=") for o in (match["options"] or "").split())
            options = {name.lower(): value for name, _, value in pairs}
            found.append(Archive(match["uri"], match["suite"], options.get("signed-by", "")))
    return found
