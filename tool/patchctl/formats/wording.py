# SPDX-License-Identifier: Apache-2.0
"""Words that messages share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 kernel``, ``2 kernels``, ``3 patches``."""
    plural = plural or noun + ("es" if noun.endswith("ch") else "s")
    return f"{number} {noun if number == 1 else plural}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``did you mean `series`?``, or "" when nothing that is known looks like `word`."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean `{near[0]}`?" if near else ""
