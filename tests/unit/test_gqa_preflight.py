# SPDX-License-Identifier: Apache-2.0
"""What is asked of memory before it is taken, and how it is taken."""

from __future__ import annotations

import threading

import pytest
import torch

from vllm_fa2_sm70 import buffers
from vllm_fa2_sm70.preflight import HEADROOM, MIB, Memory, segment, shortage


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, 0),
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 1, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
        (160 * MIB, 160 * MIB),
        (24_576_000, 24 * MIB),
    ],
)
def test_sizes_are_rounded_as_the_caching_allocator_does(size: int, expected: int) -> None:
    assert segment(size) == expected


def test_memory_comes_from_another_thread_and_so_does_its_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[threading.Thread] = []

    def empty(size: int, **other: object) -> torch.Tensor:
        threads.append(threading.current_thread())
        if size == 7:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return torch.zeros(size)

    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: threading.current_thread())
    cuda = buffers.TorchCuda(torch.device("cuda", 0))
    tensor, stream = cuda.allocate(5)
    assert tensor.numel() == 5 and stream is threads[0] is not threading.current_thread()
    with pytest.raises(torch.OutOfMemoryError):
        cuda.allocate(7)


def test_free_and_releasable_count_together() -> None:
    need = HEADROOM + 20 * MIB + 2 * MIB
    assert shortage((2 * MIB, 5), Memory(need, 0)) == ""
    assert shortage((2 * MIB, 5), Memory(0, need)) == ""
    assert shortage((2 * MIB, 5), Memory(need // 2, need - need // 2)) == ""
    assert "150.0 MiB are needed" in shortage((2 * MIB, 5), Memory(need // 2, need // 2 - 1))


def test_statistics_of_torch_give_what_can_be_released(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = {
        "reserved_bytes.all.current": 100,
        "allocated_bytes.all.current": 30,
        "inactive_split_bytes.all.current": 25,
    }
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (7, 1000))
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: stats)
    cuda = buffers.TorchCuda(torch.device("cuda", 0))
    assert cuda.memory() == Memory(7, 45)
    stats.clear()
    assert cuda.memory() == Memory(7, 0)
