# SPDX-License-Identifier: Apache-2.0
"""What every command shares: the global options, rendering, and the one error funnel."""

from __future__ import annotations

import errno
import functools
import json
import os
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import click

from patchctl.cli.reporter import ClickReporter
from patchctl.errors import Interrupted, PatchctlError, Unavailable, UsageError
from patchctl.system.project import DEFAULT_BASELINE, Project, open_project
from patchctl.system.seriesjournal import finish_replacement

JSON_VERSION = 1
SIGPIPE_CODE = 141  # what a shell reports of a program that this signal ended


@dataclass
class App:
    """The global options of one run."""

    directory: Path = field(default_factory=Path)
    verbose: bool = False
    as_json: bool = False
    target: str = "sm70"
    offline: bool = False
    baseline: str = DEFAULT_BASELINE
    annotates: bool = field(default_factory=lambda: os.environ.get("GITHUB_ACTIONS") == "true")
    """Whether errors are also said as annotations of a GitHub workflow."""

    @cached_property
    def report(self) -> ClickReporter:
        """Where progress goes."""
        return ClickReporter(verbose=self.verbose)

    @cached_property
    def project(self) -> Project:
        """The project around `directory`, on the baseline that was asked for."""
        project = open_project(self.directory)
        finish_replacement(project, self.report)  # what a killed run had decided
        if self.baseline == DEFAULT_BASELINE:
            return project
        from patchctl.system.baselines import with_baseline

        return with_baseline(project, self.baseline)

    @property
    def repository_prefix(self) -> str:
        """The project's folder in the repository that a workflow checked out, with its slash."""
        workspace = os.environ.get("GITHUB_WORKSPACE")
        root = self.project.root
        if not workspace or not root.is_relative_to(Path(workspace).resolve()):
            return ""
        path = root.relative_to(Path(workspace).resolve()).as_posix()
        return "" if path == "." else f"{path}/"

    def annotate(self, error: PatchctlError) -> None:
        """Say an error that has a place in the repository there too (on stderr)."""
        if not {"patch", "file"} & error.data.keys():
            return
        from patchctl.formats.annotations import annotation_of

        patches = self.project.relative(self.project.patches)
        line = annotation_of(error, patches=patches, prefix=self.repository_prefix)
        if line is not None:
            click.echo(line, err=True)

    def spelled(self, text: str) -> str:
        """Commands in `text` with the global options that they need here."""
        if self.baseline == DEFAULT_BASELINE:
            return text
        return _OWN_COMMAND.sub(f"patchctl --baseline {self.baseline} ", text)

    def show_raw(self, command: str, data: dict[str, Any], raw: bytes) -> None:
        """Print a result whose text is a patch: `raw`, to the byte, or `data` as JSON."""
        if self.as_json:
            self.show(command, data, "")
        else:
            click.echo(raw, nl=False)

    def show(self, command: str, data: dict[str, Any], text: Callable[[], str] | str) -> None:
        """Print a command's result on stdout: `data` as JSON, or `text` for people."""
        if self.as_json:
            document = {"version": JSON_VERSION, "command": command, **data}
            _print(json.dumps(document, indent=2, default=str))
            return
        rendered = text() if callable(text) else text
        if rendered:
            _print(rendered)


_OWN_COMMAND = re.compile(r"\bpatchctl (?=[a-z])")


def _print(text: str) -> None:
    """Write to stdout; a reader that has gone (head, less) does not change the exit code."""
    try:
        click.echo(text)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _remember(ctx: click.Context, param: click.Parameter, value: object) -> None:
    if param.name and value not in (None, False):
        setattr(ctx.ensure_object(App), param.name, value)


def global_options() -> list[click.Parameter]:
    """The options that are understood before and after the command's name."""
    common: dict[str, Any] = {"expose_value": False, "callback": _remember}
    flag = {"is_flag": True, **common}
    return [
        click.Option(
            ["-C", "directory"],
            metavar="DIR",
            type=click.Path(path_type=Path),
            help="Work on the project that contains DIR [default: the current folder].",
            **common,
        ),
        click.Option(
            ["--target"], metavar="NAME", help="Read build/NAME.toml [default: sm70].", **common
        ),
        click.Option(
            ["--baseline"],
            metavar="NAME",
            shell_complete=complete_baseline,
            help=f"Work on vendor/NAME.lock.toml [default: {DEFAULT_BASELINE}].",
            **common,
        ),
        click.Option(["--offline"], help="Use only what is on this machine.", **flag),
        click.Option(["--json", "as_json"], help="Print one JSON object on stdout.", **flag),
        click.Option(
            ["--annotate", "annotates"], help="Say errors as GitHub annotations too.", **flag
        ),
        click.Option(["-v", "--verbose"], help="Say more about what is done.", **flag),
    ]


def complete_baseline(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The baselines of the project here, for the shell's completion."""
    from patchctl.system.baselines import baseline_names

    try:
        names = baseline_names(open_project(Path()))
    except PatchctlError:
        return []
    return [name for name in names if name.startswith(incomplete)]


def command(function: Callable[..., Any]) -> click.Command:
    """A command that gets the `App` first and knows the global options too.

    The function's own ``click.option`` decorators go below this one.
    """

    @functools.wraps(function)
    def call(app: App, *args: Any, **kwargs: Any) -> Any:
        try:
            return function(app, *args, **kwargs)
        except PatchctlError as error:
            error.hint = app.spelled(error.hint)
            if app.annotates:
                app.annotate(error)
            raise

    pass_app = click.make_pass_decorator(App, ensure=True)
    settings = {"help_option_names": ["-h", "--help"]}
    built = click.command(context_settings=settings)(pass_app(call))
    built.params += global_options()
    return built


cuda_home_option = click.option(
    "--cuda-home",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Use the CUDA toolkit in DIR and no other.",
)
jobs_option = click.option(
    "-j",
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Work on N units or kernels at the same time.",
)


def show_error(error: PatchctlError, *, as_json: bool) -> None:
    """Say what went wrong: for people on stderr, for scripts as one object on stdout."""
    if as_json:
        _print_error_object(error)
    lines = [click.style("error:", fg="red", bold=True) + f" {error.message}"]
    lines += [f"  {line}" for line in error.details]
    if error.hint:
        lines.append(click.style("hint:", fg="cyan", bold=True) + f" {error.hint}")
    click.echo("\n".join(lines), err=True, color=_colour())


def _colour() -> bool | None:
    """False where NO_COLOR is set; None leaves it to whether there is a terminal."""
    return False if os.environ.get("NO_COLOR") else None


def _print_error_object(error: PatchctlError) -> None:
    body: dict[str, Any] = {"kind": error.kind, "message": error.message}
    body["exit"] = error.exit_code
    body |= {"hint": error.hint} if error.hint else {}
    body |= {"details": list(error.details)} if error.details else {}
    body |= {"data": error.data} if error.data else {}
    _print(json.dumps({"version": JSON_VERSION, "error": body}, indent=2, default=str))


def as_patchctl_error(error: BaseException) -> PatchctlError:
    """The class with the right remedy for anything that reached the top."""
    if isinstance(error, PatchctlError):
        return error
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return Interrupted("interrupted; what was complete before is still in place")
    if isinstance(error, OSError):
        name = error.filename
        place = f" (`{os.fsdecode(name) if isinstance(name, bytes) else name}`)" if name else ""
        return Unavailable(f"{error.strerror or error}{place}", hint=_os_hint(error))
    lines = traceback.format_exception(error)
    return PatchctlError(
        f"internal error: {type(error).__name__}: {error}",
        details=tuple("".join(lines).rstrip().splitlines()),
        hint="this is a bug in patchctl; please report it with the lines above",
    )


def _os_hint(error: OSError) -> str:
    return {
        errno.ENOSPC: "free some space and run the command again",
        errno.EDQUOT: "free some space and run the command again",
        errno.EACCES: "check who owns the path and run the command again",
        errno.EROFS: "the file system is read-only",
    }.get(error.errno or 0, "")


def funnel(command: click.Command, argv: list[str] | None = None) -> int:
    """Run the command line to an exit code; nothing escapes."""
    arguments = sys.argv[1:] if argv is None else argv
    as_json = "--json" in arguments
    try:
        result = command.main(
            args=arguments, prog_name="patchctl", standalone_mode=False, color=_colour()
        )
    except click.ClickException as error:
        if as_json:
            _print_error_object(UsageError(error.format_message()))
        error.show()  # with the command's usage line
        return UsageError.exit_code
    except SystemExit:
        # click's answer when the reader of the help or of the progress has gone
        return SIGPIPE_CODE
    except (Exception, KeyboardInterrupt) as raw:
        shown = as_patchctl_error(raw)
        show_error(shown, as_json=as_json)
        return shown.exit_code
    return result if isinstance(result, int) else 0
