# SPDX-License-Identifier: Apache-2.0
"""What an execution shows that a GPU hides: one entry per kind, instruction and tensor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Kind(StrEnum):
    """What can go wrong while a kernel runs; `CONFLICTS` is a count, not a fault."""

    OUT_OF_BOUNDS = "out_of_bounds"
    MISALIGNED = "misaligned"
    FORBIDDEN = "forbidden"
    """A read of memory that exists but that the problem does not give to the kernel."""
    READ_ONLY = "read_only"
    UNINITIALISED_SHARED = "uninitialised_shared"
    UNINITIALISED_LOCAL = "uninitialised_local"
    UNINITIALISED_REGISTER = "uninitialised_register"
    SHARED_RACE = "shared_race"
    DIVERGENT_BARRIER = "divergent_barrier"
    DIVERGENT_SHUFFLE = "divergent_shuffle"
    DIVERGENT_BRANCH = "divergent_branch"
    NAN_BORN = "nan_born"
    DOUBLE_STORE = "double_store"
    GLOBAL_RACE = "global_race"
    CONFLICTS = "bank_conflicts"


HARMLESS = frozenset({Kind.CONFLICTS})


@dataclass(frozen=True)
class Site:
    """An instruction: where a finding points to. `address` is a byte offset in the kernel
    (SASS) or a line number (PTX)."""

    kernel: str
    address: int
    text: str


@dataclass(frozen=True)
class Finding:
    """`count` thread accesses did this at `site`; the first one was `thread` of `cta`."""

    kind: Kind
    site: Site
    cta: tuple[int, int, int]
    thread: int
    tensor: str
    detail: str
    count: int

    def __str__(self) -> str:
        where = f"0x{self.site.address:04x} {self.site.text}"
        tensor = f" {self.tensor}:" if self.tensor else ""
        return (
            f"{self.kind}:{tensor} {self.detail} ({self.count}x, first: CTA {self.cta}, "
            f"thread {self.thread}) at {where}"
        )


class Findings:
    """Collects findings; the same fault at the same place is kept once, with its count."""

    def __init__(self) -> None:
        self._found: dict[tuple[Kind, str, int, str], Finding] = {}

    def add(self, found: Finding) -> None:
        key = (found.kind, found.site.kernel, found.site.address, found.tensor)
        old = self._found.get(key)
        self._found[key] = found if old is None else replace(old, count=old.count + found.count)

    def all(self) -> list[Finding]:
        """In the order in which they were seen."""
        return list(self._found.values())

    def faults(self) -> list[Finding]:
        """All but the counts."""
        return [found for found in self._found.values() if found.kind not in HARMLESS]

    def kinds(self) -> set[Kind]:
        return {found.kind for found in self._found.values()}

    def count(self, kind: Kind) -> int:
        return sum(found.count for found in self._found.values() if found.kind is kind)
