# SPDX-License-Identifier: Apache-2.0
"""A small project with a real git baseline, and nothing of the user's around it."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
import tomli_w

from patchctl.formats.edittree import tree_id
from patchctl.formats.gitobjects import Entry, Mode, blob_id
from patchctl.formats.serieslock import SeriesLock, read_series_lock
from patchctl.system.project import Project

MakeProject = Callable[..., Project]

IDENTITY = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "A"), ("EMAIL", "a@example.org"), ("DATE", "1700000000 +0000"))
}


def git(folder: Path, *arguments: str) -> str:
    """What the real git says in `folder`, with no configuration but the folder's own."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    hermetic = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "LC_ALL": "C"}
    done = subprocess.run(
        ["git", "-c", "safe.directory=*", *arguments],
        cwd=folder,
        env=inherited | hermetic | IDENTITY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def write_files(folder: Path, files: dict[str, bytes], executable: Collection[str] = ()) -> None:
    """Put `files` (path to content) below `folder`."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755 if name in executable else 0o644)


def make_repo(folder: Path, files: dict[str, bytes], executable: Collection[str] = ()) -> str:
    """A git repository with one commit of `files`; returns the commit's id."""
    folder.mkdir(parents=True)
    write_files(folder, files, executable)
    git(folder, "init", "--quiet", "--template=")
    git(folder, "-c", "core.autocrlf=false", "add", "--force", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "baseline")
    return git(folder, "rev-parse", "HEAD")


def write_lock(root: Path, baseline: dict[str, object]) -> Path:
    """Write the project's baseline lock."""
    path = root / "vendor" / "flash-attn.lock.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(tomli_w.dumps({"baseline": baseline}))
    return path


def make_sdist(path: Path, files: dict[str, bytes], top: str = "pkg-1.0") -> str:
    """A source archive with `files` below `top`; returns its sha256."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(f"{top}/{name}")
            info.size, info.uid, info.uname = len(content), 4711, "packager"
            tar.addfile(info, io.BytesIO(content))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tree_of(files: dict[str, bytes]) -> str:
    """The git tree id of plain `files`."""
    return tree_id({n.encode(): Entry(Mode.FILE, blob_id(c)) for n, c in files.items()})


def make_sdist_project(root: Path, sha256: str, tree: str, *include: str) -> Project:
    """A project that is locked to the sdist `pkg` 1.0."""
    digests = {"sha256": sha256, "tree": tree, "include": list(include or ("**",))}
    write_lock(root, {"kind": "sdist", "name": "pkg", "version": "1.0", **digests})
    (root / "patches").mkdir(exist_ok=True)
    return Project(root, root / "build" / "out")


@pytest.fixture
def find_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip looks: an empty folder."""
    for name in [n for n in os.environ if n.startswith("PIP_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "links"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder is in `tmp_path`."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("PATCHCTL_CACHE_DIR", str(cache))
    return cache


@pytest.fixture
def make_project(tmp_path: Path) -> MakeProject:
    """A project in `tmp_path`, locked to a git repository beside it.

    `make_project(files, patches, series=None, executable=())`: `files` is the baseline,
    `patches` are the patch files, `series` is the series file's text (default: every patch in
    the order given, with no patches an empty file).
    """

    def make(
        files: dict[str, bytes],
        patches: dict[str, bytes] | None = None,
        series: str | None = None,
        *,
        executable: Collection[str] = (),
    ) -> Project:
        root, upstream = tmp_path / "project", tmp_path / "upstream"
        commit = make_repo(upstream, files, executable)
        write_lock(
            root,
            {
                "kind": "git",
                "url": "../upstream",
                "commit": commit,
                "tree": git(upstream, "rev-parse", "HEAD^{tree}"),
                "include": ["**"],
            },
        )
        names = patches or {}
        write_files(root / "patches", names)
        text = "".join(f"{name}\n" for name in names) if series is None else series
        (root / "patches").mkdir(exist_ok=True)
        (root / "patches" / "series").write_bytes(text.encode())
        return Project(root, root / "build" / "out")

    return make


class Series:
    """A project with patches that git made of commits, replayed and locked."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.upstream = project.root.parent / "upstream"
        self.start = git(self.upstream, "rev-parse", "HEAD")

    def commit(self, subject: str, changes: dict[str, bytes | None], body: str = "") -> None:
        """Commit `changes` (None removes a file) upstream."""
        write_files(self.upstream, {n: c for n, c in changes.items() if c is not None})
        for name in [n for n, c in changes.items() if c is None]:
            (self.upstream / name).unlink()
        git(self.upstream, "add", "--all")
        words = ["-m", subject, *(["-m", body] if body else [])]
        git(self.upstream, "commit", "--quiet", "--author=P Author <p@example.org>",
            f"--date={1750000000 + 60 * len(self.commits())} +0200", *words)  # fmt: skip

    def commits(self) -> list[str]:
        """The ids of the commits, oldest first."""
        return git(self.upstream, "rev-list", "--reverse", f"{self.start}..HEAD").split()

    def export(self) -> Series:
        """Write the commits as the project's patches, and lock them."""
        options = ("--zero-commit", "--no-signature", "--full-index", "-N", "-k", "--binary")
        out = str(self.project.patches)
        git(self.upstream, "format-patch", "--quiet", *options, "-o", out, self.start)
        names = sorted(path.name for path in self.project.patches.glob("*.patch"))
        head = "# our patches\n\n"
        self.project.series.write_text(head + "".join(f"{name}\n" for name in names))
        self.relock()
        return self

    def relock(self) -> None:
        """Lock the series as it is."""
        from patchctl.stages.replay import replay
        from patchctl.system.report import QuietReporter

        replay(self.project, QuietReporter(), lock=True)

    def lock(self) -> SeriesLock:
        """The committed lock."""
        data = self.project.series_lock.read_bytes()
        return read_series_lock(data, where="series.lock.toml")

    @property
    def names(self) -> list[str]:
        """The patches' names, in order."""
        lines = self.project.series.read_text().splitlines()
        return [line.split()[0] for line in lines if line and not line.startswith("#")]

    def files(self) -> dict[str, bytes]:
        """Everything in `patches/`."""
        folder = self.project.patches
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}

    @classmethod
    def of_three(cls, make_project: MakeProject) -> Series:
        """Three patches: two edit ``a.h`` far apart, the last adds ``new.h`` and edits ``b.cu``."""
        lines = [b"line %d\n" % n for n in range(60)]
        series = cls(make_project({"a.h": b"".join(lines), "b.cu": b"one\ntwo\nthree\n"}))
        lines[10] = b"first\n"
        series.commit("core: first change", {"a.h": b"".join(lines)}, TRAILERS)
        lines[40] = b"second\n"
        series.commit("core: second change", {"a.h": b"".join(lines)}, TRAILERS)
        last: dict[str, bytes | None] = {"new.h": b"new\n", "b.cu": b"one\n2\nthree\n"}
        series.commit("core: third change", last, TRAILERS)
        return series.export()


TRAILERS = "Why it is so.\n\nUpstream-Status: Pending\nSigned-off-by: P Author <p@example.org>"
