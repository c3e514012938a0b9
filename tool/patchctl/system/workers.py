# SPDX-License-Identifier: Apache-2.0
"""Spreads work in Python over the processor's cores."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

R = TypeVar("R")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def spread(
    function: Callable[..., R], calls: Sequence[tuple[Any, ...]], *, jobs: int | None = None
) -> Iterator[tuple[int, R]]:
    """Call `function` with each tuple of arguments; (number of the call, result) as they end.

    With one job everything happens in this process. The workers are fresh interpreters, which
    share no lock, file or thread with this one.
    """
    count = min(jobs or cores(), len(calls))
    if count <= 1:
        for number, arguments in enumerate(calls):
            yield number, function(*arguments)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context) as pool:
        futures = {pool.submit(function, *a): number for number, a in enumerate(calls)}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
