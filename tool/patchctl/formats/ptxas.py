# SPDX-License-Identifier: Apache-2.0
"""What ``ptxas -v`` said, by function and architecture; never a number under the wrong name.

A kernel's report is three messages: ``Compiling entry function NAME for ARCH``, ``Function
properties for NAME`` with a line of bytes, and ``Used N registers`` which names nobody. Device
functions that were not inlined add properties of their own, usually after their caller's
``Used`` line. When two compilers write to one stream their messages alternate: properties can
still be told apart by name, a ``Used`` line only while exactly one kernel is open.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum

_MESSAGE = re.compile(r"ptxas (?P<level>info|warning|error|fatal)\s*: ?(?P<text>.*)")
_COMPILING = re.compile(r"Compiling entry function '(?P<name>[^']+)' for '(?P<arch>[^']+)'$")
_PROPERTIES = re.compile(r"Function properties for (?P<name>\S+)$")
_BYTES = re.compile(
    r"\s+(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads$"
)
_USED = re.compile(r"Used (?P<registers>\d+) registers(?P<rest>(?:,.*)?)$")
_SHARED = re.compile(r", (\d+) bytes smem\b")
_CUMULATIVE = re.compile(r", (\d+) bytes cumulative stack size\b")
_BARRIERS = re.compile(r", used (\d+) barriers\b")
_SILENT = re.compile(r"\d+ bytes gmem|Compile time = |[Cc]ompiling for ")
_ABOUT = re.compile(r"(?:function|for entry(?! function)|for(?= ')) '?(?P<name>[\w$.]+)")


class Topic(StrEnum):
    """What a message of ptxas is about."""

    SPILL = "spill"
    LOCAL_MEMORY = "local memory"
    STACK = "stack size"
    LAUNCH_BOUNDS = "launch bounds"
    REGISTER_LIMIT = "register limit"
    OTHER = "other"


_TOPICS = (
    ("spilled to local memory", Topic.SPILL),
    ("Local memory used", Topic.LOCAL_MEMORY),
    ("Stack size", Topic.STACK),
    ("is out of range", Topic.LAUNCH_BOUNDS),
    ("maximum register limit", Topic.REGISTER_LIMIT),
    ("per thread register count", Topic.REGISTER_LIMIT),
)


@dataclass(frozen=True)
class Message:
    """Anything else that ptxas said; `level` is its own word (info, warning, error, fatal)."""

    level: str
    topic: Topic
    function: str
    text: str


@dataclass(frozen=True)
class FunctionReport:
    """One function, mangled, compiled for one architecture. Bytes, except registers and barriers.

    None is "the log does not say", which is not zero. `arch` is None for a device function in a
    log with several architectures. `after` is the kernel whose report stood before a device
    function's: often, not always, its caller.
    """

    name: str
    arch: str | None
    is_entry: bool
    stack: int | None = None
    spill_stores: int | None = None
    spill_loads: int | None = None
    registers: int | None = None
    static_shared: int | None = None
    cumulative_stack: int | None = None
    barriers: int | None = None
    after: str | None = None


@dataclass(frozen=True)
class PtxasLog:
    """Every function in the order of the log, and the other messages.

    `interleaved`: several compilers wrote at once, so some registers are None. `damaged`: lines
    run into each other, so no number of this log can be trusted and all are None.
    """

    functions: tuple[FunctionReport, ...]
    messages: tuple[Message, ...]
    interleaved: bool
    damaged: bool


class _Reader:
    def __init__(self) -> None:
        self.functions: list[FunctionReport] = []
        self.messages: list[Message] = []
        self.interleaved = False
        self.damaged = False
        # Kernels whose `Used` line is to come. After an overlap nobody knows whose line a
        # `Used` was: they are counted, and all is clear again when every kernel had one.
        self._open: list[int] = []
        self._used = 0
        # The same for kernels of one name (several architectures) that wait for properties.
        self._waiting: dict[str, list[int]] = {}
        self._given: dict[str, int] = {}

    def compiling(self, name: str, arch: str) -> None:
        self.functions.append(FunctionReport(name, arch, is_entry=True))
        here = len(self.functions) - 1
        self._open.append(here)
        self._waiting.setdefault(name, []).append(here)
        if len(self._open) > 1:
            self.interleaved = True

    def properties(self, name: str, numbers: tuple[int, int, int] | None) -> None:
        stack, stores, loads = numbers or (None, None, None)
        waiting = self._waiting.get(name)
        if not waiting:
            after = next((f.name for f in reversed(self.functions) if f.is_entry), None)
            self.functions.append(
                FunctionReport(name, None, False, stack, stores, loads, after=after)
            )
            return
        if len(waiting) == 1:
            self.functions[waiting[0]] = replace(
                self.functions[waiting[0]], stack=stack, spill_stores=stores, spill_loads=loads
            )
        self._given[name] = self._given.get(name, 0) + 1
        if self._given[name] == len(waiting):
            del self._waiting[name], self._given[name]

    def used(self, registers: int, rest: str) -> None:
        if len(self._open) == 1:
            here = self._open[0]
            self.functions[here] = replace(
                self.functions[here],
                registers=registers,
                static_shared=_number(_SHARED, rest) or 0,
                cumulative_stack=_number(_CUMULATIVE, rest),
                barriers=_number(_BARRIERS, rest),
            )
        self._used += 1
        if self._used >= len(self._open):
            self._open, self._used = [], 0

    def other(self, level: str, text: str) -> None:
        if not _SILENT.search(text):
            topic = next((topic for words, topic in _TOPICS if words in text), Topic.OTHER)
            about = _ABOUT.search(text)
            function = about["name"] if about else ""
            self.messages.append(Message(level, topic, function, text))


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    return int(match[1]) if match else None


def parse_ptxas(text: str) -> PtxasLog:
    """Read a log; other programs' lines in it are passed over. Nothing raises.

    Knows the wording of CUDA 11.8 to 13.0.
    """
    reader = _Reader()
    lines = text.splitlines()
    for number, line in enumerate(lines):
        starts = [m.start() for m in re.finditer(r"ptxas (?:info|warning|error|fatal)\s*:", line)]
        if len(starts) > 1 or (starts and line[: starts[0]].strip()):
            reader.damaged = True
            continue
        message = _MESSAGE.match(line.strip())
        if message is None:
            continue
        said = message["text"].rstrip()
        if match := _COMPILING.match(said):
            reader.compiling(match["name"], match["arch"])
        elif match := _PROPERTIES.match(said):
            following = lines[number + 1] if number + 1 < len(lines) else ""
            numbers = _BYTES.match(following.rstrip())
            reader.properties(
                match["name"],
                (int(numbers["stack"]), int(numbers["stores"]), int(numbers["loads"]))
                if numbers
                else None,
            )
        elif match := _USED.match(said):
            reader.used(int(match["registers"]), match["rest"])
        else:
            reader.other(message["level"], said)
    return PtxasLog(
        tuple(_finished(reader)), tuple(reader.messages), reader.interleaved, reader.damaged
    )


def _finished(reader: _Reader) -> list[FunctionReport]:
    """Architectures of device functions where certain; no number at all from a damaged log."""
    functions = reader.functions
    if reader.damaged:
        functions = [FunctionReport(f.name, f.arch, f.is_entry) for f in functions]
    archs = {f.arch for f in functions if f.is_entry}
    only = archs.pop() if len(archs) == 1 else None
    # an overlap leaves no "before"
    return [
        f
        if f.is_entry
        else replace(f, arch=only, after=None if reader.interleaved or reader.damaged else f.after)
        for f in functions
    ]
