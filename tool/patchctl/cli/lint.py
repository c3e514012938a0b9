# SPDX-License-Identifier: Apache-2.0
"""`patchctl lint`."""

from __future__ import annotations

import click

from patchctl.cli.app import App, command

# as in stages/lint.py, which loads more than `--help` needs
AREAS = ("series", "patches", "locks")


@command
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(AREAS),
    help="Look at this and at nothing else (repeat for more).",
)
@click.option(
    "--format",
    "style",
    type=click.Choice(["text", "github"]),
    help="github: annotations for a workflow (also chosen by GITHUB_ACTIONS=true).",
)
def lint(app: App, only: tuple[str, ...], style: str | None) -> None:
    """Check series, patches and locks by their files alone.

    Needs no baseline, store, network, git or compiler. `series`: each line, names, numbering,
    missing and unlisted files. `patches`: well-formed, author, subject, message, trailers
    (Upstream-Status, Signed-off-by), and what makes a patch file change without effect.
    `locks`: the locks of every baseline are of the series as it is.

    Exits with 1 if there is an error; warnings are only said.
    """
    from patchctl.errors import GateFailed
    from patchctl.formats.annotations import annotation
    from patchctl.formats.findings import Severity
    from patchctl.formats.wording import counted
    from patchctl.stages.lint import lint as run

    remarks = run(app.project, only or AREAS)
    errors = sum(remark.severity is Severity.ERROR for remark in remarks)
    warnings = len(remarks) - errors
    data = {
        "errors": errors,
        "warnings": warnings,
        "findings": [remark.as_json() for remark in remarks],
    }
    total = f"{counted(errors, 'error')}, {counted(warnings, 'warning')}"
    if style == "github" or (style is None and app.annotates and not app.as_json):
        lines = [
            annotation(
                r.message + (f"\nhint: {r.hint}" if r.hint else ""),
                file=app.repository_prefix + r.file,
                line=r.line,
                title=r.rule,
                severity=r.severity,
            )
            for r in remarks
        ]
    else:
        lines = [str(r) + (f"\n  hint: {r.hint}" if r.hint else "") for r in remarks]
    if not (errors and app.as_json):
        app.show("lint", data, "\n".join([*lines, total if remarks else "no findings"]))
    if errors:
        raise GateFailed(f"lint: {total}", data=data)
