# SPDX-License-Identifier: Apache-2.0
"""Promises of patches (``Asserts:``) about the files of the replayed tree."""

from __future__ import annotations

import json

from tests.git.conftest import MakeProject
from tests.git.test_cases import patchctl

from patchctl.system.project import Project

FIRST = b"""\
From: A <a@example.org>
Date: Mon, 4 May 2026 03:02:01 +0200
Subject: core: one becomes two

Asserts: contains f.h: two
Asserts: compiles k.cu
---
--- a/f.h
+++ b/f.h
@@ -1 +1 @@
-one
+two
"""
SECOND = b"--- a/f.h\n+++ b/f.h\n@@ -1 +1 @@\n-two\n+three\n"
FILES = {"f.h": b"one\n", "k.cu": b"// none\n"}


def project_with(make_project: MakeProject, **patches: bytes) -> Project:
    project: Project = make_project(
        FILES, {f"000{n}-{name}.patch": data for n, (name, data) in enumerate(patches.items(), 1)}
    )
    return project


def test_kept_promise_is_silent(make_project: MakeProject) -> None:
    project = project_with(make_project, first=FIRST)
    assert patchctl(project, "replay", "--lock").returncode == 0
    assert patchctl(project, "replay").returncode == 0


def test_later_patch_that_breaks_a_promise_fails_and_names_the_earlier(
    make_project: MakeProject,
) -> None:
    project = project_with(make_project, first=FIRST, second=SECOND)
    done = patchctl(project, "replay", "--lock")
    assert done.returncode == 1
    assert "breaks 1 promise of the series" in done.stderr
    assert "0001-first.patch: `Asserts: contains f.h: two` in line 5 is not kept" in done.stderr
    assert not project.series_lock.exists()
    assert not project.source.exists()
    error = json.loads(patchctl(project, "replay", "--lock", "--json").stdout)["error"]
    assert (error["kind"], error["exit"]) == ("gate", 1)
    (finding,) = error["data"]["findings"]
    assert (finding["gate"], finding["subject"]) == ("asserts", "0001-first.patch")


def test_prefix_is_held_to_its_own_promises_only(make_project: MakeProject) -> None:
    later = SECOND.replace(b"--- a/f.h", b"Asserts: contains f.h: four\n\n--- a/f.h", 1)
    later = b"core: three\n\n" + later
    project = project_with(make_project, first=FIRST)
    assert patchctl(project, "replay", "--lock").returncode == 0
    (project.patches / "0002-second.patch").write_bytes(later)
    project.series.write_text("0001-first.patch\n0002-second.patch\n")
    assert patchctl(project, "replay", "--through", "0001-first.patch").returncode == 0
    done = patchctl(project, "replay", "--lock")
    assert done.returncode == 1
    assert "0002-second.patch: `Asserts: contains f.h: four` in line 3" in done.stderr
    assert "0001-first.patch: `Asserts: contains f.h: two`" in done.stderr


def test_wrong_promise_is_refused_with_the_line_of_the_series(make_project: MakeProject) -> None:
    wrong = FIRST.replace(b"Asserts: compiles", b"Asserts: compile")
    project = project_with(make_project, first=wrong)
    done = patchctl(project, "replay", "--lock")
    assert done.returncode == 4
    assert "patch `0001-first.patch` is malformed: line 6: `Asserts: compile k.cu`" in done.stderr
    assert "did you mean `compiles`?" in done.stderr
    assert "`patches/series` line 1" in done.stderr
