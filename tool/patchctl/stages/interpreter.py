# SPDX-License-Identifier: Apache-2.0
"""The Python that a library goes into: asked in a child process, never guessed from its paths."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchctl.errors import ToolMissing, Unavailable, UsageError
from patchctl.formats.target import Target
from patchctl.system.files import is_immutable, temp_beside, write_file
from patchctl.system.probe import run_probe
from patchctl.system.process import ProcessFailed

LIBRARY_VARIABLE = "VLLM_FA2_SM70_LIBRARY"
MACHINE = "x86_64"


@dataclass(frozen=True)
class Interpreter:
    """A Python installation or virtual environment.

    `paths` are its install locations by sysconfig's names, `site` the folders that hold
    installed packages; `pip` its pip's version, `externally_managed` the marker file of
    PEP 668, `glibc` is (2, 36): each empty or None where there is none.
    """

    python: Path
    version: tuple[int, ...]
    implementation: str
    machine: str
    glibc: tuple[int, int] | None
    paths: dict[str, str]
    site: tuple[Path, ...]
    externally_managed: str
    pip: str

    @property
    def packages(self) -> Path:
        """Where packages with compiled code are installed."""
        return Path(self.paths["platlib"])


@dataclass(frozen=True)
class Torch:
    """The torch that an interpreter imports; `cuda` is "" for a CPU build.

    `error` says why it cannot be imported, and then the rest is empty.
    """

    version: str = ""
    cuda: str = ""
    error: str = ""

    def __str__(self) -> str:
        if self.error:
            return "no torch"
        return f"torch {self.version} ({f'CUDA {self.cuda}' if self.cuda else 'CPU build'})"


def locate_python(given: str | None) -> Path:
    """The interpreter that the user means: a path, an environment's folder, a name on PATH, or
    the active virtual environment.

    Raises:
        UsageError: none was named and no environment is active, or there is no such program.
    """
    if given is None:
        active = os.environ.get("VIRTUAL_ENV")
        if not active:
            raise UsageError(
                "no interpreter was named and no virtual environment is active",
                hint="--python PYTHON, the interpreter that runs vLLM",
            )
        given = active
    path = Path(given)
    if path.is_dir():
        path = path / "bin" / "python"
    elif os.sep not in given:
        path = Path(shutil.which(given) or given)
    # not resolved: the link itself says which environment it is
    path = path.absolute()
    if not path.is_file():
        raise UsageError(f"there is no interpreter `{path}`")
    return path


def ask(python: Path, probe: str, *arguments: str) -> dict[str, Any]:
    """Run one of the probes and return what it printed last.

    Raises:
        ProcessFailed: it died, or printed something else.
    """
    environment = {k: v for k, v in os.environ.items() if k != LIBRARY_VARIABLE}
    try:
        done = run_probe(python, probe, *arguments, env=environment, check=False)
    except ToolMissing as error:
        raise UsageError(f"`{python}` cannot be run: {error.message}") from error
    lines = done.out.splitlines()
    try:
        if done.code == 0 and lines:
            answer: dict[str, Any] = json.loads(lines[-1])
            return answer
    except ValueError:
        pass
    raise ProcessFailed(done)


def last_line(error: ProcessFailed) -> str:
    """How a child ended and the last thing it said, for a message."""
    said = error.completed.tail(1)
    return (
        f"{error.completed.how_it_ended()}: {said[0]}" if said else error.completed.how_it_ended()
    )


def inspect(python: Path) -> Interpreter:
    """Ask an interpreter what it is.

    Raises:
        UsageError: it is not a Python, or one that is too old to answer.
    """
    try:
        answer = ask(python, "interpreter")
    except ProcessFailed as error:
        raise UsageError(
            f"`{python}` does not answer as a Python: {last_line(error)}", details=error.details
        ) from error
    glibc = re.fullmatch(r"glibc (\d+)\.(\d+).*", answer["glibc"])
    return Interpreter(
        python=python,
        version=tuple(answer["version"]),
        implementation=answer["implementation"],
        machine=answer["machine"],
        glibc=(int(glibc[1]), int(glibc[2])) if glibc else None,
        paths=answer["paths"],
        site=tuple(Path(folder) for folder in answer["site"]),
        externally_managed=answer["externally_managed"],
        pip=answer["pip"],
    )


def ask_torch(interpreter: Interpreter) -> Torch:
    """Which torch the interpreter imports; a failure is part of the answer."""
    try:
        answer = ask(interpreter.python, "torch_version")
    except ProcessFailed as error:
        return Torch(error=last_line(error))
    return Torch(version=answer["version"], cuda=answer["cuda"])


def require_fit(interpreter: Interpreter, target: Target, glibc: tuple[int, int]) -> None:
    """Refuse an interpreter that can never load the library; `glibc` is the oldest that can.

    Raises:
        UsageError: its implementation, version, machine or C library does not fit.
    """
    where = f"`{interpreter.python}`"
    oldest = tuple(int(part) for part in target.abi.python.split("."))
    version = ".".join(map(str, interpreter.version))
    if interpreter.implementation != "cpython":
        raise UsageError(f"{where} is {interpreter.implementation}, not CPython")
    if interpreter.version < oldest:
        raise UsageError(f"{where} is Python {version}; {target.abi.python} or later is needed")
    if interpreter.machine != MACHINE:
        raise UsageError(f"{where} runs on {interpreter.machine}; the library is for {MACHINE}")
    if interpreter.glibc is None or interpreter.glibc < glibc:
        found = ".".join(map(str, interpreter.glibc)) if interpreter.glibc else "no glibc"
        raise UsageError(
            f"{where} has {found}; the library needs glibc {glibc[0]}.{glibc[1]}",
            hint="build on a machine that is as old as the one that runs it",
        )


def require_torch(torch: Torch, target: Target, python: Path) -> None:
    """Refuse a torch that is older than the ABI that the library was built for.

    Raises:
        UsageError: the torch is too old.
    """
    from packaging.version import Version

    if torch.version and Version(torch.version).release < Version(target.abi.torch).release:
        raise UsageError(
            f"`{python}` has torch {torch.version}; {target.abi.torch} or later is needed",
            hint=f"{python} -m pip install 'torch>={target.abi.torch}'",
        )


def require_writable(folder: Path, files: Sequence[Path] = ()) -> None:
    """Prove that files in `folder` can be made and removed, and that `files` can be replaced.

    Raises:
        Unavailable: they cannot.
    """
    probe = temp_beside(folder / "probe")
    try:
        write_file(probe, b"", sync=False)
        probe.unlink()
    except OSError as error:
        raise Unavailable(
            f"cannot write in `{folder}`: {error.strerror}",
            hint="use an interpreter whose packages you own, a virtual environment for example",
        ) from error
    for path in files:
        if is_immutable(path):
            raise Unavailable(
                f"cannot replace `{path}`: it is marked immutable", hint=f"chattr -i {path}"
            )
