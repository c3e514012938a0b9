# SPDX-License-Identifier: Apache-2.0
"""What the tests of rebase share: a project whose baseline and patches come from a repository."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tests.git.conftest import MakeProject, git, write_files

from patchctl.formats.rebasesession import Session
from patchctl.stages.rebase import at_work, begin
from patchctl.stages.rebaseaccept import Accepted, accept
from patchctl.stages.replay import replay
from patchctl.system.project import Project
from patchctl.system.report import QuietReporter

QUIET = QuietReporter()


def text(name: str, *words: str) -> bytes:
    """40 lines of the file `name`, of which ``number:content`` in `words` have other content."""
    lines = {n: f"{name} line {n}" for n in range(1, 41)}
    lines |= {int(n): rest for n, _, rest in (word.partition(":") for word in words)}
    return "".join(f"{line}\n" for line in lines.values()).encode()


def change(name: str, *words: str) -> dict[str, bytes | None]:
    """The file `name`.h with other content in some lines."""
    return {f"{name}.h": text(name, *words)}


@dataclass
class Rig:
    """A project whose baseline is a commit of `upstream`."""

    project: Project
    upstream: Path
    onto: str = ""
    before: dict[str, bytes] = field(default_factory=dict)

    def patch(self, name: str, files: dict[str, bytes | None]) -> None:
        """Append a patch to the series that gives `files` their new content."""
        work = self.upstream
        git(work, "checkout", "--quiet", "patched")
        self._commit(files, f"area: {name}\n\nWhy {name}.\n\nSigned-off-by: Ann <ann@example.org>")
        target = self.project.patches / f"{name}.patch"
        made = git(
            work, "format-patch", "-1", "--stdout", "--zero-commit", "--no-signature", "-N",
            "--full-index",
        )  # fmt: skip
        target.write_text(made + "\n")
        with self.project.series.open("a") as series:
            series.write(f"{name}.patch\n")

    def release(self, files: dict[str, bytes | None]) -> str:
        """A new commit of upstream; returns what --onto takes."""
        git(self.upstream, "checkout", "--quiet", "next")
        self._commit(files, "upstream")
        return f"../upstream@{git(self.upstream, 'rev-parse', 'HEAD')}"

    def _commit(self, files: dict[str, bytes | None], message: str) -> None:
        write_files(self.upstream, {n: c for n, c in files.items() if c is not None})
        for name, content in files.items():
            if content is None:
                (self.upstream / name).unlink()
        git(self.upstream, "add", "--all")
        git(
            self.upstream, "commit", "--quiet", "--author=Ann Other <ann@example.org>",
            "--date=2026-01-02T03:04:05+0200", "-m", message,
        )  # fmt: skip

    def lock(self) -> None:
        replay(self.project, QUIET, lock=True)

    @property
    def edit(self) -> Path:
        return self.project.out / "edit"

    def state(self) -> dict[str, bytes]:
        """Everything that only accepting may change."""
        folders = (self.project.patches, self.project.root / "vendor", self.project.source)
        return {str(p): p.read_bytes() for f in folders for p in f.rglob("*") if p.is_file()}

    def start(self, onto: str) -> Session:
        begin(self.project, onto, QUIET, offline=False)
        return self.go("run")

    def go(self, action: str) -> Session:
        with at_work(self.project, QUIET) as work:
            getattr(work, action)()
            return work.session

    def accept(self) -> Accepted:
        return accept(self.project, QUIET)


def make_rig(make_project: MakeProject, files: dict[str, bytes]) -> Rig:
    """A project without patches on the baseline `files`."""
    project = make_project(files)
    upstream = project.root.parent / "upstream"
    git(upstream, "branch", "patched")
    git(upstream, "branch", "next")
    return Rig(project, upstream)
