# SPDX-License-Identifier: Apache-2.0
"""Where pip of the running interpreter would look for packages, and how; pip itself is asked."""

from __future__ import annotations

import ast
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from patchctl.errors import ToolMissing
from patchctl.system.process import ProcessFailed, run

_SECTIONS = ("global", "install", ":env:")
"""pip's sections, in the order in which a later one wins."""


@dataclass(frozen=True)
class PipSettings:
    """What the user's pip is set to. `index_urls` and `find_links` may be paths."""

    index_urls: tuple[str, ...]
    find_links: tuple[str, ...]
    trusted_hosts: tuple[str, ...]
    cert: Path | None
    client_cert: Path | None
    proxy: str | None
    timeout: float
    """Seconds."""


def pip_settings() -> PipSettings:
    """Ask ``python -m pip``: environment, configuration files, and pip's own default index.

    Raises:
        ToolMissing: this interpreter has no pip, or its configuration does not parse.
    """
    options = _configured()
    bundle = options.get("cert") or _first_set("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
    client = options.get("client-cert")
    indexes: list[str] = []
    if options.get("no-index", "").lower() not in ("1", "true", "yes", "on"):
        indexes.append(options.get("index-url") or options.get("pypi-url") or _default_index())
        indexes += options.get("extra-index-url", "").split()
    return PipSettings(
        index_urls=tuple(indexes),
        find_links=tuple(options.get("find-links", "").split()),
        trusted_hosts=tuple(options.get("trusted-host", "").split()),
        cert=Path(bundle).expanduser() if bundle else None,
        client_cert=Path(client).expanduser() if client else None,
        proxy=options.get("proxy"),
        timeout=float(options.get("timeout") or options.get("default-timeout") or 15),
    )


def _configured() -> dict[str, str]:
    """``section.option='value'`` lines, one value for each option."""
    found: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for line in _pip("config", "list").splitlines():
        name, _, value = line.partition("=")
        section, _, option = name.partition(".")
        if section in found and value:
            found[section][option.replace("_", "-")] = str(ast.literal_eval(value))
    merged: dict[str, str] = {}
    for section in _SECTIONS:
        merged |= {option: value for option, value in found[section].items() if value}
    return merged


def _default_index() -> str:
    """The index that pip uses when nobody configured one; only its help tells."""
    said = _pip("--isolated", "download", "--help")
    match = re.search(r"--index-url\b.*?\(default:?\s+(\S+?)\)", said, re.DOTALL)
    if match is None:
        raise ToolMissing(
            "pip does not say which package index it uses by default",
            hint="set PIP_INDEX_URL to the index to use",
        )
    return match[1]


def _pip(*arguments: str) -> str:
    # a wide terminal, so that the help does not break a URL
    environment = {**os.environ, "COLUMNS": "1000", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    try:
        return run([sys.executable, "-m", "pip", *arguments], env=environment, timeout=60).out
    except ProcessFailed as error:
        raise ToolMissing(
            f"cannot ask pip of `{sys.executable}` for its settings",
            details=error.completed.tail(),
            hint=f"{sys.executable} -m ensurepip, or correct pip's configuration",
        ) from error


def _first_set(*names: str) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)
