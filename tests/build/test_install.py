# SPDX-License-Identifier: Apache-2.0
"""The wheel in real environments: proven there, or everything as it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from patchctl.cli.app import funnel
from patchctl.cli.main import main
from patchctl.errors import GateFailed, LocalChanges, UsageError
from patchctl.formats.target import Target
from patchctl.stages import install as stage
from patchctl.stages.install import build_wheel, install, uninstall, verified_library
from patchctl.stages.interpreter import inspect, locate_python
from patchctl.stages.packagefiles import JOURNAL_FOLDER
from patchctl.system.project import Project
from patchctl.system.records import drop_record
from patchctl.system.report import QuietReporter

from .conftest import record_build

Built = tuple[Project, Target]
MakeEnvironment = Callable[..., Path]
CASES = Path(__file__).parents[1] / "data" / "cases"
QUIET = QuietReporter()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATCHCTL_CACHE_DIR", str(tmp_path / "cache"))


def packages(python: Path) -> Path:
    (found,) = python.parents[1].glob("lib/python3*/site-packages")
    return found


def tree(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in files
        if "__pycache__" not in path.parts
    }


def in_python(python: Path, code: str, **environment: str) -> str:
    env = {**os.environ, **environment}
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, env=env, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_wheel_has_the_same_bytes_every_time(built: Built) -> None:
    project, target = built
    first = build_wheel(project, target, verified_library(project, target))
    content = first.read_bytes()
    first.unlink()
    assert build_wheel(project, target, verified_library(project, target)).read_bytes() == content
    assert first.name.startswith("vllm_fa2_sm70-0.1.0-cp310-abi3-manylinux_2_")


def test_wheel_carries_the_notices_of_upstream(built: Built) -> None:
    project, target = built
    project.source.mkdir(parents=True)
    (project.source / "LICENSE").write_text("BSD\n")
    wheel = build_wheel(project, target, verified_library(project, target))
    with zipfile.ZipFile(wheel) as archive:
        name = "vllm_fa2_sm70-0.1.0.dist-info/licenses/flash-attn/LICENSE"
        assert archive.read(name) == b"BSD\n"


def test_pip_that_refuses_leaves_everything(
    built: Built, make_environment: MakeEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = make_environment(pip=True)
    before = tree(packages(python))
    monkeypatch.setattr(
        stage, "build_wheel", lambda project, target, library: project.root / "damaged-1-py3-x.whl"
    )
    with pytest.raises(GateFailed, match="pip of") as caught:
        install(*built, QUIET, python=python)
    assert "damaged" in "".join(caught.value.details)
    assert tree(packages(python)) == before


def test_install_with_pip_and_uninstall(built: Built, make_environment: MakeEnvironment) -> None:
    python = make_environment(pip=True)
    before = tree(packages(python))
    done = install(*built, QUIET, python=python)
    listed = subprocess.run([python, "-m", "pip", "list", "--format=json"], capture_output=True)
    assert {"name": "vllm-fa2-sm70", "version": "0.1.0"} in json.loads(listed.stdout)
    assert "torch cannot be imported" in done.reason
    assert in_python(python, "import vllm_fa2_sm70 as s; print(s.is_fa_version_supported(2))") == (
        "False"
    )
    uninstall(*built, QUIET, python=python)
    assert tree(packages(python)) == before


def test_install_without_pip_loads_the_library(
    built: Built, make_environment: MakeEnvironment
) -> None:
    python = make_environment(torch=True)
    before = tree(packages(python))
    done = install(*built, QUIET, python=python)
    assert done.reason == "there is no CUDA device (torch is a CPU build)"
    code = (
        "import vllm_fa2_sm70 as s, torch\n"
        "print(s.library.path, bool(s.library.reason), s.library.adopted)\n"
        "print(len(torch.ops._vllm_fa2_C.varlen_fwd.default._schema.arguments))"
    )
    path = packages(python) / "vllm_fa2_sm70" / "_vllm_fa2_C.abi3.so"
    assert in_python(python, code) == f"{path} False False\n22"
    # the user's own library is not what is proven
    install(*built, QUIET, python=python)
    assert uninstall(*built, QUIET, python=python).removed == "0.1.0"
    assert tree(packages(python)) == before
    assert uninstall(*built, QUIET, python=python).removed == ""


def test_library_that_is_not_verified_is_refused(
    built: Built, make_environment: MakeEnvironment, libraries: Path
) -> None:
    project, target = built
    python = make_environment()
    place = project.objects("sm70") / target.filename
    place.write_bytes((libraries / "two.so").read_bytes())
    with pytest.raises(GateFailed, match="was replaced after the build"):
        install(*built, QUIET, python=python)
    record_build(*built)
    with pytest.raises(GateFailed, match="is not what was verified") as caught:
        install(*built, QUIET, python=python)
    assert caught.value.hint == "patchctl verify"
    drop_record(project, "verify-sm70")
    with pytest.raises(GateFailed, match="is not verified"):
        install(*built, QUIET, python=python)
    place.unlink()
    with pytest.raises(GateFailed, match="there is no library"):
        install(*built, QUIET, python=python)
    assert list(packages(python).iterdir()) == []


@pytest.mark.parametrize(
    "name", ["empty", "half", "header-only", "minus-one-page", "text", "wrong-machine"]
)
def test_damaged_library_is_refused_before_it_is_loaded(
    built: Built, approve_library: Callable[[Project, Target, Path], str], name: str
) -> None:
    project, target = built
    approve_library(project, target, CASES / "43" / f"{name}.so")
    with pytest.raises(GateFailed, match="is damaged"):
        verified_library(project, target)


def test_failed_proof_brings_the_old_version_back(
    built: Built,
    make_environment: MakeEnvironment,
    libraries: Path,
    approve_library: Callable[[Project, Target, Path], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    python = make_environment()
    install(*built, QUIET, python=python)
    before = tree(packages(python))
    approve_library(*built, libraries / "two.so")
    unpack = stage._unpack

    def unpack_and_spoil(*arguments: object) -> None:
        unpack(*arguments)  # type: ignore[arg-type]
        library = packages(python) / "vllm_fa2_sm70" / "_vllm_fa2_C.abi3.so"
        library.write_bytes(library.read_bytes()[:-1])

    monkeypatch.setattr(stage, "_unpack", unpack_and_spoil)
    with pytest.raises(GateFailed, match="verified"):
        install(*built, QUIET, python=python)
    assert tree(packages(python)) == before


def test_another_copy_that_is_imported_first_is_refused(
    built: Built, make_environment: MakeEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = make_environment()
    other = tmp_path / "other" / "vllm_fa2_sm70"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text(
        "class library:\n    path = None\n    reason = ''\n"
        "def fa_version_unsupported_reason(version): return None\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(other.parent))
    with pytest.raises(GateFailed, match="imports another vllm_fa2_sm70") as caught:
        install(*built, QUIET, python=python)
    assert str(other) in caught.value.message
    assert list(packages(python).iterdir()) == []


def test_edited_package_is_refused(built: Built, make_environment: MakeEnvironment) -> None:
    python = make_environment()
    install(*built, QUIET, python=python)
    package = packages(python) / "vllm_fa2_sm70"
    (package / "routes.py").write_text("edited = True\n")
    (package / "mine.py").write_text("")
    for action in (install, uninstall):
        with pytest.raises(LocalChanges) as caught:
            action(*built, QUIET, python=python)
        assert caught.value.details == (
            "vllm_fa2_sm70/mine.py: not ours",
            "vllm_fa2_sm70/routes.py: edited",
        )
    install(*built, QUIET, python=python, force=True)
    assert not (package / "mine.py").exists()


def test_killed_install_is_undone_by_the_next_run(
    built: Built, make_environment: MakeEnvironment, tmp_path: Path
) -> None:
    project, _ = built
    python = make_environment()
    install(*built, QUIET, python=python)
    before = tree(packages(python))
    # the proof imports the shim and waits: the files are in place, the journal is open
    site = packages(python)
    (site / "sitecustomize.py").write_text(
        "import pathlib, sys, time\n"
        "if 'vllm_fa2_sm70.__file__' in ' '.join(sys.orig_argv):\n"
        f"    pathlib.Path({str(tmp_path / 'waiting')!r}).touch()\n"
        "    time.sleep(60)\n"
    )
    argv = [sys.executable, "-m", "patchctl", "-C", str(project.root), "install"]
    child = subprocess.Popen([*argv, "--python", python], start_new_session=True)
    deadline = time.monotonic() + 60
    while not (tmp_path / "waiting").exists():
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    (site / "sitecustomize.py").unlink()
    assert (site / JOURNAL_FOLDER / "vllm_fa2_sm70" / "__init__.py").is_file()

    report = QuietReporter()
    again = install(*built, report, python=python)
    assert any("was not finished" in warning for warning in report.warnings)
    assert again.replaced == "0.1.0"
    assert tree(site) == before


def test_python_that_is_too_old_or_no_python_is_refused(tmp_path: Path, built: Built) -> None:
    with pytest.raises(UsageError, match="there is no interpreter"):
        locate_python(str(tmp_path / "python"))
    with pytest.raises(UsageError, match="does not answer as a Python"):
        inspect(Path("/bin/true"))


def test_no_interpreter_named_is_refused(
    built: Built, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    assert funnel(main, ["-C", str(built[0].root), "install"]) == 2
    assert "--python PYTHON" in capsys.readouterr().err


def test_environment_that_the_system_owns_is_refused(
    built: Built, make_environment: MakeEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = make_environment()
    real = inspect(python)
    object.__setattr__(real, "externally_managed", "/usr/lib/python3.11/EXTERNALLY-MANAGED")
    monkeypatch.setattr(stage, "inspect", lambda python: real)
    with pytest.raises(UsageError, match="belongs to the operating system") as caught:
        install(*built, QUIET, python=python)
    assert "-m venv" in caught.value.hint


def test_command_reports_json(
    built: Built, make_environment: MakeEnvironment, capsys: pytest.CaptureFixture[str]
) -> None:
    python = make_environment()
    root = str(built[0].root)
    assert funnel(main, ["-C", root, "--json", "install", "--python", str(python.parents[1])]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["version"], shown["command"]) == (1, "install")
    assert shown["python"] == str(python)
    assert funnel(main, ["-C", root, "uninstall", "--python", str(python)]) == 0
    assert "removed vllm_fa2_sm70 0.1.0" in capsys.readouterr().out


def test_library_that_vllm_loaded_is_used_and_no_second_one(
    libraries: Path, tmp_path: Path
) -> None:
    """Case 40: a second library of that name ends the process."""
    theirs = tmp_path / "vllm" / "_vllm_fa2_C.abi3.so"
    theirs.parent.mkdir()
    theirs.write_bytes((libraries / "one.so").read_bytes())
    ours = str(libraries / "two.so")
    load = f"import torch; torch.ops.load_library({str(theirs)!r})\n"
    code = load + "import vllm_fa2_sm70 as s; print(s.library)"
    said = in_python(Path(sys.executable), code, VLLM_FA2_SM70_LIBRARY=ours)
    assert said == f"Library(path={theirs!r}, reason='', adopted=True, optional=frozenset())"
    both = [sys.executable, "-c", load + f"torch.ops.load_library({ours!r})"]
    assert subprocess.run(both, capture_output=True, cwd="/").returncode < 0
