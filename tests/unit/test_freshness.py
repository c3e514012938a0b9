# SPDX-License-Identifier: Apache-2.0
"""Content that changed behind the back of time stamps."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from patchctl.stages.freshness import source_files, take_snapshot

OLD = 1_000_000_000_000_000_000  # ns, in 2001


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    source = tmp_path / "src"
    (source / "a").mkdir(parents=True)
    (source / "a" / "x.h").write_text("one")
    (source / "y.cu").write_text("two")
    return source


def snapshot(tree: Path) -> bool:
    return take_snapshot(tree, source_files(tree), tree.parent / "out")


def test_files_are_listed_sorted_and_relative(tree: Path) -> None:
    assert source_files(tree) == ["a/x.h", "y.cu"]


def test_an_ordinary_edit_is_left_to_ninja(tree: Path) -> None:
    assert snapshot(tree)
    path = tree / "a" / "x.h"
    path.write_text("edited")
    later = path.stat().st_mtime_ns + 10**10
    os.utime(path, ns=(later, later))
    assert snapshot(tree)


def test_an_older_file_with_other_content_is_noticed_once(tree: Path) -> None:
    assert snapshot(tree)
    path = tree / "a" / "x.h"
    path.write_text("from a backup")
    os.utime(path, ns=(OLD, OLD))
    assert not snapshot(tree)
    assert snapshot(tree)


def test_an_edit_of_the_same_size_whose_time_was_set_back_is_noticed(tree: Path) -> None:
    path = tree / "a" / "x.h"
    stamp = path.stat().st_mtime_ns
    assert snapshot(tree)
    path.write_text("two")
    os.utime(path, ns=(stamp, stamp))
    assert not snapshot(tree)


def test_an_older_file_with_the_same_content_is_nothing(tree: Path) -> None:
    assert snapshot(tree)
    os.utime(tree / "a" / "x.h", ns=(OLD, OLD))
    assert snapshot(tree)


def test_a_damaged_memory_is_written_anew(tree: Path) -> None:
    assert snapshot(tree)
    (memory,) = (tree.parent / "out").iterdir()
    memory.write_text("{")
    assert snapshot(tree)
    assert memory.read_text() != "{"
