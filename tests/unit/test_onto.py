# SPDX-License-Identifier: Apache-2.0
"""What --onto takes, and the lock that follows from it."""

from __future__ import annotations

import pytest

from patchctl.errors import UsageError
from patchctl.formats.baseline import read_lock
from patchctl.formats.onto import Commit, Release, lock_for, parse_onto

ID = "0123456789abcdef0123456789abcdef01234567"
SDIST = """\
# Where it comes from.
[baseline]
name = "flash-attn"  # of the index
version = "2.8.3"
kind = "sdist"
sha256 = "{sha256}"
tree = "{tree}"
include = ["csrc/**"]
""".format(sha256="ab" * 32, tree="cd" * 20)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("flash-attn==2.8.3.post2", Release("flash-attn", "2.8.3.post2")),
        (" flash_attn == 3.0rc1 ", Release("flash_attn", "3.0rc1")),
        (f"../flash-attention@{ID}", Commit("../flash-attention", ID)),
        (f"ssh://git@host/x.git@{ID}", Commit("ssh://git@host/x.git", ID)),
        ("dl/flash_attn-2.9.tar.gz", Release("flash-attn", "2.9", "dl/flash_attn-2.9.tar.gz")),
        ("a-b-1.0.post1.tar.xz", Release("a-b", "1.0.post1", "a-b-1.0.post1.tar.xz")),
    ],
)
def test_form_is_told_from_the_text(text: str, expected: object) -> None:
    assert parse_onto(text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("flash-attn", "none of the known forms"),
        ("flash-attn>=2", "none of the known forms"),
        ("flash-attn==2.*", "`2.*` is no version"),
        ("flash-attn[x]==2", "`flash-attn[x]` is no package's name"),
        ("==2", "`` is no package's name"),
        ("../clone@0123abc", "is a short commit id"),
        ("../clone@main", "none of the known forms"),
        ("source-main.tar.gz", "`main` is no version"),
    ],
)
def test_anything_else_is_refused_with_the_forms(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_onto(text)
    assert said in caught.value.message
    assert caught.value.hint


def test_lock_of_the_same_kind_keeps_every_other_byte() -> None:
    new = lock_for(Release("flash-attn", "2.9"), SDIST, where="x")
    changed = [(a, b) for a, b in zip(SDIST.split("\n"), new.split("\n"), strict=True) if a != b]
    assert [b for _, b in changed] == ['version = "2.9"', 'sha256 = ""', 'tree = ""']


def test_lock_of_another_kind_keeps_comments_and_globs() -> None:
    new = lock_for(Commit("../clone", ID), SDIST, where="x")
    assert new.startswith("# Where it comes from.\n[baseline]\n")
    source = read_lock(new, where="x")
    assert (source.include, source.tree) == (("csrc/**",), "")
    back = lock_for(Release("flash-attn", "2.8.3"), new, where="x")
    assert 'kind = "sdist"' in back
    assert "commit" not in back


def test_release_is_known_in_every_spelling() -> None:
    wanted = Release("Flash_Attn", "2.8.3.post02")
    assert wanted.names("flash-attn", "2.8.3.post2")
    assert not wanted.names("flash-attn", "2.8.3")
    assert not wanted.names("flash-attn", "no version")
