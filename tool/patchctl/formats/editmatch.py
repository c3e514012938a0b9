# SPDX-License-Identifier: Apache-2.0
"""Which patch each commit of an edited branch is: what was amended, reworded, moved or added.

git keeps a commit's author and date when it is amended or rebased, so these identify a patch
better than its text. Weaker signs are tried on what stronger ones left over; a sign counts only
where one patch and one commit have it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Sign:
    """What identifies a patch or a commit.

    `author` is ``Name <email> seconds zone``; `position` counts from the bottom of the series.
    """

    commit: str
    author: str
    subject: str
    tree: str
    position: int


_LADDER: tuple[Callable[[Sign], Hashable], ...] = (
    lambda sign: sign.commit,
    lambda sign: (sign.author, sign.subject),
    lambda sign: sign.author,
    lambda sign: sign.subject,
    lambda sign: (sign.author, sign.subject, sign.position),
    lambda sign: (sign.author, sign.tree),
)


def match_commits(patches: Sequence[Sign], commits: Sequence[Sign]) -> list[int | None]:
    """For each commit the index of the patch that it continues; None for a new one."""
    found: dict[int, int] = {}
    for sign_of in _LADDER:
        taken = set(found.values())
        ours = _unique({n: sign_of(p) for n, p in enumerate(patches) if n not in taken})
        theirs = _unique({n: sign_of(c) for n, c in enumerate(commits) if n not in found})
        found |= {theirs[sign]: ours[sign] for sign in theirs.keys() & ours.keys()}
    return [found.get(number) for number in range(len(commits))]


def _unique(signs: dict[int, Hashable]) -> dict[Hashable, int]:
    counts = Counter(signs.values())
    return {sign: number for number, sign in signs.items() if counts[sign] == 1}
