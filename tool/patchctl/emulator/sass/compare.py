# SPDX-License-Identifier: Apache-2.0
"""Integer comparisons and choices: ISETP, SEL, IMNMX, IABS."""

from __future__ import annotations

import numpy as np

from patchctl.emulator.machine import Active, Cta, Mask
from patchctl.emulator.program import Operation
from patchctl.emulator.sass.build import Build, operation
from patchctl.emulator.sass.integer import signed, wide
from patchctl.emulator.sass.operands import RZ, both_known, put, put_predicate

COMPARE = {
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "EQ": np.equal,
    "NE": np.not_equal,
}
COMBINE = {"AND": np.logical_and, "OR": np.logical_or, "XOR": np.logical_xor}


@operation("ISETP")
def isetp(build: Build) -> Operation:
    """A comparison, combined with a predicate. EX is the upper half of a 64-bit comparison whose
    lower half has given the last operand."""
    compare = build.choice(COMPARE)
    combine = build.choice(COMBINE)
    unsigned = build.flag("U32")
    extended = build.flag("EX")
    first, second = build.predicate_destination(), build.predicate_destination()
    a, b = build.integer(), build.integer()
    other = build.condition()
    lower = build.condition() if extended else None
    equal_counts = compare not in (np.not_equal,)

    def run(cta: Cta, active: Active) -> None:
        view = wide if unsigned else signed
        x, y = view(a.get(cta)), view(b.get(cta))
        known = both_known(a.known(cta), b.known(cta), other.known(cta))
        if lower is None:
            result: Mask = compare(x, y)
        else:
            # what the upper words leave open, the lower ones decide
            strict = {np.less_equal: np.less, np.greater_equal: np.greater}.get(compare, compare)
            below = lower.get(cta)
            known = both_known(known, lower.known(cta))
            if compare is np.equal:
                result = (x == y) & below
            elif equal_counts:
                result = strict(x, y) | ((x == y) & below)
            else:
                result = (x != y) | below
        mask = other.get(cta)
        put_predicate(cta, first, combine(result, mask), active, known)
        put_predicate(cta, second, combine(~result, mask), active, known)

    return run


@operation("SEL")
def sel(build: Build) -> Operation:
    """One of two words, by a predicate."""
    row = build.destination()
    a, b = build.integer(), build.integer()
    condition = build.condition()

    def run(cta: Cta, active: Active) -> None:
        choose = condition.get(cta)
        known = condition.known(cta)
        one, two = a.known(cta), b.known(cta)
        if one is not True or two is not True:
            known = both_known(known, np.where(choose, one, two))
        if row != RZ:
            cta.put(row, np.where(choose, a.get(cta), b.get(cta)), active, known)

    return run


@operation("IMNMX")
def imnmx(build: Build) -> Operation:
    """The smaller where the predicate holds, else the larger."""
    unsigned = build.flag("U32")
    row = build.destination()
    a, b = build.integer(), build.integer()
    condition = build.condition()

    def run(cta: Cta, active: Active) -> None:
        x, y = a.get(cta), b.get(cta)
        less = x < y if unsigned else signed(x) < signed(y)
        first = less == condition.get(cta)
        known = both_known(a.known(cta), b.known(cta), condition.known(cta))
        if row != RZ:
            cta.put(row, np.where(first, x, y), active, known)

    return run


@operation("IABS")
def iabs(build: Build) -> Operation:
    row = build.destination()
    a = build.integer()

    def run(cta: Cta, active: Active) -> None:
        put(cta, row, np.abs(signed(a.get(cta))).astype(np.uint32), active, a)

    return run
