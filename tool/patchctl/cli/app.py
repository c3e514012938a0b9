# SPDX-License-Identifier: Apache-2.0
"""What every command shares: the global options, rendering, and the one error funnel."""

from __future__ import annotations

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
from patchctl.errors import Interrupted, PatchctlError, Unavailable
from patchctl.system.project import DEFAULT_BASELINE, Project, open_project
from patchctl.system.seriesjournal import finish_replacement

JSON_VERSION = 1


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
            click.echo(json.dumps(document, indent=2, default=str))
            return
        rendered = text() if callable(text) else text
        if rendered:
            click.echo(rendered)


_OWN_COMMAND = re.compile(r"\bpatchctl (?=[a-z])")

pass_app = click.make_pass_decorator(App, ensure=True)


def _global_flag(flag: str, attribute: str, help: str) -> Callable[[Any], Any]:
    """A global option that is also understood after the command's name."""

    def remember(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value:
            setattr(ctx.ensure_object(App), attribute, True)

    names = flag.split()
    return click.option(*names, is_flag=True, expose_value=False, callback=remember, help=help)


def complete_baseline(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The baselines of the project here, for the shell's completion."""
    from patchctl.system.baselines import baseline_names

    try:
        names = baseline_names(open_project(Path()))
    except PatchctlError:
        return []
    return [name for name in names if name.startswith(incomplete)]


def _baseline_option(function: Any) -> Any:
    """``--baseline``, also understood after the command's name."""

    def remember(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
        if value is not None:
            ctx.ensure_object(App).baseline = value

    return click.option(
        "--baseline",
        metavar="NAME",
        expose_value=False,
        callback=remember,
        shell_complete=complete_baseline,
        help="Work on vendor/NAME.lock.toml.",
    )(function)


def command(function: Callable[..., Any]) -> click.Command:
    """A command that gets the `App` first and knows the global flags too.

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

    wrapped = pass_app(call)
    for flag in (
        _global_flag("--offline", "offline", "Use only what is on this machine."),
        _global_flag("--json", "as_json", "Print one JSON object on stdout."),
        _global_flag("-v --verbose", "verbose", "Say more about what is done."),
        _global_flag("--annotate", "annotates", "Say errors as GitHub annotations too."),
        _baseline_option,
    ):
        wrapped = flag(wrapped)
    return click.command(context_settings={"help_option_names": ["-h", "--help"]})(wrapped)


def show_error(error: PatchctlError, *, as_json: bool) -> None:
    """Say what went wrong: for people on stderr, for scripts as one object on stdout."""
    if as_json:
        body: dict[str, Any] = {"kind": error.kind, "message": error.message}
        body["exit"] = error.exit_code
        body |= {"hint": error.hint} if error.hint else {}
        body |= {"details": list(error.details)} if error.details else {}
        body |= {"data": error.data} if error.data else {}
        click.echo(json.dumps({"version": JSON_VERSION, "error": body}, indent=2, default=str))
    click.echo(click.style("error:", fg="red", bold=True) + f" {error.message}", err=True)
    for line in error.details:
        click.echo(f"  {line}", err=True)
    if error.hint:
        click.echo(click.style("hint:", fg="cyan", bold=True) + f" {error.hint}", err=True)


def as_patchctl_error(error: BaseException) -> PatchctlError:
    """The class with the right remedy for anything that reached the top."""
    if isinstance(error, PatchctlError):
        return error
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return Interrupted("interrupted; what was complete before is still in place")
    if isinstance(error, OSError):
        place = f" (`{error.filename}`)" if error.filename else ""
        return Unavailable(f"{error.strerror or error}{place}", hint=_os_hint(error))
    lines = traceback.format_exception(error)
    return PatchctlError(
        f"internal error: {type(error).__name__}: {error}",
        details=tuple("".join(lines).rstrip().splitlines()),
        hint="this is a bug in patchctl; please report it with the lines above",
    )


def _os_hint(error: OSError) -> str:
    import errno

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
        result = command.main(args=arguments, prog_name="patchctl", standalone_mode=False)
    except click.ClickException as error:
        if as_json:
            body = {"kind": "usage", "message": error.format_message(), "exit": 2}
            click.echo(json.dumps({"version": JSON_VERSION, "error": body}, indent=2))
        error.show()
        return 2
    except BrokenPipeError:
        # the reader of our output (head, less) has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (Exception, KeyboardInterrupt) as raw:
        shown = as_patchctl_error(raw)
        show_error(shown, as_json=as_json)
        return shown.exit_code
    return result if isinstance(result, int) else 0
