# SPDX-License-Identifier: Apache-2.0
"""What a build needs besides CUDA: the C++ compiler, Python's and torch's headers, ninja."""

from __future__ import annotations

import os
import re
import shutil
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from patchctl.errors import PatchctlError, ToolMissing
from patchctl.formats.target import Abi
from patchctl.stages.nvcc import compiler_environment
from patchctl.stages.toolchain import Toolchain
from patchctl.stages.torchpackage import TorchPackage, find_torch_package
from patchctl.system.files import sha256_bytes
from patchctl.system.process import run

# crt/host_config.h of a toolkit says which compilers it takes: `#if __GNUC__ > 13` + #error
_GCC_LIMIT = re.compile(r"^#\s*if\s+__GNUC__\s*>\s*(\d+)\s*$", re.MULTILINE)
_MACRO = re.compile(r'^#define (__GNUC__|__clang__|__VERSION__) "?(.*?)"?$', re.MULTILINE)

CUDA_MAJORS_WITH_VOLTA = (11, 12)


@dataclass(frozen=True)
class HostCompiler:
    """A C++ compiler: `version` is what it says of itself, `gcc_major` 0 unless it is GCC."""

    path: Path
    version: str
    gcc_major: int


@dataclass(frozen=True)
class Torch:
    """The torch that is built against; `digest` covers its headers as its wheel lists them."""

    package: TorchPackage
    digest: str


@dataclass(frozen=True)
class Host:
    """Everything but CUDA that a build uses."""

    compiler: HostCompiler
    torch: Torch
    python_include: Path
    ninja: Path


def preflight(toolchain: Toolchain, abi: Abi) -> Host:
    """Find it all before any work is done.

    Raises:
        ToolMissing: something is not there or does not fit; says what to do.
    """
    if toolchain.lacks:
        raise ToolMissing(
            f"CUDA {toolchain.version} in `{toolchain.home}` lacks {', '.join(toolchain.lacks)}",
            hint="patchctl toolchain install",
        )
    compiler = find_host_compiler()
    _check_compiler(compiler, toolchain)
    torch = _find_torch(abi)
    _check_torch(torch, toolchain)
    return Host(compiler, torch, _find_python_headers(), find_ninja())


def find_host_compiler() -> HostCompiler:
    """The C++ compiler that CXX names, else g++.

    Raises:
        ToolMissing: there is none, or it does not answer.
    """
    name = os.environ.get("CXX") or "g++"
    found = shutil.which(name)
    if found is None:
        told = " (named by CXX)" if os.environ.get("CXX") else ""
        raise ToolMissing(f"no C++ compiler: `{name}`{told} is not there", hint="apt install g++")
    try:
        said = run([found, "-dM", "-E", "-x", "c++", os.devnull], env=compiler_environment())
    except PatchctlError as error:
        raise ToolMissing(
            f"`{found}` is not a usable C++ compiler: {error.message}",
            details=error.details,
            hint="apt install g++",
        ) from error
    macros = dict(_MACRO.findall(said.out))
    gcc_major = 0 if "__clang__" in macros else int(macros.get("__GNUC__", "0"))
    return HostCompiler(Path(found).absolute(), macros.get("__VERSION__", ""), gcc_major)


def _check_compiler(compiler: HostCompiler, toolchain: Toolchain) -> None:
    rules = toolchain.include / "crt" / "host_config.h"
    try:
        limit = _GCC_LIMIT.search(rules.read_text(errors="replace"))
    except FileNotFoundError:
        return
    if limit is None or compiler.gcc_major <= int(limit[1]):
        return
    raise ToolMissing(
        f"CUDA {toolchain.version} does not take GCC {compiler.gcc_major}: `{compiler.path}` is "
        f"{compiler.version}, `{rules}` allows up to {limit[1]}",
        hint=f"apt install g++-{limit[1]}, then CXX=g++-{limit[1]} patchctl build",
    )


def _find_python_headers() -> Path:
    include = Path(sysconfig.get_path("include"))
    if not (include / "Python.h").is_file():
        raise ToolMissing(f"no `{include / 'Python.h'}`", hint="apt install python3-dev")
    return include


def _find_torch(abi: Abi) -> Torch:
    from packaging.version import Version

    package = find_torch_package()
    if package is None:
        raise ToolMissing("torch is not installed", hint="pip install torch")
    if Version(package.version).release < Version(abi.torch).release:
        raise ToolMissing(
            f"torch {package.version} in `{package.folder}` is older than the stable ABI "
            f"that the target needs, {abi.torch}",
            hint=f"pip install 'torch>={abi.torch}'",
        )
    if not (package.include / "torch" / "csrc" / "stable" / "library.h").is_file():
        raise ToolMissing(
            f"torch {package.version} in `{package.folder}` has no stable-ABI headers",
            hint="reinstall torch",
        )
    return Torch(package, _headers_digest(package))


def _headers_digest(package: TorchPackage) -> str:
    """Of the wheel's own list of headers and digests: time stamps say nothing after an install."""
    for listing in package.folder.parent.glob("torch-*.dist-info/RECORD"):
        lines = listing.read_bytes().splitlines()
        headers = sorted(line for line in lines if line.startswith(b"torch/include/"))
        return sha256_bytes(b"\n".join(headers))
    return sha256_bytes(package.version.encode())


def _check_torch(torch: Torch, toolchain: Toolchain) -> None:
    """Refuse two CUDA majors in one process where one major could serve both."""
    package = torch.package
    major = int(package.cuda.split(".")[0]) if package.cuda else None
    if major != toolchain.major and major in CUDA_MAJORS_WITH_VOLTA:
        raise ToolMissing(
            f"CUDA {toolchain.version} in `{toolchain.home}` does not fit torch "
            f"{package.version}, which is built for CUDA {major}",
            hint=f"--cuda-home with a CUDA {major} toolkit, or `patchctl toolchain install`",
        )


def find_ninja() -> Path:
    """The ninja of our own environment.

    Raises:
        ToolMissing: the package is there without its program, or not at all.
    """
    try:
        import ninja
    except ImportError as error:
        raise ToolMissing("ninja is not installed", hint="pip install ninja") from error
    program = Path(ninja.BIN_DIR or ".") / "ninja"
    if not ninja.BIN_DIR or not program.is_file():
        raise ToolMissing(
            f"ninja {ninja.__version__} has no program", hint="pip install --force-reinstall ninja"
        )
    return program
