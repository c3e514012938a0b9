# SPDX-License-Identifier: Apache-2.0
"""Where things are in a project, and the lock that lets one patchctl at a time change them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from patchctl.errors import Unavailable, UsageError
from patchctl.system.files import sha256_bytes, write_file
from patchctl.system.report import Reporter

CACHE_VARIABLE = "PATCHCTL_CACHE_DIR"
DEFAULT_BASELINE = "flash-attn"
LOCK_SUFFIX = ".lock.toml"


@dataclass(frozen=True)
class Project:
    """The folders of one project. `root` holds `patches/`, `vendor/` and `build/`.

    `out` is where everything generated goes; ``check`` points it at a scratch folder. `baseline`
    names the pristine source to work on. Each baseline has its own locks, refs, source tree,
    objects and records, so that changing from one to another does no work; the store is shared.
    """

    root: Path
    out: Path
    baseline: str = DEFAULT_BASELINE

    @property
    def place(self) -> Path:
        """Where what depends on the baseline is."""
        if self.baseline == DEFAULT_BASELINE:
            return self.out
        return self.out / "baselines" / self.baseline

    @property
    def series(self) -> Path:
        """The ordered list of patches."""
        return self.root / "patches" / "series"

    @property
    def patches(self) -> Path:
        """The folder of the patch files."""
        return self.root / "patches"

    @property
    def series_lock(self) -> Path:
        """What each patch must produce."""
        name = "" if self.baseline == DEFAULT_BASELINE else f".{self.baseline}"
        return self.root / "patches" / f"series{name}{LOCK_SUFFIX}"

    @property
    def baseline_lock(self) -> Path:
        """Where the pristine baseline comes from."""
        return self.root / "vendor" / f"{self.baseline}{LOCK_SUFFIX}"

    @property
    def baseline_ref(self) -> str:
        """The ref of the pristine source in the store."""
        return self._ref("baseline")

    @property
    def head_ref(self) -> str:
        """The ref of the last patch's commit in the store."""
        return self._ref("head")

    def _ref(self, what: str) -> str:
        if self.baseline == DEFAULT_BASELINE:
            return f"refs/patchctl/{what}"
        return f"refs/patchctl/baselines/{self.baseline}/{what}"

    @property
    def toolchain_lock(self) -> Path:
        """What the private CUDA toolchain is made of."""
        return self.root / "vendor" / "cuda.lock.toml"

    def target_file(self, target: str) -> Path:
        """The description of what to build, ``build/sm70.toml`` for ``sm70``."""
        return self.root / "build" / f"{target}.toml"

    def resources_file(self, target: str) -> Path:
        """The expected resources of each kernel."""
        return self.root / "build" / f"{target}.resources.toml"

    def emulator_file(self, target: str) -> Path:
        """How the host launches each kernel."""
        return self.root / "build" / f"{target}.emulator.toml"

    def schemas_file(self, target: str) -> Path:
        """The expected operator schemas."""
        return self.root / "build" / f"{target}.schemas.toml"

    def abi_file(self, target: str) -> Path:
        """The rules for what the library may leave undefined."""
        return self.root / "build" / f"{target}.abi.toml"

    @property
    def store(self) -> Path:
        """The bare git repository with the baseline and one commit a patch."""
        return self.out / "store.git"

    @property
    def source(self) -> Path:
        """The replayed tree."""
        return self.place / "src"

    def objects(self, target: str) -> Path:
        """The build folder of a target."""
        return self.place / target

    @property
    def records(self) -> Path:
        """What each stage recorded about its last success."""
        return self.place / "state"

    def relative(self, path: Path) -> str:
        """`path` as people would type it from the project's root."""
        try:
            return path.relative_to(self.root).as_posix()
        except ValueError:
            return str(path)


def open_project(start: Path) -> Project:
    """Find the project that contains `start`, looking upwards.

    Raises:
        UsageError: no folder on the way up has `vendor/` and `patches/`.
    """
    if not start.is_dir():
        raise UsageError(f"`{start}` is not a folder")
    origin = start.resolve()
    for folder in (origin, *origin.parents):
        if (folder / "patches").is_dir() and (folder / "vendor").is_dir():
            return Project(folder, folder / "build" / "out")
    raise UsageError(
        f"`{origin}` is not inside a patchctl project: no folder from here up has `patches/` "
        "and `vendor/`",
        hint="patchctl -C DIR ... with the project's folder",
    )


def cache_folder() -> Path:
    """The user's cache folder for downloads and toolchains; PATCHCTL_CACHE_DIR overrides it."""
    override = os.environ.get(CACHE_VARIABLE)
    if override:
        return Path(override).absolute()
    from platformdirs import user_cache_path

    return user_cache_path("patchctl")


def environment_lock(python: Path) -> Path:
    """The folder whose lock lets one patchctl at a time change what `python` imports, whichever
    project it runs in."""
    name = sha256_bytes(os.fsencode(python))[:16]
    return cache_folder() / "environments" / name


@contextmanager
def exclusive(folder: Path, report: Reporter) -> Iterator[None]:
    """Hold `folder`'s lock; wait for another patchctl and say so.

    An operating-system lock: it goes with the process that holds it, however that ends.

    Raises:
        Unavailable: the folder cannot be written.
    """
    from filelock import FileLock, Timeout

    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / "lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            report.info(f"waiting for another patchctl in this project ({_holder(folder)})")
            lock.acquire()
    except OSError as error:
        raise Unavailable(f"cannot write in `{folder}`: {error.strerror}") from error
    holder = folder / "lock.holder"
    try:
        write_file(holder, json.dumps({"pid": os.getpid(), "since": time.time()}), sync=False)
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def _holder(folder: Path) -> str:
    try:
        data = json.loads((folder / "lock.holder").read_text())
        return f"process {data['pid']}, for {time.time() - data['since']:.0f} s"
    except (OSError, ValueError, KeyError, TypeError):
        return f"`{folder / 'lock'}`"
