# SPDX-License-Identifier: Apache-2.0
"""Shared memory of a CTA: contents, who wrote what, races between barriers, bank conflicts.

Races. Every warp has a vector clock; a barrier joins the clocks of its participants. An access
is ordered after an earlier one of another warp only if a barrier lies between the two; this holds
for named barriers with part of the warps, too. Within a warp, machine code runs in lockstep, so
program order is enough; PTX promises that only across ``bar.warp.sync``, which
`intra_warp=True` checks. The shadow has one entry for the largest unit that all accesses so far
are multiples of (16, 8, 4, 2 or 1 bytes).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from patchctl.emulator.banks import wavefronts
from patchctl.emulator.findings import Kind
from patchctl.emulator.machine import WARP, Active, Cta, Known, Mask, Words

_NOBODY = -1
_SHADOW = (
    "_written",
    "_writer",
    "_write_time",
    "_write_step",
    "_atomic",
    "_read_time",
    "_read_step",
    "_readers",
)


class SharedMemory:
    """`size` bytes; nothing in it is written at the start."""

    def __init__(self, size: int, warps: int, *, intra_warp: bool = False) -> None:
        self.size = size
        self.intra_warp = intra_warp
        padded = -(-max(size, 16) // 16) * 16
        self._data = np.full(padded, 0xFF, np.uint8)
        self.clock = np.eye(warps, dtype=np.int64)
        """clock[w, v]: the newest moment of warp v that warp w is ordered after."""
        self._arrived: dict[int, NDArray[np.int64]] = {}
        self.warp_clock = np.ones(warps, np.int64)
        """Counts ``bar.warp.sync`` and CTA barriers of each warp."""
        self._unit = 16
        units = padded // 16
        self._written = np.zeros(units, bool)
        self._writer = np.full(units, _NOBODY, np.int64)  # thread
        self._write_time = np.zeros(units, np.int64)
        self._write_step = np.zeros(units, np.int64)  # warp_clock of the writer
        self._atomic = np.zeros(units, bool)
        self._read_time = np.zeros((units, warps), np.int64)
        self._read_step = np.zeros((units, warps), np.int64)
        self._readers = np.zeros((units, warps), np.uint32)  # lanes, while _read_step holds

    # -- ordering

    def arrive(self, barrier: int, warps: NDArray[np.int64]) -> None:
        """What `warps` did so far comes before the end of `barrier`."""
        joined = self.clock[warps].max(axis=0)
        self._arrived[barrier] = np.maximum(joined, self._arrived.get(barrier, joined))
        self.clock[warps, warps] += 1
        self.warp_clock[warps] += 1

    def release(self, barrier: int, warps: NDArray[np.int64]) -> None:
        """`barrier` is complete, and `warps` waited for it."""
        joined = self._arrived.pop(barrier)
        own = self.clock[warps, warps]
        self.clock[warps] = np.maximum(self.clock[warps], joined)
        self.clock[warps, warps] = own

    def warp_sync(self, warps: NDArray[np.int64]) -> None:
        """Orders the lanes of each of `warps` (``bar.warp.sync``)."""
        self.warp_clock[warps] += 1

    # -- accesses

    def load(self, cta: Cta, addresses: NDArray[np.int64], size: int, active: Active) -> Words:
        """`size` bytes per thread as [words, thread]; 1 and 2 bytes are zero-extended.

        A thread that may not read gets all ones.
        """
        out = np.full((max(1, size // 4), cta.threads), 0xFFFFFFFF, np.uint32)
        threads = self._sound(cta, addresses, size, active)
        if not threads.size:
            return out
        where = addresses[threads]
        for unit in self._touch(where, size):
            missing = ~self._written[unit]
            if missing.any():
                self._note(cta, Kind.UNINITIALISED_SHARED, threads, where, missing, "never written")
            self._order_read(cta, threads, where, unit, atomic=False)
        self._count_conflicts(cta, addresses, size, active, is_load=True)
        data = self._units(size)
        index = where // min(size, 4)
        for word in range(out.shape[0]):
            out[word, threads] = data[index + word]
        return out

    def store(
        self,
        cta: Cta,
        addresses: NDArray[np.int64],
        size: int,
        words: Words,
        active: Active,
        known: Known = True,
    ) -> None:
        """Store `size` bytes per thread; bytes from an unwritten register stay unwritten."""
        threads = self._sound(cta, addresses, size, active)
        if not threads.size:
            return
        where = addresses[threads]
        flags = np.broadcast_to(np.asarray(known), (cta.threads,))[threads]
        for unit in self._touch(where, size):
            self._order_write(cta, threads, where, unit, atomic=False)
            self._written[unit] = flags
        self._count_conflicts(cta, addresses, size, active, is_load=False)
        data = self._units(size)
        index = where // min(size, 4)
        for word in range(max(1, size // 4)):
            value = words[word, threads].astype(data.dtype)
            data[index + word] = value
            lost = data[index + word] != value
            if lost.any():
                self._note(
                    cta,
                    Kind.SHARED_RACE,
                    threads,
                    where,
                    lost,
                    "two threads of one instruction store different values",
                )

    def atomic(
        self, cta: Cta, addresses: NDArray[np.int64], size: int, active: Active
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.unsignedinteger]]:
        """(threads, element index, elements) of an atomic access; the caller updates them."""
        threads = self._sound(cta, addresses, size, active)
        where = addresses[threads]
        if threads.size:
            for unit in self._touch(where, size):
                missing = ~self._written[unit]
                if missing.any():
                    self._note(
                        cta, Kind.UNINITIALISED_SHARED, threads, where, missing, "never written"
                    )
                self._order_read(cta, threads, where, unit, atomic=True)
                self._order_write(cta, threads, where, unit, atomic=True)
        return threads, where // size, self._units(size)

    # -- shadow

    def _units(self, size: int) -> NDArray[np.unsignedinteger]:
        return self._data.view({1: np.uint8, 2: np.uint16}.get(size, np.uint32))

    def _sound(
        self, cta: Cta, addresses: NDArray[np.int64], size: int, active: Active
    ) -> NDArray[np.int64]:
        mask = cta.mask(active)
        wrong = mask & (addresses % size != 0)
        if wrong.any():
            first = int(addresses[wrong][0])
            cta.note(Kind.MISALIGNED, wrong, f"byte {first} is no multiple of {size}", "shared")
        outside = mask & ((addresses < 0) | (addresses + size > self.size))
        if outside.any():
            first = int(addresses[outside][0])
            cta.note(
                Kind.OUT_OF_BOUNDS,
                outside,
                f"{size} bytes at byte {first} of {self.size}",
                "shared",
            )
        return np.flatnonzero(mask & ~wrong & ~outside)

    def _touch(self, where: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
        """Indexes into the shadow, one array per unit of the access."""
        if size < self._unit:
            self._refine(size)
        first = where // self._unit
        return [first + step for step in range(size // self._unit)]

    def _refine(self, unit: int) -> None:
        times = self._unit // unit
        self._unit = unit
        for name in _SHADOW:
            setattr(self, name, np.repeat(getattr(self, name), times, axis=0))

    def _order_read(
        self,
        cta: Cta,
        threads: NDArray[np.int64],
        where: NDArray[np.int64],
        unit: NDArray[np.int64],
        *,
        atomic: bool,
    ) -> None:
        warp = threads // WARP
        writer = self._writer[unit]
        late = self._late_write(threads, warp, unit, writer, atomic)
        if late.any():
            self._race(cta, threads, where, late, writer, "reads what thread {} wrote")
        now = self.clock[warp, warp]
        if self.intra_warp:
            step = self.warp_clock[warp]
            fresh = self._read_step[unit, warp] != step
            self._readers[unit[fresh], warp[fresh]] = 0
            self._read_step[unit, warp] = step
            np.bitwise_or.at(
                self._readers, (unit, warp), np.uint32(1) << (threads % WARP).astype(np.uint32)
            )
        if not atomic:
            self._read_time[unit, warp] = now

    def _late_write(
        self,
        threads: NDArray[np.int64],
        warp: NDArray[np.int64],
        unit: NDArray[np.int64],
        writer: NDArray[np.int64],
        atomic: bool,
    ) -> Mask:
        """Units whose last write is by another thread and not ordered before this access."""
        some = writer != _NOBODY
        owner = np.maximum(writer, 0) // WARP
        late: Mask = some & (owner != warp) & (self._write_time[unit] > self.clock[warp, owner])
        if self.intra_warp:
            late |= (
                some
                & (owner == warp)
                & (writer != threads)
                & (self._write_step[unit] == self.warp_clock[warp])
            )
        if atomic:
            late &= ~self._atomic[unit]
        return late

    def _order_write(
        self,
        cta: Cta,
        threads: NDArray[np.int64],
        where: NDArray[np.int64],
        unit: NDArray[np.int64],
        *,
        atomic: bool,
    ) -> None:
        warp = threads // WARP
        writer = self._writer[unit]
        late = self._late_write(threads, warp, unit, writer, atomic)
        if late.any():
            self._race(cta, threads, where, late, writer, "overwrites what thread {} wrote")
        unordered = self._read_time[unit] > self.clock[warp]
        unordered[np.arange(threads.size), warp] = False
        readers: Mask = np.logical_or.reduce(unordered, axis=1)
        if readers.any():
            who = unordered.argmax(axis=1) * WARP
            self._race(
                cta, threads, where, readers, who, "overwrites what the warp of thread {} reads"
            )
        if self.intra_warp:
            lanes = self._readers[unit, warp] & ~(
                np.uint32(1) << (threads % WARP).astype(np.uint32)
            )
            inside: Mask = (lanes != 0) & (self._read_step[unit, warp] == self.warp_clock[warp])
            if inside.any() and not atomic:
                self._race(
                    cta,
                    threads,
                    where,
                    inside,
                    threads // WARP * WARP,
                    "overwrites what a lane of its warp (thread {}..) reads",
                )
        self._writer[unit] = threads
        same_step: Mask = self._writer[unit] // WARP != warp
        if same_step.any() and not atomic:
            self._race(
                cta, threads, where, same_step, self._writer[unit], "is written by thread {}, too,"
            )
        self._write_time[unit] = self.clock[warp, warp]
        self._write_step[unit] = self.warp_clock[warp]
        self._atomic[unit] = atomic

    def _race(
        self,
        cta: Cta,
        threads: NDArray[np.int64],
        where: NDArray[np.int64],
        bad: Mask,
        who: NDArray[np.int64],
        text: str,
    ) -> None:
        other = int(who[bad][0])
        self._note(
            cta,
            Kind.SHARED_RACE,
            threads,
            where,
            bad,
            text.format(other) + " with no barrier between",
        )

    @staticmethod
    def _note(
        cta: Cta,
        kind: Kind,
        threads: NDArray[np.int64],
        where: NDArray[np.int64],
        bad: Mask,
        detail: str,
    ) -> None:
        mask = np.zeros(cta.threads, bool)
        mask[threads[bad]] = True
        cta.note(kind, mask, f"byte {int(where[bad][0])}: {detail}", "shared")

    def _count_conflicts(
        self, cta: Cta, addresses: NDArray[np.int64], size: int, active: Active, *, is_load: bool
    ) -> None:
        extra = wavefronts(addresses, cta.mask(active), size, is_load)
        if extra:
            cta.note(
                Kind.CONFLICTS,
                cta.mask(active),
                f"{extra} wavefronts more than needed",
                "shared",
                extra,
            )
