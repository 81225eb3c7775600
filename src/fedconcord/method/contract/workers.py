"""Work side by side on the threads of one process: torch computes without Python's lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def ordered(work: Callable[[Item], Result], items: Sequence[Item], workers: int) -> Iterator[Result]:
    """Results in the order of the items, up to `workers` of them computed at once, each on its share of the threads."""
    if workers == 1 or len(items) == 1:
        yield from map(work, items)
        return
    threads = torch.get_num_threads()
    share = max(1, threads // workers)

    def alone(item: Item) -> Result:
        torch.set_num_threads(share)  # of this thread, and the default of threads to come
        return work(item)

    try:
        yield from _pool(workers, os.getpid()).map(alone, items)
    finally:
        torch.set_num_threads(threads)


@lru_cache(maxsize=4)
def _pool(workers: int, process: int) -> ThreadPoolExecutor:
    """Threads that stay: the process is a key, as a fork has none of its parent's."""
    return ThreadPoolExecutor(workers, thread_name_prefix="fedconcord")
