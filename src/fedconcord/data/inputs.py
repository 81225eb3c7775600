"""What the user says of data of their own, and the checks that every kind of it shares."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from fedconcord.basis.errors import UserError
from fedconcord.core.rng import Purpose, generator

Target = Literal["class", "number", "labels"]
FEW = 20  # whole numbers with at most so many different values are taken for classes


ENDINGS = (".csv", ".tsv", ".parquet", ".arrow", ".feather", ".npz")  # of files that are known without being opened


def is_file(text: str) -> bool:
    """Whether `--data` names a file or a folder rather than a data set."""
    return "/" in text or Path(text).suffix.lower() in ENDINGS or Path(text).expanduser().exists()


class Input(NamedTuple):
    """The settings `input.*`."""

    label: tuple[str, ...] = ()  # columns, or the key of an array
    client: str | None = None
    target: Target | None = None  # guessed, and said, if none
    test: str | None = None  # where the test samples are; a share of each client's samples if none
    test_share: float = 0.2
    ignore: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()  # columns of numbers that are names
    missing: tuple[str, ...] = ()  # texts of no value, beside `sources.MISSING`
    statistics: str | None = None  # file of given statistics
    image_size: int | None = None  # side in pixels
    memory: float | None = None  # GiB; half of the machine's if none


def refuse_too_large(need: int, what: str, limit: float | None) -> None:
    """Refuse data that would not fit, before they are read."""
    have = int(limit * 2**30) if limit is not None else machine_memory() // 2
    if need > have:
        whose = "input.memory allows" if limit is not None else "half of this machine's memory is"
        raise UserError(
            f"{what} needs {need / 2**30:.3g} GiB in memory and {whose} {have / 2**30:.3g} GiB; leave columns or "
            "samples out, or set input.memory"
        )


def machine_memory() -> int:
    """Bytes of physical memory; without bound where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2**62


def split(owner: np.ndarray, clients: int, share: float) -> np.ndarray:
    """Which samples [n] are tested on: round(share * n_i) of each client's, never all of them, keyed by the client.

    The same for every seed of a run, so that test figures of different seeds compare.

    Raises:
        UserError: no client has a sample to spare.
    """
    order = np.argsort(owner, kind="stable")
    counts = np.bincount(owner, minlength=clients)
    tested = np.zeros(len(owner), bool)
    begin = 0
    for i, count in enumerate(counts.tolist()):
        tested[order[begin : begin + count][held_out(i, count, share)]] = True
        begin += count
    if not tested.any():
        raise UserError(
            f"input.test_share {share:g} leaves no test sample of {len(owner)} samples at {clients} clients; raise it, "
            "or give test data of their own (--test-data)"
        )
    return tested


def held_out(client: int, samples: int, share: float) -> np.ndarray:
    """Which of a client's samples, by their places, are tested on: round(share * samples), never all of them."""
    take = max(0, min(round(share * samples), samples - 1))
    return generator(0, Purpose.SPLIT, client=client).permutation(samples)[:take]


def hold_out(parts: Sequence[np.ndarray], share: float, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(training samples, validation samples) of each client, both in the order of `parts`.

    A client of n >= 2 samples sets apart round(share n) of them, at least 1 and at most n - 1, drawn by the key (seed,
    VALIDATION, client); a client with a single sample trains on it and sets none apart.

    Args:
        parts: N arrays of sample indices.
        share: in (0, 1).
    """
    training, apart_of = [], []
    for i, part in enumerate(parts):
        count = min(max(1, round(share * len(part))), len(part) - 1)
        apart = np.zeros(len(part), bool)
        apart[generator(seed, Purpose.VALIDATION, client=i).permutation(len(part))[:count]] = True
        training.append(part[~apart])
        apart_of.append(part[apart])
    return training, apart_of


def natural_of(owner: np.ndarray, clients: int, who: Sequence[str]) -> list[np.ndarray]:
    """Samples of each client, sorted.

    Raises:
        UserError: a client has none.
    """
    counts = np.bincount(owner, minlength=clients)
    if not counts.all():
        raise UserError(f"client {who[int(counts.argmin())]!r} has no training sample; leave it out")
    return np.split(np.argsort(owner, kind="stable"), np.cumsum(counts)[:-1])
