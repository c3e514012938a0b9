# SPDX-License-Identifier: Apache-2.0
"""``patchctl toolchain``: which CUDA compiler is used, and a private one where none serves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from patchctl.cli.app import App, command, cuda_home_option
from patchctl.cli.render import table
from patchctl.stages.toolchain import Candidate, Toolchain, candidates, chosen, refusal


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def toolchain() -> None:
    """Show or install the CUDA toolchain that compiles the kernels."""


@command
@cuda_home_option
def show(app: App, cuda_home: Path | None) -> None:
    """List the CUDA toolkits found, and why each serves or not."""
    from patchctl.stages.build import load_target

    target = load_target(app.project, app.target)
    found = candidates(target.arch, cuda_home=cuda_home)
    choice = chosen(found)
    data = {
        "arch": target.arch,
        "chosen": choice.place if choice else None,
        "candidates": [_as_data(c, chosen=c is choice) for c in found],
    }
    if choice is not None or not app.as_json:
        app.show("toolchain show", data, lambda: _as_text(found, choice))
    if choice is None:
        error = refusal(target.arch, found)
        error.data |= data
        error.details = ()  # the table, or `data`, has said it
        raise error


@command
@click.option("--verify", is_flag=True, help="Compare every installed file by its content.")
def install(app: App, verify: bool) -> None:
    """Install the private toolchain of vendor/cuda.lock.toml.

    Downloads about 115 MB into the cache folder; what is there already stays.
    """
    from patchctl.stages.toolchain_install import install_toolchain

    done = install_toolchain(app.project, app.report, offline=app.offline, verify=verify)
    app.show(
        "toolchain install",
        {"toolchain": toolchain_data(done)},
        f"CUDA {done.version} in {done.home}",
    )


toolchain.add_command(show)
toolchain.add_command(install)


def toolchain_data(toolchain: Toolchain) -> dict[str, Any]:
    """A toolchain for ``--json``."""
    return {
        "home": str(toolchain.home),
        "nvcc": str(toolchain.nvcc),
        "version": toolchain.version,
        "origin": str(toolchain.origin),
        "digest": toolchain.digest,
        "lacks": list(toolchain.lacks),
    }


def _as_data(candidate: Candidate, *, chosen: bool) -> dict[str, Any]:
    return {
        "origin": str(candidate.origin),
        "place": candidate.place,
        "version": candidate.toolchain.version if candidate.toolchain else None,
        "serves": candidate.serves,
        "reason": candidate.reason,
        "lacks": list(candidate.toolchain.lacks) if candidate.toolchain else [],
        "chosen": chosen,
    }


def _as_text(found: tuple[Candidate, ...], choice: Candidate | None) -> str:
    rows = []
    for candidate in found:
        verdict = candidate.reason or "ok"
        if candidate.serves and candidate.toolchain and candidate.toolchain.lacks:
            verdict = "compiles, but lacks " + ", ".join(candidate.toolchain.lacks)
        rows.append(
            (
                "*" if candidate is choice else "",
                candidate.origin,
                candidate.place or "-",
                candidate.toolchain.version if candidate.toolchain else "-",
                verdict,
            )
        )
    return table(("", "looked in", "toolkit", "version", "verdict"), rows)
