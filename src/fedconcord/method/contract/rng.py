"""Keyed randomness: every draw is named by (seed, purpose, round, client), never by position or a global state.

The same key gives the same bits on every engine, in every order of clients, and after every resume. At the end stand
draws that nobody can repeat, of the operating system, which privacy at real sites rests on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.random.bit_generator import ISeedSequence

from fedconcord.method.contract.discrete import discrete


class Purpose(IntEnum):
    """What a draw is for. Values are part of every published result: append, never renumber."""

    SPLIT = 1  # train / test split
    DATA = 2  # generated data
    PARTITION = 3  # which client holds which sample
    INIT = 4  # the model's starting point
    SAMPLE = 5  # the cohort of a round
    WORK = 6  # local epochs or steps of a client in a round
    BATCH = 7  # order of a client's samples in a round
    COIN = 8  # a round's coin (communication skipping)
    NOISE = 9  # noise added to a client's message
    BLOCK = 10  # order of a client's blocks (table methods)
    VALIDATION = 11  # a client's samples that are set apart
    PRIVACY = 12  # noise: of a client's message, of each of its steps, or of a round's sum (client 0)
    ROUND = 13  # rounding of a client's contribution to a secure sum
    MASK = 14  # a client's dropout masks in a round
    CODE = 15  # a client's local training by code of the user's
    AVAILABLE = 20  # who can be reached in a round
    TRAIT = 21  # what stays with a client: its work, its chance of being lost
    DEVICE = 22  # a client's device (round 0) and how quick it is in a round (round + 1)
    DROPOUT = 23  # who is lost in a round, and when
    FAULT = 24  # what becomes of the messages of a round on a wire with faults
    TIE = 25  # the order of what happens at one tick of the clock of asynchronous rounds
    EDGE = 26  # which edge servers are lost in a round
    LOOK = 30  # clients and samples that a diagnosis looks at
    HOSTILE = 40  # which clients attack in a simulation


def generator(seed: int, purpose: Purpose, round: int = 0, client: int = 0, step: int = 0) -> np.random.Generator:
    """An independent generator for one key.

    Philox is counter-based: (seed, purpose) is its key and (step, client, round) the high part of its counter, so
    distinct keys never share a stream and a generator costs two microseconds to make.
    """
    key: Any = _Key()  # numpy takes it, and does not say so in its types
    key.words = np.array([seed, purpose], np.uint64)
    return np.random.Generator(np.random.Philox(key, counter=[0, step, client, round]))


class _Key(ISeedSequence):
    """A key as the seed: for `Philox(key=...)` numpy asks the system for a seed too, which takes twice the time."""

    words: np.ndarray

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        return self.words


def noise(n: int, seed: int, round: int, client: int, step: int = 0) -> np.ndarray:
    """n whole numbers [n] int64 of `contract.discrete`, keyed by (seed, round, client, local step)."""
    return discrete(generator(seed, Purpose.PRIVACY, round, client, step).bit_generator.random_raw, n)


def torch_seed(seed: int, purpose: Purpose) -> int:
    """A seed for torch's own generators where a torch routine takes nothing else."""
    return int(generator(seed, purpose).integers(2**62))


# -- draws that nobody can repeat, from the operating system's generator: what privacy at real sites rests on. Whoever
# knows the seed of a keyed draw knows such noise.


class Chance(NamedTuple):
    """A source of draws."""

    discrete: Callable[[int], np.ndarray]  # n -> [n] int64, `contract.discrete`
    uniform: Callable[[int], np.ndarray]  # n -> [n] float64, uniform on [0, 1)


def words(n: int) -> np.ndarray:
    """n words [n] uint64 of `os.urandom`."""
    return np.frombuffer(os.urandom(8 * n), np.uint64)


def uniform(n: int) -> np.ndarray:
    """n multiples of 2^-53 on [0, 1), each of 53 of its bits."""
    return np.asarray((words(n) >> np.uint64(11)) * 2.0**-53)


SYSTEM = Chance(partial(discrete, words), uniform)
