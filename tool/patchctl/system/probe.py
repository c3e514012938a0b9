# SPDX-License-Identifier: Apache-2.0
"""Running one of the scripts in ``patchctl.probes`` in another Python."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from patchctl.system.process import Completed, run

ANSWER_SECONDS = 300.0  # torch on a cold network disk takes a minute
# -c puts the current folder first on the path, where a running program would not look
_PRELUDE = "import sys; sys.path[:1] == [''] and sys.path.pop(0)\n"


def run_probe(
    python: str | Path,
    probe: str,
    *arguments: str,
    env: Mapping[str, str],
    input: bytes = b"",
    check: bool = True,
) -> Completed:
    """Run `probe` (its name without ``.py``) in the interpreter `python`.

    Raises:
        ToolMissing: `python` cannot be run.
        ProcessFailed: no answer in time, or `check` is true and it failed.
    """
    source = _PRELUDE + files("patchctl.probes").joinpath(f"{probe}.py").read_text()
    argv = [python, "-c", source, *arguments]
    # not the current folder: a library there can shadow a module of Python's own
    return run(argv, cwd=Path("/"), env=env, input=input, timeout=ANSWER_SECONDS, check=check)
