# SPDX-License-Identifier: Apache-2.0
"""Making the private CUDA toolchain from its locked packages."""

from __future__ import annotations

import re
import shutil
import tempfile
import zipfile
from pathlib import Path

import msgspec

from patchctl.errors import LockMismatch, PatchctlError, ToolMissing, Unavailable, UsageError
from patchctl.formats.toolchainlock import (
    DebianPackage,
    ToolchainLock,
    WheelPackage,
    read_toolchain_lock,
)
from patchctl.stages.hostcompiler import find_host_compiler
from patchctl.stages.nvcc import compiler_environment
from patchctl.stages.toolchain import Origin, Toolchain, candidates, toolchains_folder
from patchctl.system.debian import check_debian, download_package, unpack_package
from patchctl.system.files import TEMP_PREFIX, sha256_bytes, sha256_of, temp_beside, write_file
from patchctl.system.packageindex import Wanted, obtain
from patchctl.system.process import run
from patchctl.system.project import Project, cache_folder, exclusive
from patchctl.system.report import Reporter

UNPACKED = 300_000_000
"""Bytes of disk while unpacking, downloads not counted; measured: 225 MB."""

# In Debian's package /usr/bin/nvcc is a script around the real one.
_PROGRAMS = {
    "usr/lib/nvidia-cuda-toolkit/bin/nvcc": "bin/nvcc",
    "usr/lib/nvidia-cuda-toolkit/bin/cicc": "nvvm/bin/cicc",
    "usr/lib/nvidia-cuda-toolkit/libdevice/libdevice.10.bc": "nvvm/libdevice/libdevice.10.bc",
    "usr/bin/cudafe++": "bin/cudafe++",
    "usr/bin/ptxas": "bin/ptxas",
    "usr/bin/fatbinary": "bin/fatbinary",
    "usr/bin/nvlink": "bin/nvlink",
    "usr/bin/cuobjdump": "bin/cuobjdump",
    "usr/bin/nvdisasm": "bin/nvdisasm",
    "usr/bin/cu++filt": "bin/cu++filt",
    "usr/share/doc/nvidia-cuda-toolkit/copyright": "copyright",
}
_CUDART_LINK = "lib64/libcudart.so"
_PROFILE = """\
TOP              = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH            += $(TOP)/nvvm/bin:$(_HERE_):
INCLUDES        += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES       =+ $(_SPACE_) "-L$(TOP)/lib64"
CUDAFE_FLAGS    +=
PTXAS_FLAGS     +=
"""
_WHEEL_MEMBER = re.compile(r"nvidia/[^/]+/(?P<kind>include|lib)/(?P<path>.+)")
_SELF_TEST = """\
#include <cuda_fp16.h>
__global__ void twice(__half* x) { x[threadIdx.x] = __hadd(x[threadIdx.x], x[threadIdx.x]); }
extern "C" void launch(__half* x) { twice<<<1, 32>>>(x); }
"""
_SELF_TEST_ARCH = "sm_70"


class Manifest(msgspec.Struct, frozen=True):
    """What an installed toolchain is: `packages` the sha256s it was made of, `files` each
    file's size in bytes and sha256."""

    packages: tuple[str, ...]
    files: dict[str, tuple[int, str]]


def install_toolchain(
    project: Project, report: Reporter, *, offline: bool = False, verify: bool = False
) -> Toolchain:
    """The private toolchain that ``vendor/cuda.lock.toml`` describes; made if it is not there.

    It is built beside its place and renamed into it after a trial compile, so that an
    interrupted install leaves nothing that counts. One that is there and whole is kept.

    Args:
        offline: ask no other machine.
        verify: compare every file of an installed toolchain by content, not only by size.

    Raises:
        UsageError: the lock is missing or wrong.
        ToolMissing: this is not a machine it is made for, or there is no C++ compiler.
        LockMismatch: a package is not the one that was locked.
        Unavailable: no network, no space, or the archive no longer has a package.
    """
    lock = load_toolchain_lock(project)
    home = toolchains_folder() / lock.folder
    with exclusive(toolchains_folder(), report):
        for leftover in toolchains_folder().glob(f"{TEMP_PREFIX}*"):
            shutil.rmtree(leftover)
        damage = installation_damage(home, lock, content=verify)
        if damage:
            if home.exists():
                report.warn(f"`{home}`: {damage}; it is made again")
            _make(home, lock, report, offline=offline)
    for candidate in candidates(_SELF_TEST_ARCH):
        if candidate.origin is Origin.PROVISIONED and candidate.place == str(home):
            if candidate.serves and candidate.toolchain is not None:
                return candidate.toolchain
            raise ToolMissing(f"`{home}` cannot serve: {candidate.reason}")
    raise PatchctlError(f"`{home}` was installed and is not found")


def load_toolchain_lock(project: Project) -> ToolchainLock:
    """Read ``vendor/cuda.lock.toml``.

    Raises:
        UsageError: there is no such file, or it does not parse.
    """
    path = project.toolchain_lock
    where = project.relative(path)
    try:
        return read_toolchain_lock(path.read_bytes(), where=where)
    except FileNotFoundError:
        raise UsageError(
            f"`{where}` is missing: nothing says what the toolchain is made of",
            hint="restore it from version control",
        ) from None


def installation_damage(home: Path, lock: ToolchainLock, *, content: bool) -> str:
    """Why the toolchain in `home` is not what `lock` describes; "" if it is."""
    try:
        manifest = msgspec.json.decode((home / "manifest.json").read_bytes(), type=Manifest)
    except FileNotFoundError:
        return "not installed"
    except msgspec.DecodeError:
        return "`manifest.json` is damaged"
    if manifest.packages != _packages(lock):
        return "it was made of other packages"
    for name, (size, sha256) in manifest.files.items():
        path = home / name
        if not path.is_file():
            return f"`{name}` is missing"
        if path.stat().st_size != size or (content and sha256_of(path) != sha256):
            return f"`{name}` was changed"
    if not (home / _CUDART_LINK).is_file():
        return f"`{_CUDART_LINK}` is missing"
    return ""


def _packages(lock: ToolchainLock) -> tuple[str, ...]:
    return (lock.debian.sha256, *(wheel.sha256 for wheel in lock.wheels))


def _make(home: Path, lock: ToolchainLock, report: Reporter, *, offline: bool) -> None:
    check_debian(lock.machine)
    compiler = find_host_compiler()
    _check_space(lock)
    package = _obtain_package(lock.debian, report, offline=offline)
    wheels = [_obtain_wheel(wheel, report, offline=offline) for wheel in lock.wheels]
    staging = temp_beside(home)
    try:
        with report.task(f"making CUDA {lock.version}", 3, unit="step") as task:
            task.note("unpacking the compiler")
            _place_programs(package, staging)
            task.advance()
            task.note("unpacking the headers")
            for wheel in wheels:
                _place_wheel(wheel, staging)
            (staging / _CUDART_LINK).symlink_to("libcudart.so.12")
            write_file(staging / "bin" / "nvcc.profile", _PROFILE, sync=False)
            task.advance()
            task.note("trial compile")
            _self_test(staging, compiler.path)
            write_file(staging / "manifest.json", _manifest(staging, lock), sync=False)
            task.advance()
        if home.exists():
            home.replace(staging.with_name(f"{staging.name}.old"))
        staging.replace(home)
    finally:
        for leftover in toolchains_folder().glob(f"{staging.name}*"):
            shutil.rmtree(leftover, ignore_errors=True)


def _check_space(lock: ToolchainLock) -> None:
    free = shutil.disk_usage(toolchains_folder()).free
    needed = lock.size + UNPACKED
    if free < needed:
        raise Unavailable(
            f"not enough space in `{toolchains_folder()}`: {free / 1e6:.0f} MB are free, "
            f"{needed / 1e6:.0f} MB are needed",
            hint="free some space, or set PATCHCTL_CACHE_DIR to a folder elsewhere",
        )


def _obtain_package(package: DebianPackage, report: Reporter, *, offline: bool) -> Path:
    folder = cache_folder() / "archives" / package.sha256
    path = folder / package.filename
    if path.is_file():
        if sha256_of(path) == package.sha256:
            return path
        report.warn(f"`{path}` was damaged and is removed")
        path.unlink()
    if offline:
        raise Unavailable(
            f"`{package.filename}` is not in `{folder}`, and --offline forbids to fetch it",
            hint="run `patchctl toolchain install` once without --offline",
        )
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(f"{TEMP_PREFIX}*"):  # of a killed run: we hold the lock
        shutil.rmtree(leftover)
    with tempfile.TemporaryDirectory(dir=folder, prefix=TEMP_PREFIX) as scratch:
        incoming = download_package(package, Path(scratch), report)
        found = sha256_of(incoming)
        if found != package.sha256:
            raise LockMismatch(
                f"`{package.filename}` from the Debian archive is not the package that was "
                f"locked: got sha256 {found}, expected {package.sha256}",
                hint="check the mirror in apt's sources",
                data={"got": found, "expected": package.sha256},
            )
        return incoming.replace(path)


def _obtain_wheel(wheel: WheelPackage, report: Reporter, *, offline: bool) -> Path:
    wanted = Wanted(wheel.name, wheel.version, (".whl",), wheel.sha256)
    return obtain(wanted, report, offline=offline).path


def _place_programs(package: Path, home: Path) -> None:
    unpacked = home / "package"
    home.mkdir(parents=True)
    unpack_package(package, unpacked)
    for source, target in _PROGRAMS.items():
        path = home / target
        path.parent.mkdir(parents=True, exist_ok=True)
        (unpacked / source).replace(path)
    shutil.rmtree(unpacked)


def _place_wheel(wheel: Path, home: Path) -> None:
    """Its headers and libcudart: ``nvidia/<part>/include/**`` and ``nvidia/<part>/lib/*``."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            match = _WHEEL_MEMBER.fullmatch(member.filename)
            if match is None or member.is_dir() or member.filename.endswith("/__init__.py"):
                continue
            folder = "include" if match["kind"] == "include" else "lib64"
            write_file(home / folder / match["path"], archive.read(member), sync=False)


def _self_test(home: Path, compiler: Path) -> None:
    """Compile, look inside, link: what every later build relies on."""
    with tempfile.TemporaryDirectory(dir=home, prefix=TEMP_PREFIX) as scratch:
        folder = Path(scratch)
        write_file(folder / "trial.cu", _SELF_TEST, sync=False)
        environment = compiler_environment()
        nvcc = [str(home / "bin" / "nvcc"), "-ccbin", str(compiler), "--objdir-as-tempdir"]
        code = f"arch=compute_70,code=[{_SELF_TEST_ARCH},compute_70]"
        shared = ["-Xcompiler", "-fPIC", "-c", "trial.cu", "-o", "trial.o"]
        library = ["-o", "trial.so", "trial.o", f"-L{home / 'lib64'}", "-lcudart"]
        try:
            run([*nvcc, "-gencode", code, *shared], cwd=folder, env=environment)
            run([compiler, "-shared", *library], cwd=folder, env=environment)
            listed = run(
                [home / "bin" / "cuobjdump", "--list-elf", "trial.so"], cwd=folder, env=environment
            ).out
        except PatchctlError as error:
            raise ToolMissing(
                f"the new toolchain does not work: {error.message}", details=error.details
            ) from error
        if _SELF_TEST_ARCH not in listed:
            raise ToolMissing(
                f"the new toolchain does not work: no {_SELF_TEST_ARCH} code in what it compiled",
                details=tuple(listed.splitlines()),
            )


def _manifest(home: Path, lock: ToolchainLock) -> bytes:
    files: dict[str, tuple[int, str]] = {}
    for path in sorted(home.rglob("*")):
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            files[path.relative_to(home).as_posix()] = (len(content), sha256_bytes(content))
    return msgspec.json.encode(Manifest(_packages(lock), files))
