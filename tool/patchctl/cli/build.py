# SPDX-License-Identifier: Apache-2.0
"""``patchctl build``: the series into a shared object."""

from __future__ import annotations

from pathlib import Path

import click

from patchctl.cli.app import App, command, cuda_home_option, jobs_option
from patchctl.formats.wording import counted


@command
@jobs_option
@cuda_home_option
@click.option(
    "--edited", is_flag=True, help="Build the source tree as it stands, with edits made by hand."
)
def build(app: App, jobs: int | None, cuda_home: Path | None, edited: bool) -> None:
    """Compile what changed and link the library.

    The series is replayed first, if that is needed.

    --edited is for trying a change in build/out/src before it goes into a patch: nothing is
    replayed, and `verify` and `install` refuse the library.
    """
    from patchctl.cli.toolchain import toolchain_data
    from patchctl.stages import build as stage
    from patchctl.stages.hostcompiler import preflight
    from patchctl.stages.replay import replay
    from patchctl.stages.toolchain import find_toolchain
    from patchctl.system.project import exclusive

    project = app.project
    target = stage.load_target(project, app.target)
    toolchain = find_toolchain(target.arch, app.report, cuda_home=cuda_home)
    preflight(toolchain, target.abi)  # what is missing is said before any work is done
    with exclusive(project.out, app.report):
        if not edited:
            replay(project, app.report, offline=app.offline)
        done = stage.build(project, target, toolchain, app.report, jobs=jobs, edited=edited)
    app.show(
        "build",
        {
            "target": target.name,
            "library": str(done.library),
            "sha256": done.sha256,
            "compiled": done.compiled,
            "seconds": round(done.seconds, 3),
            "logs": [str(log) for log in done.logs],
            "toolchain": toolchain_data(toolchain),
        },
        lambda: (
            f"{project.relative(done.library)}: sha256 {done.sha256}, "
            + (f"{counted(done.compiled, 'object')} compiled" if done.compiled else "nothing to do")
            + f", {done.seconds:.1f} s"
            + ("\nbuilt with edits: `verify` and `install` refuse it" if edited else "")
        ),
    )
