# SPDX-License-Identifier: Apache-2.0
"""The generated build file, whole."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import pytest

from patchctl.formats.ninjafile import Sources, Tools, ninja_text
from patchctl.formats.target import Target, read_target

DATA = Path(__file__).resolve().parents[1] / "data" / "ninja"
TEXT = (DATA / "target.toml").read_text()
TARGET: Target = read_target(TEXT, name="sm70", where="target.toml")
SOURCES = Sources(
    ("k/a.cu", "k/b c.cu", "generated/g.cu"),
    ("h/m.cpp", "generated/t.cpp"),
    {"generated/g.cu": "k/tables", "generated/t.cpp": "k/tables"},
)
TOOLS = Tools(
    source="../src",
    nvcc="/opt/cuda 12/bin/nvcc",
    cxx="/usr/bin/g++",
    cuda_include="/opt/cuda 12/include",
    cuda_lib="/opt/cuda 12/lib64",
    torch_include="/env/torch/include",
    torch_lib="/env/torch/lib",
    python_include="/usr/include/python3.11",
    kernel_key="CUDA 1234, g++ 12",
    host_key="g++ 12, torch 5678",
)


def unwrapped(text: str) -> str:
    return text.replace(" $\n      ", " ").replace(" $\n    ", " ")


def command(rule: str, text: str) -> str:
    lines = unwrapped(text).splitlines()
    return lines[lines.index(f"rule {rule}") + 1].removeprefix("  command = ")


def test_the_file_is_the_expected_one(pytestconfig: pytest.Config) -> None:
    # renew with: pytest tests/unit/test_ninjafile.py --renew-golden
    text = ninja_text(TARGET, SOURCES, TOOLS)
    golden = DATA / "build.ninja"
    if pytestconfig.getoption("--renew-golden"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_a_changed_key_changes_exactly_the_commands_that_it_stands_for() -> None:
    before = ninja_text(TARGET, SOURCES, TOOLS)
    after = ninja_text(TARGET, SOURCES, dataclasses.replace(TOOLS, kernel_key="CUDA 9999"))
    assert command("kernel", before) != command("kernel", after)
    assert command("host", before) == command("host", after)
    assert command("link", before) == command("link", after)


def test_words_with_blanks_and_dollars_reach_the_compiler_whole() -> None:
    tools = dataclasses.replace(TOOLS, cxx="/a $b/g++ x")
    host = command("host", ninja_text(TARGET, SOURCES, tools)).replace("$$", "$")
    words = shlex.split(host, comments=True)
    assert words[0] == "/a $b/g++ x"
    assert "-isystem/opt/cuda 12/include" in words


def test_kernels_get_no_torch_header_and_hosts_the_stable_abi() -> None:
    text = ninja_text(TARGET, SOURCES, TOOLS)
    assert "torch" not in command("kernel", text).split(" # ")[0]
    assert "-DTORCH_TARGET_VERSION=0x020a000000000000" in command("host", text)
