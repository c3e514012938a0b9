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

HERE = Path(__file__).parent
PATCHES = HERE.parents[1] / "patches"
SOURCE = Path("csrc/flash_attn/src")

CHECKS = [
    "fragments_are_bijections",
    "acc_fragment_registers_are_a_bijection",
    "warp_tiles_are_bijections",
    "neighbouring_columns_are_adjacent",
    "row_peers_are_the_lanes_of_a_row",
    "layouts_are_bijections",
    "operand_loads_have_no_conflicts",
    "fills_have_no_conflicts",
    "o_is_staged_in_two_passes",
    "unswizzled_layouts_conflict",
    "operand_addresses_follow_from_the_first",
    "scores_are_exact",
    "outputs_are_exact",
    "outputs_are_wrong_when_p_is_taken_from_another_lane",
    "chunk_stream_visits_every_chunk_once_and_in_order",
    "ring_slots_change_hands_at_a_barrier",
    "key_ranges_are_bottom_right_aligned",
    "splits_divide_the_tiles_of_a_range",
    "scaled_probabilities_fit_fp16",
]

# An edit of a header, and a check that must notice it.
MUTATIONS = {
    "lane bit 1 dropped from C's column": (
        "fragment.h", "(i & 1) + 2 * ((lane >> 1) & 1) + 4 * (i >> 2)", "(i & 1) + 4 * (i >> 2)",
        "fragments_are_bijections",
    ),
    "keys of S in another order": (
        "fragment.h", "32 * (col >> 2) + 16 * ((col >> 1) & 1) + 4 * quad_pair(lane)",
        "32 * (col >> 2) + 4 * ((col >> 1) & 1) + 8 * quad_pair(lane)", "scores_are_exact",
    ),
    "columns of O in another order": (
        "fragment.h", "8 * quad_pair(lane) + 4 * ((col >> 2) & 1)",
        "4 * quad_pair(lane) + 16 * ((col >> 2) & 1)", "outputs_are_exact",
    ),
    "last 32 columns of O in the order of the others": (
        "fragment.h", ": d + 16 * ((col >> 1) & 1) + 4 * quad_pair(lane)",
        ": d + 4 * ((col >> 1) & 1) + 8 * quad_pair(lane)", "outputs_are_exact",
    ),
    "last 32 columns of V spread over both halves of a group": (
        "fragment.h", "return 16 * (lane >> 4) + 4 * quad_pair(lane);",
        "return 4 * (lane >> 4) + 8 * quad_pair(lane);", "operand_loads_have_no_conflicts",
    ),
    "K swizzled by every other key": (
        "smem_layout.h", "row / Rows::kRowsPerSwizzle % Rows::kSwizzleGroups",
        "row / 2 / Rows::kRowsPerSwizzle % Rows::kSwizzleGroups",
        "operand_loads_have_no_conflicts",
    ),
    "rows of 192 bytes swizzled like rows of 128": (
        "smem_layout.h", "static constexpr int kRowsPerSwizzle = 8 / kSwizzleGroups;",
        "static constexpr int kRowsPerSwizzle = 1;", "operand_loads_have_no_conflicts",
    ),
    "half as many barriers": (
        "kernel_traits.h", "return position % kChunksPerRegion == 0;",
        "return position % kRingSlots == 0;", "ring_slots_change_hands_at_a_barrier",
    ),
    "P scaled past fp16": (
        "softmax.h", "kMaxLog2P = 15.f", "kMaxLog2P = 16.f",
        "scaled_probabilities_fit_fp16",
    ),
}  # fmt: skip


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


def build(include: Path, output: Path) -> Path:
    done = run(
        "g++", "-std=c++17", "-Wall", "-Wno-unknown-pragmas", f"-I{include}",
        HERE / "layout_facts.cpp", "-o", output,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return output


@pytest.fixture(scope="module")
def layout_facts(headers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(headers, tmp_path_factory.mktemp("facts") / "layout_facts")


def test_every_check_is_run(layout_facts: Path) -> None:
    assert run(layout_facts, "--list").stdout.split() == CHECKS


@pytest.mark.parametrize("check", CHECKS)
def test_layout_fact_holds(layout_facts: Path, check: str) -> None:
    done = run(layout_facts, check)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_layout_fact_fails_when_a_header_is_wrong(
    headers: Path, tmp_path: Path, mutation: str
) -> None:
    name, right, wrong, check = MUTATIONS[mutation]
    tree = tmp_path / "src"
    shutil.copytree(headers, tree)
    header = tree / "sm70" / name
    text = header.read_text()
    assert text.count(right) == 1
    header.write_text(text.replace(right, wrong))
    done = run(build(tree, tmp_path / "layout_facts"), check)
    assert done.returncode == 1, f"`{check}` did not notice: {mutation}"
