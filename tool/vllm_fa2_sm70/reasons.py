# SPDX-License-Identifier: Apache-2.0
"""Why a route does not serve a call: a sentence, and a kind under which it is counted."""

from __future__ import annotations

OTHER = "other"
MEMORY = "memory"


class Reason(str):
    """A sentence for people. Sentences have numbers in them; `kind` is one of a few words."""

    __slots__ = ("kind",)

    kind: str

    def __new__(cls, kind: str, text: str) -> Reason:
        """A reason of that kind."""
        made = super().__new__(cls, text)
        made.kind = kind
        return made


def kind_of(reason: str) -> str:
    """The kind of a reason, `OTHER` for a plain string."""
    return reason.kind if isinstance(reason, Reason) else OTHER
