# SPDX-License-Identifier: Apache-2.0
"""``patchctl verify``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from patchctl.cli.app import App, command, cuda_home_option
from patchctl.cli.render import findings_text, table

if TYPE_CHECKING:
    from patchctl.formats.resources import Row
    from patchctl.stages.verify import Verification


@command
@click.option("--update", is_flag=True, help="Lock the resources that were measured.")
@click.option("--force", is_flag=True, help="Look again although nothing changed.")
@click.option(
    "--library",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Judge this library instead of the one that was built.",
)
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="With --library: a ptxas log of its compile (repeat for each).",
)
@cuda_home_option
def verify(
    app: App,
    update: bool,
    force: bool,
    library: Path | None,
    logs: tuple[Path, ...],
    cuda_home: Path | None,
) -> None:
    """Hold the library against everything that is locked.

    The gates: where it was built from, resources, architectures, operator schemas, symbols.
    A library that passed is not looked at again until something changes; --json then has
    `skipped` true and no rows.

    Prints a row a kernel, then every finding, worst first. Exit code 1 when a gate says no.
    With --json the same is in `findings` and `resources`, on failure below `error.data`.

    --update renews build/NAME.resources.toml (NAME is the target), except while a hard limit is
    broken. The schemas are a contract and are edited by hand.
    """
    if update and library is not None:
        raise click.UsageError("--update locks the project's own build, not --library")
    if logs and library is None:
        raise click.UsageError("--log goes with --library")
    from patchctl.stages.build import load_target
    from patchctl.stages.toolchain import find_toolchain
    from patchctl.stages.verify import gate_error
    from patchctl.stages.verify import verify as run_gates
    from patchctl.system.project import exclusive

    target = load_target(app.project, app.target)
    toolchain = find_toolchain(target.arch, app.report, cuda_home=cuda_home)
    with exclusive(app.project.out, app.report):
        done = run_gates(
            app.project,
            target,
            toolchain,
            app.report,
            update=update,
            force=force,
            library=library.absolute() if library else None,
            logs=logs or None,
        )
    if done.failed:
        if not app.as_json:
            app.show("verify", {}, _text(done))
        raise gate_error(done)
    app.show("verify", done.as_json(), lambda: _text(done))


def _text(done: Verification) -> str:
    if done.skipped:
        return f"{done.library.name}: verified before, nothing changed (--force looks again)"
    parts = []
    if done.changes:
        parts.append("\n".join(["locked:", *(f"  {line}" for line in done.changes)]))
    if done.resources:
        parts.append(_resources(done))
    parts.append(findings_text(done.findings))
    return "\n\n".join(parts)


def _resources(done: Verification) -> str:
    from patchctl.formats.demangle import short

    failing = {f.subject for f in done.findings if f.severity == "error"}
    headers = ["kernel", "regs", "spill st", "spill ld", "stack", "shared", "CTAs/SM", "verdict"]

    def cells(row: Row) -> list[object]:
        m = row.measured
        shared = f"{m.static_shared}+{row.dynamic_shared}" if m.is_kernel else "-"
        numbers = (m.registers, m.spill_stores, m.spill_loads, m.stack)
        return [
            short(m.name),
            *("?" if n is None and m.is_kernel else "-" if n is None else n for n in numbers),
            shared,
            "-" if not m.is_kernel else "?" if row.ctas_per_sm is None else row.ctas_per_sm,
            "no" if m.name in failing else "ok",
        ]

    return table(headers, [cells(r) for r in done.resources], right=",".join(headers[1:-1]))
