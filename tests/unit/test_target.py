# SPDX-License-Identifier: Apache-2.0
"""The description of a target."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchctl.errors import UsageError
from patchctl.formats.target import Target, read_target

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "build" / "sm70.toml").read_text()


def read(text: str, name: str = "sm70") -> Target:
    return read_target(text, name=name, where="build/sm70.toml")


def test_the_projects_own_target_is_what_the_design_says() -> None:
    target = read(TEXT)
    assert (target.library, target.arch, target.ptx) == ("_vllm_fa2_C", "sm_70", "compute_70")
    assert target.filename == "_vllm_fa2_C.abi3.so"
    assert target.abi.torch_macro == "0x020a000000000000"  # 2.10
    assert target.abi.python_macro == "0x030a0000"  # 3.10


def test_an_unknown_key_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(UsageError) as caught:
        read(TEXT.replace("memory_mib", "memory_mb"))
    assert caught.value.message == (
        "`build/sm70.toml` at `limits`: unknown key `memory_mb`; did you mean `memory_mib`?"
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('arch = "sm_70"', 'arch = "70"', "at `arch`"),
        ('ptx = "compute_70"', "", "`ptx`"),
        ('library = "_vllm_fa2_C"', 'library = "../x"', "at `library`"),
        ("memory_mib = 2048", "memory_mib = 0", "at `limits.memory_mib`"),
        ('"csrc/flash_attn/src"', '"/usr/include"', "not a path inside the replayed tree"),
        ('"csrc/flash_attn/src/sm70/*.cu"', '"../x/*.cu"', "not a path inside the replayed tree"),
        ("[abi]", "[abi", "is not valid TOML"),
    ],
)
def test_a_wrong_value_names_its_place(old: str, new: str, said: str) -> None:
    assert old in TEXT
    with pytest.raises(UsageError) as caught:
        read(TEXT.replace(old, new))
    assert "`build/sm70.toml`" in caught.value.message
    assert said in caught.value.message


def test_a_name_that_is_not_the_files_is_refused() -> None:
    with pytest.raises(UsageError, match="got `sm70`, expected `sm80`"):
        read(TEXT, name="sm80")
