# SPDX-License-Identifier: Apache-2.0
"""What a library registers with torch, asked in a child process that may die of it."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patchctl.errors import ToolMissing
from patchctl.formats.findings import Finding
from patchctl.formats.schemas import GATE, ExpectedSchemas, Registered, full_name
from patchctl.formats.schematext import Argument, Schema, alias_text, parse_schema, with_type
from patchctl.system.probe import run_probe
from patchctl.system.process import Completed, ProcessFailed

STDERR_LINES = 5


@dataclass
class Probe:
    """The operators by name (None: they could not be read), and what is wrong."""

    torch: str = ""
    operators: dict[str, Registered] | None = None
    findings: list[Finding] = field(default_factory=list)


def probe_library(
    library: Path, module: str, expected: ExpectedSchemas, search: tuple[Path, ...]
) -> Probe:
    """Load `library` in a fresh interpreter, after torch, and read its operators.

    `search` are folders for the libraries that it needs (libcudart).

    Raises:
        ToolMissing: torch cannot be imported, which says nothing about the library.
    """
    request = {
        "library": str(library),
        "module": module,
        "namespace": expected.namespace,
        "expected": {full_name(parse_schema(o.schema)): o.schema for o in expected.operators},
    }
    environment = dict(os.environ)
    inherited = environment.get("LD_LIBRARY_PATH", "")
    folders = [*(str(s) for s in search), *([inherited] if inherited else [])]
    environment["LD_LIBRARY_PATH"] = os.pathsep.join(folders)
    question = json.dumps(request).encode()
    try:
        done = run_probe(sys.executable, "schemas", env=environment, input=question, check=False)
    except ProcessFailed as error:
        done = error.completed
    steps, result = _read(done.out)
    if result is not None and done.code == 0:
        operators = result["operators"]
        return Probe(
            torch=result["torch"],
            operators={name: _registered(name, data) for name, data in operators.items()},
            findings=[
                Finding(GATE, name, f"torch refuses the listed schema: {data['refused']}")
                for name, data in operators.items()
                if data["refused"]
            ],
        )
    step = steps[-1] if steps else "start Python"
    if step in ("start Python", "import torch"):
        raise ToolMissing(
            f"`{sys.executable}` cannot import torch: {done.how_it_ended()}",
            hint="make check sets up an environment with torch, or: pip install torch",
            details=done.tail(),
        )
    return Probe(findings=[_death(library, step, done)])


def _read(text: str) -> tuple[list[str], dict[str, Any] | None]:
    steps: list[str] = []
    result: dict[str, Any] | None = None
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue  # something that a library prints when it is loaded
        if isinstance(value, dict) and "step" in value:
            steps.append(value["step"])
        elif isinstance(value, dict) and "operators" in value:
            result = value
    return steps, result


def _death(library: Path, step: str, done: Completed) -> Finding:
    """Why the child could not read the schemas; the last lines that it said are the reason."""
    # of a Python traceback the last line tells; a crash may need the ones before it
    lines = done.tail(1 if done.code > 0 else STDERR_LINES)
    said = " | ".join(line.strip() for line in lines if line.strip())
    verb = "could not" if done.code >= 0 else "died when it should"
    return Finding(
        GATE,
        library.name,
        f"a process {verb} {step} ({done.how_it_ended()}): {said or 'no output'}",
    )


def _registered(name: str, data: dict[str, Any]) -> Registered:
    base, _, overload = name.partition(".")
    known: dict[str, str] = {}
    schema = Schema(
        base,
        overload,
        tuple(argument_of(a, known) for a in data["arguments"]),
        tuple(argument_of(a, known) for a in data["returns"]),
    )
    return Registered(schema, tuple(data["dispatch"]), data["compatible"])


def argument_of(data: dict[str, Any], known: dict[str, str]) -> Argument:
    """An argument as the probe describes it; `known` carries alias names through a schema."""
    # torch labels aliases `alias::a`; after is empty or repeats before unless it is written out
    before = [n.rpartition("::")[2] for n in data["before"]]
    after = [n.rpartition("::")[2] for n in data["after"]]
    has_alias = bool(before or data["mutable"])
    later = [] if after == before else after
    return Argument(
        name=data["name"],
        type=data["type"],
        length=data["length"],
        mutable=data["mutable"],
        alias=alias_text(before, later, data["mutable"], known) if has_alias else "",
        has_default=data["has_default"],
        default=with_type(data["default"], data["type"], data["length"]),
        kwarg_only=data["kwarg_only"],
    )
