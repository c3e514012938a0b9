# SPDX-License-Identifier: Apache-2.0
"""Workflow commands of GitHub Actions: what is wrong, at a line of a file of the repository."""

from __future__ import annotations

from patchctl.errors import PatchctlError
from patchctl.formats.findings import Severity

_WORDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def annotation(
    message: str, *, file: str, line: int, title: str, severity: Severity = Severity.ERROR
) -> str:
    """``::error file=F,line=N,title=T::MESSAGE``, escaped as the runner reads it."""
    properties = {"file": file, "line": str(line), "title": title}
    said = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{_WORDS[severity]} {said}::{_data(message)}"


def annotation_of(error: PatchctlError, *, patches: str, prefix: str = "") -> str | None:
    """The annotation of an error that has a place in the repository; None for another.

    For a patch that does not apply that is the line of the patch file (below the folder
    `patches`) at which the hunk begins; the message names patch, hunk and target line.
    `prefix` goes before each path: the project's folder in the repository, with its slash.
    """
    data = error.data
    if isinstance(patch := data.get("patch"), str):
        file, line = f"{patches}/{patch}", data.get("patch_line")
    elif isinstance(named := data.get("file"), str):
        file, line = named, data.get("line")
    else:
        return None
    title = {"lock": "drift", "patch": "patch does not apply"}.get(error.kind, error.kind)
    message = "\n".join(
        (error.message, *error.details, *([f"hint: {error.hint}"] * bool(error.hint)))
    )
    place = prefix + file
    return annotation(message, file=place, line=line if isinstance(line, int) else 1, title=title)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
