# SPDX-License-Identifier: Apache-2.0
"""How many compiles run at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchctl.system.machine import MARGIN, MIB, available_memory, parallel_jobs

GIB = 1024 * MIB


@pytest.mark.parametrize(
    ("available", "cores", "expected"),
    [
        (32 * GIB, 2, 2),
        (32 * GIB, 64, 15),
        (2 * 2 * GIB + MARGIN, 8, 2),
        (2 * 2 * GIB + MARGIN - 1, 8, 1),
        (100 * MIB, 8, 1),
    ],
)
def test_jobs_fit_cores_and_memory_and_are_at_least_one(
    available: int, cores: int, expected: int
) -> None:
    assert parallel_jobs(2 * GIB, cores=cores, available=available) == expected


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_memory_is_the_machines_without_a_container_limit(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", "MemTotal: 9 kB\nMemAvailable:   4096 kB\n")
    write(tmp_path, "sys/fs/cgroup/memory.max", "max\n")
    write(tmp_path, "sys/fs/cgroup/memory.current", "1\n")
    write(tmp_path, "sys/fs/cgroup/memory.stat", "inactive_file 5\n")
    assert available_memory(tmp_path) == 4 * MIB


def test_a_containers_limit_counts_and_its_page_cache_does_not(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", "MemAvailable:   40960 kB\n")
    write(tmp_path, "sys/fs/cgroup/memory.max", f"{8 * MIB}\n")
    write(tmp_path, "sys/fs/cgroup/memory.current", f"{6 * MIB}\n")
    write(tmp_path, "sys/fs/cgroup/memory.stat", f"anon 7\ninactive_file {1 * MIB}\n")
    assert available_memory(tmp_path) == 3 * MIB
