# SPDX-License-Identifier: Apache-2.0
"""Local memory: a private array per thread, where spills and indexed arrays live."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from patchctl.emulator.findings import Kind
from patchctl.emulator.machine import Active, Cta, Words


class LocalMemory:
    """[byte, thread], with a flag for every byte that was written."""

    def __init__(self, size: int, threads: int) -> None:
        self.size = size
        self._data = np.full((size, threads), 0xFF, np.uint8)
        self._written = np.zeros((size, threads), bool)

    def load(self, cta: Cta, addresses: NDArray[np.int64], size: int, active: Active) -> Words:
        """`size` bytes per thread as [words, thread]; 1 and 2 bytes are zero-extended."""
        out = np.full((max(1, size // 4), cta.threads), 0xFFFFFFFF, np.uint32)
        threads = self._sound(cta, addresses, size, active)
        where = addresses[threads]
        written = np.ones(threads.size, bool)
        for word in range(out.shape[0]):
            value = np.zeros(threads.size, np.uint32)
            for byte in range(min(4, size)):
                row = where + 4 * word + byte
                value |= self._data[row, threads].astype(np.uint32) << np.uint32(8 * byte)
                written &= self._written[row, threads]
            out[word, threads] = value
        if not written.all():
            bad = np.zeros(cta.threads, bool)
            bad[threads[~written]] = True
            cta.note(Kind.UNINITIALISED_LOCAL, bad, "local memory that was never written")
        return out

    def store(
        self,
        cta: Cta,
        addresses: NDArray[np.int64],
        size: int,
        words: Words,
        active: Active,
        known: NDArray[np.bool_] | bool = True,
    ) -> None:
        """Store `size` bytes per thread from [words, thread]."""
        threads = self._sound(cta, addresses, size, active)
        where = addresses[threads]
        flags = np.broadcast_to(np.asarray(known), (cta.threads,))[threads]
        for byte in range(size):
            value = words[byte // 4, threads] >> np.uint32(8 * (byte % 4))
            self._data[where + byte, threads] = (value & np.uint32(0xFF)).astype(np.uint8)
            self._written[where + byte, threads] = flags

    def _sound(
        self, cta: Cta, addresses: NDArray[np.int64], size: int, active: Active
    ) -> NDArray[np.int64]:
        mask = cta.mask(active)
        wrong = mask & (addresses % size != 0)
        if wrong.any():
            cta.note(Kind.MISALIGNED, wrong, f"local address is no multiple of {size}", "local")
        outside = mask & ((addresses < 0) | (addresses + size > self.size))
        if outside.any():
            first = int(addresses[outside][0])
            cta.note(Kind.OUT_OF_BOUNDS, outside, f"byte {first} of {self.size}", "local")
        return np.flatnonzero(mask & ~wrong & ~outside)
