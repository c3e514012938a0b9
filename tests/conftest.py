# SPDX-License-Identifier: Apache-2.0
"""Options that all tests share."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--renew-golden",
        action="store_true",
        help="write the golden files under tests/data anew from what the code produces now",
    )
    parser.addoption(
        "--kills",
        type=int,
        default=12,
        help="how often tests/git/test_rebase_killed.py kills a rebase (200 before a release)",
    )
