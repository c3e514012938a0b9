# SPDX-License-Identifier: Apache-2.0
"""Retained buffers of several devices, and of forked processes."""

from __future__ import annotations

import os
import threading

import pytest
import torch
from tests.unit.fakecuda import FakeCuda

from vllm_fa2_sm70 import buffers
from vllm_fa2_sm70.buffers import DeviceBuffer
from vllm_fa2_sm70.preflight import MIB

SIZE, OWN = 16 * MIB, (24 * MIB, MIB)


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> list[FakeCuda]:
    fakes = [FakeCuda(), FakeCuda()]
    monkeypatch.setattr(buffers, "TorchCuda", lambda device: fakes[device.index])
    monkeypatch.setattr(buffers, "_buffers", {})
    return fakes


def use(index: int, size: int = SIZE) -> None:
    fake = buffers.buffer_of(torch.device("cuda", index))
    fake.use(size, OWN, lambda: "own", lambda tensor, own: None)


def test_each_device_has_a_buffer_of_its_own(devices: list[FakeCuda]) -> None:
    use(0)
    use(1, 2 * SIZE)
    use(1)
    assert [fake.allocations for fake in devices] == [1, 1]
    assert buffers.retained_memory() == {0: SIZE, 1: 2 * SIZE}
    assert buffers.release_memory(1) == 2 * SIZE
    assert buffers.retained_memory() == {0: SIZE, 1: 0}
    use(1)
    assert buffers.release_memory() == 2 * SIZE and buffers.release_memory() == 0


def test_two_devices_do_not_wait_for_each_other(devices: list[FakeCuda]) -> None:
    buffer = buffers.buffer_of(torch.device("cuda", 0))
    done = threading.Event()

    def launch(tensor: torch.Tensor, own: str) -> None:
        threading.Thread(target=lambda: (use(1), done.set())).start()
        assert done.wait(5)

    buffer.use(SIZE, OWN, lambda: "own", launch)


def test_threads_that_come_first_together_get_the_same_buffer(devices: list[FakeCuda]) -> None:
    start = threading.Barrier(16)
    found: list[DeviceBuffer] = []

    def work() -> None:
        start.wait()
        found.append(buffers.buffer_of(torch.device("cuda", 0)))

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_forked_child_starts_anew_and_frees_nothing(devices: list[FakeCuda]) -> None:
    use(0)
    buffer = buffers.buffer_of(torch.device("cuda", 0))
    buffer._lock.acquire()  # another thread is at work while this one forks
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert buffers.retained_memory() == {} and buffers.release_memory() == 0
            use(0)
            assert devices[0].allocations == 2 and devices[0].used == 2 * SIZE
            assert buffers.release_memory() == SIZE and devices[0].used == SIZE
            code = 0
        finally:
            os._exit(code)
    buffer._lock.release()
    assert os.waitpid(child, 0)[1] == 0
    assert buffers.retained_memory() == {0: SIZE}
