# SPDX-License-Identifier: Apache-2.0
"""Global memory: named tensors at 64-bit addresses, with what may be read and who wrote.

Every tensor lies across a multiple of 4 GiB, far from the others: address arithmetic that loses
a carry or the upper half misses it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patchctl.emulator.findings import Kind
from patchctl.emulator.machine import Active, Cta, EmulatorError, Mask, Words

_GAP = 1 << 36
_FOUR_GIB = 1 << 32
_ALIGN = 256
_POISON = np.uint32(0xFFFFFFFF)
_NOBODY = -1


@dataclass
class Tensor:
    """Bytes with a name. `address` is where the kernel sees byte 0."""

    name: str
    address: int
    data: NDArray[np.uint8]
    writable: bool
    readable: Mask | None
    """One flag per 2 bytes; None when all may be read."""
    writer: NDArray[np.int32]
    """CTA number that stored each 2 bytes, -1 for none."""

    def array(
        self, dtype: type[np.generic] | np.dtype[np.generic], shape: tuple[int, ...]
    ) -> NDArray[np.generic]:
        """A view of the contents."""
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return self.data[:count].view(dtype).reshape(shape)

    def units(self, size: int) -> NDArray[np.unsignedinteger]:
        """The contents as whole integers of `size` bytes, 1 to 4."""
        whole = self.data[: self.data.size // size * size]
        return whole.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[size])


class GlobalMemory:
    """All tensors of a launch."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._list: list[Tensor] = []
        self._bases = np.zeros(0, np.uint64)
        self.cta_number = 0

    def add(
        self,
        name: str,
        data: NDArray[np.generic],
        *,
        writable: bool = False,
        readable: NDArray[np.bool_] | None = None,
    ) -> Tensor:
        """Copy `data` in. `readable` has one flag per element of `data` (2 bytes or more)."""
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        if name in self.tensors or not raw.size:
            raise ValueError(f"tensor {name}: empty, or there already")
        size = raw.size
        half = -(-(size // 2) // _ALIGN) * _ALIGN
        address = _GAP * (len(self._list) + 1) + _FOUR_GIB - half
        flags = None
        if readable is not None:
            flags = np.repeat(np.ravel(readable), max(1, data.dtype.itemsize // 2))
        tensor = Tensor(
            name, address, raw.copy(), writable, flags, np.full(-(-size // 2), _NOBODY, np.int32)
        )
        self.tensors[name] = tensor
        self._list.append(tensor)
        self._bases = np.array([t.address for t in self._list], np.uint64)
        return tensor

    def load(self, cta: Cta, addresses: NDArray[np.uint64], size: int, active: Active) -> Words:
        """`size` bytes per thread as [words, thread]; 1 and 2 bytes are zero-extended.

        A thread that may not read gets all ones.
        """
        out = np.full((max(1, size // 4), cta.threads), _POISON, np.uint32)
        for tensor, threads, offsets in self._resolve(cta, addresses, size, active):
            if tensor.readable is not None:
                self._check_readable(cta, tensor, threads, offsets, size)
            halves = offsets // 2
            other = tensor.writer[halves]
            raced = (other != _NOBODY) & (other != self.cta_number)
            if raced.any():
                cta.note(
                    Kind.GLOBAL_RACE,
                    _mask(cta, threads[raced]),
                    "reads what another CTA of this launch stores",
                    tensor.name,
                )
            units = tensor.units(min(size, 4))
            index = offsets // min(size, 4)
            for word in range(max(1, size // 4)):
                out[word, threads] = units[index + word]
        return out

    def store(
        self, cta: Cta, addresses: NDArray[np.uint64], size: int, words: Words, active: Active
    ) -> None:
        """Store `size` bytes per thread from [words, thread]; bad stores are dropped."""
        for tensor, threads, offsets in self._resolve(cta, addresses, size, active):
            if not tensor.writable:
                cta.note(Kind.READ_ONLY, _mask(cta, threads), "store into an input", tensor.name)
                continue
            self._claim(cta, tensor, threads, offsets, size)
            units = tensor.units(min(size, 4))
            index = offsets // min(size, 4)
            for word in range(max(1, size // 4)):
                units[index + word] = words[word, threads].astype(units.dtype)

    def update(
        self, cta: Cta, addresses: NDArray[np.uint64], size: int, active: Active
    ) -> list[tuple[Tensor, NDArray[np.int64], NDArray[np.int64]]]:
        """Resolve an atomic access; the caller reads and writes the tensors thread by thread."""
        return [found for found in self._resolve(cta, addresses, size, active) if found[0].writable]

    # -- checks

    def _resolve(
        self, cta: Cta, addresses: NDArray[np.uint64], size: int, active: Active
    ) -> list[tuple[Tensor, NDArray[np.int64], NDArray[np.int64]]]:
        """(tensor, threads, byte offsets) of the accesses that are sound; findings for the rest."""
        mask = cta.mask(active)
        wrong = mask & (addresses % np.uint64(size) != 0)
        if wrong.any():
            cta.note(
                Kind.MISALIGNED,
                wrong,
                f"address {int(addresses[wrong][0]):#x} is no multiple of {size}",
                self._nearest(int(addresses[wrong][0]))[0],
            )
            mask = mask & ~wrong
        threads = np.flatnonzero(mask)
        if not threads.size:
            return []
        where = addresses[threads]
        owner = np.searchsorted(self._bases, where, side="right") - 1
        found = []
        for number in np.unique(owner):
            mine = owner == number
            if number < 0:
                self._outside(cta, threads[mine], where[mine], size)
                continue
            tensor = self._list[int(number)]
            offsets = (where[mine] - np.uint64(tensor.address)).astype(np.int64)
            inside = (offsets >= 0) & (offsets + size <= tensor.data.size)
            if not inside.all():
                self._outside(cta, threads[mine][~inside], where[mine][~inside], size)
            if inside.any():
                found.append((tensor, threads[mine][inside], offsets[inside]))
        return found

    def _outside(
        self, cta: Cta, threads: NDArray[np.int64], where: NDArray[np.uint64], size: int
    ) -> None:
        name, how = self._nearest(int(where[0]))
        cta.note(Kind.OUT_OF_BOUNDS, _mask(cta, threads), f"{size} bytes {how}", name)

    def _nearest(self, address: int) -> tuple[str, str]:
        """The tensor that an address missed, and by how much."""
        best: tuple[int, str, str] | None = None
        for tensor in self._list:
            end = tensor.address + tensor.data.size
            if address >= end:
                miss = (address - end, tensor.name, f"{address - end} bytes past the end")
            elif address < tensor.address:
                miss = (
                    tensor.address - address,
                    tensor.name,
                    f"{tensor.address - address} bytes before the start",
                )
            else:
                miss = (0, tensor.name, f"at byte {address - tensor.address} of {tensor.data.size}")
            if best is None or miss[0] < best[0]:
                best = miss
        if best is None:
            raise EmulatorError("a kernel accesses global memory, but there are no tensors")
        if best[0] >= _FOUR_GIB:
            return "no tensor", f"at {address:#x}"
        return best[1], best[2]

    def _check_readable(
        self,
        cta: Cta,
        tensor: Tensor,
        threads: NDArray[np.int64],
        offsets: NDArray[np.int64],
        size: int,
    ) -> None:
        assert tensor.readable is not None
        bad = np.zeros(threads.size, bool)
        for half in range(max(1, size // 2)):
            bad |= ~tensor.readable[offsets // 2 + half]
        if bad.any():
            first = int(offsets[bad][0])
            cta.note(
                Kind.FORBIDDEN,
                _mask(cta, threads[bad]),
                f"byte {first} is not part of the problem",
                tensor.name,
            )

    def _claim(
        self,
        cta: Cta,
        tensor: Tensor,
        threads: NDArray[np.int64],
        offsets: NDArray[np.int64],
        size: int,
    ) -> None:
        twice = np.zeros(threads.size, bool)
        for half in range(max(1, size // 2)):
            index = offsets // 2 + half
            other = tensor.writer[index]
            twice |= (other != _NOBODY) & (other != self.cta_number)
            tensor.writer[index] = self.cta_number
        if twice.any():
            cta.note(
                Kind.DOUBLE_STORE,
                _mask(cta, threads[twice]),
                f"byte {int(offsets[twice][0])} was stored by another CTA",
                tensor.name,
            )


def _mask(cta: Cta, threads: NDArray[np.int64]) -> Mask:
    mask = np.zeros(cta.threads, bool)
    mask[threads] = True
    return mask
