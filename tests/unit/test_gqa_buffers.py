# SPDX-License-Identifier: Apache-2.0
"""The retained buffer: order over streams and threads, lack of memory at each place."""

from __future__ import annotations

import random
import threading

import pytest
import torch
from tests.unit.fakecuda import FakeCuda, Stream

from vllm_fa2_sm70.buffers import PERSISTENT, PREFLIGHT, TRANSIENT, DeviceBuffer, Shortage
from vllm_fa2_sm70.preflight import HEADROOM, MIB, segment

SIZE, OWN = 16 * MIB, (24 * MIB, MIB)


class Rig:
    """A buffer, and calls that need `SIZE` of it and `OWN` beside it."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda
        self.buffer = DeviceBuffer(cuda)
        self.prepared = 0

    def prepare(self) -> str:
        self.prepared += 1
        return "own"

    def launch(self, tensor: torch.Tensor, own: str) -> None:
        assert own == "own" and tensor.numel() >= SIZE
        self.cuda.launch()

    def call(self, size: int = SIZE, own: tuple[int, ...] = OWN) -> str | Shortage:
        return self.buffer.use(size, own, self.prepare, self.launch)


def out_of_memory() -> str:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 MiB. GPU 0 has\nmore")


def place(found: object) -> str:
    assert isinstance(found, Shortage), found
    return found.place


def test_one_allocation_serves_all_calls_and_streams() -> None:
    rig = Rig(FakeCuda())
    for i in range(40):
        rig.cuda.on(Stream(f"s{i % 7}"))
        assert rig.call() == "own"
    assert (rig.cuda.allocations, rig.cuda.preflights, len(rig.cuda.used_by)) == (1, 1, 40)
    assert rig.buffer.retained() == SIZE and rig.cuda.races == []


def test_a_race_is_seen_by_these_tests() -> None:
    cuda = FakeCuda()
    tensor, _ = cuda.allocate(SIZE)
    for name in ("a", "b"):
        cuda.on(Stream(name))
        cuda.launch()
    del tensor
    assert cuda.races == [
        "a does not wait for launch 1",
        "b does not wait for launch 2",
        "memory returned to default before launch 3 ended",
    ]


def test_threads_with_streams_of_their_own_are_in_order() -> None:
    rig = Rig(FakeCuda())
    start = threading.Barrier(8)
    found: list[object] = []

    def work(seed: int) -> None:
        dice = random.Random(seed)
        streams = [Stream(f"t{seed}.{i}") for i in range(3)]
        start.wait()
        for _ in range(150):
            rig.cuda.on(dice.choice(streams))
            if dice.random() < 0.05:
                rig.buffer.release()
            found.append(rig.call(dice.choice((SIZE, SIZE + MIB, 2 * SIZE))))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["own"] * 1200
    assert rig.cuda.races == [] and len(rig.cuda.used_by) == 1200
    assert rig.cuda.used == rig.buffer.retained()


def test_growth_gives_the_old_allocation_back_in_order_and_first() -> None:
    rig = Rig(FakeCuda(capacity=HEADROOM + 100 * MIB))
    rig.cuda.on(Stream("first"))
    assert rig.call() == "own"
    rig.cuda.on(Stream("second"))
    assert rig.call() == "own"
    rig.cuda.on(Stream("third"))
    assert rig.call(size=70 * MIB) == "own"  # both at once would not fit
    assert (rig.cuda.allocations, rig.buffer.retained()) == (2, 70 * MIB)
    assert rig.call() == "own"
    assert rig.cuda.allocations == 2 and rig.cuda.used == 70 * MIB
    assert rig.cuda.races == []


def test_release_waits_on_the_device_and_the_next_call_allocates() -> None:
    rig = Rig(FakeCuda())
    assert rig.buffer.release() == 0
    rig.call()
    rig.cuda.on(Stream("other"))
    rig.call()
    assert rig.buffer.release() == SIZE
    assert (rig.buffer.retained(), rig.cuda.used, rig.cuda.races) == (0, 0, [])
    assert rig.call() == "own" and rig.cuda.allocations == 2


def test_preflight_refuses_and_nothing_is_allocated() -> None:
    needed = SIZE + sum(map(segment, OWN)) + HEADROOM
    rig = Rig(FakeCuda(seen=needed - 1))
    found = rig.call()
    assert place(found) == PREFLIGHT
    assert isinstance(found, Shortage) and "128.0 MiB of them headroom" in found.text
    assert (rig.cuda.allocations, rig.prepared, len(rig.cuda.used_by)) == (0, 0, 0)
    rig.cuda.seen = needed
    assert rig.call() == "own"


def test_warm_calls_ask_nobody() -> None:
    rig = Rig(FakeCuda())
    rig.call()
    rig.cuda.seen = 0
    assert rig.call() == "own" and rig.call(own=(MIB,)) == "own" and rig.call(size=5) == "own"
    assert rig.cuda.preflights == 1


def test_more_transient_memory_than_before_is_asked_for_first() -> None:
    rig = Rig(FakeCuda())
    rig.call()
    rig.cuda.seen = 0
    assert place(rig.call(own=(25 * MIB, MIB))) == PREFLIGHT
    assert rig.buffer.retained() == 0 and rig.cuda.races == []  # what comes instead needs it


def test_no_memory_for_the_retained_buffer() -> None:
    """The preflight was told of memory that somebody else then took."""
    rig = Rig(FakeCuda(capacity=SIZE - 1, seen=10**12))
    for _ in range(25):
        found = rig.call()
        assert place(found) == PERSISTENT
        assert isinstance(found, Shortage)
        assert found.text == f"CUDA out of memory. Tried to allocate {SIZE} bytes"
    assert (rig.prepared, len(rig.cuda.used_by), rig.buffer.retained()) == (0, 0, 0)
    rig.cuda.capacity = 10**12
    assert rig.call() == "own"


@pytest.mark.parametrize("warm", [False, True])
def test_no_memory_for_the_calls_own(warm: bool) -> None:
    rig = Rig(FakeCuda())
    for _ in range(25):
        if warm:
            rig.call()
        launches = len(rig.cuda.used_by)
        rig.cuda.on(Stream("other"))
        found = rig.buffer.use(SIZE, OWN, out_of_memory, rig.launch)
        assert place(found) == TRANSIENT
        assert len(rig.cuda.used_by) == launches
        # the dense route gets the memory
        assert rig.buffer.retained() == 0 and rig.cuda.used == 0
    assert rig.call() == "own" and rig.cuda.races == []


def test_memory_of_a_call_that_ended_early_is_given_back_at_once() -> None:
    rig = Rig(FakeCuda(capacity=SIZE + 24 * MIB, seen=10**12))

    class Own:
        size = 0

        def __init__(self) -> None:
            rig.cuda.take(24 * MIB)
            self.size = 24 * MIB

        def __del__(self) -> None:
            rig.cuda.used -= self.size

    def prepare() -> list[Own]:
        return [Own(), Own()]

    found = rig.buffer.use(SIZE, OWN, prepare, lambda tensor, own: None)
    assert place(found) == TRANSIENT
    assert rig.cuda.used == 0


@pytest.mark.parametrize("launched", [0, 1, 2])
def test_event_is_recorded_although_a_launch_fails(launched: int) -> None:
    rig = Rig(FakeCuda())
    rig.call()
    event = rig.cuda.first_event
    assert event is not None and event.records == 2  # the allocation's, and the call's

    def launch(tensor: torch.Tensor, own: str) -> None:
        for _ in range(launched):
            rig.cuda.launch()
        raise RuntimeError("launch 2 of 3 failed")

    rig.cuda.on(Stream("fails"))
    with pytest.raises(RuntimeError, match="launch 2 of 3 failed"):
        rig.buffer.use(SIZE, OWN, rig.prepare, launch)
    assert event.records == 3
    rig.cuda.on(Stream("next"))
    assert rig.call() == "own"  # the lock is free
    assert rig.buffer.release() == SIZE and rig.cuda.races == []


def test_errors_that_are_not_a_lack_of_memory_are_raised() -> None:
    rig = Rig(FakeCuda())

    def broken() -> str:
        raise RuntimeError("CUDA error: out of memory")  # untyped: it can be anything

    with pytest.raises(RuntimeError, match="CUDA error"):
        rig.buffer.use(SIZE, OWN, broken, rig.launch)
    assert rig.call() == "own"


def test_lock_is_held_while_work_is_enqueued() -> None:
    rig = Rig(FakeCuda())
    inside = [0]

    def launch(tensor: torch.Tensor, own: str) -> None:
        inside[0] += 1
        assert inside[0] == 1
        threading.Event().wait(0.005)
        rig.cuda.launch()
        inside[0] -= 1

    calls = [
        threading.Thread(target=rig.buffer.use, args=(SIZE, OWN, rig.prepare, launch))
        for _ in range(8)
    ]
    for thread in calls:
        thread.start()
    for thread in calls:
        thread.join()
    assert len(rig.cuda.used_by) == 8 and rig.cuda.races == []
