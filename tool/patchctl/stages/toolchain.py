# SPDX-License-Identifier: Apache-2.0
"""Finding a CUDA toolkit that compiles for the target; every candidate is asked, none guessed."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from patchctl.errors import ToolMissing
from patchctl.stages.nvcc import ask
from patchctl.system.project import cache_folder
from patchctl.system.report import Reporter

SYSTEM_FOLDER = Path("/usr/local")

LAST_RELEASE_WITH = {"sm_60": "12.9", "sm_61": "12.9", "sm_70": "12.9", "sm_72": "12.9"}
"""CUDA 13.0 compiles for sm_75 and later: its release notes, on Maxwell, Pascal and Volta."""


class Origin(StrEnum):
    """Where a toolkit was looked for, in the order of search."""

    OPTION = "--cuda-home"
    VARIABLE = "CUDA_HOME"
    SYSTEM = "/usr/local/cuda-12*"
    PROVISIONED = "patchctl toolchain install"
    PATH = "nvcc on PATH"


@dataclass(frozen=True)
class Toolchain:
    """A CUDA toolkit: `version` as nvcc says it, `digest` over the programs of a compile.

    `lacks` names what a build needs and the toolkit has not.
    """

    home: Path
    nvcc: Path
    version: str
    origin: Origin
    digest: str
    include: Path
    lib64: Path
    lacks: tuple[str, ...] = ()

    @property
    def major(self) -> int:
        """12 for CUDA 12.4."""
        return int(self.version.split(".")[0])

    @property
    def cuobjdump(self) -> Path:
        """Shows what a shared object holds."""
        return self.home / "bin" / "cuobjdump"


@dataclass(frozen=True)
class Candidate:
    """One place of the search: a toolkit, or `reason` why there is none that serves."""

    origin: Origin
    place: str
    toolchain: Toolchain | None
    reason: str = ""

    @property
    def serves(self) -> bool:
        """Whether its nvcc compiles for the target."""
        return self.toolchain is not None and not self.reason


def candidates(target_arch: str, *, cuda_home: Path | None = None) -> tuple[Candidate, ...]:
    """Every place that is searched, in order, with what was found there.

    Args:
        target_arch: ``sm_70``.
        cuda_home: what the user gave on the command line.
    """
    found: list[Candidate] = []
    for origin, nvcc, place, reason in _places(cuda_home):
        if nvcc is None:
            found.append(Candidate(origin, place, None, reason))
        else:
            found.append(_judge(origin, nvcc, place, target_arch))
    return tuple(found)


def chosen(found: tuple[Candidate, ...]) -> Candidate | None:
    """The first that serves; one that lacks headers or libraries only if there is no other."""
    if found and found[0].origin is Origin.OPTION:
        return found[0] if found[0].serves else None
    serving = [c for c in found if c.serves]
    complete = [c for c in serving if c.toolchain is not None and not c.toolchain.lacks]
    return next(iter(complete or serving), None)


def find_toolchain(
    target_arch: str, report: Reporter, *, cuda_home: Path | None = None
) -> Toolchain:
    """The toolkit to build with.

    Raises:
        ToolMissing: none serves, or the one given with ``--cuda-home`` does not.
    """
    found = candidates(target_arch, cuda_home=cuda_home)
    choice = chosen(found)
    if choice is None or choice.toolchain is None:
        raise refusal(target_arch, found)
    for passed in found[: found.index(choice)]:
        if passed.place:
            # what was asked for by name and is not used deserves more than a detail
            say = report.warn if passed.origin is Origin.VARIABLE else report.detail
            say(f"{passed.origin}: {passed.place} is not used: {_why_not(passed)}")
    toolchain = choice.toolchain
    report.detail(f"CUDA {toolchain.version} in `{toolchain.home}` ({toolchain.origin})")
    return toolchain


def _why_not(candidate: Candidate) -> str:
    if candidate.reason or candidate.toolchain is None:
        return candidate.reason
    return "lacks " + ", ".join(candidate.toolchain.lacks)


def _places(cuda_home: Path | None) -> Iterator[tuple[Origin, Path | None, str, str]]:
    """Origin, nvcc if there is one, the place, and why there is none."""
    if cuda_home is not None:
        yield _in_home(Origin.OPTION, cuda_home.absolute())
    variable = os.environ.get("CUDA_HOME", "")
    if variable:
        yield _in_home(Origin.VARIABLE, Path(variable).absolute())
    else:
        yield Origin.VARIABLE, None, "", "not set"
    installed = sorted(SYSTEM_FOLDER.glob("cuda-12*"), key=_version_key, reverse=True)
    for home in installed:
        yield _in_home(Origin.SYSTEM, home)
    if not installed:
        yield Origin.SYSTEM, None, "", "none"
    private = sorted(toolchains_folder().glob("cuda-*"), key=_version_key, reverse=True)
    for home in private:
        yield _in_home(Origin.PROVISIONED, home)
    if not private:
        yield Origin.PROVISIONED, None, "", "not installed"
    on_path = shutil.which("nvcc")
    if on_path:
        yield Origin.PATH, Path(on_path).absolute(), on_path, ""
    else:
        yield Origin.PATH, None, "", "none"


def toolchains_folder() -> Path:
    """Where private toolchains are."""
    return cache_folder() / "toolchains"


def _version_key(path: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", path.name))


def _in_home(origin: Origin, home: Path) -> tuple[Origin, Path | None, str, str]:
    nvcc = home / "bin" / "nvcc"
    if nvcc.is_file():
        return origin, nvcc, str(home), ""
    return origin, None, str(home), f"no `{nvcc}`"


def _judge(origin: Origin, nvcc: Path, place: str, target_arch: str) -> Candidate:
    answer = ask(nvcc, target_arch)
    if not answer.version:
        return Candidate(origin, place, None, answer.problem)
    home = Path(answer.home) if origin is Origin.PATH else Path(place)
    include, lib64 = _include_folder(home), _library_folder(home)
    lacks = [
        name
        for name, there in {
            "cuda_runtime.h": (include / "cuda_runtime.h").is_file(),
            "libcudart.so": (lib64 / "libcudart.so").is_file(),
            "cuobjdump": (home / "bin" / "cuobjdump").is_file(),
        }.items()
        if not there
    ]
    toolchain = Toolchain(
        home, nvcc, answer.version, origin, answer.digest, include, lib64, tuple(lacks)
    )
    if answer.compiles:
        return Candidate(origin, str(home), toolchain)
    short = ".".join(answer.version.split(".")[:2])
    reason = f"CUDA {short}: {answer.problem}"
    if target_arch in LAST_RELEASE_WITH:
        reason += f"; the newest that does is {LAST_RELEASE_WITH[target_arch]}"
    return Candidate(origin, str(home), toolchain, reason)


def _include_folder(home: Path) -> Path:
    folders = (home / "include", home / "targets" / "x86_64-linux" / "include")
    return next((f for f in folders if (f / "cuda_runtime.h").is_file()), folders[0])


def _library_folder(home: Path) -> Path:
    names = ("lib64", "lib", "targets/x86_64-linux/lib", "lib/x86_64-linux-gnu")
    folders = [home / name for name in names]
    return next((f for f in folders if (f / "libcudart.so").is_file()), folders[0])


def refusal(target_arch: str, found: tuple[Candidate, ...]) -> ToolMissing:
    """The error that says what was looked at and why none of it serves."""
    lines = tuple(f"{c.origin}: {c.place + ': ' if c.place else ''}{c.reason}" for c in found)
    data: dict[str, object] = {
        "arch": target_arch,
        "looked": [{"origin": str(c.origin), "place": c.place, "reason": c.reason} for c in found],
    }
    if found and found[0].origin is Origin.OPTION:
        refused = found[0]
        return ToolMissing(
            f"--cuda-home `{refused.place}` cannot serve: {refused.reason}",
            hint="leave --cuda-home out, or `patchctl toolchain install`",
            data=data,
        )
    spoken = [c for c in found if c.toolchain is not None]
    what = f": {spoken[0].reason} (`{spoken[0].place}`)" if spoken else ""
    return ToolMissing(
        f"no CUDA toolkit that compiles for {target_arch}{what}",
        details=lines,
        hint="patchctl toolchain install",
        data=data,
    )
