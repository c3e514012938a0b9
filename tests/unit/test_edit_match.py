# SPDX-License-Identifier: Apache-2.0
"""Which commit is which patch, after people used their git."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from patchctl.formats.editmatch import Sign, match_commits

PATCHES = [Sign(f"c{n}", f"A <a@x> {n} +0000", f"subject {n}", f"t{n}", n) for n in range(5)]


def amended(sign: Sign, position: int) -> Sign:
    return replace(sign, commit=f"new {sign.commit}", tree=f"new {sign.tree}", position=position)


def test_same_commits_are_the_same_patches() -> None:
    assert match_commits(PATCHES, PATCHES) == [0, 1, 2, 3, 4]


def test_amended_and_rebased_commits_are_found_by_author_and_date() -> None:
    commits = [amended(sign, n) for n, sign in enumerate(reversed(PATCHES))]
    assert match_commits(PATCHES, commits) == [4, 3, 2, 1, 0]


def test_reworded_commit_is_found_by_author_and_date() -> None:
    commits = [replace(amended(PATCHES[1], 0), subject="other")]
    assert match_commits(PATCHES, commits) == [1]


def test_commit_with_another_author_is_found_by_its_subject() -> None:
    commits = [replace(amended(PATCHES[1], 0), author="B <b@x> 9 +0000")]
    assert match_commits(PATCHES, commits) == [1]


def test_new_commit_is_no_patch() -> None:
    new = Sign("n", "B <b@x> 77 +0000", "new", "t", 2)
    assert match_commits(PATCHES, [PATCHES[0], new, PATCHES[1]]) == [0, None, 1]


def test_squashed_and_dropped_patches_have_no_commit() -> None:
    assert match_commits(PATCHES, [amended(PATCHES[3], 0)]) == [3]
    assert match_commits(PATCHES, []) == []
    assert match_commits([], PATCHES[:1]) == [None]


def test_patches_that_share_author_date_and_subject_go_by_position() -> None:
    twins = [replace(sign, author="A <a@x> 1 +0000", subject="same") for sign in PATCHES]
    commits = [amended(sign, n) for n, sign in enumerate(twins)]
    assert match_commits(twins, commits) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("seed", range(40))
def test_random_history_edits_never_give_a_patch_twice(seed: int) -> None:
    rng = random.Random(seed)
    patches = [
        Sign(f"c{n}", f"A{rng.randrange(3)}", f"s{rng.randrange(3)}", f"t{n}", n) for n in range(8)
    ]
    pool = [*patches, *(amended(sign, n) for n, sign in enumerate(patches))]
    commits = rng.sample(pool, rng.randrange(len(pool)))
    found = [at for at in match_commits(patches, commits) if at is not None]
    assert len(found) == len(set(found))
    for at, commit in zip(match_commits(patches, commits), commits, strict=True):
        if commit in patches:
            assert at == patches.index(commit)
