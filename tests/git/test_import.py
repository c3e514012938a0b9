# SPDX-License-Identifier: Apache-2.0
"""Patches that somebody sent: exact, repaired with the reason written down, or refused."""

from __future__ import annotations

import base64
import json
import quopri
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.git.conftest import MakeProject, git
from tests.git.test_cases import CASES, make, patchctl, snapshot

from patchctl.stages.replay import replay
from patchctl.system.project import Project
from patchctl.system.report import QuietReporter


@dataclass(frozen=True)
class Case:
    """What must become of a patch file of a case, as it is and with ``--repair``.

    A code of 0 means that it is taken, and that the tree is `expected/` then. `says` must all be
    in what a refusal says, `reasons` in the ``Repaired:`` lines of the patch.
    """

    folder: str
    patch: str
    plain: int
    repaired: int
    says: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    options: tuple[str, ...] = field(default=())
    whole: bool = True

    def __str__(self) -> str:
        return f"{self.folder}-{self.patch}{''.join(self.options)}"


CASES_OF_IMPORT = [
    Case("01", "0001-fwd-narrow-tile.patch", 4, 4, (
        "ambiguous", "line 4: all 6 lines", "line 13: 5 of 6 lines, as stated",
    )),
    Case("01", "0002-fuzz.patch", 4, 4, ("ambiguous", "line 4: 5 of 6", "line 13: 5 of 6")),
    Case("02", "0001-add-header.patch", 4, 0, ("CR LF line ends",), (
        "patch file: CR LF line ends removed",
    )),
    Case("04", "0001-rename.patch", 4, 0, ("byte order mark",), (
        "patch file: byte order mark removed",
    )),
    Case("05", "0001-ordre.patch", 0, 0),
    Case("07", "0001-stripped.patch", 0, 0, whole=False),
    Case("07", "0002-truncated-tail.patch", 4, 0, ("counts -5 +5 corrected to -3 +3",), (
        "hunk 1 of csrc/blank2.c: counts -5 +5 corrected to -3 +3",
    ), whole=False),
    Case("09", "0001-counters.patch", 0, 0),
    Case("10", "0001-step.patch", 0, 0),
    Case("11", "0001-all.mbox.patch", 0, 0),
    Case("12", "0001-mode.patch", 0, 0),
    Case("14", "0001-fix.patch", 4, 4, ("is already applied",)),
    Case("22", "0001-limit.patch", 4, 4, ("-p0 and -p1 each name files that exist",)),
    Case("22", "0001-limit.patch", 0, 0, options=("-p0",), whole=False),
    Case("24", "0001-eof.patch", 0, 0),
    Case("24", "0001-eof-localised.patch", 0, 0),
    Case("25", "0001-odd.patch", 0, 0),
]  # fmt: skip


def locked(project: Project) -> Project:
    """The project with a series that is locked, as every import wants it."""
    replay(project, QuietReporter(), lock=True)
    return project


def files_of_series(project: Project) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(project.patches.iterdir()) if p.is_file()}


def added(project: Project) -> list[bytes]:
    return [d for n, d in files_of_series(project).items() if n.endswith(".patch")]


@pytest.mark.parametrize("with_repair", [False, True], ids=["plain", "repair"])
@pytest.mark.parametrize("case", CASES_OF_IMPORT, ids=str)
def test_reported_patch_is_exact_repaired_or_refused(
    make_project: MakeProject, case: Case, with_repair: bool
) -> None:
    project = locked(make(make_project, case.folder))
    before = files_of_series(project)
    path = CASES / case.folder / "patches" / case.patch
    options = [*case.options, *(["--repair"] if with_repair else [])]
    done = patchctl(project, "import", str(path), *options)
    assert "Traceback" not in done.stderr
    code = case.repaired if with_repair else case.plain
    assert done.returncode == code, done.stdout + done.stderr
    if code:
        for text in case.says:
            assert text in done.stdout + done.stderr
        assert files_of_series(project) == before
        return
    text = b"".join(added(project)).decode("utf-8", "replace")
    print(text)
    for reason in case.reasons if with_repair else ():
        assert f"\nRepaired: {reason}\n" in text
        assert f"Repaired: {reason}\n" in done.stdout
    if not (case.reasons and with_repair):
        assert "Repaired:" not in text
    assert patchctl(project, "replay").returncode == 0
    if case.whole:
        assert snapshot(project.source) == snapshot(CASES / case.folder / "expected")


def code(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


TEXT = b"".join(b"line %d of text\n" % n for n in range(1, 31))
AUTHOR = "Ada L <ada@example.org>"


def commit_of(folder: Path, files: dict[str, bytes], message: str) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    git(folder, "add", "--all")
    git(
        folder, "commit", "--quiet", f"--author={AUTHOR}",
        "--date=2026-05-04T03:02:01+0200", "--message", message,
    )  # fmt: skip


def mail_of(folder: Path, *options: str) -> bytes:
    """The last commit in `folder` as git sends it."""
    name = git(folder, "format-patch", "-1", "--output-directory=../out", *options)
    return (folder / name).read_bytes()


@dataclass
class Sender:
    """Somebody with an own clone; `project` is where the patches go."""

    project: Project
    clone: Path
    inbox: Path

    def send(self, data: bytes, *options: str, name: str = "sent.patch") -> str:
        """Import `data` as a file; what was said, after it was taken."""
        done = self.run(data, *options, name=name)
        assert done.returncode == 0, done.stdout + done.stderr
        assert patchctl(self.project, "replay").returncode == 0
        return done.stdout

    def run(
        self, data: bytes, *options: str, name: str = "sent.patch"
    ) -> subprocess.CompletedProcess[str]:
        (self.inbox / name).write_bytes(data)
        return patchctl(self.project, "import", str(self.inbox / name), *options)

    def refuse(self, data: bytes, *options: str) -> str:
        """Import `data`, which must be refused; what was said. Nothing may change."""
        before = files_of_series(self.project)
        done = self.run(data, *options)
        assert done.returncode == 4, done.stdout + done.stderr
        assert files_of_series(self.project) == before
        return done.stdout + done.stderr

    def read(self, name: str) -> bytes:
        return (self.project.source / name).read_bytes()

    def patch(self) -> str:
        (data,) = added(self.project)
        return data.decode()


def sender(make_project: MakeProject, tmp_path: Path, theirs: dict[str, bytes]) -> Sender:
    """A clone of a repository with `theirs`, and a project whose baseline holds f.h and d/g.h."""
    ours = {"f.h": TEXT, "d/g.h": TEXT.replace(b"text", b"prose")}
    project = locked(make_project(ours))
    clone, inbox = tmp_path / "clone", tmp_path / "inbox"
    clone.mkdir()
    inbox.mkdir()
    git(clone, "init", "--quiet", "--template=")
    commit_of(clone, {**ours, **theirs}, "theirs")
    return Sender(project, clone, inbox)


@pytest.fixture
def someone(make_project: MakeProject, tmp_path: Path) -> Sender:
    return sender(make_project, tmp_path, {})


def changed(number: int, text: bytes = TEXT) -> bytes:
    return text.replace(b"line %d of" % number, b"changed %d of" % number)


def test_exact_mail_is_taken_in_house_style_with_its_author(someone: Sender) -> None:
    commit_of(someone.clone, {"f.h": changed(9)}, "core: change line 9\n\nBecause.\n\nAcked-by: B")
    said = someone.send(mail_of(someone.clone, "--abbrev=7"))
    assert "sent.patch: exact -> patches/0001-core-change-line-9.patch" in said
    text = someone.patch()
    assert text.startswith("From 0000000000000000000000000000000000000000 Mon Sep 17")
    assert f"\nFrom: {AUTHOR}\nDate: Mon, 4 May 2026 03:02:01 +0200\n" in text
    assert "\n\nBecause.\n\nAcked-by: B\n---\n" in text
    assert someone.read("f.h") == changed(9)
    assert "core: change line 9" in patchctl(someone.project, "replay").stdout


def test_offset_is_refused_then_repaired_with_the_reason(
    make_project: MakeProject, tmp_path: Path
) -> None:
    someone = sender(make_project, tmp_path, {"f.h": b"more\n" * 9 + TEXT})
    commit_of(someone.clone, {"f.h": b"more\n" * 9 + changed(20)}, "core: change line 20")
    mail = mail_of(someone.clone)
    said = someone.refuse(mail)
    assert "f.h, hunk 1 of 1 (patch line 14): offset -9 at line 17" in said
    assert "patchctl import --repair" in said
    someone.send(mail, "--repair")
    assert someone.read("f.h") == changed(20)
    assert "\n\nRepaired: hunk 1 of f.h: offset -9\n---\n" in someone.patch()


def test_white_space_is_shown_with_the_line_of_the_baseline(
    make_project: MakeProject, tmp_path: Path
) -> None:
    theirs = TEXT.replace(b"line 10 of", b"line 10\tof")
    someone = sender(make_project, tmp_path, {"f.h": theirs})
    commit_of(someone.clone, {"f.h": changed(9, theirs)}, "core: change\n\nAcked-by: B")
    mail = mail_of(someone.clone)
    said = someone.refuse(mail)
    assert "line 10    baseline `line 10 of text`\n" in said
    assert "           patch    `line 10\\tof text`\n" in said
    someone.send(mail, "--repair")
    assert someone.read("f.h") == changed(9)
    assert "\nAcked-by: B\nRepaired: hunk 1 of f.h: whitespace\n---\n" in someone.patch()


def test_fuzz_is_repaired_with_the_reason(make_project: MakeProject, tmp_path: Path) -> None:
    theirs = TEXT.replace(b"line 6 of", b"six of")
    someone = sender(make_project, tmp_path, {"f.h": theirs})
    commit_of(someone.clone, {"f.h": changed(9, theirs)}, "core: change line 9")
    mail = mail_of(someone.clone)
    assert "fuzz 1 at line 6" in someone.refuse(mail)
    someone.send(mail, "--repair")
    assert someone.read("f.h") == changed(9)


def test_three_way_merge_where_the_store_has_the_old_file(someone: Sender) -> None:
    commit_of(someone.clone, {"f.h": changed(12)}, "core: first")
    someone.send(mail_of(someone.clone), name="first.patch")
    git(someone.clone, "reset", "--quiet", "--hard", "HEAD~1")
    # made for the baseline; one hunk, with the line that the first patch changes inside of it
    commit_of(someone.clone, {"f.h": changed(10, changed(14))}, "core: second")
    mail = mail_of(someone.clone)
    unknown = someone.run(mail.replace(b"index ", b"index 0123"), "--repair")
    assert "none: its lines are not in the file" in unknown.stdout
    done = someone.run(mail, name="second.patch")
    assert done.returncode == 4
    assert "f.h (patch line 10): three-way" in done.stdout
    someone.send(mail, "--repair", name="second.patch")
    assert someone.read("f.h") == changed(10, changed(12, changed(14)))
    text = added(someone.project)[1].decode()
    assert "\nRepaired: f.h: three-way merge with its old base\n" in text


def test_conflicting_patch_is_refused_with_both_lines(
    make_project: MakeProject, tmp_path: Path
) -> None:
    theirs = TEXT.replace(b"line 9 of", b"nine of")
    someone = sender(make_project, tmp_path, {"f.h": theirs})
    commit_of(someone.clone, {"f.h": theirs.replace(b"nine of", b"9 of")}, "core: change")
    for options in ((), ("--repair",)):
        said = someone.refuse(mail_of(someone.clone), *options)
        assert "none: its lines are not in the file" in said
        assert "line 9     baseline `line 9 of text`" in said
        assert "           patch    `nine of text`" in said


def test_plain_diff_gets_a_name_and_the_author_that_was_given(someone: Sender) -> None:
    commit_of(someone.clone, {"f.h": changed(9)}, "x")
    diff = git(someone.clone, "diff", "HEAD~1").encode() + b"\n"
    someone.send(diff, "--author", AUTHOR, name="core-change-nine.diff")
    text = someone.patch()
    assert f"\nFrom: {AUTHOR}\n" in text
    assert "\nSubject: core: change nine\n" in text
    assert "0001-core-change-nine.patch" in files_of_series(someone.project)


@pytest.mark.parametrize("encoding", ["quoted-printable", "base64"])
def test_encoded_mail_is_decoded(someone: Sender, encoding: str) -> None:
    wanted = changed(9).replace(b"line 10 of", "größe = 10 of".encode())
    commit_of(someone.clone, {"f.h": wanted}, "core: change")
    head, _, body = mail_of(someone.clone).partition(b"\n\n")
    coded = quopri.encodestring(body) if encoding[0] == "q" else base64.encodebytes(body)
    head += f"\nContent-Transfer-Encoding: {encoding}".encode()
    someone.send(head + b"\n\n" + coded)
    assert someone.read("f.h") == wanted


def test_wrong_counts_in_an_encoded_mail_are_mended_too(someone: Sender) -> None:
    commit_of(someone.clone, {"f.h": changed(9)}, "core: change")
    head, _, body = mail_of(someone.clone).partition(b"\n\n")
    coded = quopri.encodestring(body.replace(b"@@ -6,7 +6,7 @@", b"@@ -6,9 +6,8 @@"))
    mail = head + b"\nContent-Transfer-Encoding: quoted-printable\n\n" + coded
    assert "counts -9 +8 corrected to -7 +7" in someone.refuse(mail)
    someone.send(mail, "--repair")
    assert someone.read("f.h") == changed(9)


def test_mail_with_cr_lf_for_a_file_with_cr_lf(make_project: MakeProject, tmp_path: Path) -> None:
    dos = TEXT.replace(b"\n", b"\r\n")
    project = locked(make_project({"f.h": dos}))
    patch = (
        b"--- a/f.h\r\n+++ b/f.h\r\n@@ -1,2 +1,3 @@\r\n line 1 of text\r\n+new\r\n"
        b" line 2 of text\r\n"
    )
    (tmp_path / "dos.patch").write_bytes(patch)
    done = patchctl(project, "import", str(tmp_path / "dos.patch"), "--repair")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "added lines end in CR LF, as the file's do" in done.stdout
    patchctl(project, "replay")
    assert (project.source / "f.h").read_bytes() == b"line 1 of text\r\nnew\r\n" + dos[16:]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--no-prefix"], "paths read with -p0"),
        (["--src-prefix=old/tree/", "--dst-prefix=new/tree/"], "paths read with -p2"),
        (["--src-prefix=i/", "--dst-prefix=w/"], "paths read with -p1"),
    ],
)
def test_paths_without_a_and_b_are_read_the_one_way_that_fits(
    someone: Sender, options: list[str], reason: str
) -> None:
    wanted = changed(9, TEXT.replace(b"text", b"prose"))
    commit_of(someone.clone, {"d/g.h": wanted}, "core: change")
    mail = mail_of(someone.clone, *options)
    assert reason in someone.refuse(mail)
    someone.send(mail, "--repair")
    assert someone.read("d/g.h") == wanted
    assert f"Repaired: {reason}: they do not begin with a/ and b/" in someone.patch()


def test_declared_level_needs_no_repair(someone: Sender) -> None:
    wanted = changed(9, TEXT.replace(b"text", b"prose"))
    commit_of(someone.clone, {"d/g.h": wanted}, "core: change")
    someone.send(mail_of(someone.clone, "--src-prefix=x/y/", "--dst-prefix=z/y/"), "-p2")
    assert someone.read("d/g.h") == wanted


def test_missing_diff_git_line_is_added(someone: Sender) -> None:
    commit_of(someone.clone, {"n.h": b"new\n"}, "core: add")
    (someone.clone / "f.h").chmod(0o755)
    commit_of(someone.clone, {"f.h": changed(9)}, "core: change")
    mail = mail_of(someone.clone).replace(b"diff --git a/f.h b/f.h\n", b"")
    said = someone.refuse(mail)
    assert "`diff --git` line added" in said
    someone.send(mail, "--repair")
    assert someone.read("f.h") == changed(9)
    assert (someone.project.source / "f.h").stat().st_mode & 0o100


def test_new_file_below_a_file_is_refused_by_the_strict_engine(someone: Sender) -> None:
    patch = b"--- /dev/null\n+++ b/f.h/x\n@@ -0,0 +1 @@\n+x\n"
    assert "would be written through the file `f.h`" in someone.refuse(patch, "--repair")


def test_mailbox_becomes_a_patch_each_in_order(someone: Sender) -> None:
    for number in (3, 9, 15):
        data = (someone.clone / "f.h").read_bytes()
        commit_of(someone.clone, {"f.h": changed(number, data)}, f"core: change line {number}")
    names = git(someone.clone, "format-patch", "-3", "--output-directory=../out", "--cover-letter")
    box = b"".join((someone.clone / name).read_bytes() for name in names.split())
    someone.send(box, name="all.mbox")
    assert [n for n in files_of_series(someone.project) if n.endswith(".patch")] == [
        f"000{at}-core-change-line-{line}.patch" for at, line in ((1, 3), (2, 9), (3, 15))
    ]
    assert someone.read("f.h") == (someone.clone / "f.h").read_bytes()


def test_mailbox_with_one_bad_mail_changes_nothing(someone: Sender) -> None:
    commit_of(someone.clone, {"f.h": changed(3)}, "core: good")
    good = mail_of(someone.clone)
    commit_of(someone.clone, {"f.h": changed(3, changed(9))}, "core: bad")
    bad = mail_of(someone.clone).replace(b"-line 9 of", b"-line x of")
    said = someone.refuse(good + bad + good, "--repair")
    assert "sent.patch, mail 1 of 3: exact" in said
    assert "sent.patch, mail 2 of 3: refused" in said
    assert "1 of 3 patches cannot be imported" in said


def test_quilt_folder_is_taken_in_the_order_of_its_series(someone: Sender) -> None:
    quilt = someone.inbox / "quilt"
    quilt.mkdir()
    second = changed(9, changed(3))
    for name, data, prefix in (("b.patch", changed(3), ""), ("a.patch", second, "--no-prefix")):
        commit_of(someone.clone, {"f.h": data}, "x")
        diff = git(someone.clone, "diff", *([prefix] if prefix else []), "HEAD~1")
        (quilt / name).write_text(diff + "\n")
    (quilt / "series").write_text("# two\nb.patch\na.patch -p0\n")
    done = patchctl(someone.project, "import", str(quilt))
    assert done.returncode == 0, done.stdout + done.stderr
    patchctl(someone.project, "replay")
    assert someone.read("f.h") == second


def test_folder_without_an_order_is_refused(someone: Sender) -> None:
    folder = someone.inbox / "heap"
    folder.mkdir()
    for name in ("b.patch", "a.patch"):
        (folder / name).write_text("--- a/f\n")
    done = patchctl(someone.project, "import", str(folder))
    assert done.returncode == 2
    assert "nothing tells the order of the 2 patches" in done.stderr


def test_after_puts_it_between_and_keeps_the_others(someone: Sender) -> None:
    for number in (3, 25):
        data = (someone.clone / "f.h").read_bytes()
        commit_of(someone.clone, {"f.h": changed(number, data)}, f"core: change line {number}")
        someone.send(mail_of(someone.clone), name=f"{number}.patch")
    before = files_of_series(someone.project)
    git(someone.clone, "reset", "--quiet", "--hard", "HEAD~1")
    commit_of(someone.clone, {"f.h": changed(14, changed(3))}, "core: between")
    someone.send(mail_of(someone.clone), "--after", "1", name="between.patch")
    names = (someone.project.patches / "series").read_text().split()
    assert [n.partition("-")[2] for n in names] == [
        "core-change-line-3.patch", "core-between.patch", "core-change-line-25.patch",
    ]  # fmt: skip
    after = files_of_series(someone.project)
    assert {n: after[n] for n in before if n.endswith(".patch")} == {
        n: d for n, d in before.items() if n.endswith(".patch")
    }


def test_dry_run_writes_nothing(someone: Sender) -> None:
    commit_of(someone.clone, {"f.h": changed(9)}, "core: change")
    before = files_of_series(someone.project)
    done = someone.run(mail_of(someone.clone), "--dry-run")
    assert (done.returncode, files_of_series(someone.project)) == (0, before)
    assert "1 patch would be imported" in done.stdout


def test_part_that_is_there_already_is_left_out_with_the_reason(
    make_project: MakeProject, tmp_path: Path
) -> None:
    someone = sender(make_project, tmp_path, {"f.h": TEXT.replace(b"line 3 of", b"three of")})
    new = changed(25, TEXT)
    commit_of(someone.clone, {"f.h": new}, "core: both")
    mail = mail_of(someone.clone)
    assert "already-present" in someone.refuse(mail)
    someone.send(mail, "--repair")
    assert someone.read("f.h") == new
    assert "Repaired: hunk 1 of f.h: left out, what it does is there already" in someone.patch()


def test_json_tells_grade_places_and_lines(make_project: MakeProject) -> None:
    project = locked(make(make_project, "01"))
    path = CASES / "01" / "patches" / "0001-fwd-narrow-tile.patch"
    done = patchctl(project, "import", str(path), "--json")
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["kind"]) == (4, "import")
    (patch,) = error["data"]["patches"]
    hunk = patch["files"][0]["hunks"][0]
    assert (patch["verdict"], hunk["grade"]) == ("refused", "ambiguous")
    assert [place["line"] for place in hunk["places"]] == [4, 13]
    assert hunk["differences"][0]["tree"] == "    int rows = tuned_rows(dim);"


def test_utf16_patch_of_a_shell_is_read(someone: Sender) -> None:
    commit_of(someone.clone, {"f.h": changed(9)}, "core: change")
    data = mail_of(someone.clone).decode().replace("\n", "\r\n").encode("utf-16")
    assert "UTF-16 read" in someone.refuse(data)
    someone.send(data, "--repair")
    assert someone.read("f.h") == changed(9)


def test_unlocked_series_is_not_changed(someone: Sender) -> None:
    (someone.project.patches / "series.lock.toml").unlink()
    commit_of(someone.clone, {"f.h": changed(9)}, "core: change")
    done = someone.run(mail_of(someone.clone))
    assert done.returncode == 3
    assert "patchctl replay --lock" in done.stderr


def test_missing_file_and_file_without_a_diff(someone: Sender) -> None:
    done = patchctl(someone.project, "import", str(someone.inbox / "none"))
    assert (done.returncode, "there is no" in done.stderr) == (2, True)
    assert "holds no diff" in someone.refuse(b"hello\n")


def test_imported_series_works_with_plain_git_am(someone: Sender, tmp_path: Path) -> None:
    theirs = b"more\n" * 2 + TEXT
    commit_of(someone.clone, {"f.h": theirs}, "moved")
    commit_of(someone.clone, {"f.h": b"more\n" * 2 + changed(9)}, "core: change")
    someone.send(mail_of(someone.clone), "--repair")
    tree = tmp_path / "am"
    shutil.copytree(tmp_path / "upstream", tree)
    (name,) = (n for n in files_of_series(someone.project) if n.endswith(".patch"))
    git(tree, "am", "--quiet", "--keep-cr", str(someone.project.patches / name))
    assert (tree / "f.h").read_bytes() == changed(9)
