# SPDX-License-Identifier: Apache-2.0
"""Lets the test modules here import their rig, and tells which opcodes they executed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--executed-opcodes",
        type=Path,
        metavar="FILE",
        help="write the machine opcodes that ran to FILE",
    )


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = session.config.getoption("--executed-opcodes")
    if path is not None:
        from sassrig import EXECUTED

        path.write_text("\n".join(sorted(EXECUTED)) + "\n")
