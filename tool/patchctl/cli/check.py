# SPDX-License-Identifier: Apache-2.0
"""`patchctl check`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from patchctl.cli.app import App, command, cuda_home_option, jobs_option
from patchctl.cli.render import findings_text, table

if TYPE_CHECKING:
    from patchctl.stages.check import CheckResult


@command
@click.option(
    "--each-prefix", is_flag=True, help="Also build and verify each prefix of the series."
)
@click.option(
    "--all-baselines", is_flag=True, help="Check every baseline and print patches by baselines."
)
@click.option("--keep", is_flag=True, help="Keep the scratch folder even if all is well.")
@jobs_option
@cuda_home_option
def check(
    app: App,
    each_prefix: bool,
    all_baselines: bool,
    keep: bool,
    jobs: int | None,
    cuda_home: Path | None,
) -> None:
    """Do everything from nothing, in a scratch folder: the CI job.

    Fetch, replay, build, verify, execute each kernel in the emulator, and install into a new
    environment; then one table.

    Leaves the project's own build alone. Exits with the code of the first step that fails.

    With --all-baselines the same is done on each baseline of vendor/, whether or not one of
    them fails, and a table says of each patch on each baseline whether it fits exactly. Only
    the whole series is built and verified, each patch with --each-prefix too.
    """
    from patchctl.stages.check import check as run_check
    from patchctl.system.project import exclusive

    if all_baselines:
        _check_all(app, each_prefix=each_prefix, keep=keep, jobs=jobs, cuda_home=cuda_home)
        return
    with exclusive(app.project.out, app.report):
        result = run_check(
            app.project,
            app.target,
            app.report,
            offline=app.offline,
            cuda_home=cuda_home,
            jobs=jobs,
            each_prefix=each_prefix,
            keep=keep,
        )
    text = _text(result)
    if result.error is None or not app.as_json:
        app.show("check", _data(result), text)
    if result.error is not None:
        result.error.data |= _data(result)
        if result.scratch is not None:
            app.report.info(f"what was built is in `{app.project.relative(result.scratch)}`")
        raise result.error


def _data(result: CheckResult) -> dict[str, Any]:
    return {
        "ok": result.error is None,
        "steps": [asdict(step) for step in result.steps],
        "findings": [finding.as_json() for finding in result.findings],
        "scratch": result.scratch,
        "patches": [{**asdict(cell), "passes": cell.passes} for cell in result.cells],
    }


def _text(result: CheckResult) -> str:
    rows = [
        [s.name, s.verdict, f"{s.seconds:.1f} s" if s.seconds else "-", s.summary]
        for s in result.steps
    ]
    text = table(["step", "verdict", "time", "result"], rows, right="time")
    return text + "\n\n" + findings_text(result.findings) if result.findings else text


def _check_all(app: App, **options: Any) -> None:
    from patchctl.stages.checkmatrix import check_baselines, matrix_rows
    from patchctl.system.project import exclusive

    with exclusive(app.project.out, app.report):
        results = check_baselines(
            app.project, app.target, app.report, offline=app.offline, **options
        )
    data = {
        "ok": all(result.error is None for result in results.values()),
        "baselines": {name: _data(result) for name, result in results.items()},
    }
    failed = {name: result.error for name, result in results.items() if result.error is not None}
    if not (failed and app.as_json):
        parts = [f"{name}\n{_text(result)}" for name, result in results.items()]
        parts.append(table(["patch", *results], matrix_rows(results)))
        app.show("check", data, "\n\n".join(parts))
    if not failed:
        return
    name, error = next(iter(failed.items()))
    error.message = f"baseline {name}: {error.message}"
    others = [f"baseline {n}: {e.message}" for n, e in failed.items() if e is not error]
    error.details = (*error.details, *others)
    error.data |= data
    raise error
