# SPDX-License-Identifier: Apache-2.0
"""An overlay's files: replaced in one step, and put back as the same files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from patchctl.errors import LocalChanges
from patchctl.formats.manifest import State
from patchctl.stages.overlayfiles import OverlayFolder
from patchctl.system.report import QuietReporter

OURS = "_vllm_fa2_C.abi3.so"
THEIRS = "_vllm_fa2_C.cpython-312-x86_64-linux-gnu.so"
NEW, NEWER, FOREIGN = b"our library", b"our next library", b"what pip put"

Snapshot = dict[str, tuple[bytes, int, int, int]]


def snapshot(folder: Path) -> Snapshot:
    """Every file: content, inode, mode, time stamp."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            at = path.lstat()
            name = str(path.relative_to(folder))
            found[name] = (path.read_bytes(), at.st_ino, at.st_mode, at.st_mtime_ns)
    return found


def make_site(root: Path) -> Path:
    """A site-packages with a package that has the library under two names."""
    folder = root / "vllm" / "flash"
    folder.mkdir(parents=True)
    for name, mode, when in ((OURS, 0o555, 10**18), (THEIRS, 0o750, 10**18 + 7)):
        path = folder / name
        path.write_bytes(name.encode())
        path.chmod(mode)
        os.utime(path, ns=(when, when))
    (folder / "_vllm_fa3_C.abi3.so").write_bytes(b"another library")
    return root


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return make_site(tmp_path)


@pytest.fixture(autouse=True)
def no_disk_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def overlay_in(site: Path) -> OverlayFolder:
    return OverlayFolder("vllm.flash", site / "vllm" / "flash", site, "_vllm_fa2_C")


def begin(overlay: OverlayFolder, data: bytes, *, force: bool = False) -> None:
    overlay.begin(OURS, hashlib.sha256(data).hexdigest(), force=force)


def put(site: Path, data: bytes, *, force: bool = False) -> OverlayFolder:
    overlay = overlay_in(site)
    overlay.repair(QuietReporter())
    begin(overlay, data, force=force)
    overlay.put(data)
    overlay.commit()
    return overlay


def remove(site: Path, *, force: bool = False) -> tuple[Path, ...]:
    overlay = overlay_in(site)
    overlay.repair(QuietReporter())
    manifest = overlay.load()
    assert manifest is not None
    return overlay.remove(manifest, force=force)


def test_overlay_replaces_every_suffix_and_keeps_the_mode(site: Path) -> None:
    put(site, NEW)
    folder = site / "vllm" / "flash"
    assert sorted(p.name for p in folder.iterdir()) == [OURS, "_vllm_fa3_C.abi3.so"]
    assert (folder / OURS).read_bytes() == NEW
    assert (folder / OURS).stat().st_mode & 0o7777 == 0o555


def test_removal_brings_the_same_files_back(site: Path) -> None:
    before = snapshot(site)
    put(site, NEW)
    assert snapshot(site) != before
    remove(site)
    assert snapshot(site) == before
    assert sorted(p.name for p in site.iterdir()) == ["vllm"]


def test_removal_where_nothing_was_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "vllm" / "flash").mkdir(parents=True)
    put(tmp_path, NEW)
    remove(tmp_path)
    assert list((tmp_path / "vllm" / "flash").iterdir()) == []


def test_second_overlay_keeps_the_first_original(site: Path) -> None:
    before = snapshot(site)
    put(site, NEW)
    overlay = put(site, NEWER)
    assert (overlay.folder / OURS).read_bytes() == NEWER
    remove(site)
    assert snapshot(site) == before


def test_symbolic_link_comes_back_as_a_link(site: Path) -> None:
    place = site / "vllm" / "flash" / OURS
    (site / "store.so").write_bytes(b"shared store")
    place.unlink()
    place.symlink_to("../../store.so")
    put(site, NEW)
    assert not place.is_symlink()
    assert (site / "store.so").read_bytes() == b"shared store"
    remove(site)
    assert str(place.readlink()) == "../../store.so"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_owner_is_kept(site: Path) -> None:
    place = site / "vllm" / "flash" / OURS
    os.chown(place, 1234, 2345)
    put(site, NEW)
    assert (place.stat().st_uid, place.stat().st_gid) == (1234, 2345)
    remove(site)
    assert (place.stat().st_uid, place.stat().st_gid) == (1234, 2345)


def _pip_replaces(folder: Path) -> None:
    (folder / OURS).unlink()
    (folder / OURS).write_bytes(FOREIGN)


def _pip_adds(folder: Path) -> None:
    (folder / THEIRS).write_bytes(FOREIGN)


def _pip_removes(folder: Path) -> None:
    (folder / OURS).unlink()


CHANGES = [_pip_replaces, _pip_adds, _pip_removes]


@pytest.mark.parametrize("change", CHANGES)
def test_changed_library_is_refused_and_left_alone(
    site: Path, change: Callable[[Path], None]
) -> None:
    overlay = put(site, NEW)
    change(overlay.folder)
    before = snapshot(site)
    with pytest.raises(LocalChanges, match="no longer the library that patchctl put") as caught:
        put(site, NEWER)
    assert "--force" in caught.value.hint
    with pytest.raises(LocalChanges):
        remove(site)
    assert snapshot(site) == before


def test_forced_overlay_takes_the_foreign_file_for_the_original(site: Path) -> None:
    overlay = put(site, NEW)
    _pip_replaces(overlay.folder)
    before = snapshot(overlay.folder)
    put(site, NEWER, force=True)
    remove(site)
    assert snapshot(overlay.folder) == before
    # and what that overlay had replaced is kept too
    assert {p.read_bytes() for p in overlay.kept.iterdir()} == {OURS.encode(), THEIRS.encode()}


def test_forced_removal_keeps_a_copy_of_the_foreign_file(site: Path) -> None:
    before = snapshot(site)
    overlay = put(site, NEW)
    _pip_replaces(overlay.folder)
    kept = remove(site, force=True)
    assert [path.read_bytes() for path in kept] == [FOREIGN]
    assert {k: v for k, v in snapshot(site).items() if "kept" not in k} == before


def test_changed_original_is_refused(site: Path) -> None:
    overlay = put(site, NEW)
    held = overlay.originals / OURS
    held.chmod(0o644)
    held.write_bytes(b"edited")
    with pytest.raises(LocalChanges, match="is not what the overlay replaced"):
        remove(site)
    assert (overlay.folder / OURS).read_bytes() == NEW


STEPS = ["link", "rename", "replace", "unlink", "rmdir", "mkdir"]


class Killed(BaseException):
    """Stands for SIGKILL: after it, nothing that is tried changes a file."""


def run_to_step(number: int, action: Callable[[], object], patch: pytest.MonkeyPatch) -> bool:
    """Die at the `number`-th change of the file system; False if there were not so many."""
    seen = 0

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            nonlocal seen
            seen += 1
            if seen >= number:
                raise Killed
            return real(*args, **kwargs)

        return call

    with patch.context() as patched:
        for step in STEPS:
            patched.setattr(os, step, counted(getattr(os, step)))
        try:
            action()
        except Killed:
            return True
    return False


@pytest.mark.parametrize("what", ["first", "second", "removal"])
def test_killed_run_is_undone_or_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    number, killed = 0, True
    while killed:
        number += 1
        site = make_site(tmp_path / str(number))
        before = snapshot(site)
        if what != "first":
            put(site, NEW)
        action = partial(remove, site) if what == "removal" else partial(put, site, NEWER)
        killed = run_to_step(number, action, monkeypatch)
        overlay = overlay_in(site)
        overlay.repair(QuietReporter())
        manifest = overlay.load()
        if manifest is None:
            assert snapshot(site) == before, number
            assert not list(site.rglob(".patchctl*")), number
        else:
            assert manifest.state is State.INSTALLED
            wanted = {NEW, NEWER} if what == "second" else {NEW if what == "removal" else NEWER}
            assert (overlay.folder / OURS).read_bytes() in wanted, number
            remove(site)
            assert snapshot(site) == before, number
        assert not list(site.rglob(".patchctl-tmp-*")), number
    assert number > 8
