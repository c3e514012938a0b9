# SPDX-License-Identifier: Apache-2.0
"""How many compiles this machine, or the container we are in, can run at once."""

from __future__ import annotations

import os
from pathlib import Path

MIB = 1024 * 1024
MARGIN = 512 * MIB
"""Left to everything else, so that the machine stays usable."""

# folder, limit, use, and the name in memory.stat of the page cache that can be dropped
_CGROUPS = (
    ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    (
        "sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
)


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that can be used without swapping, a container's limit included."""
    amounts = []
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            amounts.append(int(line.split()[1]) * 1024)
    for folder, limit_file, use_file, droppable in _CGROUPS:
        cgroup = root / folder
        try:
            limit = int((cgroup / limit_file).read_text())
            used = int((cgroup / use_file).read_text())
            stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):  # no such cgroup version, or its limit is "max"
            continue
        amounts.append(max(0, limit - used + int(stat.get(droppable, 0))))
    return min(amounts)


def parallel_jobs(per_job: int, *, cores: int, available: int) -> int:
    """How many jobs of `per_job` bytes run at once: at least one, at most one a core."""
    return max(1, min(cores, (available - MARGIN) // per_job))
