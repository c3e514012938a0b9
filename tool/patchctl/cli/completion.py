# SPDX-License-Identifier: Apache-2.0
"""`patchctl completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from patchctl.cli.app import App, command


@command
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(app: App, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash:  eval "$(patchctl completion bash)"        in ~/.bashrc
    zsh:   eval "$(patchctl completion zsh)"         in ~/.zshrc
    fish:  patchctl completion fish > ~/.config/fish/completions/patchctl.fish
    """
    from patchctl.cli.main import main

    kind = get_completion_class(shell)
    assert kind is not None
    # bash is asked for its version on the way, which only works where there is one
    script = kind(main, {}, "patchctl", "_PATCHCTL_COMPLETE")
    source = script.source_template % script.source_vars()
    app.show("completion", {"shell": shell, "script": source}, source.rstrip("\n"))
