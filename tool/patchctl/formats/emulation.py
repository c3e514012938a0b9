# SPDX-License-Identifier: Apache-2.0
"""``build/<target>.emulator.toml``: how the host launches each kernel, and what it can do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

import msgspec

from patchctl.errors import UsageError
from patchctl.formats.documents import Document, read_toml


class Work(StrEnum):
    """What a kernel does."""

    ATTENTION = "attention"
    COMBINE = "combine"
    APPEND = "append"
    ROTATE = "rotate"
    GQA_FUSED = "gqa_fused"
    GQA_MERGE = "gqa_merge"
    GQA_REPAIR = "gqa_repair"
    GQA_QK = "gqa_qk"
    GQA_PV = "gqa_pv"
    QSA_RANK = "qsa_rank"
    QSA_TABLE = "qsa_table"
    QSA_FWD = "qsa_fwd"


class Ability(StrEnum):
    """What an attention kernel can be asked for, besides plain attention.

    `CAUSAL` is a kernel that always masks (others get a window of 0 to the right, `RIGHT`).
    `STRANGE`: a NaN or infinity in K or V changes only the rows that see its key.
    """

    PLAIN = "plain"
    CAUSAL = "causal"
    RIGHT = "right"
    LEFT = "left"
    SOFTCAP = "softcap"
    ALIBI = "alibi"
    CONTIGUOUS = "contiguous"
    PAGED = "paged"
    SPLITS = "splits"
    NARROW = "narrow"
    LEFTPAD = "leftpad"
    STRANGE = "strange"


class LaunchRule(Document, frozen=True, kw_only=True):
    """Kernels whose demangled name holds `match`; a group ``head_dim`` is their head size.

    `rows`: packed query rows of a CTA. `shared`: dynamic bytes, for what the resources lack.
    `page_size`: after the parameters comes a `PageSize`. `splits_on`: the axis of the grid that
    counts splits as well as heads (y) or sequences (z). `routes`: names of the shim's routes
    that end here.
    """

    match: str
    work: Work
    rows: Annotated[int, msgspec.Meta(ge=1)] = 1
    can: tuple[Ability, ...] = ()
    shared: Annotated[int, msgspec.Meta(ge=0)] = 0
    page_size: bool = False
    splits_on: Literal["y", "z"] = "z"
    routes: tuple[str, ...] = ()


class LaunchRules(Document, frozen=True, kw_only=True):
    """All rules; the first one that matches holds."""

    kernels: tuple[LaunchRule, ...] = ()


@dataclass(frozen=True)
class Launchable:
    """A kernel with its rule."""

    name: str
    rule: LaunchRule
    head_dim: int

    def can(self, ability: Ability) -> bool:
        return ability in self.rule.can


def read_rules(text: str | bytes, *, where: str) -> LaunchRules:
    """Parse the file.

    Raises:
        UsageError: not TOML, an unknown key or value, or a `match` that is no pattern.
    """
    rules = read_toml(text, LaunchRules, where=where)
    for number, rule in enumerate(rules.kernels):
        try:
            re.compile(rule.match)
        except re.error as error:
            raise UsageError(
                f"`{where}` at `kernels[{number}].match`: no pattern: {error}",
                data={"file": where},
            ) from error
    return rules


def rule_for(name: str, rules: LaunchRules) -> Launchable | None:
    """The first rule for a demangled kernel name."""
    for rule in rules.kernels:
        if match := re.search(rule.match, name):
            return Launchable(name, rule, int(match.groupdict().get("head_dim") or 128))
    return None
