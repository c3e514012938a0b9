# SPDX-License-Identifier: Apache-2.0
"""Every kind of member that must not be used is refused by name, before any is."""

from __future__ import annotations

import tarfile

import pytest

from patchctl.formats.archive import (
    Scan,
    UnsafeArchive,
    check_links,
    check_paths,
    empty_submodules,
    scan_members,
)
from patchctl.formats.gitobjects import Mode
from patchctl.formats.globs import Include


def member(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    return info


def scan(*infos: tarfile.TarInfo, same: bool = False) -> Scan:
    return scan_members(infos, lambda a, b: same, where="pkg.tar.gz")


GOOD = member("pkg/csrc/a.h")
SYM, HARD, FOLDER = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE


def test_tree_is_what_is_below_the_top_folder() -> None:
    found = scan(
        member("pkg", FOLDER),
        GOOD,
        member("./pkg/run.sh", mode=0o755),
        member("pkg/odd", mode=0o464),
        member("pkg/hard", HARD, "pkg/run.sh"),
        member("pkg/csrc/link", SYM, "../run.sh"),
    )
    assert {path: m.mode for path, m in found.members.items()} == {
        b"csrc/a.h": Mode.FILE,
        b"run.sh": Mode.EXECUTABLE,
        b"odd": Mode.FILE,
        b"hard": Mode.EXECUTABLE,
        b"csrc/link": Mode.SYMLINK,
    }
    assert found.members[b"hard"].info.name == "./pkg/run.sh"
    assert found.notices == ()


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ([member("/etc/x")], "`/etc/x` is an absolute path"),
        ([member("pkg/../x")], "`pkg/../x` leaves the tree"),
        ([member("../x")], "`../x` leaves the tree"),
        ([member("other/x")], "`other/x` is outside the one top folder, `pkg`"),
        ([member("pkg/out", SYM, "../..")], "link `out` -> `../..` leaves the tree"),
        ([member("pkg/out", SYM, "..")], "link `out` -> `..` leaves the tree"),
        ([member("pkg/out", SYM, "/etc")], "link `out` -> `/etc` is absolute"),
        ([member("pkg/out", HARD, "../x")], "`pkg/out` is a hard link to `../x`"),
        ([member("pkg/out", HARD, "/etc/passwd")], "hard link to `/etc/passwd`"),
        ([member("pkg/out", HARD, "pkg/later"), member("pkg/later")], "no earlier file"),
        ([member("pkg/out", HARD, "csrc/a.h")], "no earlier file"),
        ([member("pkg/fifo", tarfile.FIFOTYPE)], "`pkg/fifo` is a FIFO"),
        ([member("pkg/tty", tarfile.CHRTYPE)], "`pkg/tty` is a device"),
        ([member("pkg/sda", tarfile.BLKTYPE)], "`pkg/sda` is a device"),
        ([member("pkg/odd", b"Z")], "`pkg/odd` is a member of type b'Z'"),
        ([member("pkg/csrc/A.h")], "`csrc/A.h` and `csrc/a.h` differ only by case"),
        ([member("pkg/CSRC/b.h")], "`CSRC` and `csrc` differ only by case"),
        ([member("pkg/CSRC", FOLDER)], "differ only by case"),
        ([member("pkg/csrc/a.h/b")], "`csrc/a.h/b` is below `csrc/a.h`, which is a file"),
        ([member("pkg/l", SYM, "csrc"), member("pkg/l/x")], "is below `l`, which is a link"),
        ([member("pkg/l/x"), member("pkg/l", SYM, "csrc")], "is below `l`, which is a link"),
        ([member("pkg/csrc/a.h", FOLDER)], "`csrc/a.h` is both a folder and a file"),
        ([member("pkg/csrc/a.h")], "`pkg/csrc/a.h` is there twice, with different contents"),
        ([member("pkg/.git/config")], "`.git/config` has a part `.git`"),
        ([member("pkg/x/.GiT", FOLDER)], "has a part `.GiT`"),
        ([member("pkg/a\x1b[31m", tarfile.FIFOTYPE)], r"`pkg/a\x1b[31m` is a FIFO"),
    ],
)
def test_member_that_is_refused_is_named(bad: list[tarfile.TarInfo], said: str) -> None:
    with pytest.raises(UnsafeArchive) as caught:
        scan(GOOD, *bad)
    assert "`pkg.tar.gz` is refused" in caught.value.message
    assert said in caught.value.message


def test_file_that_is_in_no_folder_is_refused() -> None:
    with pytest.raises(UnsafeArchive, match=r"`setup\.py` is not in a folder"):
        scan(member("setup.py"))


def test_archive_without_members_is_refused() -> None:
    with pytest.raises(UnsafeArchive, match="holds no files"):
        scan()


def test_same_file_twice_is_one_file() -> None:
    assert list(scan(GOOD, member("pkg/csrc/a.h"), same=True).members) == [b"csrc/a.h"]


@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o1755])
def test_special_bits_are_dropped_and_told(mode: int) -> None:
    found = scan(GOOD, member("pkg/tool", mode=mode))
    assert found.members[b"tool"].mode is Mode.EXECUTABLE
    assert found.notices == ("`tool`: set-id and sticky bits are dropped",)


def test_name_that_is_no_text_is_kept_byte_for_byte() -> None:
    assert list(scan(member("pkg/\udcff\udcfe.h")).members) == [b"\xff\xfe.h"]


@pytest.mark.parametrize(
    ("links", "said"),
    [
        ({b"x": b".", b"y": b"x/.."}, "leaves the tree"),
        ({b"a/b/deep": b"../..", b"c": b"a/b/deep/.."}, "leaves the tree"),
        ({b"x": b"y", b"y": b"x"}, "goes round in a circle"),
        ({b"x": b"x/x"}, "goes round in a circle"),
        ({b"x": b""}, "is empty"),
    ],
)
def test_link_that_escapes_by_a_detour_is_refused(links: dict[bytes, bytes], said: str) -> None:
    with pytest.raises(UnsafeArchive, match=said):
        check_links(links, where="x")


def test_links_inside_the_tree_pass() -> None:
    check_links({b"a/b": b"../c/d", b"c": b"e", b"e/f": b"../a/b", b"g": b"not/there"}, where="x")


@pytest.mark.parametrize("path", [b"a/../b", b"a//b", b".git/x", b"a/.GIT"])
def test_path_of_a_git_tree_is_judged_too(path: bytes) -> None:
    with pytest.raises(UnsafeArchive, match="has a part"):
        check_paths([path], where="x")


GITMODULES = b"""\
[submodule "csrc/composable_kernel"]
\tpath = csrc/composable_kernel
[submodule "csrc/cutlass"]
\tpath = "csrc/cutlass"
\turl = ../cutlass.git
"""


@pytest.mark.parametrize(
    ("paths", "globs", "empty"),
    [
        ([b"csrc/a.h"], ["csrc/**"], [b"csrc/composable_kernel", b"csrc/cutlass"]),
        ([b"csrc/a.h"], ["csrc/cutlass/include/**"], [b"csrc/cutlass"]),
        ([b"csrc/cutlass/x"], ["csrc/cutlass/**"], []),
        ([b"csrc/cutlass_x"], ["csrc/cutlass/**"], [b"csrc/cutlass"]),
        ([b"csrc/a.h"], ["csrc/*.h"], []),
    ],
)
def test_submodule_counts_only_where_files_are_wanted(
    paths: list[bytes], globs: list[str], empty: list[bytes]
) -> None:
    assert list(empty_submodules(GITMODULES, paths, Include(tuple(globs)))) == empty


def test_same_content_with_another_mode_is_there_twice() -> None:
    with pytest.raises(UnsafeArchive, match="is there twice"):
        scan(GOOD, member("pkg/csrc/a.h", mode=0o755), same=True)
