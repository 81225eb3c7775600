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


def ordered(
    work: Callable[[Item], Result], items: Sequence[Item], workers: int, share: int | None = None
) -> Iterator[Result]:
    """Results in the order of the items, `workers` of them at once, each on `share` of torch's threads or its part."""
    threads, workers = torch.get_num_threads(), min(workers, len(items))
    mine = max(1, threads // max(1, workers)) if share is None else share

    def alone(item: Item) -> Result:
        torch.set_num_threads(mine)  # of this thread, and the default of threads to come
        return work(item)

    try:
        yield from (map if workers <= 1 else _pool(workers, os.getpid()).map)(alone, items)
    finally:
        torch.set_num_threads(threads)


@lru_cache(maxsize=4)
def _pool(workers: int, process: int) -> ThreadPoolExecutor:
    """Threads that stay: the process is a key, as a fork has none of its parent's."""
    return ThreadPoolExecutor(workers, thread_name_prefix="fedconcord")
