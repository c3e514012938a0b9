# SPDX-License-Identifier: Apache-2.0
"""The library inside a package of a real environment, and that package as it was before."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from patchctl.cli.app import funnel
from patchctl.cli.main import main
from patchctl.errors import GateFailed, LocalChanges, Unavailable, UsageError
from patchctl.formats.target import Target
from patchctl.stages.interpreter import inspect
from patchctl.stages.overlay import install_overlay, uninstall_overlay
from patchctl.stages.packageplace import find_place
from patchctl.system.project import Project
from patchctl.system.report import QuietReporter

Built = tuple[Project, Target]
MakeEnvironment = Callable[..., Path]
Approve = Callable[[Project, Target, Path], str]
CASES = Path(__file__).parents[1] / "data" / "cases"
QUIET = QuietReporter()
OURS = "_vllm_fa2_C.abi3.so"
EXPLODES = "raise ImportError('imported')\n"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATCHCTL_CACHE_DIR", str(tmp_path / "cache"))


def packages(python: Path) -> Path:
    (found,) = python.parents[1].glob("lib/python3*/site-packages")
    return found


def snapshot(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), at.st_mode, at.st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
        for at in [path.stat()]
    }


@pytest.fixture
def vllm(make_environment: MakeEnvironment, libraries: Path) -> Path:
    """The python of an environment with torch and a vllm that cannot be imported."""
    python = make_environment(torch=True)
    folder = packages(python) / "vllm" / "vllm_flash_attn"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text(EXPLODES)
    (folder / "__init__.py").write_text(EXPLODES)
    shutil.copyfile(libraries / "two.so", folder / OURS)
    (folder / OURS).chmod(0o755)
    return python


def library_in(python: Path) -> Path:
    return packages(python) / "vllm" / "vllm_flash_attn" / OURS


def test_overlay_and_exact_restoration(built: Built, vllm: Path, libraries: Path) -> None:
    before = snapshot(packages(vllm))
    done = install_overlay(*built, QUIET, python=vllm, package="vllm")
    assert done.library == library_in(vllm)
    assert done.library.read_bytes() == (libraries / "one.so").read_bytes()
    assert done.replaced == (OURS,)
    assert done.manifest.is_file()
    back = uninstall_overlay(*built, QUIET, python=vllm, package="vllm")
    assert back.restored == (OURS,)
    assert snapshot(packages(vllm)) == before


def test_library_that_does_not_load_is_rolled_back(
    built: Built, vllm: Path, tmp_path: Path, approve_library: Approve
) -> None:
    source = tmp_path / "dies.c"
    source.write_text("#include <stdlib.h>\n__attribute__((constructor)) void f() { abort(); }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", tmp_path / "dies.so"], check=True)
    approve_library(*built, tmp_path / "dies.so")
    before = snapshot(packages(vllm))
    with pytest.raises(GateFailed, match="killed by SIGABRT"):
        install_overlay(*built, QUIET, python=vllm, package="vllm")
    assert snapshot(packages(vllm)) == before


def test_failed_second_overlay_keeps_the_first(
    built: Built, vllm: Path, tmp_path: Path, approve_library: Approve, libraries: Path
) -> None:
    before = snapshot(packages(vllm))
    install_overlay(*built, QUIET, python=vllm, package="vllm")
    source = tmp_path / "none.c"
    source.write_text("int nothing;\n")
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", tmp_path / "none.so"], check=True)
    approve_library(*built, tmp_path / "none.so")
    with pytest.raises(GateFailed, match="registers no operator"):
        install_overlay(*built, QUIET, python=vllm, package="vllm")
    assert library_in(vllm).read_bytes() == (libraries / "one.so").read_bytes()
    uninstall_overlay(*built, QUIET, python=vllm, package="vllm")
    assert snapshot(packages(vllm)) == before


def test_replaced_library_is_refused_with_what_to_do(built: Built, vllm: Path) -> None:
    install_overlay(*built, QUIET, python=vllm, package="vllm")
    library_in(vllm).unlink()
    library_in(vllm).write_bytes(b"a new vLLM")
    for action in (install_overlay, uninstall_overlay):
        with pytest.raises(LocalChanges, match="pip or somebody else") as caught:
            action(*built, QUIET, python=vllm, package="vllm")
        assert "--force" in caught.value.hint
    assert library_in(vllm).read_bytes() == b"a new vLLM"


def test_immutable_library_is_refused_before_the_first_write(built: Built, vllm: Path) -> None:
    before = snapshot(packages(vllm))
    marked = subprocess.run(["chattr", "+i", library_in(vllm)], capture_output=True)
    if marked.returncode != 0:
        pytest.skip(f"chattr: {marked.stderr.decode().strip()}")
    try:
        with pytest.raises(Unavailable, match="it is marked immutable"):
            install_overlay(*built, QUIET, python=vllm, package="vllm")
    finally:
        subprocess.run(["chattr", "-i", library_in(vllm)], check=True)
    assert snapshot(packages(vllm)) == before


def test_uninstall_without_overlay_is_refused(built: Built, vllm: Path) -> None:
    with pytest.raises(UsageError, match="there is no overlay"):
        uninstall_overlay(*built, QUIET, python=vllm, package="vllm")


def test_torch_is_required(built: Built, make_environment: MakeEnvironment) -> None:
    python = make_environment()
    (packages(python) / "pkg").mkdir()
    (packages(python) / "pkg" / "__init__.py").touch()
    with pytest.raises(UsageError, match="cannot import torch"):
        install_overlay(*built, QUIET, python=python, package="pkg")


def test_old_torch_is_refused(built: Built, make_environment: MakeEnvironment) -> None:
    python = make_environment()
    for name, text in {
        "pkg": "",
        "torch": "__version__ = '2.9.1'\nclass version: cuda = None\n",
    }.items():
        (packages(python) / name).mkdir()
        (packages(python) / name / "__init__.py").write_text(text)
    with pytest.raises(UsageError, match=r"has torch 2\.9\.1; 2\.10 or later"):
        install_overlay(*built, QUIET, python=python, package="pkg")


def test_killed_overlay_is_undone_by_the_next_run(built: Built, vllm: Path, tmp_path: Path) -> None:
    before = snapshot(packages(vllm))
    site = packages(vllm)
    (site / "sitecustomize.py").write_text(
        "import pathlib, sys, time\n"
        "if 'load_library' in ' '.join(sys.orig_argv):\n"
        f"    pathlib.Path({str(tmp_path / 'waiting')!r}).touch()\n"
        "    time.sleep(60)\n"
    )
    argv = [sys.executable, "-m", "patchctl", "-C", str(built[0].root), "install"]
    child = subprocess.Popen([*argv, "--python", vllm, "--overlay", "vllm"], start_new_session=True)
    deadline = time.monotonic() + 60
    while not (tmp_path / "waiting").exists():
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    (site / "sitecustomize.py").unlink()
    assert snapshot(site) != before

    report = QuietReporter()
    with pytest.raises(UsageError, match="there is no overlay"):
        uninstall_overlay(*built, report, python=vllm, package="vllm")
    assert "was not finished" in report.warnings[0]
    assert snapshot(site) == before


def test_running_process_keeps_the_library_that_it_has_mapped(
    built: Built, vllm: Path, tmp_path: Path, approve_library: Approve
) -> None:
    """Case 41: the process that has the old library mapped touches all of it afterwards."""
    for name in ("v1", "v2"):
        command = ["gcc", "-shared", "-fPIC", "-O0", CASES / "41" / f"{name}.c"]
        subprocess.run([*command, "-o", tmp_path / f"{name}.so"], check=True)
    shutil.copyfile(tmp_path / "v1.so", library_in(vllm))
    code = (
        "import ctypes, sys\n"
        "library = ctypes.CDLL(sys.argv[1])\n"
        "print(library.answer(), flush=True)\n"
        "sys.stdin.readline()\n"
        "print(library.answer(), library.far() >= 0, flush=True)\n"
    )
    pipe = subprocess.PIPE
    argv = [sys.executable, "-c", code, library_in(vllm)]
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True) as server:
        assert server.stdin and server.stdout
        assert server.stdout.readline() == "1\n"
        old = library_in(vllm).stat().st_ino
        install_overlay(*built, QUIET, python=vllm, package="vllm")
        assert library_in(vllm).stat().st_ino != old
        assert library_in(vllm).read_bytes() != (tmp_path / "v1.so").read_bytes()
        out, _ = server.communicate("\n")
    assert (out, server.returncode) == ("1 True\n", 0)


@pytest.fixture
def editable(make_environment: MakeEnvironment, tmp_path: Path) -> Path:
    """Case 44: a package that lives in a checkout, and its metadata in site-packages."""
    python = make_environment(torch=True)
    shutil.copytree(CASES / "44", tmp_path / "44")
    checkout = tmp_path / "44" / "checkout"
    site = packages(python)
    shutil.copytree(tmp_path / "44" / "site-packages", site, dirs_exist_ok=True)
    (site / "__editable__.demo_vllm-1.0.pth").write_text(f"{checkout}\n")
    (site / "demo_vllm-1.0.dist-info" / "direct_url.json").write_text(
        json.dumps({"dir_info": {"editable": True}, "url": checkout.as_uri()})
    )
    (checkout / "demo_vllm" / "__init__.py").write_text(EXPLODES)
    return python


def test_editable_package_is_refused(built: Built, editable: Path, tmp_path: Path) -> None:
    before = snapshot(tmp_path / "44")
    with pytest.raises(UsageError, match="demo-vllm is an editable install") as caught:
        install_overlay(*built, QUIET, python=editable, package="demo_vllm.flash")
    assert str(tmp_path / "44" / "checkout" / "demo_vllm" / "flash") in caught.value.message
    assert "--into-checkout" in caught.value.hint
    assert snapshot(tmp_path / "44") == before
    assert not (packages(editable) / "demo_vllm").exists()


def test_checkout_is_changed_when_asked(built: Built, editable: Path, tmp_path: Path) -> None:
    before = snapshot(tmp_path / "44")
    package = "demo_vllm.flash"
    done = install_overlay(*built, QUIET, python=editable, package=package, into_checkout=True)
    assert done.library == tmp_path / "44" / "checkout" / "demo_vllm" / "flash" / OURS
    assert done.checkout
    uninstall_overlay(*built, QUIET, python=editable, package=package)
    assert snapshot(tmp_path / "44") == before


def test_two_copies_are_refused_and_both_named(
    editable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "44" / "user-site"))
    with pytest.raises(UsageError, match=r"2 copies of `demo_vllm\.flash`") as caught:
        find_place(inspect(editable), "demo_vllm.flash", into_checkout=True)
    assert caught.value.details == (
        f"{tmp_path}/44/user-site/demo_vllm/flash (imported)",
        f"{tmp_path}/44/checkout/demo_vllm/flash",
    )


@pytest.mark.parametrize(
    ("package", "said"),
    [
        ("nothing", "it is not installed"),
        ("demo_vllm.other", "is not a package in it"),
        ("demo_vllm/flash", "is not the name of a Python package"),
    ],
)
def test_package_that_is_not_there_is_refused(editable: Path, package: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        find_place(inspect(editable), package, into_checkout=False)


def test_command_says_what_it_replaced(
    built: Built, vllm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--python", str(vllm), "--overlay", "vllm"]
    root = str(built[0].root)
    assert funnel(main, ["-C", root, "install", *where]) == 0
    out = capsys.readouterr().out
    assert f"replaced: {OURS}; recorded in" in out
    assert "until they are restarted" in out
    assert "pip's RECORD is as it was" in out
    assert funnel(main, ["-C", root, "uninstall", *where, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["restored"] == [OURS]
