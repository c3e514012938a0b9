# SPDX-License-Identifier: Apache-2.0
"""An unchanged prefix of the series is taken from before, by content, and only then."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from tests.git.conftest import MakeProject, Series, git

from patchctl.errors import LockMismatch, PatchDoesNotApply
from patchctl.stages.replay import replay
from patchctl.system.gitstore import Store
from patchctl.system.report import QuietReporter

QUIET = QuietReporter()
PATCHES = 40


@pytest.fixture
def series(make_project: MakeProject) -> Series:
    lines = [b"line %d\n" % n for n in range(PATCHES * 10)]
    series = Series(make_project({"a.h": b"".join(lines), "b.h": b"b\n"}))
    for number in range(PATCHES):
        lines[number * 10 + 5] = b"patch %d\n" % number
        series.commit(f"core: change {number}", {"a.h": b"".join(lines)}, "Why, and so on.")
    return series.export()


@pytest.fixture
def read_objects(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every tree that is listed and every blob that is read, as it happens."""
    seen: list[str] = []

    def watch(name: str) -> None:
        original: Callable[..., object] = getattr(Store, name)

        def watched(self: Store, hex_id: str, **options: bool) -> object:
            seen.append(hex_id)
            return original(self, hex_id, **options)

        monkeypatch.setattr(Store, name, watched)

    watch("read_tree")
    watch("read_blob")
    return seen


def reword(series: Series, number: int) -> None:
    path = series.project.patches / series.names[number - 1]
    text = path.read_bytes()
    assert b"Why, and" in text
    path.write_bytes(text.replace(b"Why, and", b"Why and"))


def test_change_of_one_patch_applies_only_it_and_the_later_ones(
    series: Series, read_objects: list[str]
) -> None:
    old = series.lock().patches
    reword(series, 31)
    read_objects.clear()
    result = replay(series.project, QUIET, lock=True)
    assert result.reused == 30
    trees = {patch.tree for patch in old}
    # of the trees only the one that the work starts from
    assert [hex_id for hex_id in read_objects if hex_id in trees] == [old[29].tree]
    new = series.lock().patches
    assert new[:30] == old[:30]
    assert [patch.tree for patch in new] == [patch.tree for patch in old]
    assert all(a.commit != b.commit for a, b in zip(new[30:], old[30:], strict=True))


def test_result_is_the_same_as_without_reuse(series: Series) -> None:
    reword(series, 31)
    replay(series.project, QUIET, lock=True)
    lock = series.lock()
    (series.project.records / "prefixes.json").unlink()
    (series.project.records / "replay.json").unlink()
    assert replay(series.project, QUIET).reused == 0
    assert series.lock() == lock


def test_times_play_no_part(series: Series) -> None:
    reword(series, 31)
    path = series.project.patches / series.names[30]
    for name in series.names:
        os.utime(series.project.patches / name, (1, 1))
    assert path.stat().st_mtime == 1
    assert replay(series.project, QUIET, lock=True).reused == 30
    for name in series.names:
        os.utime(series.project.patches / name)
    (series.project.records / "replay.json").unlink()
    assert replay(series.project, QUIET).reused == PATCHES


def test_committed_lock_is_not_believed(series: Series) -> None:
    """Only what was replayed here is reused; a lock that says otherwise is a mismatch."""
    text = series.project.series_lock.read_text()
    tree = series.lock().patches[4].tree
    series.project.series_lock.write_text(text.replace(tree, "0" * 40))
    with pytest.raises(LockMismatch) as caught:
        replay(series.project, QUIET)
    assert series.names[4] in caught.value.message


def test_strip_level_and_name_are_a_part_of_the_content(series: Series) -> None:
    text = series.project.series.read_text()
    series.project.series.write_text(text.replace(series.names[20], f"{series.names[20]} -p0"))
    with pytest.raises(PatchDoesNotApply) as caught:
        replay(series.project, QUIET, lock=True)
    assert series.names[20] in caught.value.message
    series.project.series.write_text(text)
    old = series.names[20]
    (series.project.patches / old).rename(series.project.patches / "0021-other.patch")
    series.project.series.write_text(text.replace(old, "0021-other.patch"))
    assert replay(series.project, QUIET, lock=True).reused == 20


def test_another_baseline_reuses_nothing(series: Series) -> None:
    git(series.upstream, "checkout", "--quiet", "--detach", series.start)
    (series.upstream / "b.h").write_text("B\n")
    git(series.upstream, "commit", "--quiet", "--all", "-m", "another baseline")
    commit, tree = git(series.upstream, "rev-parse", "HEAD", "HEAD^{tree}").split()
    lock = series.project.baseline_lock
    was = git(series.upstream, "rev-parse", f"{series.start}^{{tree}}")
    lock.write_text(lock.read_text().replace(series.start, commit).replace(was, tree))
    assert replay(series.project, QUIET, lock=True).reused == 0
    assert (series.project.source / "b.h").read_text() == "B\n"


def test_lost_objects_are_made_again(series: Series) -> None:
    import shutil

    shutil.rmtree(series.project.store)
    result = replay(series.project, QUIET)
    assert result.reused == 0
    git(series.project.store, "fsck", "--strict", "refs/patchctl/head")


def test_damaged_record_is_as_none(series: Series) -> None:
    (series.project.records / "prefixes.json").write_bytes(b'[["x"')
    (series.project.records / "replay.json").unlink()
    assert replay(series.project, QUIET).reused == 0


def test_shorter_replay_does_not_forget_the_longer_one(series: Series) -> None:
    replay(series.project, QUIET, through=series.names[4])
    assert replay(series.project, QUIET).reused == PATCHES


def test_objects_come_as_one_pack_that_git_finds_sound(series: Series) -> None:
    packs = list((series.project.store / "objects" / "pack").glob("*.pack"))
    assert packs
    git(series.project.store, "fsck", "--strict", "--full", "refs/patchctl/head")
    git(series.project.store, "verify-pack", *(str(pack) for pack in packs))
