# SPDX-License-Identifier: Apache-2.0
"""`patchctl bisect`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from patchctl.cli.app import App, command, cuda_home_option, jobs_option
from patchctl.cli.render import findings_text

if TYPE_CHECKING:
    from patchctl.stages.blame import Culprit

# as in stages/blame.py, which loads more than `--help` needs
GATES = ("resources", "schemas", "architectures", "symbols", "asserts", "build")


@command
@click.option(
    "--in-order",
    is_flag=True,
    help="Ask every prefix from the first on, even if the whole series fails.",
)
@jobs_option
@cuda_home_option
@click.argument("gate", type=click.Choice(GATES))
def bisect(app: App, gate: str, in_order: bool, jobs: int | None, cuda_home: Path | None) -> None:
    """Find the first patch at which GATE fails.

    Prefixes of the series are built in a folder of their own (build/out/blame), where only the
    objects are compiled whose sources differ; verdicts are remembered. The whole series is
    asked first. If it fails, the prefixes are halved, as what a patch breaks mostly stays
    broken; if it passes, they are asked one after the other.

    Exits with 1 if a patch is found, with 0 if the gate passes after every patch.
    """
    from patchctl.errors import GateFailed
    from patchctl.stages.blame import Prefixes
    from patchctl.stages.blame import bisect as search
    from patchctl.stages.build import load_target
    from patchctl.stages.hostcompiler import preflight
    from patchctl.stages.toolchain import find_toolchain
    from patchctl.system.project import exclusive

    target = load_target(app.project, app.target)
    toolchain = find_toolchain(target.arch, app.report, cuda_home=cuda_home)
    preflight(toolchain, target.abi)
    with exclusive(app.project.out, app.report):
        prefixes = Prefixes(
            app.project, target, toolchain, app.report, offline=app.offline, jobs=jobs
        )
        found = search(prefixes, gate, in_order=in_order)
    data: dict[str, object] = {
        "gate": gate,
        "patch": found.patch or None,
        "number": found.number or None,
        "findings": [finding.as_json() for finding in found.findings],
        "asked": list(found.asked),
        "built": prefixes.built,
        "assumed": found.assumed,
    }
    if not found.patch:
        app.show("bisect", data, f"{gate}: passes after every patch of the series")
        return
    if not app.as_json:
        app.show("bisect", data, _text(found, len(prefixes.patches)))
    raise GateFailed(f"{gate}: fails from `{found.patch}` on", data=data)


def _text(found: Culprit, count: int) -> str:
    lines = [
        f"{found.patch} (patch {found.number} of {count}) is the first at which {found.gate} fails",
        findings_text(found.findings),
    ]
    how = f"asked {len(found.asked)} of {count} prefixes"
    if found.assumed:
        how += "; that those not asked pass is assumed (--in-order asks them all)"
    return "\n".join([*lines, how])
