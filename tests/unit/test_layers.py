# SPDX-License-Identifier: Apache-2.0
"""Imports go one way: formats <- emulator, system <- stages <- cli; slow libraries stay inside."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tool" / "patchctl"

FORBIDDEN = {
    "formats": ["click", "git", "torch", "subprocess", "patchctl.system", "patchctl.stages"],
    "emulator": [
        *("click", "git", "torch", "subprocess"),
        *("patchctl.system", "patchctl.stages", "patchctl.cli"),
    ],
    "system": ["click", "torch", "patchctl.stages", "patchctl.cli"],
    "stages": ["click", "git", "gitdb", "subprocess", "patchctl.cli"],
    "cli": ["git", "gitdb", "subprocess"],
}
ONLY_IN = {
    "git": "system/gitstore.py",
    "gitdb": "system/gitstore.py",
    "subprocess": "system/process.py",
}


def _origin(path: Path, level: int) -> str:
    """The package that a relative import of this level starts from; "" for an absolute one."""
    parts = path.relative_to(PACKAGE.parent).parts
    return ".".join(parts[: len(parts) - level]) if level else ""


def imported_modules(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(".".join(filter(None, (_origin(path, node.level), node.module))))
    return names


def is_inside(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


@pytest.mark.parametrize("layer", FORBIDDEN)
def test_imports_go_one_way(layer: str) -> None:
    files = sorted((PACKAGE / layer).rglob("*.py"))
    assert files
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in files
        for name in imported_modules(path)
        for package in FORBIDDEN[layer]
        if is_inside(name, package) and ONLY_IN.get(package) != str(path.relative_to(PACKAGE))
    ]
    assert wrong == []


@pytest.mark.parametrize("package", ONLY_IN)
def test_one_module_owns_the_import(package: str) -> None:
    users = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if any(is_inside(name, package) for name in imported_modules(path))
    }
    assert users == {ONLY_IN[package]}


def test_help_and_status_load_no_slow_library() -> None:
    code = (
        "import sys\n"
        "from patchctl.cli.app import funnel\n"
        "from patchctl.cli.main import main\n"
        "assert funnel(main, ['--help']) == 0\n"
        f"assert funnel(main, ['-C', {str(ROOT)!r}, 'status']) in (0, 1)\n"
        "slow = {'git', 'torch', 'unearth', 'elftools', 'numpy'} & set(sys.modules)\n"
        "assert not slow, slow\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_source_file_has_a_licence_line() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", "tool", "tests", ".ci", "Makefile", "build", "vendor"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    suffixes = {".py", ".cu", ".cuh", ".cpp", ".h", ".toml", ".j2", ""}
    missing = []
    for name in listed.stdout.decode().split("\0"):
        path = ROOT / name
        in_data = "data/" in name
        if not name or in_data or path.suffix not in suffixes or not path.is_file():
            continue
        head = path.read_bytes()[:400]
        if head and b"SPDX-License-Identifier:" not in head:
            missing.append(name)
    assert missing == []
