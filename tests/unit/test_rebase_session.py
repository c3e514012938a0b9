# SPDX-License-Identifier: Apache-2.0
"""A rebase as data."""

from __future__ import annotations

import pytest

from patchctl.errors import UsageError
from patchctl.formats.rebasesession import (
    Fit,
    Outcome,
    Session,
    Step,
    read_session,
    write_session,
)


def session(*outcomes: Outcome) -> Session:
    steps = tuple(
        Step(
            patch=f"{n}.patch",
            subject=f"subject {n}",
            old=f"old{n}",
            fit=Fit.CLEAN,
            outcome=outcome,
            new=f"new{n}" if outcome.has_commit else "",
        )
        for n, outcome in enumerate(outcomes)
    )
    return Session(
        baseline="flash-attn",
        onto="x==1",
        source="x 1",
        old_source="x 0",
        old_base="oldbase",
        old_head="oldhead",
        new_base="newbase",
        lock="",
        steps=steps,
        before={"patches/series": "aa"},
    )


def test_head_is_the_last_commit_that_is_done() -> None:
    assert session().head == "newbase"
    assert session(Outcome.PENDING).head == "newbase"
    assert session(Outcome.UPSTREAM, Outcome.PENDING).head == "newbase"
    assert session(Outcome.APPLIED, Outcome.SKIPPED, Outcome.STOPPED).head == "new0"
    assert session(Outcome.APPLIED, Outcome.RESOLVED, Outcome.UPSTREAM).head == "new1"


def test_position_is_the_first_patch_with_work_to_do() -> None:
    for outcome in Outcome:
        expected = 1 if outcome.is_open else 2
        assert session(Outcome.APPLIED, outcome).position == expected
    assert session(Outcome.APPLIED).current is None


def test_only_the_current_patch_changes() -> None:
    before = session(Outcome.APPLIED, Outcome.PENDING, Outcome.PENDING)
    after = before.with_current(Outcome.REUSED, new="made", conflicts=("a.h",))
    assert [step.outcome for step in after.steps] == [
        Outcome.APPLIED,
        Outcome.REUSED,
        Outcome.PENDING,
    ]
    assert (after.head, after.steps[1].conflicts) == ("made", ("a.h",))
    assert before.position == 1


@pytest.mark.parametrize(("outcome", "new"), [(Outcome.APPLIED, ""), (Outcome.SKIPPED, "made")])
def test_commit_goes_with_those_outcomes_that_have_one(outcome: Outcome, new: str) -> None:
    with pytest.raises(ValueError, match="no such step"):
        session(Outcome.PENDING).with_current(outcome, new=new)
    with pytest.raises(ValueError, match="no such step"):
        session().with_current(Outcome.SKIPPED)


def test_written_and_read_back_it_is_the_same() -> None:
    there = session(*Outcome)
    assert read_session(write_session(there), where="s") == there


@pytest.mark.parametrize("damage", [lambda d: d[:-9], lambda d: d.replace(b'": 1', b'": 2')])
def test_damaged_record_says_how_to_get_out(damage: object) -> None:
    assert callable(damage)
    with pytest.raises(UsageError) as caught:
        read_session(damage(write_session(session())), where="build/out/session/rebase.json")
    assert "build/out/session/rebase.json" in caught.value.message
    assert "patchctl rebase --abort" in caught.value.hint
