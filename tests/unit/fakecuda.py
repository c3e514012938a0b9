# SPDX-License-Identifier: Apache-2.0
"""A stand-in for torch.cuda that knows what is ordered: streams, events, and memory that ends.

Each stream knows which launches have happened for work that is enqueued on it now. A launch that
touches the buffer without knowing of the launch before it is a race, and so is memory that goes
back to a stream's pool while that stream does not know of its last user.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, field

import torch

from vllm_fa2_sm70.preflight import Memory


@dataclass(eq=False)
class Stream:
    name: str
    known: set[int] = field(default_factory=set)

    def wait_event(self, event: Event) -> None:
        self.known |= event.known


@dataclass(eq=False)
class Event:
    known: set[int] = field(default_factory=set)
    records: int = 0
    fails: bool = False

    def record(self, stream: Stream) -> None:
        self.known = set(stream.known)
        self.records += 1


class FakeCuda:
    """One device. `capacity` bytes can be allocated; `seen` is what the preflight is told."""

    def __init__(self, capacity: int = 10**12, seen: int | None = None) -> None:
        self.capacity, self.seen = capacity, seen
        self.used = 0
        self.allocations = self.preflights = 0
        self.last: int | None = None  # the newest launch that uses the buffer
        self.launches = 0  # numbers that were given
        self.used_by: list[str] = []  # the streams of launches, in their order
        self.races: list[str] = []
        self.first_event: Event | None = None
        self._local = threading.local()
        self._default = Stream("default")
        self._lock = threading.Lock()

    def on(self, stream: Stream) -> None:
        """Make it the stream of this thread."""
        self._local.stream = stream

    def current_stream(self) -> Stream:
        return getattr(self._local, "stream", self._default)

    def event(self) -> Event:
        self.first_event = Event()
        return self.first_event

    def memory(self) -> Memory:
        self.preflights += 1
        return Memory(self.capacity - self.used if self.seen is None else self.seen, 0)

    def take(self, size: int) -> None:
        """Memory that something else holds."""
        with self._lock:
            if self.used + size > self.capacity:
                raise torch.OutOfMemoryError(
                    f"CUDA out of memory. Tried to allocate {size} bytes. GPU 0 has a total of"
                )
            self.used += size

    def allocate(self, size: int) -> tuple[torch.Tensor, Stream]:
        self.take(size)
        self.allocations += 1
        tensor = torch.empty(size, dtype=torch.uint8, device="meta")
        with self._lock:  # the pool's stream still works on what had the memory before
            self.launches += 1
            self.last = self.launches
            self._default.known.add(self.last)
        weakref.finalize(tensor, self._given_back, size, self._default)
        return tensor, self._default

    def launch(self) -> int:
        """Enqueue work that uses the buffer; its number."""
        stream = self.current_stream()
        with self._lock:
            if self.last is not None and self.last not in stream.known:
                self.races.append(f"{stream.name} does not wait for launch {self.last}")
            self.launches += 1
            self.used_by.append(stream.name)
            self.last = self.launches
            stream.known.add(self.last)
            return self.last

    def _given_back(self, size: int, owner: Stream) -> None:
        self.used -= size
        if self.last is not None and self.last not in owner.known:
            self.races.append(f"memory returned to {owner.name} before launch {self.last} ended")
