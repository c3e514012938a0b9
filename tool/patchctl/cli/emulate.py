# SPDX-License-Identifier: Apache-2.0
"""``patchctl emulate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from patchctl.cli.app import App, command, cuda_home_option, jobs_option
from patchctl.cli.render import findings_text, table
from patchctl.errors import UsageError

if TYPE_CHECKING:
    from patchctl.emulator.suite import Trial
    from patchctl.formats.emulation import Launchable
    from patchctl.stages.emulate import Emulation


@command
@click.argument("kernel", required=False)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="WORDS",
    help="A problem, as `q=33+1,k=300+20,heads=6/2,causal` (repeat for several).",
)
@click.option("--long", "is_long", is_flag=True, help="The long list of problems.")
@click.option(
    "--form",
    type=click.Choice(["both", "ptx", "sass"]),
    default="both",
    show_default=True,
    help="What to execute.",
)
@click.option(
    "--library",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="A library or an object file instead of what was built.",
)
@click.option("--again", is_flag=True, help="Run the gate even if the same files passed before.")
@click.option("--opcodes", is_flag=True, help="Also print which machine instructions ran.")
@jobs_option
@cuda_home_option
def emulate(
    app: App,
    kernel: str | None,
    shapes: tuple[str, ...],
    is_long: bool,
    form: str,
    library: Path | None,
    again: bool,
    opcodes: bool,
    jobs: int | None,
    cuda_home: Path | None,
) -> None:
    """Execute kernels on this CPU: their machine code and their PTX.

    KERNEL is part of a demangled name, a regular expression for it, or a route; without it every
    kernel runs. Without --shape each runs on a short list of problems that uses all it can do.
    With neither it is the gate that `patchctl check` runs: its success is recorded with the
    library's digest, and the same files are not run again.

    Prints how far the results are from float64, whether PTX and machine code gave the same
    bits, and every finding: accesses out of bounds, races, values that nobody wrote.

    \b
    Words of a shape: q=LENGTH[+LENGTH..] k=.. heads=QUERY[/KV] d=HEAD_SIZE causal
    window=[LEFT]:[RIGHT] softcap=X alibi page=SIZE batched indexed used leftpad=ROWS splits=N
    scale=X spread=X ramp=X strange seed=N
    """
    from patchctl.emulator.examine import Form
    from patchctl.emulator.shapes import parse_shape
    from patchctl.emulator.suite import Trial, long_list, short_list
    from patchctl.emulator.tasks import Attention
    from patchctl.formats.emulation import Work
    from patchctl.stages.build import built_library, load_target
    from patchctl.stages.emulate import emulate as run_kernels
    from patchctl.stages.emulate import project_code
    from patchctl.stages.emulategate import gate, gate_error
    from patchctl.stages.toolchain import find_toolchain

    for shape in shapes:
        parse_shape(shape, 128)  # refused before anything is read
    target = load_target(app.project, app.target)
    toolchain = find_toolchain(target.arch, app.report, cuda_home=cuda_home)
    file = library or built_library(app.project, target)

    def trials(chosen: Launchable) -> list[Trial]:
        if shapes:
            if chosen.rule.work is not Work.ATTENTION:
                return []
            return [Trial(s, Attention(parse_shape(s, chosen.head_dim))) for s in shapes]
        return long_list(chosen) if is_long else short_list(chosen)

    if kernel is None and not shapes and not is_long and library is None and form == "both":
        done = gate(app.project, target, toolchain, app.report, jobs=jobs, again=again)
    else:
        codes, unruled = project_code(app.project, target, toolchain, file, kernel)
        if shapes and not any(c.kernel.rule.work is Work.ATTENTION for c in codes):
            raise UsageError(
                "a shape is for attention kernels; the others have problems of their own",
                hint=f"patchctl emulate {kernel or ''}".rstrip(),
            )
        forms = list(Form) if form == "both" else [Form(form)]
        done = run_kernels(file, codes, trials, app.report, forms=forms, jobs=jobs)
        done.unruled = unruled
    if done.failed:
        if not app.as_json:
            app.show("emulate", {}, _text(done, opcodes))
        raise gate_error(done)
    app.show("emulate", done.as_json(), lambda: _text(done, opcodes))


def _text(done: Emulation, opcodes: bool) -> str:
    from patchctl.formats.demangle import short

    if done.skipped:
        return f"`{done.library.name}` passed before; nothing changed since (--again runs it)"
    rows: list[list[object]] = []
    for e in done.examinations:
        same = "" if len(e.traces) < 2 else "differ" if e.difference else "equal"
        for trace in e.traces:
            a = trace.accuracy
            numbers = (f"{a.largest:.1e}", f"{a.relative:.1e}", f"{a.largest_lse:.1e}")
            counts = (len(trace.findings), trace.conflicts, trace.steps, f"{trace.seconds:.1f}")
            rows.append([short(e.kernel), e.trial, trace.form, *numbers, *counts, same])
    headers = ["kernel", "problem", "form", "max err", "rms rel", "LSE err"]
    headers += ["faults", "conflicts", "steps", "s", "bits"]
    right = ",".join(headers[3:10])
    parts = [table(headers, rows, right=right)]
    if opcodes:
        ran = [[o, done.opcodes[o], n] for o, n in done.executed().items()]
        parts.append(
            table(["opcode", "instructions", "launches"], ran, right="instructions,launches")
        )
    return "\n\n".join([*parts, findings_text(done.findings())])
