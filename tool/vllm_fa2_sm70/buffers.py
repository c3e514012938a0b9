# SPDX-License-Identifier: Apache-2.0
"""One retained allocation a device, shared by all streams and threads, and given up when memory
is short.

Work that uses it is in order by an event: whoever comes next makes its stream wait. The host waits
for nothing but the lock, which is held while work is enqueued.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from vllm_fa2_sm70.preflight import Memory, shortage

if TYPE_CHECKING:
    from torch import Tensor
    from torch import device as Device

T = TypeVar("T")

PREFLIGHT, PERSISTENT, TRANSIENT = "preflight", "persistent", "transient"


class Cuda(Protocol):
    """What is asked of torch.cuda, for one device."""

    def current_stream(self) -> Any:
        """The stream that this thread launches on."""

    def event(self) -> Any:
        """A new event."""

    def memory(self) -> Memory:
        """What could be allocated."""

    def allocate(self, size: int) -> tuple[Tensor, Any]:
        """That many bytes, and the stream whose work they come after."""


@dataclass(frozen=True)
class Shortage:
    """There was no memory: at the preflight, for the retained buffer or for a call's own."""

    place: str
    text: str


class DeviceBuffer:
    """The retained allocation of one device."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._lock = threading.Lock()
        self._tensor: Tensor | None = None
        self._owner: Any = None  # the stream whose pool the tensor came from
        self._event: Any = None  # after the last work that uses the tensor
        self._proven = 0  # transient bytes that a call has got beside this tensor

    def use(
        self,
        size: int,
        transient: tuple[int, ...],
        prepare: Callable[[], T],
        launch: Callable[[Tensor, T], None],
    ) -> T | Shortage:
        """Enqueue work on the current stream that needs `size` bytes of the buffer.

        Args:
            transient: sizes of what `prepare` allocates.
            prepare: allocates a call's own memory.
            launch: gets the buffer, which can be larger, and what `prepare` gave.

        Returns: what `prepare` gave, or what was missing; then nothing was launched.
        """
        with self._lock:
            stream = self._cuda.current_stream()
            found: T | Shortage | None = self._provide(size, transient)
            if found is None:
                found = self._attempt(TRANSIENT, prepare)
            if isinstance(found, Shortage):
                self._drop()  # what the call does instead needs memory, too
                return found
            assert self._tensor is not None
            self._proven = max(self._proven, sum(transient))
            # also where the last user was this stream: a new stream can have an old one's handle
            stream.wait_event(self._event)
            try:
                launch(self._tensor, found)
            finally:
                # a launch that fails can leave kernels behind that were launched before it
                self._event.record(stream)
            return found

    def release(self) -> int:
        """Give the buffer back to torch's allocator; how many bytes that was."""
        with self._lock:
            return self._drop()

    def retained(self) -> int:
        """Bytes that are held now."""
        tensor = self._tensor
        return 0 if tensor is None else tensor.numel()

    def _provide(self, size: int, transient: tuple[int, ...]) -> Shortage | None:
        enough = self._tensor is not None and self._tensor.numel() >= size
        if enough and sum(transient) <= self._proven:
            return None  # warm: asking the driver would cost more than the launch
        wanted = transient if enough else (size, *transient)
        memory = self._cuda.memory()
        # growing gives the old allocation back first
        spare = 0 if enough else self.retained()
        missing = shortage(wanted, Memory(memory.free, memory.releasable + spare))
        if missing:
            return Shortage(PREFLIGHT, missing)
        if enough:
            return None
        self._drop()
        found = self._attempt(PERSISTENT, lambda: self._cuda.allocate(size))
        if isinstance(found, Shortage):
            return found
        self._event = self._event or self._cuda.event()
        self._tensor, self._owner = found
        self._event.record(self._owner)
        return None

    def _drop(self) -> int:
        size = self.retained()
        if self._tensor is not None:
            # the memory returns to that stream's pool, whose next user waits for nobody else
            self._owner.wait_event(self._event)
        self._tensor, self._owner, self._proven = None, None, 0
        return size

    @staticmethod
    def _attempt(place: str, allocate: Callable[[], T]) -> T | Shortage:
        import torch

        try:
            return allocate()
        except torch.OutOfMemoryError as error:
            # its traceback would keep alive what was allocated before it
            text = str(error).partition("\n")[0].partition(". GPU")[0]
        return Shortage(place, text)


class TorchCuda:
    """torch.cuda, for one device."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def current_stream(self) -> Any:
        """The stream that this thread launches on."""
        import torch

        return torch.cuda.current_stream(self._device)

    def event(self) -> Any:
        """A new event."""
        import torch

        return torch.cuda.Event()

    def memory(self) -> Memory:
        """What could be allocated."""
        import torch

        free, _ = torch.cuda.mem_get_info(self._device)
        stats = torch.cuda.memory_stats(self._device)
        # a segment that is in use in part cannot be released
        unused = stats.get("reserved_bytes.all.current", 0)
        unused -= stats.get("allocated_bytes.all.current", 0)
        unused -= stats.get("inactive_split_bytes.all.current", 0)
        return Memory(free, max(unused, 0))

    def allocate(self, size: int) -> tuple[Tensor, Any]:
        """That many bytes, and the stream whose work they come after.

        In a thread of its own: this one's allocations can go to a pool that is not to be kept from,
        as while torch warms up a function for CUDA graphs. Torch would hand the memory out twice.
        """
        import torch

        found: list[tuple[Tensor, Any] | BaseException] = []

        def run() -> None:
            try:
                tensor = torch.empty(size, dtype=torch.uint8, device=self._device)
                found.append((tensor, self.current_stream()))
            except BaseException as error:
                found.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        result = found.pop()
        if isinstance(result, BaseException):
            raise result
        return result


_buffers: dict[int, dict[int, DeviceBuffer]] = {}
"""By process and by device. What a forked child inherits is not its own, and its locks may be held
for ever; the tensors stay referenced here, so that no child frees them."""


def buffer_of(device: Device) -> DeviceBuffer:
    """The buffer of a CUDA device in this process."""
    mine = _buffers.setdefault(os.getpid(), {})
    index: int = device.index
    return mine.get(index) or mine.setdefault(index, DeviceBuffer(TorchCuda(device)))


def release_memory(device: int | None = None) -> int:
    """Give the retained buffers back to torch's allocator, of one device or of all.

    Work that was launched still finishes; the next call that needs a buffer allocates it anew.

    Returns: how many bytes were retained.
    """
    mine = _buffers.get(os.getpid(), {})
    return sum(buffer.release() for index, buffer in list(mine.items()) if device in (None, index))


def retained_memory() -> dict[int, int]:
    """How many bytes are retained, by the device's index."""
    return {index: buffer.retained() for index, buffer in _buffers.get(os.getpid(), {}).items()}
