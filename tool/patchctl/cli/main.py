# SPDX-License-Identifier: Apache-2.0
"""The `patchctl` command: global options and the list of commands."""

from __future__ import annotations

import importlib
import keyword
import signal
import sys
from types import FrameType

import click

from patchctl import __version__
from patchctl.cli.app import funnel, global_options

COMMANDS = {
    "status": "patchctl.cli.status",
    "fetch": "patchctl.cli.fetch",
    "replay": "patchctl.cli.replay",
    "toolchain": "patchctl.cli.toolchain",
    "routes": "patchctl.cli.routes",
    "build": "patchctl.cli.build",
    "verify": "patchctl.cli.verify",
    "emulate": "patchctl.cli.emulate",
    "install": "patchctl.cli.install",
    "uninstall": "patchctl.cli.install",
    "check": "patchctl.cli.check",
    "series": "patchctl.cli.series",
    "show": "patchctl.cli.series",
    "new": "patchctl.cli.edit",
    "edit": "patchctl.cli.edit",
    "refresh": "patchctl.cli.edit",
    "drop": "patchctl.cli.reorder",
    "move": "patchctl.cli.reorder",
    "diff": "patchctl.cli.diff",
    "import": "patchctl.cli.importing",
    "rebase": "patchctl.cli.rebase",
    "bisect": "patchctl.cli.bisect",
    "resources": "patchctl.cli.resources",
    "lint": "patchctl.cli.lint",
    "completion": "patchctl.cli.completion",
    "man": "patchctl.cli.man",
}
"""Each command's module, in the order in which people meet them; imported when used."""


class LazyGroup(click.Group):
    """A group that imports a command's module only when the command is used or listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in pipeline order."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command named `cmd_name`, or None."""
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        # `import` cannot be a function's name
        attribute = f"{cmd_name}_" if keyword.iskeyword(cmd_name) else cmd_name
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="patchctl")
def main() -> None:
    """Replay a patch series onto a locked FlashAttention-2, build it for Tesla V100, prove it.

    \b
    A first run:      patchctl toolchain install; patchctl check
    Day to day:       patchctl replay; patchctl build; patchctl verify
    Into a vLLM:      patchctl install --python PYTHON --overlay vllm

    Results go to stdout, progress and errors to stderr. Exit codes: 0 ok, 1 a gate says no,
    2 usage, 3 lock mismatch, 4 a patch does not apply, 5 local changes in the tree, 6 a tool is
    missing, 7 the build failed, 8 network, disk or permissions, 70 a bug, 130 interrupted, 141 the
    reader of the output has gone.

    The options below are understood after the command too.
    """


main.params[:0] = global_options()


def _terminate(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def run() -> None:
    """The console script."""
    # A killed CI job cleans up in the same way as Ctrl-C.
    signal.signal(signal.SIGTERM, _terminate)
    code = funnel(main)
    if sys.stdout is not None:  # None when it was closed
        sys.stdout.flush()
    sys.exit(code)


if __name__ == "__main__":
    run()
