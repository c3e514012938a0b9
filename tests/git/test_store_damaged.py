# SPDX-License-Identifier: Apache-2.0
"""The store after a full disk, a power cut, or somebody's hand: repaired, or refused with the
remedy; never a crash, and never other bytes than the ids promise."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from tests.git.conftest import MakeProject, git, tree_of

from patchctl.errors import Unavailable
from patchctl.formats.gitobjects import blob_id
from patchctl.stages.fetch import BASELINE_REF, fetch
from patchctl.stages.replay import HEAD_REF, replay
from patchctl.system.gitstore import Store
from patchctl.system.project import Project
from patchctl.system.report import QuietReporter

FILES = {"a.h": b"a0\n", "csrc/b.h": b"b0\n"}
PATCH = b"--- a/a.h\n+++ b/a.h\n@@ -1 +1 @@\n-a0\n+a1\n"


@pytest.fixture
def project(make_project: MakeProject) -> Project:
    """One patch, locked and replayed; the source folder and what is known of it are lost."""
    project = make_project(FILES, {"0001-a.patch": PATCH})
    replay(project, QuietReporter(), lock=True)
    shutil.rmtree(project.source)
    (project.records / "source.json").unlink()
    return project


def loose_objects(project: Project) -> list[Path]:
    return [p for p in project.store.glob("objects/??/*") if p.is_file()]


def rewrite(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


def empty_objects(project: Project) -> None:
    for path in [*loose_objects(project), *project.store.glob("objects/pack/*.pack")]:
        rewrite(path, b"")


def cut_objects(project: Project) -> None:
    for path in [*loose_objects(project), *project.store.glob("objects/pack/*.pack")]:
        rewrite(path, path.read_bytes()[:-6])


def other_content(project: Project) -> None:
    """A loose object wins over the packed one; git reads it without comparing."""
    name = blob_id(FILES["csrc/b.h"])
    path = project.store / "objects" / name[:2] / name[2:]
    path.parent.mkdir(exist_ok=True)
    for pack in project.store.glob("objects/pack/*"):
        shutil.move(pack, project.root)
    for pack in project.root.glob("*.pack"):
        subprocess.run(["git", "unpack-objects", "-q"], cwd=project.store, input=pack.read_bytes())
    rewrite(path, zlib.compress(b"blob 5\0evil\n"))


def empty_configuration(project: Project) -> None:
    rewrite(project.store / "config", b"")


def no_configuration(project: Project) -> None:
    rewrite(project.store / "config", b"\0\xff" * 50)


@pytest.mark.parametrize(
    "damage",
    [empty_objects, cut_objects, other_content, empty_configuration, no_configuration],
)
def test_damaged_store_is_refused_and_the_remedy_helps(project: Project, damage: object) -> None:
    assert callable(damage)
    damage(project)
    with pytest.raises(Unavailable, match="is not a whole git repository") as caught:
        replay(project, QuietReporter())
    assert "remove it" in caught.value.hint
    assert not (project.source / "csrc" / "b.h").exists()
    shutil.rmtree(project.store)
    assert replay(project, QuietReporter()).fresh
    assert (project.source / "csrc" / "b.h").read_bytes() == FILES["csrc/b.h"]


@pytest.mark.parametrize("ref", [BASELINE_REF, HEAD_REF])
@pytest.mark.parametrize("content", [b"", b"\0\xff" * 20])
def test_ref_that_names_nothing_is_written_again(
    project: Project, ref: str, content: bytes
) -> None:
    before = git(project.store, "rev-parse", ref)
    rewrite(project.store / ref, content)
    replay(project, QuietReporter())
    assert git(project.store, "rev-parse", ref) == before


@pytest.mark.parametrize("limit", [200, 20_000])
def test_fetch_from_git_that_a_full_disk_ends_is_done_again(
    make_project: MakeProject, limit: int
) -> None:
    """A limit on the size of a file stands for the disk; small objects still fit."""
    files = {**FILES, "z.bin": os.urandom(50_000)}
    project = make_project(files)
    done = subprocess.run(
        [sys.executable, "-m", "patchctl", "-C", project.root, "fetch"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 8, done.stderr
    assert fetch(project, QuietReporter()).tree == tree_of(files)
    assert replay(project, QuietReporter(), lock=True).written == 3
    assert not list(project.store.glob("objects/pack/tmp_*"))


def test_project_in_a_folder_with_a_variables_name_works(
    make_project: MakeProject, tmp_path: Path
) -> None:
    made = make_project(FILES, {"0001-a.patch": PATCH})
    root = tmp_path / "$HOME ~ %s" / "project"
    shutil.move(made.root, root)
    lock = (root / "vendor" / "flash-attn.lock.toml").read_text()
    assert "../upstream" in lock
    (root / "vendor" / "flash-attn.lock.toml").write_text(lock.replace("../up", "../../up"))
    project = Project(root, root / "build" / "out")
    replay(project, QuietReporter(), lock=True)
    assert (project.source / "a.h").read_bytes() == b"a1\n"


def test_blobs_read_ahead_are_the_same_and_damage_is_still_told(tmp_path: Path) -> None:
    with Store(tmp_path / "store.git") as store:
        blobs = {store.write_blob(b"%d\n" % n): b"%d\n" % n for n in range(100)}
        damaged = next(iter(blobs))
        loose = store.path / "objects" / damaged[:2] / damaged[2:]
        loose.chmod(0o644)
        loose.write_bytes(zlib.compress(b"blob 6\0other\n"))
        store.read_ahead([*blobs, "0" * 40])
        for hex_id, content in list(blobs.items())[1:]:
            assert store.read_blob(hex_id) == content
        with pytest.raises(Unavailable):
            store.read_blob(damaged)
