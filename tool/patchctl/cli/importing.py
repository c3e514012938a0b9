# SPDX-License-Identifier: Apache-2.0
"""``patchctl import``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from patchctl.cli.app import App, command

if TYPE_CHECKING:
    from patchctl.formats.grademodel import Difference, FileGrade, HunkGrade
    from patchctl.stages.importing import ImportResult
    from patchctl.stages.judge import Judged

_PERSON = re.compile(r"\s*(?P<name>[^<>]*\S)\s*<(?P<mail>[^<>\s]+)>\s*$")


@command
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--after", metavar="PATCH", help="Put them behind this patch (default: the last).")
@click.option("--repair", is_flag=True, help="Make exact what has one place only, and say why.")
@click.option("--dry-run", is_flag=True, help="Grade and show; write nothing.")
@click.option(
    "-p", "strip", type=click.IntRange(0, 9), metavar="N", help="Take N folders off the paths."
)
@click.option("--author", metavar="'NAME <MAIL>'", help="Author of a diff that is no mail.")
def import_(
    app: App,
    source: Path,
    after: str | None,
    repair: bool,
    dry_run: bool,
    strip: int | None,
    author: str | None,
) -> None:
    """Take patches from elsewhere into the series.

    SOURCE is a file, a mailbox or a folder.

    \b
    patchctl import fix.patch              taken if every hunk fits exactly, else shown
    patchctl import --repair fix.patch     rewritten to fit exactly, with the reasons in it
    patchctl import --dry-run quilt/       a folder with a `series` file, only graded

    Each hunk is graded: exact, offset, whitespace, fuzz, three-way (when the file that it was
    made for is known), already present. A hunk with two possible places, or with a place that
    only looks like the right one, is refused and both are shown. Author, date and message stay;
    a repair adds `Repaired:` lines to the message.
    """
    from patchctl.stages.importing import ImportRefused, import_patches
    from patchctl.system.project import exclusive

    with exclusive(app.project.out, app.report):
        try:
            done = import_patches(
                app.project,
                app.report,
                source,
                after=after,
                strip=strip,
                with_repair=repair,
                author=_person(author),
                dry_run=dry_run,
                offline=app.offline,
            )
        except ImportRefused as error:
            if not app.as_json:
                app.show("import", {}, "\n\n".join(_patch_text(j, "") for j in error.judged))
            raise
    app.show("import", done.as_json(), lambda: _text(done))


def _person(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    match = _PERSON.match(text)
    if match is None:
        raise click.UsageError(f"--author `{text}`: expected 'NAME <MAIL>'")
    return match["name"], match["mail"]


def _text(done: ImportResult) -> str:
    parts = [_patch_text(j, n) for j, n in zip(done.judged, done.names, strict=True)]
    verb = "would be imported" if done.dry_run else "imported"
    taken = sum(bool(name) for name in done.names)
    last = [f"{taken} {'patch' if taken == 1 else 'patches'} {verb}"]
    last += [f"merged on top: {name}" for name in done.merged]
    return "\n\n".join([*parts, "\n".join(last)])


def _patch_text(judged: Judged, name: str) -> str:
    lines = [f"{judged.arrival.label}: {_outcome(judged, name)}"]
    if judged.error is not None:
        lines.append(f"  {judged.error.message}")
        lines += [f"  {line}" for line in judged.error.details]
    if judged.grade is not None:
        for file in judged.grade.files:
            lines += _file_lines(file)
    verb = "Repaired" if name else "needs repair"
    lines += [f"  {verb}: {reason}" for reason in judged.reasons]
    return "\n".join(lines)


def _outcome(judged: Judged, name: str) -> str:
    colours = {"exact": "green", "repairable": "yellow", "already-present": "cyan"}
    said = "repaired" if name and judged.verdict == "repairable" else str(judged.verdict)
    word = click.style(said, fg=colours.get(judged.verdict, "red"))
    return f"{word} -> patches/{name}" if name else word


def _file_lines(file: FileGrade) -> list[str]:
    from patchctl.formats.gitobjects import display

    path = display(file.path)
    lines = []
    if file.own != "exact":
        why = f": {file.why}" if file.why else ""
        lines.append(f"  {path} (patch line {file.patch_line}): {file.own}{why}")
        lines += _difference_lines(file.differences)
    if not file.hunks and not lines:
        lines.append(f"  {path}: {file.grade}")
    total = len(file.hunks)
    for hunk in file.hunks:
        lines += _hunk_lines(path, hunk, total)
    return lines


def _hunk_lines(path: str, hunk: HunkGrade, total: int) -> list[str]:
    where = f"{path}, hunk {hunk.number} of {total} (patch line {hunk.patch_line})"
    why = f": {hunk.why}" if hunk.why else ""
    at = f" at line {hunk.place}" if hunk.place and hunk.grade.fits else ""
    lines = [f"  {where}: {hunk.text if hunk.grade.fits else hunk.grade}{at}{why}"]
    lines += [f"    line {place.line}: {place.why}" for place in hunk.places]
    return lines + _difference_lines(hunk.differences)


def _difference_lines(differences: tuple[Difference, ...]) -> list[str]:
    """Pairs of lines, one below the other, so that a blank more or less can be seen."""
    lines = []
    for difference in differences:
        for who, side in (("baseline", difference.tree), ("patch", difference.patch)):
            label = f"line {difference.line}" if who == "baseline" else ""
            lines.append(f"    {label:10} {who:8} {_shown(side)}")
    return lines


def _shown(line: bytes | None) -> str:
    from patchctl.formats.gitobjects import display

    if line is None:
        return "(no such line)"
    ending = "" if line.endswith(b"\n") else " without a newline at the end"
    text = display(line.removesuffix(b"\n"))
    return f"`{text}`{ending}"
