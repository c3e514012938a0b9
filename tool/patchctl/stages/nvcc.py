# SPDX-License-Identifier: Apache-2.0
"""Asking an nvcc what it is. Answers are remembered, so that a warm build starts no nvcc."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import msgspec

from patchctl.errors import PatchctlError
from patchctl.system.files import sha256_bytes, sha256_of, write_file
from patchctl.system.process import Completed, run
from patchctl.system.project import cache_folder

ANSWER_SECONDS = 30.0
_RELEASE = re.compile(r"release (?P<short>\d+\.\d+)(?:, V(?P<full>[\d.]+))?")
_ARCH = re.compile(r"^(?:sm|compute)_(\d+[a-z]?)$", re.MULTILINE)
_HERE = re.compile(r"^#\$ _HERE_=(.+)$", re.MULTILINE)
# Variables that would change what a compiler does, or where it looks, unseen.
_INHERITED = (
    "NVCC_PREPEND_FLAGS",
    "NVCC_APPEND_FLAGS",
    "CPATH",
    "C_INCLUDE_PATH",
    "CPLUS_INCLUDE_PATH",
    "LIBRARY_PATH",
    "COMPILER_PATH",
    "GCC_EXEC_PREFIX",
    "LD_RUN_PATH",
    "DEPENDENCIES_OUTPUT",
    "SUNPRO_DEPENDENCIES",
)

_PARTS = ("nvcc", "cudafe++", "cicc", "ptxas", "fatbinary", "nvlink")
"""The programs that decide what an object holds."""


class Answer(msgspec.Struct, frozen=True):
    """What one nvcc says of itself.

    `version` is empty when it does not answer, and `problem` says why. `compiles`: for the
    architecture that it was asked about; if not, `problem` says in what words. `home` is the
    toolkit's folder, also when nvcc is a wrapper script somewhere else; `digest` covers the
    contents of the programs that make an object.
    """

    stamp: str
    version: str = ""
    compiles: bool = False
    home: str = ""
    digest: str = ""
    problem: str = ""


def compiler_environment() -> dict[str, str]:
    """Our environment without what would silently change a compile; messages in English."""
    kept = {name: value for name, value in os.environ.items() if name not in _INHERITED}
    return {**kept, "LC_ALL": "C"}


def ask(nvcc: Path, arch: str) -> Answer:
    """What `nvcc` says of itself and of `arch` (``sm_70``).

    It is asked again only when a program of its toolkit changed.
    """
    memory = cache_folder() / "nvcc-answers.json"
    try:
        known = msgspec.json.decode(memory.read_bytes(), type=dict[str, Answer])
    except (OSError, msgspec.DecodeError):
        known = {}
    key = f"{arch} {nvcc}"
    old = known.get(key)
    if old is not None and old.stamp == _stamp(nvcc, Path(old.home)):
        return old
    answer = _ask(nvcc, arch)
    # a cache that cannot be written costs a second, not the build
    with contextlib.suppress(OSError):
        write_file(memory, msgspec.json.encode({**known, key: answer}), sync=False)
    return answer


def _ask(nvcc: Path, arch: str) -> Answer:
    home = nvcc.resolve().parent.parent
    try:
        said = _say(nvcc, "--version")
        release = _RELEASE.search(said.out)
        if release is None:
            problem = f"`{nvcc} --version` names no release"
            return Answer(_stamp(nvcc, home), home=str(home), problem=problem)
        problem = _refuses(nvcc, arch)
        here = _HERE.search(_say(nvcc, "--dryrun", "-x", "cu", "-E", os.devnull).err)
    except PatchctlError as error:
        problem = ": ".join((error.message, *error.details[-1:]))
        return Answer(_stamp(nvcc, home), home=str(home), problem=problem)
    if here is not None:
        home = Path(here[1]).resolve().parent
    return Answer(
        stamp=_stamp(nvcc, home),
        version=release["full"] or release["short"],
        compiles=not problem,
        home=str(home),
        digest=_digest(home),
        problem=problem,
    )


def _refuses(nvcc: Path, arch: str) -> str:
    """Why `nvcc` does not compile for `arch`; what else it says on stderr is no refusal."""
    number = arch.removeprefix("sm_")
    for question in ("--list-gpu-code", "--list-gpu-arch"):
        listed = _ARCH.findall(_say(nvcc, question).out)
        if listed:
            return "" if number in listed else f"nvcc lists no {arch}"
    # one that lists nothing is tried
    code = f"arch=compute_{number},code={arch}"
    trial = _say(nvcc, "--dryrun", "-gencode", code, "-x", "cu", "-c", os.devnull, check=False)
    return "" if trial.code == 0 else f"nvcc refuses {arch}: {' '.join(trial.tail(1))}"


def _say(nvcc: Path, *question: str, check: bool = True) -> Completed:
    environment = compiler_environment()
    return run([nvcc, *question], env=environment, timeout=ANSWER_SECONDS, check=check)


def programs(home: Path) -> dict[str, Path]:
    """The programs of a toolkit that decide what an object holds, as far as they are there."""
    folders = (home / "bin", home / "nvvm" / "bin", home / "lib" / "nvidia-cuda-toolkit" / "bin")
    return {
        name: folder / name
        for name in _PARTS
        for folder in reversed(folders)
        if (folder / name).is_file()
    }


def _stamp(nvcc: Path, home: Path) -> str:
    """Changes when nvcc or any program beside it is replaced."""
    seen = []
    for path in (nvcc, *programs(home).values()):
        try:
            stat = path.stat()
            seen.append(f"{path}:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ino}")
        except OSError:
            seen.append(f"{path}:-")
    return sha256_bytes("\n".join(seen).encode())


def _digest(home: Path) -> str:
    lines = [f"{name} {sha256_of(path)}\n" for name, path in sorted(programs(home).items())]
    return sha256_bytes("".join(lines).encode())
