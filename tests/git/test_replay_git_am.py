# SPDX-License-Identifier: Apache-2.0
"""Replay against the real ``git am``: the same trees, and the same commit ids."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.git.conftest import IDENTITY, MakeProject, git

from patchctl.errors import PatchDoesNotApply
from patchctl.formats.mail import TOOL_EMAIL, TOOL_NAME
from patchctl.stages.replay import HEAD_REF, replay
from patchctl.system.project import Project
from patchctl.system.report import QuietReporter

BASE = {
    "csrc/a.h": b"".join(b"line %d\n" % n for n in range(60)),
    "csrc/b.cu": b"one\ntwo\nthree",
    "csrc/blob.bin": bytes(range(256)) * 4,
    "tools/run.sh": b"#!/bin/sh\nexit 0\n",
    "with space/t\xc3\xa9.h".encode("latin-1").decode(): b"x\n",
}
FORMAT = (
    "format-patch", "--zero-commit", "--no-signature", "--full-index", "-N", "--binary",
    "-M", "-C", "--find-copies-harder", "--quiet",
)  # fmt: skip


class Upstream:
    """A repository in which commits are made, to be exported as a series."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.start = git(folder, "rev-parse", "HEAD")
        self.count = 0

    def commit(
        self,
        message: bytes,
        changes: dict[str, bytes | None],
        *,
        author: str = "A U Thor <author@example.org>",
        date: str = "2026-01-05T10:00:00+0530",
    ) -> None:
        """Commit `changes` (None removes a file) with the message's exact bytes."""
        for name, content in changes.items():
            path = self.folder / name
            if content is None:
                path.unlink()
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        git(self.folder, "add", "--all")
        text = self.folder.parent / "message"
        text.write_bytes(message)
        git(self.folder, "commit", "--quiet", "--allow-empty-message", f"--author={author}",
            f"--date={date}", "--file", str(text))  # fmt: skip

    def export(self, project: Project, *options: str) -> list[Path]:
        """Write the commits into the project's series."""
        out = project.patches
        git(self.folder, *FORMAT, *options, "-o", str(out), self.start)
        patches = sorted(out.glob("*.patch"))
        project.series.write_text("".join(f"{p.name}\n" for p in patches))
        return patches


@pytest.fixture
def project(make_project: MakeProject) -> Project:
    return make_project(BASE, executable=["tools/run.sh"])


@pytest.fixture
def upstream(project: Project) -> Upstream:
    return Upstream(project.root.parent / "upstream")


def am(project: Project, patches: list[Path]) -> list[str]:
    """The commits that ``git am`` makes of `patches` on our baseline, oldest first."""
    clone = project.root.parent / "clone"
    git(project.root, "clone", "--quiet", "--no-checkout", str(project.store), str(clone))
    git(clone, "fetch", "--quiet", "origin", "refs/patchctl/baseline")
    git(clone, "checkout", "--quiet", "--detach", "FETCH_HEAD")
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | IDENTITY
    env |= {"GIT_COMMITTER_NAME": TOOL_NAME, "GIT_COMMITTER_EMAIL": TOOL_EMAIL}
    env |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    for name in [n for n in env if n.endswith("_DATE") or n.startswith("GIT_AUTHOR")]:
        del env[name]
    done = subprocess.run(
        ["git", "am", "--quiet", "--keep-non-patch", "--keep-cr", "--committer-date-is-author-date",
         *map(str, patches)],
        cwd=clone, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return git(clone, "rev-list", "--reverse", "FETCH_HEAD..HEAD").split()


def raw(project: Project, commits: list[str]) -> list[str]:
    """The commits' own bytes, to compare with a readable difference."""
    where = project.root.parent / "clone"
    return [git(where, "cat-file", "commit", commit) for commit in commits]


def assert_same_as_am(project: Project, patches: list[Path]) -> None:
    result = replay(project, QuietReporter(), lock=True)
    expected = am(project, patches)
    ours = [patch.commit for patch in result.patches]
    git(project.root.parent / "clone", "fetch", "--quiet", "origin", HEAD_REF)
    assert raw(project, ours) == raw(project, expected)
    assert ours == expected


def test_edit_create_delete_rename_copy_mode_binary_as_git_am(
    project: Project, upstream: Upstream
) -> None:
    lines = BASE["csrc/a.h"].splitlines(keepends=True)
    edited = b"".join([lines[0], b"new\n", *lines[1:30], *lines[33:50], b"\n", *lines[50:]])
    upstream.commit(b"sm70: edit\n", {"csrc/a.h": edited, "csrc/b.cu": b"one\n2\nthree\n"})
    upstream.commit(b"sm70: create\n", {"csrc/sm70/n.h": b"\tx\r\ny  \n\n", "empty": b""})
    upstream.commit(b"sm70: delete\n", {"csrc/b.cu": None, "empty": None})
    upstream.commit(b"sm70: rename\n", {"csrc/a.h": None, "csrc/deep/er/z.h": edited + b"tail\n"})
    upstream.commit(b"sm70: copy\n", {"csrc/copy.h": edited + b"tail\nmore\n"})
    (upstream.folder / "tools/run.sh").chmod(0o644)
    (upstream.folder / "csrc/copy.h").chmod(0o755)
    upstream.commit(b"sm70: modes\n", {"tools/new.sh": b"#!/bin/sh\n"})
    blob = bytearray(BASE["csrc/blob.bin"] * 3)
    blob[700:704] = b"sm70"
    upstream.commit(b"sm70: binary\n", {"csrc/blob.bin": bytes(blob), "new.bin": b"\0\1" * 9})
    upstream.commit(b"sm70: binary gone\n", {"csrc/blob.bin": None, "new.bin": b"\0\2" * 9})
    upstream.commit(b"sm70: no newline\n", {"csrc/copy.h": edited + b"end"})
    upstream.commit(b"sm70: names\n", {'a\tb\\"c.h': b"q\n", "with space/té.h": b"y\n"})
    (upstream.folder / "link").symlink_to("csrc/copy.h")
    upstream.commit(b"sm70: link\n", {})
    (upstream.folder / "link").unlink()
    upstream.commit(b"sm70: link becomes a file\n", {"link": b"plain\n"})
    upstream.commit(b"sm70: file becomes a folder\n", {"link": None, "link2/a": b"1\n"})
    patches = upstream.export(project)
    assert_same_as_am(project, patches)
    head = git(upstream.folder, "rev-parse", "HEAD^{tree}")
    assert git(project.store, "rev-parse", f"{HEAD_REF}^{{tree}}") == head


def test_renames_that_swap_two_files_as_git_am(project: Project, upstream: Upstream) -> None:
    first, second = BASE["csrc/a.h"], b"".join(b"other %d\n" % n for n in range(50))
    upstream.commit(b"second\n", {"csrc/c.h": second})
    upstream.commit(b"swap\n", {"csrc/a.h": second + b"1\n", "csrc/c.h": first + b"2\n"})
    patches = upstream.export(project, "-B")
    assert b"rename from" in patches[1].read_bytes()
    assert_same_as_am(project, patches)


MESSAGES = {
    "body": b"subject\n\nFirst  paragraph.\n\n\n\nSecond, after three blanks.   \n\tindented\n",
    "trailers": b"sm70: add x\n\nWhy.\n\nUpstream-Status: Pending\nSigned-off-by: A <a@b.org>\n",
    "utf-8": "sm70: ü und ß\n\nGrüße – €\n".encode(),
    "long": b"sm70: " + b"word " * 40 + b"end\n\nbody\n",
    "long utf-8": ("sm70: " + "größe " * 40 + "ende\n").encode(),
    "brackets": b"[sm70] keep [this] too\n\nbody\n",
    "two spaces": b"sm70:  two   spaces\n",
    "dashes": b"subject\n\n-- \nnot a signature\n----\n",
    "indented diff": b"subject\n\nas in:\n\n    --- a/x\n    +++ b/x\n    @@ -1 +1 @@\n\ndone\n",
    "from in body": b"subject\n\nFrom here on it is text.\n From: too\n",
    "date in body": b"subject\n\nSome text\nDate: not a header here\n",
    "colon": b"Re: sm70: x\n",
    "comment": b"subject\n\n# not a comment\n",
}


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_message_as_git_am(project: Project, upstream: Upstream, message: bytes) -> None:
    upstream.commit(message, {"csrc/b.cu": b"changed\n"})
    assert_same_as_am(project, upstream.export(project))


AUTHORS = [
    "Jörg Müller <joerg@example.org>",
    '"Doe, John" <j@example.org>',
    "John Doe (Company) <j@example.org>",
    "O'Neil \\ Back <o@example.org>",
    "李雷 <lilei@example.org>",
    "single <only@example.org>",
]


@pytest.mark.parametrize("author", AUTHORS)
def test_author_as_git_am(project: Project, upstream: Upstream, author: str) -> None:
    upstream.commit(b"subject\n", {"csrc/b.cu": b"changed\n"}, author=author)
    assert_same_as_am(project, upstream.export(project))


@pytest.mark.parametrize(
    "date", ["2026-01-05T10:00:00-0930", "1999-12-31T23:59:59+1245", "2026-07-01T00:00:00+0000"]
)
def test_date_as_git_am(project: Project, upstream: Upstream, date: str) -> None:
    upstream.commit(b"subject\n", {"csrc/b.cu": b"changed\n"}, date=date)
    assert_same_as_am(project, upstream.export(project))


def test_in_body_from_as_git_am(project: Project, upstream: Upstream) -> None:
    upstream.commit(b"subject\n\nbody\n", {"csrc/b.cu": b"changed\n"})
    patches = upstream.export(project, "--from=Sender <sender@example.org>")
    assert b"From: Sender" in patches[0].read_bytes()
    assert_same_as_am(project, patches)


HEADER = b"From: A <a@b.org>\nDate: Mon, 5 Jan 2026 10:00:00 +0000\nSubject: [PATCH] x\n"
DIFF = (
    b"---\ndiff --git a/csrc/b.cu b/csrc/b.cu\n--- a/csrc/b.cu\n+++ b/csrc/b.cu\n@@ -1,2 +1,2 @@\n"
)
DIFF += b"-one\n+ONE\n two\n"


@pytest.mark.parametrize(
    "mail",
    [
        HEADER + b"Content-Type: text/plain; charset=ISO-8859-1\n\n\xe9t\xe9\n" + DIFF,
        HEADER + b"Content-Type: text/plain; charset=UTF-8\n\nCaf\xc3\xa9\n" + DIFF,
        HEADER + b"\nno charset: \xe9\n" + DIFF,
        HEADER.replace(b": A", b": =?utf-8?q?J=C3=B6rg?= =?utf-8?q?_M=C3=BC?=") + b"\nx\n" + DIFF,
        HEADER.replace(b"[PATCH] x", b"Re: [PATCH v2 1/2] [x] y\n  folded") + b"\nx\n" + DIFF,
        HEADER.replace(b"From: A <a@b.org>", b"From: a@b.org (A Name)") + b"\nx\n" + DIFF,
        HEADER.replace(b"From: A <a@b.org>", b"From: a@b.org") + b"\nx\n" + DIFF,
        b"From " + b"0" * 40 + b" Mon Sep 17 00:00:00 2001\n" + HEADER + b"\nx\n" + DIFF,
        HEADER + b"\n\nSubject: other\n\nbody\n" + DIFF,
    ],
)  # fmt: skip
def test_mail_written_by_hand_as_git_am(project: Project, mail: bytes) -> None:
    path = project.patches / "0001-x.patch"
    path.write_bytes(mail)
    project.series.write_text("0001-x.patch\n")
    assert_same_as_am(project, [path])


def test_three_way_is_never_tried(project: Project, upstream: Upstream) -> None:
    lines = BASE["csrc/a.h"].splitlines(keepends=True)
    upstream.commit(b"subject\n", {"csrc/a.h": b"".join([*lines[:40], b"new\n", *lines[40:]])})
    upstream.export(project)
    (project.patches / "0000-shift.patch").write_bytes(
        b"--- a/csrc/a.h\n+++ b/csrc/a.h\n@@ -1,2 +1,3 @@\n+one more\n line 0\n line 1\n"
    )
    project.series.write_text("0000-shift.patch\n0001-subject.patch\n")
    with pytest.raises(PatchDoesNotApply, match=r"hunk 1 of 1, line 38") as caught:
        replay(project, QuietReporter(), lock=True)
    assert "the same lines are at line 39 (offset +1)" in caught.value.details
