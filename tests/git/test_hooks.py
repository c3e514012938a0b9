# SPDX-License-Identifier: Apache-2.0
"""The pre-commit hooks, run by the real pre-commit; and annotations of a replay that fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.git.conftest import MakeProject, git, make_repo

from patchctl.cli.app import funnel
from patchctl.cli.main import main
from patchctl.stages.replay import replay
from patchctl.system.report import QuietReporter

ROOT = Path(__file__).resolve().parents[2]
PRE_COMMIT = shutil.which("pre-commit", path=str(Path(sys.executable).parent))
BASE = {"csrc/a.h": b"a0\na1\n"}
NAME = "0001-sm70-add-line.patch"
PATCH = f"""\
From {"0" * 40} Mon Sep 17 00:00:00 2001
From: A U Thor <a@example.org>
Date: Sun, 29 Nov 2026 12:01:00 +0000
Subject: sm70: add a line

It is needed.

Upstream-Status: Pending
Signed-off-by: A U Thor <a@example.org>
---
diff --git a/csrc/a.h b/csrc/a.h
--- a/csrc/a.h
+++ b/csrc/a.h
@@ -1,2 +1,3 @@
 a0
+new
 a1
""".encode()


def hook(identity: str, key: str) -> str:
    """One value of one hook; the file is laid out a key a line."""
    text = (ROOT / ".pre-commit-hooks.yaml").read_text()
    block = text.split(f"- id: {identity}\n")[1].split("\n- id:")[0]
    (line,) = (line for line in block.splitlines() if line.strip().startswith(f"{key}:"))
    return line.partition(":")[2].strip()


@pytest.mark.parametrize("identity", ["patchctl-lint", "patchctl-locks"])
def test_hook_passes_and_then_names_what_is_wrong(
    identity: str, make_project: MakeProject, capsys: pytest.CaptureFixture[str]
) -> None:
    project = make_project(BASE, {NAME: PATCH})
    replay(project, QuietReporter(), lock=True)
    program, *words = hook(identity, "entry").split()
    assert program == "patchctl"
    assert funnel(main, ["-C", str(project.root), *words]) == 0
    (project.patches / NAME).write_bytes(PATCH.replace(b"Pending", b"Perhaps"))
    assert funnel(main, ["-C", str(project.root), *words]) == 1
    rule = {"patchctl-lint": "[upstream-status]", "patchctl-locks": "[stale-lock]"}[identity]
    assert rule in capsys.readouterr().out


@pytest.mark.skipif(PRE_COMMIT is None, reason="pre-commit is not in this environment")
def test_real_pre_commit_runs_the_hooks_on_a_commit(
    make_project: MakeProject, tmp_path: Path
) -> None:
    assert PRE_COMMIT is not None
    project = make_project(BASE, {NAME: PATCH})
    replay(project, QuietReporter(), lock=True)
    hooks = make_repo(
        tmp_path / "hooks",
        {".pre-commit-hooks.yaml": (ROOT / ".pre-commit-hooks.yaml").read_bytes()},
    )
    config = f"repos:\n- repo: {tmp_path / 'hooks'}\n  rev: {hooks}\n  hooks:\n"
    config += "  - id: patchctl-lint\n  - id: patchctl-locks\n"
    (project.root / ".pre-commit-config.yaml").write_text(config)
    (project.root / ".gitignore").write_text("/build/out/\n")
    git(project.root, "init", "--quiet", "--template=")
    git(project.root, "add", "--all")
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "patchctl").write_text(f'#!/bin/sh\nexec {sys.executable} -m patchctl "$@"\n')
    (programs / "patchctl").chmod(0o755)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    environment |= {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PRE_COMMIT_HOME": str(tmp_path / "pre-commit"),
        "GIT_CONFIG_GLOBAL": str(tmp_path / "gitconfig"),
    }
    (tmp_path / "gitconfig").write_text("[safe]\n\tdirectory = *\n")

    def run() -> subprocess.CompletedProcess[str]:
        command = [str(PRE_COMMIT), "run", "--color=never"]
        return subprocess.run(
            command, cwd=project.root, env=environment, capture_output=True, text=True, check=False
        )

    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Passed") == 2
    (project.patches / NAME).write_bytes(PATCH.replace(b"Pending", b"Perhaps"))
    git(project.root, "add", "--all")
    done = run()
    assert done.returncode == 1
    assert done.stdout.count("Failed") == 2
    assert f"patches/{NAME}:8: error: `Upstream-Status: Perhaps` is none of" in done.stdout
    assert "patchctl replay --lock" in done.stdout


@pytest.mark.parametrize("how", ["variable", "option"])
def test_replay_that_fails_is_annotated_at_the_hunk(
    how: str,
    make_project: MakeProject,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    project = make_project(BASE, {NAME: PATCH.replace(b" a1\n", b" other\n")})
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    words = ["-C", str(project.root), "replay"]
    assert funnel(main, words) == 4
    assert "::error" not in capsys.readouterr().err
    if how == "variable":
        monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert funnel(main, [*words, *["--annotate"] * (how == "option")]) == 4
    (line,) = (x for x in capsys.readouterr().err.splitlines() if x.startswith("::error"))
    assert line.startswith(f"::error file=patches/{NAME},line=14,title=patch does not apply::")
    for part in (f"patch `{NAME}`", "`csrc/a.h`, hunk 1 of 1, line 2", "expected: `other`"):
        assert part in line
