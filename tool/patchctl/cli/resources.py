# SPDX-License-Identifier: Apache-2.0
"""`patchctl resources`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from patchctl.cli.app import App, command, cuda_home_option, jobs_option
from patchctl.cli.render import table

if TYPE_CHECKING:
    from patchctl.formats.blame import KernelChange
    from patchctl.formats.resources import Row

HEADERS = ["kernel", "regs", "spill st", "spill ld", "stack", "shared", "CTAs/SM"]


@command
@click.option("--by-patch", is_flag=True, help="After each patch, and what each patch changed.")
@click.option("--all", "everything", is_flag=True, help="Also kernels that a patch did not change.")
@jobs_option
@cuda_home_option
def resources(
    app: App, by_patch: bool, everything: bool, jobs: int | None, cuda_home: Path | None
) -> None:
    """Show what each kernel takes: registers, spills, memory.

    With --by-patch after each patch of the series, and what each patch changed. The prefixes
    are built in a folder of their own (build/out/blame), where only the objects are compiled
    whose sources differ; the numbers are remembered by tree and toolchain.

    Sizes are in bytes; shared memory is static + dynamic (what the launch asks for).
    """
    from patchctl.stages.blame import Prefixes
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
        count = len(prefixes.patches)
        if by_patch:
            from patchctl.formats.blame import kernel_changes

            after = [prefixes.rows(number) for number in range(count + 1)]
            steps = {
                patch.name: kernel_changes(after[number], after[number + 1])
                for number, patch in enumerate(prefixes.patches)
            }
        else:
            last = prefixes.rows(count)
    toolkit = {"toolkit": toolchain.version, "built": prefixes.built}
    if not by_patch:
        kernels = [_numbers(row) for row in last if row.measured.is_kernel]
        text = table(HEADERS, [_cells(r) for r in last if r.measured.is_kernel], right=_RIGHT)
        app.show("resources", {**toolkit, "kernels": kernels}, text)
        return
    data = [
        {"patch": name, "kernels": [_change(change) for change in changes]}
        for name, changes in steps.items()
    ]
    app.show("resources", {**toolkit, "patches": data}, lambda: _by_patch(steps, everything))


_RIGHT = ",".join(HEADERS[1:])


def _numbers(row: Row) -> dict[str, Any]:
    return {"name": row.measured.name, "dynamic_shared": row.dynamic_shared, **row.numbers}


def _change(change: KernelChange) -> dict[str, Any]:
    numbers = _numbers(change.row) if change.row else {"name": change.name}
    state = "gone" if change.row is None else "new" if change.before is None else "kept"
    moved = {what: {"before": was, "after": now} for what, was, now in change.moved}
    return {**numbers, "state": state, "changed": moved}


def _cells(row: Row) -> list[object]:
    m = row.measured
    from patchctl.formats.demangle import short

    numbers = (m.registers, m.spill_stores, m.spill_loads, m.stack)
    return [
        short(m.name),
        *("?" if number is None else number for number in numbers),
        f"{m.static_shared}+{row.dynamic_shared}",
        "?" if row.ctas_per_sm is None else row.ctas_per_sm,
    ]


def _by_patch(steps: dict[str, list[KernelChange]], everything: bool) -> str:
    """One table, with the patch's name above the kernels that it changed."""
    from patchctl.formats.demangle import short

    shown = {n: [c for c in changes if everything or c.changed] for n, changes in steps.items()}
    rows = [
        [*(_cells(c.row) if c.row else [short(c.name), *["-"] * 6]), str(c)]
        for changes in shown.values()
        for c in changes
    ]
    header, *lines = table([*HEADERS, "change"], rows, right=_RIGHT).splitlines()
    parts = [header]
    for name, changes in shown.items():
        kept = len(steps[name]) - len(changes)
        parts.append(f"{name}: {_kept(kept)}" if kept or not changes else name)
        parts += lines[: len(changes)]
        lines = lines[len(changes) :]
    return "\n".join(parts)


def _kept(count: int) -> str:
    from patchctl.formats.wording import counted

    return f"{counted(count, 'kernel')} as before" if count else "no kernel"
