# SPDX-License-Identifier: Apache-2.0
"""TOML that is wrong names its file, key and value."""

from __future__ import annotations

import msgspec
import pytest

from patchctl.errors import UsageError
from patchctl.formats.documents import Document, read_toml


class Inner(Document):
    registers: int
    spills: int = 0


class Outer(Document):
    name: str
    kernels: dict[str, Inner] = msgspec.field(default_factory=dict)
    rows: tuple[Inner, ...] = ()
    one: Inner | None = None


def test_read_gives_frozen_values() -> None:
    document = read_toml('name = "a"\n[kernels.k]\nregisters = 3\n', Outer, where="x.toml")
    assert document.kernels["k"].registers == 3
    with pytest.raises(AttributeError):
        document.name = "b"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'name = "a"\nkernel = 1\n',
            "at `top level`: unknown key `kernel`; did you mean `kernels`",
        ),
        ('name = "a"\n[kernels.k]\nregister = 3\n', "unknown key `register`; did you mean"),
        ('name = "a"\n[[rows]]\nregisters = 1\nspils = 3\n', "did you mean `spills`"),
        ('name = "a"\n[one]\nregisters = 1\nspils = 3\n', "did you mean `spills`"),
        ('name = "a"\nzzz = 1\n', "(known: name, kernels, rows, one)"),
        ("name = 3\n", "at `name`: expected `str`, got `int`"),
        ("", "at `top level`: object missing required field `name`"),
        ("name = \n", "is not valid TOML"),
    ],
)
def test_wrong_document_says_where_and_what(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_toml(text, Outer, where="build/x.toml")
    assert "`build/x.toml`" in caught.value.message
    assert said in caught.value.message
    assert caught.value.exit_code == 2


def test_bytes_that_are_no_utf8_are_refused() -> None:
    with pytest.raises(UsageError, match="not valid TOML"):
        read_toml(b'name = "\xff"', Outer, where="x.toml")
