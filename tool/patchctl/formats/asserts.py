# SPDX-License-Identifier: Apache-2.0
"""Promises that a patch makes in its trailers (``Asserts: ...``), and whether they are kept.

A patch can break without a conflict: a glob no longer takes a file, a template is no longer
instantiated. What the patch promises is checked on the tree that was replayed, and on the
library that was built from it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath

from patchctl.formats.findings import Finding
from patchctl.formats.instances import is_generated
from patchctl.formats.mail import decoded_mail, read_patch_file
from patchctl.formats.patchmodel import lines_of, malformed
from patchctl.formats.trailers import read_trailers
from patchctl.formats.wording import did_you_mean

GATE = "asserts"
KEY = "Asserts"
_LINE = re.compile(rb"asserts\s*:", re.IGNORECASE)
_CONTAINS = re.compile(r"(?P<path>\S+)\s*:\s(?P<text>.*\S)")


class Kind(StrEnum):
    """What is promised."""

    SYMBOL = "symbol"
    KERNEL = "kernel"
    SCHEMA = "schema"
    COMPILES = "compiles"
    CONTAINS = "contains"


_FORMS = {
    Kind.SYMBOL: "symbol NAME",
    Kind.KERNEL: "kernel NAME-OR-REGEX",
    Kind.SCHEMA: "schema OPERATOR",
    Kind.COMPILES: "compiles PATH",
    Kind.CONTAINS: "contains PATH: TEXT",
}


@dataclass(frozen=True)
class Promise:
    """One promise of the patch `patch`, made in line `line` of its file.

    `subject` is a name, an expression or a path; `text` what the file at that path holds.
    """

    patch: str
    line: int
    kind: Kind
    subject: str
    text: str = ""

    def broken(self, what: str) -> Finding:
        """The finding that the promise is not kept."""
        said = f"{self.kind} {self.subject}" + (f": {self.text}" if self.text else "")
        where = f"`Asserts: {said}` in line {self.line}"
        return Finding(
            GATE,
            self.patch,
            f"{where} is not kept: {what}",
            hint="mend the patch, or the promise in its trailers when it is no longer meant",
        )


def read_promises(name: str, data: bytes) -> tuple[Promise, ...]:
    """The promises of the patch file `name`.

    Raises:
        PatchDoesNotApply: the file's head cannot be read, or a promise is of no known kind,
            lacks what it is about, or stands outside of the trailers. Names the line.
    """
    if b"sserts" not in data and b"SSERTS" not in data and b"base64" not in data.lower():
        return ()
    file = read_patch_file(name, data)
    head = lines_of(decoded_mail(data))[: file.diff_line - 1]
    lines = [number for number, line in enumerate(head, 1) if _LINE.match(line)]
    trailers = [t for t in read_trailers(file.header.message) if t.key.lower() == KEY.lower()]
    if len(lines) > len(trailers):
        raise malformed(
            name,
            lines[0],
            f"`{KEY}:` outside of the trailers (the last paragraph of the message) is not read",
            "move it to the last paragraph, which must hold nothing but `Key: value` lines",
        )
    return tuple(
        _promise(name, number, trailer.value)
        for number, trailer in zip(lines, trailers, strict=True)
    )


def _promise(name: str, line: int, value: str) -> Promise:
    word, _, subject = value.partition(" ")
    known = ", ".join(f"`{form}`" for form in _FORMS.values())
    try:
        kind = Kind(word)
    except ValueError:
        what = f"`{KEY}: {value}` promises nothing that is known; known are {known}"
        raise malformed(name, line, what, did_you_mean(word, list(Kind))) from None
    subject, text = subject.strip(), ""

    def refuse(what: str) -> Exception:
        return malformed(name, line, f"`{KEY}: {value}`: {what}; expected `{_FORMS[kind]}`")

    if not subject:
        raise refuse("says nothing after its kind")
    if kind is Kind.KERNEL:
        try:
            re.compile(subject)
        except re.error as error:
            raise refuse(f"not a regular expression ({error})") from None
    if kind is Kind.CONTAINS:
        match = _CONTAINS.fullmatch(subject)
        if match is None:
            raise refuse("no path, colon, blank and text")
        subject, text = match["path"], match["text"]
    if kind in (Kind.COMPILES, Kind.CONTAINS):
        path = PurePosixPath(subject)
        if path.is_absolute() or ".." in path.parts or str(path) != subject:
            raise refuse("not a path in the source tree")
    return Promise(name, line, kind, subject, text)


def check_tree(promises: Sequence[Promise], read: Callable[[bytes], bytes | None]) -> list[Finding]:
    """The promises about files that the replayed tree breaks; `read` gives a file's content."""
    findings = []
    for promise in promises:
        if promise.kind not in (Kind.COMPILES, Kind.CONTAINS):
            continue
        data = read(promise.subject.encode())
        if data is None and promise.kind is Kind.COMPILES and is_generated(promise.subject):
            continue  # the build makes it, and verify asks the build
        if data is None:
            findings.append(promise.broken("there is no such file in the replayed tree"))
        elif promise.text and promise.text.encode() not in data:
            findings.append(promise.broken("no line of the file holds the text"))
    return findings


@dataclass(frozen=True)
class Built:
    """What a library holds: names of symbols and kernels, operators, and the files in it.

    `operators` is None when they could not be read, `units` when the build is not known.
    """

    symbols: Collection[str] = ()
    kernels: Collection[str] = ()
    operators: Collection[str] | None = None
    units: Collection[str] | None = None


def check_built(promises: Sequence[Promise], built: Built) -> list[Finding]:
    """The promises about the library that it breaks."""
    findings = []
    for promise in promises:
        what = _failure(promise, built)
        if what:
            findings.append(promise.broken(what))
    return findings


def _failure(promise: Promise, built: Built) -> str:
    name = promise.subject
    match promise.kind:
        case Kind.SYMBOL:
            short = {symbol.partition("(")[0] for symbol in built.symbols}
            if name in built.symbols or name in short:
                return ""
            return "the library defines no such symbol" + _near(name, short)
        case Kind.KERNEL:
            if any(name in kernel or re.search(name, kernel) for kernel in built.kernels):
                return ""
            return "no kernel of the library has this name" + _near(name, built.kernels)
        case Kind.SCHEMA:
            if built.operators is None:
                return "the operators could not be read"
            known = {full.rpartition("::")[2] for full in built.operators} | set(built.operators)
            if name in known:
                return ""
            return "the library registers no such operator" + _near(name, built.operators)
        case Kind.COMPILES:
            if built.units is None or name in built.units:
                return ""
            return "the build does not compile it" + _near(name, built.units)
        case Kind.CONTAINS:
            return ""


def _near(name: str, names: Collection[str]) -> str:
    near = difflib.get_close_matches(name, sorted(names), n=1)
    return f" (the nearest is `{near[0]}`)" if near else ""
