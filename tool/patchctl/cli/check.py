# SPDX-License-Identifier: Apache-2.0
"""`patchctl check`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from patchctl.cli.app import App, command, cuda_home_option, jobs_option
from patchctl.cli.render import findings_text, table


@command
@click.option(
    "--each-prefix", is_flag=True, help="Also build and verify each prefix of the series."
)
@click.option("--keep", is_flag=True, help="Keep the scratch folder even if all is well.")
@jobs_option
@cuda_home_option
def check(
    app: App, each_prefix: bool, keep: bool, jobs: int | None, cuda_home: Path | None
) -> None:
    """Do everything from nothing, in a scratch folder: the CI job.

    Fetch, replay, build, verify, and install into a new environment; then one table.

    Leaves the project's own build alone. Exits with the code of the first step that fails.
    """
    from patchctl.stages.check import check as run_check
    from patchctl.system.project import exclusive

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
    data = {
        "ok": result.error is None,
        "steps": [asdict(step) for step in result.steps],
        "findings": [finding.as_json() for finding in result.findings],
        "scratch": result.scratch,
    }
    rows = [
        [s.name, s.verdict, f"{s.seconds:.1f} s" if s.seconds else "-", s.summary]
        for s in result.steps
    ]
    text = table(["step", "verdict", "time", "result"], rows, right="time")
    if result.findings:
        text += "\n\n" + findings_text(result.findings)
    if result.error is None or not app.as_json:
        app.show("check", data, text)
    if result.error is not None:
        result.error.data |= data
        if result.scratch is not None:
            app.report.info(f"what was built is in `{app.project.relative(result.scratch)}`")
        raise result.error
