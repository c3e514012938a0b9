# SPDX-License-Identifier: Apache-2.0
"""`patchctl status`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from patchctl.cli.app import App, command, cuda_home_option


@command
@cuda_home_option
def status(app: App, cuda_home: Path | None) -> None:
    """Say of every stage whether it is current, and what is open.

    Of a stage that is not, it says why. Open are a rebase, a patch that is being edited, and
    files in the source tree that are not of the series.

    Reads only: nothing is fetched, built or changed. Exits with 0 also when a stage is stale;
    scripts read `current` from --json.
    """
    from patchctl.stages.status import StageState, open_work, pipeline_state

    states = pipeline_state(app.project, app.target, cuda_home=cuda_home)
    begun = open_work(app.project, app.target)

    def line(state: StageState) -> str:
        if state.current:
            word = click.style("current", fg="green")
            return f"{state.stage:<8} {word}  {state.result[:12]}"
        word = click.style("stale", fg="yellow") + "  "
        first, *rest = state.why
        return "\n".join([f"{state.stage:<8} {word}  {first}", *(f"{'':<18}{r}" for r in rest)])

    def text() -> str:
        lines = [line(state) for state in states]
        stale = next((state for state in states if not state.current), None)
        if stale is not None:
            lines.append(f"next: {app.spelled(stale.command)}")
        lines += [f"open: {work.what} ({app.spelled(work.command)})" for work in begun]
        return "\n".join(lines)

    data = {
        "baseline": app.project.baseline,
        "current": all(state.current for state in states),
        "stages": [asdict(state) for state in states],
        "open": [asdict(work) for work in begun],
    }
    app.show("status", data, text)
