# SPDX-License-Identifier: Apache-2.0
"""Conversions: F2F, F2I, I2F, FRND."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from patchctl.emulator import fp
from patchctl.emulator.machine import Active, Cta, EmulatorError
from patchctl.emulator.program import Operation
from patchctl.emulator.sass.build import Build, operation
from patchctl.emulator.sass.half import packed
from patchctl.emulator.sass.operands import RZ, put, put_pair
from patchctl.emulator.sass.real import rounding, singles

_INTEGRAL = {"TRUNC": "rzi", "FLOOR": "rmi", "CEIL": "rpi"}
_INTEGERS: dict[str, type[np.signedinteger] | type[np.unsignedinteger]] = {
    "U8": np.uint8,
    "S8": np.int8,
    "U16": np.uint16,
    "S16": np.int16,
    "U32": np.uint32,
    "S32": np.int32,
    "U64": np.uint64,
    "S64": np.int64,
}


@operation("F2F")
def f2f(build: Build) -> Operation:
    """float32 to float16 in the low half (the high half becomes 0), or back."""
    kinds = [m for m in build.inst.opcode[1:] if m in ("F16", "F32")]
    for kind in kinds:
        build.flag(kind)
    flush, mode = build.flag("FTZ"), rounding(build)
    row = build.destination()
    if kinds == ["F32", "F16"]:
        half = packed(build)

        def widen(cta: Cta, active: Active) -> None:
            result = fp.canonical(half.get(cta)[:, 0].astype(np.float32))
            if row != RZ:
                cta.put(row, result, active, half.known(cta))

        return widen
    if kinds != ["F16", "F32"]:
        raise build.error("this pair of types")
    a = build.single()

    def narrow(cta: Cta, active: Active) -> None:
        (x,) = singles(cta, a)
        result = fp.narrow(fp.flush(x) if flush else x, np.float16, mode)
        put(cta, row, result.view(np.uint16).astype(np.uint32), active, a)

    return narrow


@operation("FRND")
def frnd(build: Build) -> Operation:
    """To a whole number of the same type."""
    flush, mode = build.flag("FTZ"), build.choice(_INTEGRAL, "rni")
    row = build.destination()
    a = build.single()

    def run(cta: Cta, active: Active) -> None:
        (x,) = singles(cta, a)
        result = fp.canonical(fp.integral(fp.flush(x) if flush else x, mode))
        put(cta, row, result, active, a)

    return run


@operation("F2I")
def f2i(build: Build) -> Operation:
    """To an integer, clamped. A NaN: 0 with NTZ, the sign bit for 64 bits; else it is refused."""
    flush = build.flag("FTZ")
    target = build.choice(_INTEGERS, np.int32)
    build.flag("F32")
    mode = build.choice(_INTEGRAL, "rni")
    zero = build.flag("NTZ")
    row = build.destination()
    a = build.single()
    size = np.dtype(target).itemsize
    if size < 4:
        raise build.error("this integer type")

    def run(cta: Cta, active: Active) -> None:
        (x,) = singles(cta, a)
        if not (zero or size == 8) and np.isnan(x[cta.mask(active)]).any():
            raise EmulatorError(f"`{cta.site.text}` at 0x{cta.site.address:x}: a NaN without .NTZ")
        result = fp.to_integer(fp.flush(x) if flush else x, mode, target)
        if size == 8:
            put_pair(cta, row, result.view(np.uint64), active, a.known(cta))
        else:
            put(cta, row, result.view(np.uint32), active, a)

    return run


@operation("I2F")
def i2f(build: Build) -> Operation:
    """From an integer of 8 to 64 bits; narrow ones are the low bits of the register."""
    if build.flag("F16") or build.flag("F64"):
        raise build.error("a result that is no float32")
    build.flag("F32")
    source = build.choice(_INTEGERS, np.int32)
    mode = rounding(build)
    row = build.destination()
    size = np.dtype(source).itemsize
    if size == 8:
        double = build.pair()

        def from_pair(cta: Cta, active: Active) -> None:
            value = np.ascontiguousarray(double.get(cta)).view(source)
            if row != RZ:
                result = fp.from_integer(value, np.float32, mode)
                cta.put(row, result, active, cta.known(*double.rows))

        return from_pair
    a = build.integer()

    def run(cta: Cta, active: Active) -> None:
        word = np.ascontiguousarray(np.broadcast_to(a.get(cta), (cta.threads,)))
        low: NDArray[np.generic] = word.view(source).reshape(cta.threads, -1)[:, 0]
        put(cta, row, fp.from_integer(np.ascontiguousarray(low), np.float32, mode), active, a)

    return run
