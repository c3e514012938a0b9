# SPDX-License-Identifier: Apache-2.0
"""Long prefills with the device's memory really full: every request gets the dense answer."""

from __future__ import annotations

import gc
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch
from attention import DEVICE
from gqa_cases import MODES, SHORTEST, attend, by, calls, environment, normal, shim
from torch import Tensor

from vllm_fa2_sm70 import buffers
from vllm_fa2_sm70.preflight import MIB

pytestmark = [pytest.mark.gpu, pytest.mark.cuda]
TIMES = 20
THREADS = 2
PLAY = 1024 * MIB  # what is filled anew each time


@dataclass
class Ballast:
    """Memory that is taken so that others go without."""

    held: list[Tensor] = field(default_factory=list)

    def take(self, leave: int) -> None:
        """All but about `leave` bytes of what the device has."""
        step = 2 * MIB
        while True:
            size = (torch.cuda.mem_get_info()[0] - leave) // step * step
            while size >= step:
                try:
                    self.held.append(torch.empty(size, dtype=torch.uint8, device=DEVICE))
                    break
                except torch.OutOfMemoryError:
                    size = size // 2 // step * step
            if size < step:
                return

    def take_small(self, size: int) -> None:
        """Also what torch's allocator keeps for small tensors of that size."""
        while True:
            try:
                self.held.append(torch.empty(size, dtype=torch.uint8, device=DEVICE))
            except torch.OutOfMemoryError:
                return

    def drop(self) -> None:
        self.held.clear()
        torch.cuda.empty_cache()


@contextmanager
def ballast(leave: int) -> Iterator[Ballast]:
    taken = Ballast()
    try:
        taken.take(leave)
        yield taken
    finally:
        taken.drop()


def give_back() -> None:
    """What garbage, compiled graphs and torch's cache hold would serve the requests, or count as
    memory that can be released."""
    torch.cuda.synchronize()
    torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    monkeypatch.setenv(calls.PTX_VARIABLE, "1")
    shim.release_memory()
    give_back()
    yield
    shim.release_memory()
    give_back()


class Requests:
    """Calls from several threads with streams of their own, into memory that is there already."""

    def __init__(self, mode: str) -> None:
        self.inputs = normal(SHORTEST)
        self.expected = by("dense", self.inputs)
        by(mode, self.inputs)  # its kernels are loaded, which takes memory
        shim.release_memory()
        shim.reset_route_counts()
        self.outs = [torch.empty_like(self.expected[0]) for _ in range(THREADS)]
        self.lses = [torch.empty_like(self.expected[1]) for _ in range(THREADS)]
        # everything that a request does is done once: loading code takes memory, too
        self.outs[0].fill_(float("nan"))
        self.lses[0].copy_(self.expected[1])
        self.streams = [torch.cuda.Stream() for _ in range(THREADS)]
        give_back()
        self.errors: list[str] = []
        self.places: Counter[str] = Counter()

    def _one(self, i: int, start: threading.Barrier) -> None:
        start.wait()
        try:
            with torch.cuda.stream(self.streams[i]):
                result, lse = attend(self.inputs, self.outs[i])
                assert result.data_ptr() == self.outs[i].data_ptr()
                self.lses[i].copy_(lse)
        except Exception as error:
            self.errors.append(f"{type(error).__name__}: {error}")

    def run(self) -> None:
        """One request of each thread, at the same time; compared without allocating."""
        for out in self.outs:
            out.fill_(float("nan"))
        torch.cuda.synchronize()
        start = threading.Barrier(THREADS)
        threads = [threading.Thread(target=self._one, args=(i, start)) for i in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torch.cuda.synchronize()
        for trace in shim.recent_calls()[-THREADS:]:
            (reason,) = trace.refusals.get("gqa_prefill", ["out of memory (none)"])
            self.places[reason.partition("(")[2].partition(")")[0]] += 1
            assert trace.route == "dense", str(trace)
        assert self.errors == []

    def check(self) -> None:
        """That the answers are dense's, to the bit; needs memory."""
        for out, lse in zip(self.outs, self.lses, strict=True):
            assert torch.equal(out, self.expected[0]) and torch.equal(lse, self.expected[1])


def pass_preflight(monkeypatch) -> None:
    """As if somebody else took the memory right after it was asked for."""
    monkeypatch.setattr(buffers, "shortage", lambda wanted, memory: "")


@pytest.mark.parametrize("mode", MODES)
def test_preflight_finds_too_little(mode):
    requests = Requests(mode)
    with environment(**{calls.GQA_VARIABLE: mode}), ballast(PLAY), ballast(96 * MIB) as play:
        for _ in range(3):
            requests.run()
        play.drop()
        requests.check()
    assert requests.places == {"preflight": 3 * THREADS}


@pytest.mark.parametrize(("mode", "leave"), [("fused", 8 * MIB), ("workspace", 64 * MIB)])
def test_no_memory_for_the_retained_buffer(mode, leave, monkeypatch):
    requests = Requests(mode)
    pass_preflight(monkeypatch)
    with environment(**{calls.GQA_VARIABLE: mode}), ballast(PLAY):
        for _ in range(TIMES // THREADS):
            with ballast(leave):
                requests.run()
            requests.check()
            assert sum(shim.retained_memory().values()) == 0
    assert requests.places == {"persistent": TIMES}


@pytest.mark.parametrize(("mode", "leave"), [("fused", 0), ("workspace", 8 * MIB)])
def test_no_memory_for_the_calls_own(mode, leave):
    requests = Requests(mode)
    with environment(**{calls.GQA_VARIABLE: mode}), ballast(PLAY):
        for _ in range(TIMES):
            attend(requests.inputs, requests.outs[0])  # the retained buffer is there
            assert shim.recent_calls()[-1].route == "gqa_prefill"
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            with ballast(leave) as play:
                if not leave:
                    play.take_small(requests.lses[0].nbytes)
                requests.run()
            requests.check()
            assert sum(shim.retained_memory().values()) == 0
    # whoever comes second finds that the buffer was given up, and too little to take it again
    assert requests.places["transient"] >= TIMES
    assert set(requests.places) <= {"transient", "preflight"}


@pytest.mark.parametrize("mode", MODES)
def test_route_is_taken_again_when_there_is_memory(mode):
    requests = Requests(mode)
    with environment(**{calls.GQA_VARIABLE: mode}):
        expected = by(mode, requests.inputs)
        shim.release_memory()
        with ballast(PLAY), ballast(96 * MIB):
            requests.run()
        result, lse = attend(requests.inputs)
        assert shim.recent_calls()[-1].route == "gqa_prefill"
        assert torch.equal(result, expected[0]) and torch.equal(lse, expected[1])
