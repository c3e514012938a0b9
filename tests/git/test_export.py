# SPDX-License-Identifier: Apache-2.0
"""Patch files of commits, brought up to date: exactly the commit, with the fewest changed bytes."""

from __future__ import annotations

import base64
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.git.conftest import git, make_repo, write_files

from patchctl.formats.apply import apply_patch
from patchctl.formats.edittree import EditTree
from patchctl.formats.mail import read_patch_file
from patchctl.formats.patch import parse_patch
from patchctl.stages.export import export_patch
from patchctl.system.gitstore import Store

NAMES = [f"d{n % 3}/f{n}.{suffix}" for n, suffix in enumerate(["h", "cu", "txt", "h", "cpp", "h"])]
BASE = {name: b"".join(b"%s %d\n" % (name.encode(), n) for n in range(80)) for name in NAMES}
HOUSE = ("--zero-commit", "--no-signature", "--full-index", "-N", "-k", "--binary")
MESSAGE = """core: a subject that is quite long, so that a mail header folds it into two lines

Body with \u00fcml\u00e4uts.

Upstream-Status: Pending
Signed-off-by: P \u00c4uthor <p@example.org>
"""

Style = Callable[["Repo", str], bytes]


@dataclass
class Repo:
    folder: Path
    store: Store
    start: str

    def commit(self, files: dict[str, bytes | None], message: str = MESSAGE) -> str:
        """A commit of `files` on the baseline, by somebody and at a fixed date."""
        git(self.folder, "checkout", "--quiet", "--force", "--detach", self.start)
        write_files(self.folder, {n: c for n, c in files.items() if c is not None})
        for name in [n for n, c in files.items() if c is None]:
            (self.folder / name).unlink()
        git(self.folder, "add", "--all")
        git(self.folder, "commit", "--quiet", "--author=P \u00c4uthor <p@example.org>",
            "--date=1750000000 +0230", "-m", message)  # fmt: skip
        return git(self.folder, "rev-parse", "HEAD")

    def format(self, commit: str, *options: str) -> bytes:
        out = self.folder.parent / "formatted"
        name = git(self.folder, "format-patch", *options, "-o", str(out), "-1", commit)
        return Path(name).read_bytes()

    def makes(self, data: bytes, strip: int) -> str:
        """The tree that a patch file makes of the baseline, applied strictly."""
        tree = EditTree(self.store.read_tree(self.start))
        apply_patch(parse_patch("x.patch", data, strip), tree, self.store.read_blob)
        list(tree.new_objects())
        return tree.id


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repo]:
    folder = tmp_path / "repo"
    start = make_repo(folder, BASE)
    with Store(folder / ".git") as store:
        yield Repo(folder, store, start)


def plain(data: bytes) -> bytes:
    """The diffs as GNU diff would write them: no line of git's extended header."""
    kept = re.sub(rb"(?m)^(diff --git|index|new file mode|deleted file mode) .*\n", b"", data)
    return kept


def with_index_lines(data: bytes) -> bytes:
    rule = b"=" * 67
    return re.sub(
        rb"(?m)^(--- \S+\n\+\+\+ )b/(.*)$", rb"Index: b/\2\n" + rule + rb"\n\1b/\2", plain(data)
    )


def other_mail(data: bytes) -> bytes:
    """As a mail program saves it: further headers, a prefix, another form of the date."""
    subject = data.index(b"\nSubject: ")
    return (
        data[:subject].replace(b"From 0000", b"From abcd")
        + b"\nSubject: [PATCH v3 2/7] "
        + data[subject + len(b"\nSubject: ") :].replace(
            b"\nMIME-Version", b"\nMessage-Id: <1@x>\nX-Mailer: none\nMIME-Version", 1
        )
    )


def encoded(data: bytes) -> bytes:
    head, body = data.split(b"\n\n", 1)
    head = re.sub(rb"\nContent-Transfer-Encoding: 8bit", b"", head)
    return head + b"\nContent-Transfer-Encoding: base64\n\n" + base64.encodebytes(body)


STYLES: dict[str, Style] = {
    "house style": lambda repo, c: repo.format(c, *HOUSE),
    "wide context": lambda repo, c: repo.format(c, *HOUSE, "-U8"),
    "no diffstat": lambda repo, c: repo.format(c, *HOUSE, "--no-stat", "-p"),
    "git's default": lambda repo, c: repo.format(c),
    "patience": lambda repo, c: repo.format(c, *HOUSE, "--patience", "--abbrev=9"),
    "whole paths": lambda repo, c: repo.format(c, *HOUSE, "--no-prefix"),
    "plain": lambda repo, c: plain(repo.format(c, *HOUSE)),
    "no mail": lambda repo, c: b"Some words.\n\n" + plain(repo.format(c)).split(b"\n\n", 3)[3],
    "Index lines": lambda repo, c: with_index_lines(repo.format(c, *HOUSE)),
    "other mail program": lambda repo, c: other_mail(repo.format(c, *HOUSE)),
}


def edited(rng: random.Random, name: str) -> bytes:
    lines = BASE[name].splitlines(keepends=True)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(lines))
        lines[at : at + rng.randrange(3)] = [b"new %d\n" % rng.randrange(99)] * rng.randrange(1, 3)
    return b"".join(lines)


def change_of(rng: random.Random) -> dict[str, bytes | None]:
    files: dict[str, bytes | None] = {n: edited(rng, n) for n in rng.sample(NAMES, 3)}
    files[f"new/{rng.randrange(3)}.h"] = b"new file\n" * rng.randrange(1, 30)
    return files


def sections(data: bytes) -> dict[bytes, bytes]:
    """The diff of each file, by the name in its ``+++`` line."""
    parts = re.split(rb"(?m)^(?=diff --git |Index: )", data)
    if len(parts) == 1:
        parts = re.split(rb"(?m)^(?=--- \S)", data)
    found = {}
    for part in parts[1:]:
        match = re.search(rb"(?m)^\+\+\+ (\S+)", part)
        assert match is not None
        found[match[1].removeprefix(b"b/")] = re.sub(rb"\n-- \n[^\n]*\n+\Z", b"\n", part)
    return found


@pytest.mark.parametrize("style", STYLES)
def test_same_effect_and_header_gives_the_same_bytes(repo: Repo, style: str) -> None:
    rng = random.Random(style)
    strip = 0 if style == "whole paths" else 1
    commit = repo.commit(change_of(rng))
    old = STYLES[style](repo, commit)
    header = parse_patch("x.patch", old, strip).header
    made = repo.store.write_commit(
        repo.store.tree_of(commit), [repo.start], header.author, header.author, header.message
    )
    assert export_patch(repo.store, made, old, name="x.patch", strip=strip) == old


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("style", STYLES)
def test_only_the_files_that_changed_differ(repo: Repo, style: str, seed: int) -> None:
    rng = random.Random(f"{style} {seed}")
    strip = 0 if style == "whole paths" else 1
    files = change_of(rng)
    commit = repo.commit(files)
    old = STYLES[style](repo, commit)
    header = parse_patch("x.patch", old, strip).header
    touched = rng.choice([name for name in files if name in NAMES])
    now = dict(files)
    if seed == 0:
        now[touched] = (files[touched] or b"") + b"one more\n"
    elif seed == 1:
        del now[touched]  # the patch no longer touches it
    else:
        now["new/other.h"] = b"other\n"
    tree = repo.store.tree_of(repo.commit(now))
    made = repo.store.write_commit(tree, [repo.start], header.author, header.author, header.message)
    data = export_patch(repo.store, made, old, name="x.patch", strip=strip)
    assert repo.makes(data, strip) == tree
    was, is_now = sections(old), sections(data)
    for name, part in was.items():
        if seed == 2 or name != touched.encode():
            assert is_now[name] == part
    file = read_patch_file("x.patch", old)
    head = b"".join(old.splitlines(keepends=True)[: file.diff_line - 1])
    assert data.startswith(head)
    assert (b"diff --git" in data) == (b"diff --git" in old)
    assert (b" changed, " in data) == (b" changed, " in old)
    assert (b"\n-- \n" in data[-20:]) == (b"\n-- \n" in old[-20:])
    again = export_patch(repo.store, made, data, name="x.patch", strip=strip)
    assert again == data


def test_reworded_body_leaves_mail_headers_and_diffs(repo: Repo) -> None:
    commit = repo.commit(change_of(random.Random(1)))
    old = STYLES["other mail program"](repo, commit)
    git(repo.folder, "commit", "--quiet", "--amend", "-m", MESSAGE.replace("Body", "Another body"))
    made = git(repo.folder, "rev-parse", "HEAD")
    data = export_patch(repo.store, made, old, name="x.patch")
    assert data == old.replace(b"Body with", b"Another body with")


def test_new_author_and_date_change_their_lines_only(repo: Repo) -> None:
    commit = repo.commit(change_of(random.Random(1)))
    old = STYLES["other mail program"](repo, commit)
    git(repo.folder, "commit", "--quiet", "--amend", "--no-edit", "--author=N <n@example.org>",
        "--date=1760000000 +0000")  # fmt: skip
    made = git(repo.folder, "rev-parse", "HEAD")
    data = export_patch(repo.store, made, old, name="x.patch")
    changed = [(a, b) for a, b in zip(old.split(b"\n"), data.split(b"\n"), strict=True) if a != b]
    assert [b for _, b in changed] == [
        b"From: N <n@example.org>",
        b"Date: Thu, 9 Oct 2025 08:53:20 +0000",
    ]


def test_encoded_mail_is_written_in_house_style_when_it_changes(repo: Repo) -> None:
    files = change_of(random.Random(1))
    old = encoded(STYLES["house style"](repo, repo.commit(files)))
    made = repo.commit(files)
    assert export_patch(repo.store, made, old, name="x.patch") == old
    made = repo.commit({**files, "new/other.h": b"x\n"})
    data = export_patch(repo.store, made, old, name="x.patch")
    assert b"base64" not in data and repo.makes(data, 1) == repo.store.tree_of(made)


def test_removed_line_of_dashes_is_not_a_signature(repo: Repo) -> None:
    text = BASE[NAMES[0]] + b"- \n"
    git(repo.folder, "checkout", "--quiet", "--detach", repo.start)
    write_files(repo.folder, {NAMES[0]: text})
    git(repo.folder, "commit", "--quiet", "--all", "-m", "dashes")
    repo.start = git(repo.folder, "rev-parse", "HEAD")
    old = repo.format(repo.commit({NAMES[0]: BASE[NAMES[0]]}), *HOUSE)
    assert old.endswith(b"\n-- \n")
    made = repo.commit({NAMES[0]: BASE[NAMES[0]], NAMES[1]: b"x\n"})
    data = export_patch(repo.store, made, old, name="x.patch")
    assert repo.makes(data, 1) == repo.store.tree_of(made)


def test_rename_copy_mode_link_binary_and_missing_newline(repo: Repo) -> None:
    git(repo.folder, "checkout", "--quiet", "--detach", repo.start)
    git(repo.folder, "mv", NAMES[0], "moved.h")
    (repo.folder / NAMES[1]).chmod(0o755)
    (repo.folder / "link").symlink_to("moved.h")
    (repo.folder / "blob").write_bytes(bytes(range(256)))
    (repo.folder / NAMES[2]).write_bytes(b"no newline")
    (repo.folder / "empty").write_bytes(b"")
    (repo.folder / "with space \u00e9.h").write_bytes(b"x\r\ny\r\n")
    (repo.folder / NAMES[3]).unlink()
    git(repo.folder, "add", "--all")
    git(repo.folder, "commit", "--quiet", "-m", "all kinds")
    made = git(repo.folder, "rev-parse", "HEAD")
    data = export_patch(repo.store, made, None, name="x.patch")
    assert repo.makes(data, 1) == repo.store.tree_of(made)
    assert export_patch(repo.store, made, data, name="x.patch") == data


def test_configuration_of_the_repository_or_user_has_no_influence(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = repo.commit(change_of(random.Random(4)))
    wanted = export_patch(repo.store, commit, None, name="x.patch")
    home = tmp_path / "home"
    (home / ".config" / "git").mkdir(parents=True)
    (home / ".config" / "git" / "attributes").write_text("* -diff\n")
    (home / ".gitconfig").write_text(
        "[diff]\n\tnoprefix = true\n\talgorithm = patience\n\tcontext = 9\n\trenames = copies\n"
        "\tinterHunkContext = 5\n\torderFile = /nonexistent\n[format]\n\tsignature = x\n"
        "\tsubjectPrefix = FOO\n\tattach = true\n\tnumbered = true\n[color]\n\tui = always\n"
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_DIFF_OPTS", "-u12")
    assert export_patch(repo.store, commit, None, name="x.patch") == wanted
