# SPDX-License-Identifier: Apache-2.0
"""What every command shares: the global options, rendering, and the one error funnel."""

from __future__ import annotations

import errno
import json
import os
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
from patchctl.system.project import Project, open_project

JSON_VERSION = 1


@dataclass
class App:
    """The global options of one run."""

    directory: Path = field(default_factory=Path)
    verbose: bool = False
    as_json: bool = False
    target: str = "sm70"
    offline: bool = False

    @cached_property
    def report(self) -> ClickReporter:
        """Where progress goes."""
        return ClickReporter(verbose=self.verbose)

    @cached_property
    def project(self) -> Project:
        """The project around `directory`."""
        return open_project(self.directory)

    def show(self, command: str, data: dict[str, Any], text: Callable[[], str] | str) -> None:
        """Print a command's result on stdout: `data` as JSON, or `text` for people."""
        if self.as_json:
            document = {"version": JSON_VERSION, "command": command, **data}
            click.echo(json.dumps(document, indent=2, default=str))
            return
        rendered = text() if callable(text) else text
        if rendered:
            click.echo(rendered)


pass_app = click.make_pass_decorator(App, ensure=True)


def _global_flag(flag: str, attribute: str, help: str) -> Callable[[Any], Any]:
    """A global option that is also understood after the command's name."""

    def remember(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value:
            setattr(ctx.ensure_object(App), attribute, True)

    names = flag.split()
    return click.option(*names, is_flag=True, expose_value=False, callback=remember, help=help)


def command(function: Callable[..., Any]) -> click.Command:
    """A command that gets the `App` first and knows the global flags too.

    The function's own ``click.option`` decorators go below this one.
    """
    wrapped = pass_app(function)
    for flag in (
        _global_flag("--offline", "offline", "Use only what is on this machine."),
        _global_flag("--json", "as_json", "Print one JSON object on stdout."),
        _global_flag("-v --verbose", "verbose", "Say more about what is done."),
    ):
        wrapped = flag(wrapped)
    return click.command(context_settings={"help_option_names": ["-h", "--help"]})(wrapped)


cuda_home_option = click.option(
    "--cuda-home",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Use the CUDA toolkit in DIR and no other.",
)
jobs_option = click.option(
    "-j", "--jobs", type=click.IntRange(min=1), metavar="N", help="Compilers at the same time."
)


def show_error(error: PatchctlError, *, as_json: bool) -> None:
    """Say what went wrong: for people on stderr, for scripts as one object on stdout."""
    if as_json:
        _print_error_object(error)
    click.echo(click.style("error:", fg="red", bold=True) + f" {error.message}", err=True)
    for line in error.details:
        click.echo(f"  {line}", err=True)
    if error.hint:
        click.echo(click.style("hint:", fg="cyan", bold=True) + f" {error.hint}", err=True)


def _print_error_object(error: PatchctlError) -> None:
    body: dict[str, Any] = {"kind": error.kind, "message": error.message}
    body["exit"] = error.exit_code
    body |= {"hint": error.hint} if error.hint else {}
    body |= {"details": list(error.details)} if error.details else {}
    body |= {"data": error.data} if error.data else {}
    click.echo(json.dumps({"version": JSON_VERSION, "error": body}, indent=2, default=str))


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
            _print_error_object(UsageError(error.format_message()))
        error.show()  # with the command's usage line
        return UsageError.exit_code
    except BrokenPipeError:
        # the reader of our output (head, less) has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (Exception, KeyboardInterrupt) as raw:
        shown = as_patchctl_error(raw)
        show_error(shown, as_json=as_json)
        return shown.exit_code
    return result if isinstance(result, int) else 0
