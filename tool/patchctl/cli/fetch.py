# SPDX-License-Identifier: Apache-2.0
"""``patchctl fetch``."""

from __future__ import annotations

import click

from patchctl.cli.app import App, command
from patchctl.stages.fetch import Baseline


@command
@click.option("--lock", is_flag=True, help="Write sha256 and tree of what is found into the lock.")
def fetch(app: App, lock: bool) -> None:
    """Bring the locked FlashAttention-2 into the project's store.

    The archive's sha256 is checked, then every member, then the git tree id of what `include`
    keeps. After it everything works offline.
    """
    from patchctl.stages.fetch import fetch as run
    from patchctl.system.project import exclusive

    with exclusive(app.project.out, app.report):
        baseline = run(app.project, app.report, offline=app.offline, lock=lock)
    app.show("fetch", _data(baseline), _text(baseline))


def _digest_name(baseline: Baseline) -> str:
    return "sha256" if len(baseline.digest) == 64 else "upstream"


def _data(baseline: Baseline) -> dict[str, object]:
    return {
        "source": baseline.source,
        _digest_name(baseline): baseline.digest,
        "tree": baseline.tree,
        "commit": baseline.commit,
        "files": baseline.files,
        "fetched": baseline.fetched,
        "relocked": [{"key": k, "old": old, "new": new} for k, old, new in baseline.relocked],
    }


def _text(baseline: Baseline) -> str:
    state = "fetched" if baseline.fetched else "already there"
    lines = [
        f"baseline  {baseline.source} ({state})",
        f"{_digest_name(baseline):<8}  {baseline.digest}",
        f"tree      {baseline.tree}",
        f"commit    {baseline.commit}",
        f"kept      {baseline.files} files",
    ]
    lines += [f"locked    {k}: {old or '(empty)'} -> {new}" for k, old, new in baseline.relocked]
    return "\n".join(lines)
