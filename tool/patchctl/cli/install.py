# SPDX-License-Identifier: Apache-2.0
"""`patchctl install` and `patchctl uninstall`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import click

from patchctl.cli.app import App, command

RESTART = "servers that run keep the old library until they are restarted"


def _where(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that both commands have."""
    options = (
        click.option(
            "--python",
            metavar="PYTHON",
            help="An interpreter or an environment's folder [default: the active environment].",
        ),
        click.option(
            "--overlay",
            metavar="PACKAGE",
            help="The library inside PACKAGE (vllm, or PACKAGE.SUBPACKAGE) instead of a wheel.",
        ),
        click.option(
            "--force", is_flag=True, help="Go on where installed files were changed by others."
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


@command
@_where
@click.option("--into-checkout", is_flag=True, help="Allow PACKAGE to be an editable install.")
def install(
    app: App, python: str | None, overlay: str | None, into_checkout: bool, force: bool
) -> None:
    """Install the verified library, as a wheel or inside a package.

    \b
    patchctl install --python /opt/vllm/bin/python                 a wheel, `vllm_fa2_sm70`
    patchctl install --python /opt/vllm/bin/python --overlay vllm  in vllm/vllm_flash_attn

    `patchctl uninstall` with the same options puts back what was there before.
    """
    from patchctl.stages.build import load_target
    from patchctl.stages.interpreter import locate_python
    from patchctl.system.project import environment_lock, exclusive

    interpreter = locate_python(python)
    target = load_target(app.project, app.target)
    lock = environment_lock(interpreter)
    with exclusive(app.project.out, app.report), exclusive(lock, app.report):
        if overlay is None:
            from patchctl.stages.install import install as run_install

            done = run_install(app.project, target, app.report, python=interpreter, force=force)
            text = [
                f"installed {done.wheel.name} in {done.packages}"
                + (f" (was {done.replaced})" if done.replaced else ""),
                f"library sha256 {done.sha256}, {done.torch}",
                f"on this machine: {done.reason or 'usable'}",
                RESTART,
            ]
            app.show("install", asdict(done), "\n".join(text))
            return
        from patchctl.stages.overlay import install_overlay

        put = install_overlay(
            app.project,
            target,
            app.report,
            python=interpreter,
            package=overlay,
            into_checkout=into_checkout,
            force=force,
        )
    replaced = ", ".join(put.replaced) or "nothing"
    text = [
        f"put {put.library}" + (" (a checkout)" if put.checkout else ""),
        f"replaced: {replaced}; recorded in {put.manifest}",
        f"library sha256 {put.sha256}, {put.torch}",
        "pip's RECORD is as it was, so pip does not see the change",
        RESTART,
    ]
    app.show("install", asdict(put), "\n".join(text))


@command
@_where
def uninstall(app: App, python: str | None, overlay: str | None, force: bool) -> None:
    """Take the library out and put back what it replaced."""
    from patchctl.stages.build import load_target
    from patchctl.stages.interpreter import locate_python
    from patchctl.system.project import environment_lock, exclusive

    interpreter = locate_python(python)
    target = load_target(app.project, app.target)
    lock = environment_lock(interpreter)
    with exclusive(app.project.out, app.report), exclusive(lock, app.report):
        if overlay is None:
            from patchctl.stages.install import uninstall as run_uninstall

            done = run_uninstall(app.project, target, app.report, python=interpreter, force=force)
            said = (
                f"removed vllm_fa2_sm70 {done.removed} from {done.packages}\n{RESTART}"
                if done.removed
                else f"vllm_fa2_sm70 is not installed in {done.packages}"
            )
            app.show("uninstall", asdict(done), said)
            return
        from patchctl.stages.overlay import uninstall_overlay

        back = uninstall_overlay(
            app.project,
            target,
            app.report,
            python=interpreter,
            package=overlay,
            force=force,
        )
    text = [f"{back.folder} is as it was: {', '.join(back.restored) or 'no library'} restored"]
    text += [f"kept {path}" for path in back.kept]
    app.show("uninstall", asdict(back), "\n".join([*text, RESTART]))
