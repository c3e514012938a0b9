# SPDX-License-Identifier: Apache-2.0
"""A git commit becomes the baseline whatever the user's git, and whoever owns the repository."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tests.git.conftest import MakeProject, git, tree_of, write_files

from patchctl.errors import LockMismatch, Unavailable, UsageError
from patchctl.stages.fetch import BASELINE_REF, fetch
from patchctl.system.gitstore import Store
from patchctl.system.project import Project
from patchctl.system.report import QuietReporter

CASES = Path(__file__).parents[1] / "data" / "cases"
FILES = {"LICENSE": b"free\n", "csrc/a.h": b"int a;\r\n", "odd name\t.h": b"\xff\n"}


def upstream(project: Project) -> Path:
    return project.root.parent / "upstream"


def edit_lock(project: Project, old: str, new: str) -> None:
    text = project.baseline_lock.read_text()
    assert old in text
    project.baseline_lock.write_text(text.replace(old, new))


def keep_only(project: Project, glob: str) -> None:
    edit_lock(project, '"**"', f'"{glob}"')


def lock_to_head(project: Project) -> None:
    """Lock the tip of the upstream repository as it is now."""
    import tomllib

    baseline = tomllib.loads(project.baseline_lock.read_text())["baseline"]
    edit_lock(project, baseline["commit"], git(upstream(project), "rev-parse", "HEAD"))
    edit_lock(project, baseline["tree"], git(upstream(project), "rev-parse", "HEAD^{tree}"))


def case_files(number: int) -> dict[str, bytes]:
    base = CASES / str(number) / "base"
    return {p.relative_to(base).as_posix(): p.read_bytes() for p in base.rglob("*") if p.is_file()}


def test_baseline_is_the_commits_tree(make_project: MakeProject) -> None:
    project = make_project(FILES, executable={"csrc/a.h"})
    baseline = fetch(project, QuietReporter())
    assert baseline.tree == git(upstream(project), "rev-parse", "HEAD^{tree}")
    assert baseline.files == 3
    assert git(project.store, "rev-list", "--parents", BASELINE_REF) == baseline.commit
    git(project.store, "fsck", "--strict")


def test_include_filters_the_commits_tree(make_project: MakeProject) -> None:
    project = make_project(FILES)
    keep_only(project, "csrc/**")
    with pytest.raises(LockMismatch, match="not the locked ones"):
        fetch(project, QuietReporter())
    baseline = fetch(project, QuietReporter(), lock=True)
    assert baseline.tree == tree_of({"csrc/a.h": FILES["csrc/a.h"]})
    assert [key for key, _, _ in baseline.relocked] == ["tree"]


def test_same_tree_gives_the_same_commit_as_an_sdist_would(make_project: MakeProject) -> None:
    baseline = fetch(make_project(FILES), QuietReporter())
    assert baseline.tree == tree_of(FILES)


def test_offline_takes_a_local_repository_and_later_needs_none(make_project: MakeProject) -> None:
    project = make_project(FILES)
    assert fetch(project, QuietReporter(), offline=True).fetched
    shutil.rmtree(upstream(project))
    assert not fetch(project, QuietReporter(), offline=True).fetched


def test_older_commit_of_a_shallow_or_moved_repository_is_found(make_project: MakeProject) -> None:
    project = make_project(FILES)
    write_files(upstream(project), {"later": b"x"})
    git(upstream(project), "add", "later")
    git(upstream(project), "commit", "--quiet", "--message", "later")
    assert fetch(project, QuietReporter()).tree == tree_of(FILES)


def test_commit_that_nobody_has_is_unavailable(make_project: MakeProject) -> None:
    project = make_project(FILES)
    edit_lock(project, git(upstream(project), "rev-parse", "HEAD"), "ab" * 20)
    with pytest.raises(Unavailable, match=f"cannot get commit {'ab' * 20}"):
        fetch(project, QuietReporter())


def test_id_of_a_tree_is_no_commit(make_project: MakeProject) -> None:
    project = make_project(FILES)
    head, tree = (git(upstream(project), "rev-parse", n) for n in ("HEAD", "HEAD^{tree}"))
    edit_lock(project, f'commit = "{head}"', f'commit = "{tree}"')
    with pytest.raises(UsageError, match=f"{tree} in .* is a tree, expected a commit"):
        fetch(project, QuietReporter())


def test_missing_folder_is_a_usage_error(make_project: MakeProject) -> None:
    project = make_project(FILES)
    edit_lock(project, "../upstream", "../nowhere")
    with pytest.raises(UsageError, match=r"baseline\.url`: no folder"):
        fetch(project, QuietReporter())


def test_offline_does_not_ask_a_url(make_project: MakeProject) -> None:
    project = make_project(FILES)
    edit_lock(project, "../upstream", "https://git.invalid/x.git")
    with pytest.raises(Unavailable, match="--offline forbids"):
        fetch(project, QuietReporter(), offline=True)


def test_unreachable_url_says_what_git_said(make_project: MakeProject) -> None:
    project = make_project(FILES)
    edit_lock(project, "../upstream", "http://127.0.0.1:1/x.git")
    with pytest.raises(Unavailable, match="cannot get commit") as caught:
        fetch(project, QuietReporter())
    assert any("127.0.0.1" in line for line in caught.value.details)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
def test_repository_of_another_user_is_read(
    make_project: MakeProject, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    project = make_project(FILES)
    for path in (upstream(project), *upstream(project).rglob("*")):
        os.chown(path, 4711, 4711)
    assert fetch(project, QuietReporter()).tree == tree_of(FILES)
    # and the store too, once it is somebody else's
    for path in (project.store, *project.store.rglob("*")):
        os.chown(path, 4711, 4711)
    (project.records / "fetch.json").unlink()
    assert fetch(project, QuietReporter()).tree == tree_of(FILES)
    assert not (tmp_path / "home").exists()


def test_case_31_submodule_inside_include_is_told(make_project: MakeProject) -> None:
    project = make_project(FILES)
    commit = git(upstream(project), "rev-parse", "HEAD")
    cacheinfo = f"160000,{commit},csrc/cutlass"
    git(upstream(project), "update-index", "--add", "--cacheinfo", cacheinfo)
    git(upstream(project), "commit", "--quiet", "--message", "submodule")
    lock_to_head(project)
    with pytest.raises(UsageError) as caught:
        fetch(project, QuietReporter())
    assert caught.value.message.startswith("submodule csrc/cutlass is empty in this commit; use")
    keep_only(project, "csrc/*")
    assert fetch(project, QuietReporter(), lock=True).files == 1


@pytest.mark.parametrize(
    ("path", "target", "said"),
    [
        ("csrc/out", "../../etc", "leaves the tree"),
        ("out", "/etc/passwd", "is absolute"),
        ("CSRC/b.h", None, "differ only by case"),
    ],
)
def test_tree_that_means_trouble_is_refused(
    make_project: MakeProject, path: str, target: str | None, said: str
) -> None:
    project = make_project(FILES)
    place = upstream(project) / path
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(target) if target else place.write_bytes(b"")
    git(upstream(project), "add", "--force", path)
    git(upstream(project), "commit", "--quiet", "--message", "trouble")
    lock_to_head(project)
    with pytest.raises(UsageError, match=said):
        fetch(project, QuietReporter())


def test_case_18_project_inside_another_repository_leaves_that_alone(
    make_project: MakeProject, tmp_path: Path
) -> None:
    project = make_project(case_files(18))
    (tmp_path / ".gitignore").write_text("project/build\n")
    git(tmp_path, "init", "--quiet", "--template=")
    git(tmp_path, "add", ".gitignore")
    state = {p: p.read_bytes() for p in (tmp_path / ".git").rglob("*") if p.is_file()}
    baseline = fetch(project, QuietReporter())
    assert baseline.tree == tree_of(case_files(18))
    assert {p: p.read_bytes() for p in (tmp_path / ".git").rglob("*") if p.is_file()} == state


def hostile_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    shutil.copytree(CASES / "19" / "home", home)
    for hook in (*(home / "hooks").iterdir(), *(home / "template" / "hooks").iterdir()):
        hook.chmod(0o755)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return home


def test_case_19_users_configuration_changes_nothing(
    make_project: MakeProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make_project(case_files(19), executable={"tools/gen.sh"})
    quiet = fetch(project, QuietReporter())
    shutil.rmtree(project.out)
    home = hostile_home(tmp_path, monkeypatch)
    for name, value in {
        "GIT_DIR": str(tmp_path / "elsewhere"),
        "GIT_INDEX_FILE": str(tmp_path / "index"),
        "GIT_OBJECT_DIRECTORY": str(tmp_path / "objects"),
        "GIT_CONFIG_PARAMETERS": "'core.bare=false'",
        "GIT_TEMPLATE_DIR": str(home / "template"),
    }.items():
        monkeypatch.setenv(name, value)
    before = {p for p in home.rglob("*")}
    hostile = fetch(project, QuietReporter())
    assert (hostile.tree, hostile.commit) == (quiet.tree, quiet.commit)
    assert {p for p in home.rglob("*")} == before
    assert not (project.store / "hooks").exists()
    with Store(project.store) as store:
        tree = store.read_tree(hostile.commit)
        contents = {p.decode(): store.read_blob(e.id) for p, e in tree.items()}
    assert contents == case_files(19)
    assert tree[b"tools/gen.sh"].mode == "100755"


def test_users_configuration_is_not_even_read(
    make_project: MakeProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make_project(FILES)
    (tmp_path / ".gitconfig").write_text("[broken")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert fetch(project, QuietReporter()).tree == tree_of(FILES)


def test_commit_that_arrives_as_a_pack_is_found(make_project: MakeProject) -> None:
    files = {f"csrc/{n}.h": b"%d\n" % n for n in range(150)}
    project = make_project(files)
    assert fetch(project, QuietReporter()).tree == tree_of(files)
    assert list(project.store.glob("objects/pack/*.pack"))
