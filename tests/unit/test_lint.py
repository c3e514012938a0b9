# SPDX-License-Identifier: Apache-2.0
"""`patchctl lint`: every rule, with the file and the line that it is about."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from patchctl.cli.app import funnel
from patchctl.cli.main import main
from patchctl.formats.serieslock import (
    LockedBaseline,
    LockedPatch,
    SeriesLock,
    write_series_lock,
)
from patchctl.stages.lint import lint
from patchctl.system.project import Project

ROOT = Path(__file__).resolve().parents[2]
TREE = "a" * 40
ZERO = "0" * 40
PATCH = f"""\
From {ZERO} Mon Sep 17 00:00:00 2001
From: A U Thor <a@example.org>
Date: Sun, 29 Nov 2026 12:01:00 +0000
Subject: sm70: add a line

It is needed.

Upstream-Status: Submitted [the list]
Signed-off-by: A U Thor <a@example.org>
---
 csrc/a.h | 1 +
 1 file changed, 1 insertion(+)

diff --git a/csrc/a.h b/csrc/a.h
index {"1" * 40}..{"2" * 40} 100644
--- a/csrc/a.h
+++ b/csrc/a.h
@@ -1,2 +1,3 @@
 a0
+new
 a1
"""
NAMES = ("0001-sm70-add-line.patch", "0002-sm70-add-other.patch")
BASELINE = (
    '[baseline]\nkind = "sdist"\nname = "x"\nversion = "1"\n'
    f'sha256 = "{"b" * 64}"\ntree = "{TREE}"\ninclude = ["**"]\n'
)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Two patches in house form, locked on one baseline."""
    for folder in ("patches", "vendor"):
        (tmp_path / folder).mkdir()
    for name in NAMES:
        (tmp_path / "patches" / name).write_text(PATCH)
    (tmp_path / "patches" / "series").write_text("# ours\n" + "".join(f"{n}\n" for n in NAMES))
    (tmp_path / "vendor" / "flash-attn.lock.toml").write_text(BASELINE)
    (tmp_path / "vendor" / "cuda.lock.toml").write_text('version = "12.4"\n')
    project = Project(tmp_path, tmp_path / "build" / "out")
    relock(project)
    return project


def relock(project: Project) -> None:
    """A lock that is fresh; its trees and commits are invented, as lint cannot know them."""
    names = [n for n in project.series.read_text().split() if n.endswith(".patch")]
    patches = tuple(
        LockedPatch(
            name=name,
            sha256=hashlib.sha256((project.patches / name).read_bytes()).hexdigest(),
            tree=hashlib.sha1(name.encode()).hexdigest(),
            commit=hashlib.sha1(b"c" + name.encode()).hexdigest(),
        )
        for name in names
    )
    head = patches[-1].commit if patches else "c" * 40
    lock = SeriesLock(
        head=head, baseline=LockedBaseline(tree=TREE, commit="c" * 40), patches=patches
    )
    project.series_lock.write_text(write_series_lock(lock))


def said(project: Project) -> list[str]:
    return [str(remark) for remark in lint(project)]


def edit(project: Project, old: str, new: str, name: str = NAMES[0]) -> None:
    path = project.patches / name
    data = path.read_bytes()
    assert old.encode() in data
    path.write_bytes(data.replace(old.encode(), new.encode("utf-8"), 1))
    relock(project)


def test_own_series_is_clean() -> None:
    assert lint(Project(ROOT, ROOT / "build" / "out")) == []


def test_series_in_house_form_has_no_remark(project: Project) -> None:
    assert said(project) == []


FILE = f"patches/{NAMES[0]}"


@pytest.mark.parametrize(
    ("old", "new", "line", "rule"),
    [
        ("Subject: sm70: add", "Subject: [PATCH] sm70: add", 4, "brackets"),
        ("Subject: sm70: add", "Subject: [PATCH 1/2] sm70: add", 4, "brackets"),
        ("sm70: add a line", "Add a line", 4, "subject"),
        ("sm70: add a line", "sm70: add a line.", 4, "subject"),
        ("sm70: add a line", "sm70: add " + "x" * 80, 4, "subject-length"),
        ("Upstream-Status: Submitted [the list]\n", "", 4, "upstream-status"),
        ("Submitted [the list]", "Submitted", 8, "upstream-status"),
        ("Submitted [the list]", "Sent", 8, "upstream-status"),
        ("Signed-off-by: A U Thor <a@example.org>\n", "", 4, "signed-off-by"),
        ("by: A U Thor <a@example.org>", "by: A U Thor", 9, "signed-off-by"),
        ("It is needed.\n\n", "", 4, "body"),
        (f"From {ZERO}", f"From {'1' * 40}", 1, "commit-id"),
        (f"index {'1' * 40}..{'2' * 40}", "index 1111111..2222222", 15, "index"),
        (" a1\n", " a1\n-- \n2.39.5\n", 22, "signature"),
        ("@@ -1,2 +1,3 @@", "@@ -1,2 +1,4 @@", 22, "malformed"),
        ("Signed-off", "Asserts: sybmol x\nSigned-off", 9, "malformed"),
        ("\n", "\r\n", 1, "malformed"),
    ],
)
def test_patch_that_is_not_in_house_form(
    project: Project, old: str, new: str, line: int, rule: str
) -> None:
    edit(project, old, new)
    remarks = lint(project)
    assert [(r.file, r.line, r.rule) for r in remarks] == [(FILE, line, rule)]


@pytest.mark.parametrize(
    "status", ["Pending", "Denied", "Pending [soon]", "Backport [v3]", "Inappropriate [sm_70]"]
)
def test_known_states_are_accepted(project: Project, status: str) -> None:
    edit(project, "Submitted [the list]", status)
    assert said(project) == []


def test_patch_that_is_no_mail_has_no_author(project: Project) -> None:
    path = project.patches / NAMES[0]
    path.write_text("sm70: add a line\n\n" + PATCH[PATCH.index("diff --git") :])
    relock(project)
    rules = [r.rule for r in lint(project)]
    assert rules == ["author", "body", "signed-off-by", "upstream-status"]


def test_every_wrong_line_of_the_series_is_said(project: Project) -> None:
    project.series.write_text(
        f"{NAMES[0]} -p7\n../x.patch\n{NAMES[1]}\n{NAMES[1]}\n0003-a-b.patch\n"
    )
    remarks = [(r.file, r.line, r.rule) for r in lint(project, ["series"])]
    assert remarks == [
        (FILE, 1, "unlisted"),
        ("patches/series", 1, "series-line"),
        ("patches/series", 2, "series-line"),
        ("patches/series", 4, "series-line"),
        ("patches/series", 5, "missing"),
    ]


@pytest.mark.parametrize(
    ("first", "second", "rule"),
    [
        ("0002-a-b.patch", "0001-a-b.patch", "numbering"),
        ("0001-a-b.patch", "0001-c-d.patch", "numbering"),
        ("0001-a-b.patch", "fix.patch", "name"),
        ("0001-a-b.patch", "0002-Fix_It.patch", "name"),
    ],
)
def test_names_and_numbers(project: Project, first: str, second: str, rule: str) -> None:
    for old, new in zip(NAMES, (first, second), strict=True):
        (project.patches / old).rename(project.patches / new)
    project.series.write_text(f"{first}\n\n{second}\n")
    relock(project)
    assert [(r.line, r.rule) for r in lint(project)] == [(3, rule)]


def test_gaps_between_numbers_are_left_by_dropped_patches(project: Project) -> None:
    (project.patches / NAMES[1]).rename(project.patches / "0009-a-b.patch")
    project.series.write_text(f"{NAMES[0]}\n0009-a-b.patch\n")
    relock(project)
    assert said(project) == []


# -- locks


def stale(project: Project) -> list[tuple[str, int]]:
    remarks = lint(project, ["locks"])
    assert {r.rule for r in remarks} <= {"stale-lock"}
    return [(r.message.split(",")[0], r.line) for r in remarks]


def test_edited_patch_makes_the_lock_stale(project: Project) -> None:
    path = project.patches / NAMES[1]
    old = hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_text(PATCH.replace("needed", "wanted"))
    new = hashlib.sha256(path.read_bytes()).hexdigest()
    line = project.series_lock.read_text().split("\n").index(f'sha256 = "{old}"', 12) + 1
    remarks = lint(project, ["locks"])
    assert [r.message for r in remarks] == [f"`{NAMES[1]}` has sha256 {new}, the lock has {old}"]
    assert remarks[0].hint == "patchctl replay --lock"
    assert line > remarks[0].line  # both patches had the same bytes: the first line that has them


def test_series_and_lock_of_different_patches(project: Project) -> None:
    project.series.write_text(f"{NAMES[1]}\n{NAMES[0]}\n")
    assert stale(project) == [("has the patches in another order than the series", 8)]
    project.series.write_text(f"{NAMES[1]}\n")
    assert [text for text, _ in stale(project)] == [
        f"has `{NAMES[0]}`",
    ]


def test_new_baseline_makes_the_lock_stale(project: Project) -> None:
    project.baseline_lock.write_text(BASELINE.replace(TREE, "d" * 40))
    assert stale(project) == [(f"locks the baseline's tree {TREE}", 5)]


def test_missing_and_orphaned_locks(project: Project) -> None:
    (project.root / "vendor" / "newer.lock.toml").write_text(BASELINE)
    project.series_lock.rename(project.patches / "series.older.lock.toml")
    assert [(r.file, r.rule, r.severity) for r in lint(project, ["locks"])] == [
        ("patches/series.lock.toml", "stale-lock", "error"),
        ("patches/series.newer.lock.toml", "stale-lock", "error"),
        ("patches/series.older.lock.toml", "orphan", "warning"),
    ]
    hints = [r.hint for r in lint(project, ["locks"])]
    assert hints[1] == "patchctl --baseline newer replay --lock"


def test_open_digest_and_broken_toml_are_the_lock_files_fault(project: Project) -> None:
    project.baseline_lock.write_text(BASELINE.replace(TREE, ""))
    (project.root / "vendor" / "broken.lock.toml").write_text("[baseline\n")
    assert [(r.file, r.rule) for r in lint(project, ["locks"])] == [
        ("vendor/broken.lock.toml", "baseline-lock"),
        ("vendor/flash-attn.lock.toml", "baseline-lock"),
    ]


# -- the command

Call = Callable[..., int]


def call(project: Project, *words: str) -> int:
    return funnel(main, ["-C", str(project.root), "lint", *words])


def test_command_passes_with_warnings_and_fails_with_errors(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(project, "sm70: add a line", "sm70: add " + "x" * 80)
    assert call(project) == 0
    assert capsys.readouterr().out.endswith("[subject-length]\n0 errors, 1 warning\n")
    edit(project, "Submitted [the list]", "Sent")
    assert call(project) == 1
    shown = capsys.readouterr()
    assert f"{FILE}:8: error: `Upstream-Status: Sent` is none of" in shown.out
    assert shown.err.startswith("error: lint: 1 error, 1 warning")


def test_json_holds_the_findings(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    edit(project, "Submitted [the list]", "Sent")
    assert call(project, "--json") == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["exit"], error["data"]["errors"]) == (1, 1)
    (finding,) = error["data"]["findings"]
    assert (finding["file"], finding["line"]) == (FILE, 8)
    assert call(project, "--json", "--only", "locks") == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []


def test_github_format_is_asked_for_or_found(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(project, "Submitted [the list]", "Sent")
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    assert call(project, "--format", "github") == 1
    asked = capsys.readouterr().out
    assert asked.startswith(f"::error file={FILE},line=8,title=upstream-status::")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(project.root.parent))
    assert call(project) == 1
    found = capsys.readouterr().out
    assert f"::error file={project.root.name}/{FILE},line=8," in found
    assert call(project, "--format", "text") == 1
    assert "::error" not in capsys.readouterr().out
