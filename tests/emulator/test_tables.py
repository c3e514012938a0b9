# SPDX-License-Identifier: Apache-2.0
"""The tables in the documentation: every opcode of the shipped library is executed by a test."""

from __future__ import annotations

import re
from pathlib import Path

TABLES = Path(__file__).resolve().parents[2] / "docs" / "emulator-tables.md"


def test_every_opcode_of_the_library_has_vectors() -> None:
    rows = re.findall(r"^\| `(\S+)` \| \d+ \| \d+ \| (\S+) \|$", TABLES.read_text(), re.M)
    assert len(rows) > 50
    assert [opcode for opcode, vectors in rows if vectors != "yes"] == []
