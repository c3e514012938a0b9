# SPDX-License-Identifier: Apache-2.0
"""The CI job on every baseline: a table of patches by baselines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from patchctl.stages.check import CheckResult, check
from patchctl.system.baselines import baseline_names, with_baseline
from patchctl.system.project import Project
from patchctl.system.report import Reporter


def check_baselines(
    project: Project,
    target_name: str,
    report: Reporter,
    *,
    offline: bool = False,
    cuda_home: Path | None = None,
    jobs: int | None = None,
    each_prefix: bool = False,
    keep: bool = False,
) -> dict[str, CheckResult]:
    """`check` on every baseline, each in a folder of its own below ``build/out/check``.

    A baseline that fails does not keep the next from being looked at.

    Raises:
        UsageError: a lock in `vendor/` is wrong.
    """
    results = {}
    for name in baseline_names(project):
        report.info(f"check: baseline {name}")
        results[name] = check(
            with_baseline(project, name),
            target_name,
            report,
            offline=offline,
            cuda_home=cuda_home,
            jobs=jobs,
            each_prefix=each_prefix,
            keep=keep,
            scratch=project.out / "check" / name,
        )
    return results


def matrix_rows(results: dict[str, CheckResult]) -> list[list[str]]:
    """A row a patch: its name, and what each baseline says of it."""
    patches: Sequence[str] = next(([c.patch for c in r.cells] for r in results.values()), [])
    columns = [{cell.patch: str(cell) for cell in r.cells} for r in results.values()]
    return [[name, *(column[name] for column in columns)] for name in patches]
