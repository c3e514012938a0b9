# SPDX-License-Identifier: Apache-2.0
"""Which problems a kernel is tried on: a short list for `check`, a long one by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace

from patchctl.emulator.cachetasks import CacheTask
from patchctl.emulator.findings import Kind
from patchctl.emulator.prefilltrials import trials as prefill_trials
from patchctl.emulator.problem import Problem
from patchctl.emulator.tasks import Attention, Combine, Task
from patchctl.formats.emulation import Ability, Launchable, Work


@dataclass(frozen=True)
class Trial:
    """A task with a name for people."""

    name: str
    task: Task
    allowed: frozenset[Kind] = frozenset()
    """Findings that the task itself provokes."""


def short_list(kernel: Launchable) -> list[Trial]:
    """A few small launches that use all that the kernel can do; every mask, odd lengths."""
    if kernel.rule.work is Work.ATTENTION:
        return _attention(kernel)
    if kernel.rule.work is Work.COMBINE:
        return _combine()
    if kernel.rule.work in (Work.APPEND, Work.ROTATE):
        return _cache(rotates_q=kernel.rule.work is Work.ROTATE)
    return [Trial(*parts) for parts in prefill_trials(kernel.rule.work)]


def long_list(kernel: Launchable) -> list[Trial]:
    """The short list, and more lengths, head counts, page sizes and magnitudes of logits."""
    trials = short_list(kernel)
    if kernel.rule.work is not Work.ATTENTION:
        return trials
    base = _base(kernel, (45, 1, 70), (150, 33, 70))
    more = [("three sequences", replace(base, heads=6, kv_heads=2))]
    steep = replace(base, q_lengths=(9,), k_lengths=(300,), spread=3.0, ramp=60.0)
    more.append(("logits that grow with the key", steep))
    more.append(("one query, one key", replace(base, q_lengths=(1,), k_lengths=(1,))))
    more.append(("several blocks of rows", replace(base, q_lengths=(300,), k_lengths=(310,))))
    more.append(("more queries than keys", replace(base, q_lengths=(40,), k_lengths=(7,))))
    if kernel.can(Ability.CONTIGUOUS):
        batched = replace(base, packed=False, q_lengths=(33, 33), k_lengths=(90, 65), used=True)
        more.append(("lengths below the cache's", batched))
        more.append(("lengths below the packed ones", replace(batched, packed=True)))
    if kernel.can(Ability.PAGED):
        paged = replace(base, page_size=16, q_lengths=(20, 3), k_lengths=(100, 17))
        for size in (16, 784, 1056):
            more.append((f"pages of {size}", replace(paged, page_size=size)))
        more.append(("pages of a cache", replace(paged, packed=False, q_lengths=(20, 20))))
        more.append(("pages, lengths that are used", replace(paged, used=True)))
    if kernel.can(Ability.LEFT):
        for window in ((0, 0), (64, None), (10, 100)):
            problem = replace(base, causal=False, window=window, q_lengths=(70,), k_lengths=(200,))
            more.append((f"window {window}", problem))
    if kernel.can(Ability.NARROW):
        for narrow in (8, 24, 40):
            if narrow < kernel.head_dim:
                problem = replace(base, head_dim=kernel.head_dim - narrow, k_lengths=(80, 33, 70))
                more.append((f"head size {problem.head_dim}", problem))
    return trials + [Trial(name, Attention(problem)) for name, problem in more]


def _base(kernel: Launchable, q: tuple[int, ...], k: tuple[int, ...]) -> Problem:
    return Problem(
        head_dim=kernel.head_dim,
        q_lengths=q,
        k_lengths=k,
        causal=kernel.can(Ability.CAUSAL),
        page_size=None if kernel.can(Ability.CONTIGUOUS) else 48,
    )


def _attention(kernel: Launchable) -> list[Trial]:
    """Lengths such that a CTA has a tile in part and a tile in full; a diagonal over many keys."""
    can = kernel.can
    tokens = max(19, min(37, kernel.rule.rows // 2 - 3))
    plain = replace(_base(kernel, (tokens,), (131,)), heads=2, spread=2.0)
    trials = [Trial("causal" if plain.causal else "no mask", Attention(plain))]

    def add(name: str, **changes: object) -> None:
        trials.append(Trial(name, Attention(replace(plain, **changes))))  # type: ignore[arg-type]

    # two sequences, one of them with more queries than keys: rows that see nothing
    lengths = {"q_lengths": (5, 9), "k_lengths": (67, 6), "heads": 3, "kv_heads": 1}
    if can(Ability.RIGHT):
        splits = 2 if can(Ability.SPLITS) else 1
        add("causal, rows without a key", causal=True, splits=splits, **lengths)
    elif can(Ability.CAUSAL):
        add("causal, rows without a key", **lengths)
    if can(Ability.LEFT):
        add("window to both sides", window=(20, 3))
    if can(Ability.PAGED) and can(Ability.CONTIGUOUS):
        narrow = kernel.head_dim - 8 if can(Ability.NARROW) else kernel.head_dim
        add("pages, padded head size", page_size=16, head_dim=narrow, causal=True)
    if can(Ability.SOFTCAP) and can(Ability.ALIBI):
        add("softcap and ALiBi", softcap=20.0, alibi=True)
    if can(Ability.LEFTPAD):
        lengths = {"q_lengths": (7, 7), "k_lengths": (40, 9), "heads": 1}
        add("a cache: padding, index", packed=False, leftpad=13, indexed=True, **lengths)
    if can(Ability.STRANGE):
        strange = replace(plain, strange=True, causal=True, heads=1, spread=1.0)
        strange = replace(strange, q_lengths=(max(tokens, 7),))
        kinds = frozenset({Kind.NAN_BORN})
        trials.append(Trial("NaN and infinities, causal", Attention(strange), kinds))
    return trials


def _combine() -> list[Trial]:
    packed = Problem(64, (5, 3), (9, 9), heads=6, kv_heads=2, splits=5)
    many = Problem(136, (4, 4), (9, 9), heads=2, packed=False, splits=40)
    return [Trial("5 parts", Combine(packed)), Trial("40 parts, not packed", Combine(many))]


def _cache(*, rotates_q: bool) -> list[Trial]:
    halves = CacheTask((5, 0, 17), 3, 64, heads=2, rotary_dim=32, rotates_q=rotates_q)
    interleaved = replace(halves, head_dim=128, rotary_dim=128, interleaved=True)
    trials = [("by halves", halves)]
    if rotates_q:
        trials.append(("interleaved, one position", replace(interleaved, each_position=False)))
    else:
        trials.append(("no rotation", replace(halves, rotary_dim=0)))
        trials.append(("interleaved, paged", replace(interleaved, page_size=4)))
    return [Trial(name, task) for name, task in trials]
