# SPDX-License-Identifier: Apache-2.0
"""The layout facts of the sm_70 kernels, enumerated on the CPU with the kernels' own headers.

Only git and a host compiler are needed: the headers are files that the series adds, so they come
straight out of the patches, and of the two upstream headers that they include only names matter.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.build.layout_mutations import CHECKS, MUTATIONS, TOPIC_OF

HERE = Path(__file__).parent
PATCHES = HERE.parents[1] / "patches"
SOURCE = Path("csrc/flash_attn/src")
SOURCES = HERE / "layout_facts"


def run(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True)


def series() -> list[str]:
    lines = (PATCHES / "series").read_text().splitlines()
    return [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]


@pytest.fixture(scope="module")
def headers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree with what the series adds under sm70/."""
    for tool in ("git", "g++"):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed")
    tree = tmp_path_factory.mktemp("tree")
    for name in series():
        # GIT_CEILING_DIRECTORIES keeps git from finding a repository around the temporary folder
        done = run(
            "env", f"GIT_CEILING_DIRECTORIES={tree.parent}", "git", "apply",
            f"--include={SOURCE}/sm70/*", PATCHES / name, cwd=tree,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    (tree / SOURCE / "namespace_config.h").write_text("#define FLASH_NAMESPACE flash\n")
    # params.h includes it for the kernels; no layout depends on what is in there
    (tree / SOURCE / "flash.h").write_text("namespace flash { struct Flash_fwd_params; }\n")
    return tree / SOURCE


def compiled(source: str, include: Path, folder: Path) -> Path:
    output = folder / f"{source}.o"
    done = run(
        "g++", "-std=c++17", "-Wall", "-Wno-unknown-pragmas", f"-I{include}",
        "-c", SOURCES / f"{source}.cpp", "-o", output,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return output


def linked(objects: list[Path], output: Path) -> Path:
    done = run("g++", *objects, "-o", output)
    assert done.returncode == 0, done.stderr
    return output


@pytest.fixture(scope="module")
def main(headers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The part of the program that knows nothing of the kernels."""
    return compiled("main", headers, tmp_path_factory.mktemp("main"))


@pytest.fixture(scope="module")
def layout_facts(main: Path, headers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("facts")
    topics = [compiled(topic, headers, folder) for topic in CHECKS]
    return linked([main, *topics], folder / "layout_facts")


def test_every_source_is_a_topic() -> None:
    assert {source.stem for source in SOURCES.glob("*.cpp")} == {"main", *CHECKS}


def test_every_check_is_run(layout_facts: Path) -> None:
    # sorted, as their order is the linker's
    assert sorted(run(layout_facts, "--list").stdout.split()) == sorted(TOPIC_OF)


def test_every_topic_has_a_mutation() -> None:
    assert {TOPIC_OF[check] for *_, check in MUTATIONS.values()} == set(CHECKS)


@pytest.mark.parametrize("check", TOPIC_OF)
def test_layout_fact_holds(layout_facts: Path, check: str) -> None:
    done = run(layout_facts, check)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_layout_fact_fails_when_a_header_is_wrong(
    main: Path, headers: Path, tmp_path: Path, mutation: str
) -> None:
    name, right, wrong, check = MUTATIONS[mutation]
    tree = tmp_path / "src"
    shutil.copytree(headers, tree)
    header = tree / "sm70" / name
    text = header.read_text()
    assert text.count(right) == 1
    header.write_text(text.replace(right, wrong))
    # The topic alone: linked with the others, it could get their functions instead of wrong ones.
    topic = compiled(TOPIC_OF[check], tree, tmp_path)
    done = run(linked([main, topic], tmp_path / "layout_facts"), check)
    assert done.returncode == 1, f"`{check}` did not notice: {mutation}"
