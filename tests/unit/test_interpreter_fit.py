# SPDX-License-Identifier: Apache-2.0
"""Which interpreters are refused, before anything is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from patchctl.errors import Unavailable, UsageError
from patchctl.formats.target import read_target
from patchctl.stages.interpreter import (
    Interpreter,
    Torch,
    locate_python,
    require_fit,
    require_torch,
    require_writable,
)

ROOT = Path(__file__).parents[2]
TARGET = read_target(
    (ROOT / "build" / "sm70.toml").read_bytes(), name="sm70", where="build/sm70.toml"
)
FITS = Interpreter(
    python=Path("/env/bin/python"),
    version=(3, 12, 1),
    implementation="cpython",
    machine="x86_64",
    glibc=(2, 36),
    paths={"platlib": "/env/lib"},
    site=(),
    externally_managed="",
    pip="",
)


def test_interpreter_that_fits_is_taken() -> None:
    require_fit(FITS, TARGET, (2, 36))
    require_fit(replace(FITS, version=(3, 10, 0)), TARGET, (2, 34))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": (3, 9, 18)}, r"is Python 3\.9\.18; 3\.10 or later is needed"),
        ({"implementation": "pypy"}, "is pypy, not CPython"),
        ({"machine": "aarch64"}, "runs on aarch64; the library is for x86_64"),
        ({"glibc": (2, 31)}, r"has 2\.31; the library needs glibc 2\.36"),
        ({"glibc": None}, r"has no glibc; the library needs glibc 2\.36"),
    ],
)
def test_interpreter_that_does_not_fit_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=f"^`/env/bin/python` {said}"):
        require_fit(replace(FITS, **change), TARGET, (2, 36))


def test_torch_of_another_age_is_judged_by_release() -> None:
    for version in ("2.10.0", "2.10.0a0+git1", "2.13.0+cpu", "3.0", ""):
        require_torch(Torch(version), TARGET, FITS.python)
    with pytest.raises(UsageError, match=r"has torch 2\.9\.1\+cu126; 2\.10 or later is needed"):
        require_torch(Torch("2.9.1+cu126"), TARGET, FITS.python)


def test_folder_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(Unavailable, match="cannot write in `/proc`"):
        require_writable(Path("/proc"))


def test_active_environment_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    assert locate_python(None) == tmp_path / "bin" / "python"
    monkeypatch.delenv("VIRTUAL_ENV")
    with pytest.raises(UsageError, match="no interpreter was named"):
        locate_python(None)
