# SPDX-License-Identifier: Apache-2.0
"""Tables of the report."""

from __future__ import annotations


def table(columns: list[str], rows: list[list[str]]) -> list[str]:
    """Its lines, with an empty one behind."""
    return [
        "| " + " | ".join(columns) + " |",
        "|" + " --- |" * len(columns),
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
    ]
