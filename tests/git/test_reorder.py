# SPDX-License-Identifier: Apache-2.0
"""drop and move: the rest of the series goes on top again, or nothing changes."""

from __future__ import annotations

import pytest
from tests.git.conftest import MakeProject, Series

from patchctl.errors import LocalChanges, MergeConflict, Unavailable, UsageError
from patchctl.stages.edit import open_edit
from patchctl.stages.editsession import load_session
from patchctl.stages.reorder import drop, move
from patchctl.stages.replay import replay
from patchctl.system.report import QuietReporter
from patchctl.system.seriesjournal import finish_replacement

QUIET = QuietReporter()


@pytest.fixture
def series(make_project: MakeProject) -> Series:
    """Four patches: the second edits what the first added, the others are on their own."""
    lines = [b"line %d\n" % n for n in range(60)]
    series = Series(make_project({"a.h": b"".join(lines), "b.h": b"b\n"}))
    lines[20:20] = [b"added\n", b"more\n"]
    series.commit("a: add", {"a.h": b"".join(lines)})
    lines[20] = b"changed\n"
    series.commit("a: change", {"a.h": b"".join(lines)})
    lines[50] = b"far\n"
    series.commit("a: far", {"a.h": b"".join(lines)})
    series.commit("b: other", {"b.h": b"B\n"})
    return series.export()


def test_drop_puts_the_later_patches_on_top_of_the_rest(series: Series) -> None:
    before = series.files()
    done = drop(series.project, QUIET, "2")
    assert done.patch == "0002-a-change.patch"
    assert [fate for _, fate in done.patches] == ["kept", "kept", "kept"]
    after = series.files()
    assert "0002-a-change.patch" not in after
    assert after["0003-a-far.patch"] == before["0003-a-far.patch"]
    replay(series.project, QUIET)
    assert b"added\nmore\n" in (series.project.source / "a.h").read_bytes()


def test_drop_of_what_a_later_patch_needs_changes_nothing(series: Series) -> None:
    before = series.files()
    with pytest.raises(MergeConflict) as caught:
        drop(series.project, QUIET, "0001-a-add")
    assert "`0002-a-change.patch`" in caught.value.message and "`a.h`" in caught.value.message
    assert "0002-a-change.patch" in caught.value.hint
    assert series.files() == before


def test_move_shifts_hunks_and_nothing_else(series: Series) -> None:
    before = series.files()
    done = move(series.project, QUIET, "3", before="1")
    assert series.names == [
        "0003-a-far.patch", "0001-a-add.patch", "0002-a-change.patch", "0004-b-other.patch"
    ]  # fmt: skip
    assert dict(done.patches)["0003-a-far.patch"] == "merged"
    after = series.files()
    assert after["0001-a-add.patch"] == before["0001-a-add.patch"]
    old, new = (f["0003-a-far.patch"].split(b"\n") for f in (before, after))
    differing = [b for a, b in zip(old, new, strict=True) if a != b]
    assert [line[:5] for line in differing] == [b"index", b"@@ -4"]


def test_move_there_and_back_gives_the_same_result(series: Series) -> None:
    locked = series.lock()
    move(series.project, QUIET, "3", before="1")
    assert series.lock().patches[-1].tree == locked.patches[-1].tree
    move(series.project, QUIET, "3", after="2")
    assert [p.tree for p in series.lock().patches] == [p.tree for p in locked.patches]
    assert series.names == [p.name for p in locked.patches]


def test_move_across_a_patch_that_it_needs_changes_nothing(series: Series) -> None:
    before = series.files()
    with pytest.raises(MergeConflict):
        move(series.project, QUIET, "2", before="1")
    assert series.files() == before


def test_move_beside_itself_is_refused(series: Series) -> None:
    with pytest.raises(UsageError):
        move(series.project, QUIET, "2", after="2")


def test_open_edit_with_changes_is_not_pulled_away(series: Series) -> None:
    folder = open_edit(series.project, QUIET, "3").folder
    drop(series.project, QUIET, "4")  # not covered
    (folder / "b.h").write_text("mine\n")
    before = series.files()
    with pytest.raises(LocalChanges):
        drop(series.project, QUIET, "2")
    assert series.files() == before
    (folder / "b.h").write_text("b\n")
    drop(series.project, QUIET, "2")
    assert load_session(series.project) is None


def test_drop_keeps_a_copy_of_the_file(series: Series) -> None:
    patch = series.files()["0004-b-other.patch"]
    done = drop(series.project, QUIET, "4")
    assert done.kept is not None and done.kept.read_bytes() == patch


def test_open_rebase_keeps_the_series_as_it_is(series: Series) -> None:
    session = series.project.out / "session" / "rebase.json"
    session.parent.mkdir(parents=True)
    session.write_text("{}")
    before = series.files()
    with pytest.raises(LocalChanges, match="a rebase is open"):
        drop(series.project, QUIET, "4")
    with pytest.raises(LocalChanges, match="a rebase is open"):
        move(series.project, QUIET, "4", before="1")
    assert series.files() == before


@pytest.mark.parametrize("text", ["{", '{"": null}', '{"../x": null}', '{"tool/x": null}'])
def test_damaged_journal_is_named_and_carries_out_nothing(series: Series, text: str) -> None:
    journal = series.project.patches / ".series-change.json"
    journal.write_text(text)
    before = series.files()
    with pytest.raises(Unavailable, match=r"series-change\.json"):
        finish_replacement(series.project, QUIET)
    assert series.files() == before
