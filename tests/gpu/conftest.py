# SPDX-License-Identifier: Apache-2.0
"""Tests of the built library on a GPU. They need torch and pytest, not the tool."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import attention


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs a CUDA device and a built library")
    config.addinivalue_line("markers", "cuda: needs CUDA itself: streams, graphs, its memory")
    if attention.why_not_loadable() is None:
        attention.load_library()


def pytest_report_header() -> list[str]:
    reasons = (attention.why_not_loadable(), attention.why_no_gpu())
    return [f"gpu tests are skipped: {reason}" for reason in reasons if reason]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    not_loadable, no_gpu = attention.why_not_loadable(), attention.why_no_gpu()
    markers = ("gpu", "cuda") if attention.DEVICE == "cuda" else ("cuda",)
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        needs_gpu = any(item.get_closest_marker(marker) for marker in markers)
        reason = not_loadable or (no_gpu if needs_gpu else None)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def device() -> str:
    """Where tests that launch nothing put their tensors."""
    return "cpu" if attention.why_no_gpu() else "cuda"
