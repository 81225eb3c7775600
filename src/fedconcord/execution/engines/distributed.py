"""A team of processes that torchrun started: clients by rank, sums by one all-reduce.

Client i belongs to rank i mod R for good, so rows never move between rounds; a round waits for the rank whose share of
the cohort takes longest. Vectors are summed where they lie (gloo on the CPU, nccl on the GPU); the rest goes by gloo.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import reduce
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from fedconcord.method.contract import Tree, tree_leaves, tree_unflatten
from fedconcord.support.errors import LostError, UserError

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun sets
HOW = "torchrun --nproc-per-node 2 -m fedconcord run --engine distributed ..."
BITS, DIGITS = 12, 5  # a count travels as floats: sums of 2^12 such digits are exact in float32
PIECE = 2**26  # bytes in one message of rows


def join(timeout: float, cuda: bool = False) -> Ranks:
    """The team of all processes of this job, joined at the first call.

    Args:
        timeout: seconds that a process waits for the others.
        cuda: whether vectors lie on a GPU.

    Raises:
        UserError: torchrun did not start this process.
        LostError: the others do not come.
    """
    if not dist.is_initialized():
        missing = [name for name in NEEDED if name not in os.environ]
        if missing:
            raise UserError(
                f"engine distributed needs processes that torchrun starts, and {missing[0]} is not set; start it as in "
                f"{HOW}, or use engine stacked"
            )
        import_module("torch.distributed.nn.functional")  # imported later its defaults would hold the group for ever
        with _together(timeout):
            dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=timedelta(seconds=timeout))
        atexit.register(_leave)
    return Ranks(dist.get_rank(), dist.get_world_size(), timeout)


def _leave() -> None:
    """Left to the interpreter's end, gloo's threads may abort the process."""
    with suppress(RuntimeError):  # the others may be gone
        if dist.is_initialized():
            dist.destroy_process_group()


def rank() -> int:
    """Of this process: 0 where it is alone."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


class Ranks(NamedTuple):
    """`engines.base.Team` over torch.distributed. What fails here ends the job: the processes no longer agree."""

    rank: int
    size: int
    timeout: float  # seconds

    def owns(self, ids: np.ndarray) -> np.ndarray:
        mine: np.ndarray = ids % self.size == self.rank
        return mine

    def total(self, tree: Tree, counts: tuple[int, ...]) -> tuple[Tree, tuple[int, ...]]:
        """One all-reduce of one vector: the leaves, then the digits of the counts."""
        leaves = tree_leaves(tree)
        dtype = reduce(torch.promote_types, (leaf.dtype for leaf in leaves.values()), torch.float32)
        if leaves and all(leaf.dtype == torch.int64 for leaf in leaves.values()):
            dtype = torch.int64  # sums of whole numbers, which privacy has, are exact
        parts = [leaf.reshape(-1).to(dtype) for leaf in leaves.values()]
        digits = torch.tensor([n >> BITS * k & 2**BITS - 1 for n in counts for k in range(DIGITS)], dtype=dtype)
        flat = torch.cat([*parts, digits.to(parts[0].device) if parts else digits])
        with _together(self.timeout):
            dist.all_reduce(flat)
        *parts, digits = torch.split(flat, [*(len(part) for part in parts), len(digits)])
        summed = {
            name: part.view(leaf.shape).to(leaf.dtype) for (name, leaf), part in zip(leaves.items(), parts, strict=True)
        }
        of_counts = digits.view(len(counts), DIGITS).tolist()
        return tree_unflatten(tree, summed), tuple(sum(int(d) << BITS * k for k, d in enumerate(n)) for n in of_counts)

    def any(self, *flags: bool) -> tuple[bool, ...]:
        set_anywhere = torch.tensor(flags, dtype=torch.uint8)
        with _together(self.timeout):
            dist.all_reduce(set_anywhere, dist.ReduceOp.MAX)
        return tuple(map(bool, set_anywhere.tolist()))

    def tell(self, text: Callable[[], str]) -> str:
        """However long rank 0 takes: while it does, the others hear that it lives."""
        message: list[str] = ["", ""]
        if self.rank == 0:
            try:
                with _beating(self.timeout / 4):
                    message[0] = text()
            except UserError as error:
                message[1] = str(error)
            with _together(self.timeout):
                _busy(False)
        else:
            with _together(self.timeout):
                while _busy(False):
                    pass
        with _together(self.timeout):
            dist.broadcast_object_list(message, src=0, device=torch.device("cpu"))
        if message[1]:
            raise UserError(message[1])
        return message[0]

    def collect(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        """Rank by rank, straight to where the rows belong, in messages of bounded size."""
        forms: list[Any] = [None] * self.size
        with _together(self.timeout):
            dist.all_gather_object(forms, {name: (leaf.dtype, tuple(leaf.shape)) for name, leaf in rows.items()})
        if self.rank != 0:
            for leaf in rows.values():
                for piece in _pieces(leaf.contiguous()):
                    with _together(self.timeout):
                        dist.send(piece, 0)
            return rows
        counts = [form["ids"][1][0] for form in forms]
        fields = max(forms, key=len)  # a rank without rows does not know them
        every = {name: torch.empty(sum(counts), *shape[1:], dtype=dtype) for name, (dtype, shape) in fields.items()}
        for source, form in enumerate(forms):
            begin = sum(counts[:source])
            for name in form:
                here = every[name][begin : begin + counts[source]]
                if source == 0:
                    here.copy_(rows[name])
                    continue
                for piece in _pieces(here):
                    with _together(self.timeout):
                        dist.recv(piece, source)
        order = every["ids"].argsort()
        return {name: leaf[order] for name, leaf in every.items()}


def _busy(now: bool) -> bool:
    """Whether rank 0, which says so, is not done yet."""
    flag = torch.tensor([now], dtype=torch.uint8)
    dist.broadcast(flag, src=0)
    return bool(flag)


@contextmanager
def _beating(every: float) -> Iterator[None]:
    """On rank 0: tell the others every so many seconds that it is busy; nothing else may be sent meanwhile."""
    end = threading.Event()

    def beat() -> None:
        with suppress(RuntimeError):  # another process is gone, which the next message says
            while not end.wait(every):
                _busy(True)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _pieces(leaf: Tensor) -> tuple[Tensor, ...]:
    """The bytes of a contiguous tensor, as views."""
    return leaf.view(-1).view(torch.uint8).split(PIECE) if leaf.numel() else ()  # type: ignore[no-untyped-call]


@contextmanager
def _together(timeout: float) -> Iterator[None]:
    """What torch raises where a process is gone, as one sentence."""
    try:
        yield
    except RuntimeError as error:
        raise LostError(
            f"another process of this job has ended, or was silent for {timeout:g} s (engine.timeout); continue from "
            "the last checkpoint with --resume FOLDER and any number of processes"
        ) from error
