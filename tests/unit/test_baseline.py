# SPDX-License-Identifier: Apache-2.0
"""The baseline lock: what it may say, and how it is renewed."""

from __future__ import annotations

import pytest

from patchctl.errors import UsageError
from patchctl.formats.baseline import (
    GitCommit,
    Sdist,
    lock_inputs,
    read_lock,
    relock,
    require_locked,
)
from patchctl.formats.globs import Include

SHA256, TREE, COMMIT = "1e" * 32, "ab" * 20, "cd" * 20
SDIST = f"""\
# where it comes from
[baseline]
name = "pkg"
version = "1.0"   # the last one that fits
kind = "sdist"
sha256 = "{SHA256}"
tree = ""
include = [
    "csrc/**",
]
"""
GIT = f"""\
[baseline]
kind = "git"
url = "../upstream"
commit = "{COMMIT}"
tree = "{TREE}"
include = ["**"]
"""


def refusal(text: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        require_locked(read_lock(text, where="the.lock"), where="the.lock")
    return caught.value


def test_both_kinds_are_read() -> None:
    sdist, git = read_lock(SDIST, where="x"), read_lock(GIT, where="x")
    assert isinstance(sdist, Sdist)
    assert (str(sdist), sdist.sha256, sdist.tree) == ("pkg 1.0", SHA256, "")
    assert isinstance(git, GitCommit)
    assert (git.url, git.commit, git.tree) == ("../upstream", COMMIT, TREE)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("version =", "versoin =", "unknown key `versoin`; did you mean `version`?"),
        ("version =", "url =", "unknown key `url`; did you mean"),
        ('"sdist"', '"zip"', "`baseline.kind`: invalid value 'zip', expected one of: sdist, git"),
        ('kind = "sdist"\n', "", "missing required field `kind`"),
        ('"csrc/**"', '"/csrc/**"', "`baseline.include[0]`: `/csrc/**` must be relative"),
        ('"csrc/**"', '"csrc/../x"', "must not contain `.` or `..`"),
        ('"csrc/**"', '"csrc/**.h"', "only as a whole part"),
        ('    "csrc/**",\n', "", "`baseline.include`: no glob"),
        ('tree = ""', "tree = 3", "expected `str`, got `int`"),
        (SHA256, SHA256.upper(), f"`baseline.sha256`: got `{SHA256.upper()}`, expected 64"),
        (SHA256, SHA256[1:], "expected 64 lower-case hex digits"),
        ("[baseline]", "[baseline", "is not valid TOML"),
    ],
)
def test_wrong_value_is_named(old: str, new: str, said: str) -> None:
    assert said in refusal(SDIST.replace(old, new)).message


@pytest.mark.parametrize("commit", ["", "main", COMMIT[:12]])
def test_commit_must_be_a_full_id(commit: str) -> None:
    error = refusal(GIT.replace(COMMIT, commit))
    assert "`the.lock` at `baseline.commit`" in error.message


@pytest.mark.parametrize("key", ["tree", "sha256"])
def test_empty_digest_says_how_to_fill_it(key: str) -> None:
    text = SDIST.replace('tree = ""', f'tree = "{TREE}"')
    value = {"tree": TREE, "sha256": SHA256}[key]
    for wrong in (
        text.replace(f'{key} = "{value}"', f'{key} = ""'),
        text.replace(f'{key} = "{value}"\n', ""),
    ):
        error = refusal(wrong)
        assert f"`baseline.{key}`: empty" in error.message
        assert "patchctl fetch --lock" in error.hint


def test_relock_keeps_comments_and_order() -> None:
    changed = relock(SDIST, {"tree": TREE, "sha256": "00" * 32}, where="x")
    assert changed == SDIST.replace('tree = ""', f'tree = "{TREE}"').replace(SHA256, "00" * 32)


def test_relock_adds_a_missing_key() -> None:
    changed = relock(SDIST.replace('tree = ""\n', ""), {"tree": TREE}, where="x")
    assert read_lock(changed, where="x") == read_lock(
        SDIST.replace('tree = ""', f'tree = "{TREE}"'), where="x"
    )


def test_relock_refuses_a_layout_that_it_cannot_edit() -> None:
    text = f'baseline = {{kind = "git", url = "u", commit = "{COMMIT}", include = ["a"]}}\n'
    with pytest.raises(UsageError, match="patchctl cannot edit") as caught:
        relock(text, {"tree": TREE}, where="x")
    assert caught.value.hint == f'set tree = "{TREE}"'


def test_inputs_follow_values_and_not_comments() -> None:
    inputs = lock_inputs(read_lock(SDIST, where="x"))
    assert inputs == lock_inputs(read_lock(SDIST.replace("# where", "# Where"), where="x"))
    for old, new in [("csrc/**", "csrc/*"), ("1.0", "1.1"), (SHA256, "00" * 32)]:
        assert inputs != lock_inputs(read_lock(SDIST.replace(old, new), where="x"))


@pytest.mark.parametrize(
    ("glob", "matching", "other"),
    [
        ("csrc/**", ["csrc/a", "csrc/a/b/c", "csrc/.x"], ["csrc", "src/a", "Csrc/a", "x/csrc/a"]),
        ("*.h", ["a.h", ".h"], ["x/a.h", "a.hpp", "a.h\n"]),
        ("a/**/b.c", ["a/b.c", "a/x/y/b.c"], ["a/xb.c", "b.c"]),
        ("a?[!x]", ["abc", "a\nc"], ["a/c", "abx", "ab/"]),
        ("a+(b).c", ["a+(b).c"], ["aab.c"]),
    ],
)
def test_glob_matches_whole_paths(glob: str, matching: list[str], other: list[str]) -> None:
    include = Include((glob,))
    assert [p for p in matching + other if include.matches(p.encode())] == matching


def test_glob_matches_bytes_that_are_no_text() -> None:
    assert Include(("a/*",)).matches(b"a/\xff\xfe")


@pytest.mark.parametrize(
    ("glob", "folder", "reaches"),
    [
        ("csrc/**", "csrc/cutlass", True),
        ("csrc/cutlass/include/**", "csrc/cutlass", True),
        ("csrc/cutlass", "csrc/cutlass", False),
        ("csrc/*", "csrc/cutlass", False),
        ("csrc/flash_attn/**", "csrc/cutlass", False),
        ("**", "csrc/cutlass", True),
    ],
)
def test_glob_reaches_into_a_folder(glob: str, folder: str, reaches: bool) -> None:
    assert Include((glob,)).reaches_into(folder.encode()) is reaches


def test_globs_that_match_nothing_are_told() -> None:
    assert Include(("a/**", "b/**", "*")).unused([b"a/x", b"c"]) == ["b/**"]
