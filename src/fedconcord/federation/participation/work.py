"""What a client does in a round: how much local work, on which samples, and with which step size."""

from __future__ import annotations

import csv
import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
from pydantic import Field

from fedconcord.method.contract import Algorithm, Drawn, Orders, in_blocks, rng
from fedconcord.method.contract.identity import definition
from fedconcord.support.errors import UserError, reason
from fedconcord.support.factories import by_name
from fedconcord.support.imports import Open, with_options
from fedconcord.support.parameters import Count, Fraction, NotNegative, about

Low = Annotated[Count, about("smallest amount of work (inclusive)")]
High = Annotated[Count, about("largest amount of work (inclusive)")]
Work = Callable[[int, int, int], float]
"""(seed, round, client) -> units of work: epochs, steps or seconds, as the configuration counts."""


# -- what availability and the clock use too -----------------------------------------------------------------------

N = TypeVar("N", int, float)


def read_csv(path: str, what: str, columns: Mapping[str, Callable[[str], N]]) -> list[list[N]]:
    """The numbers in these columns of a CSV file, row by row; `what` they are.

    Raises:
        UserError: the file cannot be read, lacks a column, or has something else in it.
    """
    try:
        with open(path, newline="", encoding="utf-8") as file:
            return [[number(row[name]) for name, number in columns.items()] for row in csv.DictReader(file)]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the {what} {path} ({reason(error)}); give a CSV file") from None
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{path} is no {what}; write a line {','.join(columns)} and numbers below it") from None


def check_range(name: str, low: float, high: float) -> None:
    """Refuse a distribution between two ends that are the wrong way round."""
    if high < low:
        raise UserError(f"{name} has no value between low = {low} and high = {high}; give low <= high")


# -- amounts of work -----------------------------------------------------------------------------------------------


@definition()
def fixed(value: Annotated[Count, about("work in every round")] = 1) -> Work:
    """The same work for every client in every round."""
    return lambda seed, round, client: value


@definition()
def uniform(low: Low = 1, high: High = 5) -> Work:
    """Uniform on {low, ..., high}, drawn anew for every client in every round (FedNova, FedADMM, FedVRA's HLU)."""
    check_range("uniform", low, high)
    return lambda seed, round, client: int(
        rng.generator(seed, rng.Purpose.WORK, round, client).integers(low, high, endpoint=True)
    )


@definition()
def gaussian(
    mean: Annotated[float, Field(ge=1, description="mean before clipping")] = 30.0,
    std: Annotated[NotNegative, about("standard deviation before clipping")] = 22.0,
    low: Low = 1,
    high: High = 96,
) -> Work:
    """Gaussian, rounded and clipped to [low, high], drawn anew for every client in every round (FedNova, Fig. 2).

    The paper gives the mean and the range only; the default deviation puts 96 at three deviations. Clipping moves the
    mean: to 30.6 for the defaults.
    """
    check_range("gaussian", low, high)
    return lambda seed, round, client: int(
        np.clip(np.rint(rng.generator(seed, rng.Purpose.WORK, round, client).normal(mean, std)), low, high)
    )


@definition()
def by_client(low: Low = 1, high: High = 5) -> Work:
    """Uniform on {low, ..., high}, drawn once for each client, which keeps it in every round."""
    check_range("by_client", low, high)
    return lambda seed, round, client: int(
        rng.generator(seed, rng.Purpose.TRAIT, 0, client).integers(low, high, endpoint=True)
    )


@definition()
def per_client(
    amounts: Annotated[list[Count], Field(min_length=1, description="work of each client, in order of their ids")],
) -> Work:
    """The work given for each client, the same in every round."""

    def amount(seed: int, round: int, client: int) -> int:
        if client >= len(amounts):
            raise UserError(f"per_client lists the work of {len(amounts)} clients, none for client {client}")
        return amounts[client]

    return amount


@definition()
def from_file(
    path: Annotated[str, about("text file with one whole number on a line, and a line for each client")],
) -> Work:
    """The work of each client from a file, the same in every round."""
    try:
        with open(path, encoding="utf-8") as file:
            amounts = [int(line) for line in file if line.strip()]
    except (OSError, ValueError) as broken:
        raise UserError(f"cannot read the work in {path} ({reason(broken)}); give one whole number a line") from None
    if not amounts or min(amounts) < 1:
        raise UserError(f"{path} must hold one whole number >= 1 for each client")
    return per_client(amounts)


WORK: dict[str, Callable[..., Work]] = by_name(fixed, uniform, gaussian, by_client, per_client, from_file)
"""How much local work a client does, by name."""


# -- samples: what a client draws by itself from its orders, keyed by (seed, round, client) ----------------------------


class Coins(NamedTuple):
    """Batches for differential privacy of samples: each sample is in a step's batch by a coin of its own."""

    probability: float  # q
    toss: Callable[[int], np.ndarray] | None = None  # n -> [n] float64, uniform on [0, 1); None: keyed as batches are

    def __repr__(self) -> str:  # the same wherever coins are tossed
        return f"poisson({self.probability:g})"


class Disjoint(NamedTuple):
    """Batches for the same without coins: so many steps a pass at every client, and each sample in one of them."""

    steps: int  # M, of a pass

    def __repr__(self) -> str:
        return f"disjoint({self.steps})"


def poisson(probability: Annotated[Fraction, about("chance q of each sample to be in the batch of a step")]) -> Coins:
    """Each sample of a client is in a step's batch by a coin of its own; an epoch is ceil(1 / q) steps.

    What the accountant of privacy of samples or persons assumes (`privacy.unit`). Batches differ in size.
    """
    return Coins(probability)


def disjoint(steps: Annotated[Count, about("steps M of a pass, each of which has an M-th of the samples")]) -> Disjoint:
    """A client's samples in so many batches, drawn anew in every pass, whose sizes differ by one at most.

    With privacy of samples or persons the noise of a pass is that of a binary tree over its steps.
    """
    return Disjoint(steps)


def full() -> None:
    """All samples of the client in every step."""


Size = int | Coins | Disjoint | None
"""Samples in the batch of a local step: so many, by coins, a part of a pass, or all of the client's."""

BATCHES: dict[str, Callable[..., Size]] = by_name(full, poisson, disjoint)
"""Samples of a local step that are not a number of them, by name."""


def shares_of(size: Size) -> tuple[float, int] | None:
    """What privacy of samples accounts by: the share of a client's samples that is in a step on average, and in how
    many steps in a row each is once, 1 with coins; None: it does not account such batches."""
    if isinstance(size, Coins):
        return size.probability, 1
    return (1 / size.steps, size.steps) if isinstance(size, Disjoint) else None


def epoch_steps(n: int, batch_size: Size) -> int:
    """Steps in one epoch of n samples; the last batch may be short. None: one full-batch step."""
    if isinstance(batch_size, Coins):
        return math.ceil(1 / batch_size.probability)
    if isinstance(batch_size, Disjoint):
        return batch_size.steps
    return 1 if batch_size is None else -(-n // batch_size)


def batches(seed: int, round: int, client: int, n: int, batch_size: int, steps: int) -> np.ndarray:
    """Sample positions [steps, B] of a client in a round; -1 pads the short last batch of an epoch.

    Each epoch is a fresh permutation; B = min(batch_size, n).
    """
    size = min(batch_size, n)
    per_epoch = epoch_steps(n, size)
    return _passes(seed, round, client, n, per_epoch * size, -(-steps // per_epoch)).reshape(-1, size)[:steps]


def parted(seed: int, round: int, client: int, n: int, parts: int, steps: int) -> np.ndarray:
    """Sample positions [steps, B] of a client in a round, B = ceil(n / parts) or one less, which -1 pads."""
    size = -(-n // parts)
    passes = _passes(seed, round, client, n, parts * size, -(-steps // parts))
    return passes.reshape(-1, size, parts).swapaxes(1, 2).reshape(-1, size)[:steps]


def _passes(seed: int, round: int, client: int, n: int, room: int, passes: int) -> np.ndarray:
    """A fresh permutation of n samples for each pass, in so much room [passes, room]; -1 pads."""
    draw = rng.generator(seed, rng.Purpose.BATCH, round, client)
    out = np.full((passes, room), -1, np.int64)
    for epoch in out:
        epoch[:n] = draw.permutation(n)
    return out


def tossed(seed: int, round: int, client: int, n: int, coins: Coins, steps: int) -> np.ndarray:
    """Sample positions [steps, B] of a client in a round, by coins; -1 pads all batches but the largest."""
    toss = coins.toss or rng.generator(seed, rng.Purpose.BATCH, round, client).random
    is_in = toss(steps * n).reshape(steps, n) < coins.probability
    counts = is_in.sum(-1)
    out = np.full((steps, max(1, int(counts.max(initial=0)))), -1, np.int64)
    out[np.arange(out.shape[1]) < counts[:, None]] = np.nonzero(is_in)[1]
    return out


class Keyed(NamedTuple):
    """Mini-batches by epochs of fresh permutations, or by coins; methods with a table of M blocks draw a block a step
    instead.

    `batch_size` None means that every step uses all samples of the client.
    """

    seed: int
    batch_size: Size

    def draw(self, algorithm: Algorithm, orders: Orders, n: int) -> Drawn:
        """The samples of every local step of a client that holds n."""
        if algorithm.step.blocks is not None:
            members = self.members(algorithm, orders.id, n)
            generator = rng.generator(self.seed, rng.Purpose.BLOCK, orders.round + 1, orders.id)
            blocks = generator.integers(len(members), size=orders.steps)
            return Drawn(members[blocks], blocks)
        if self.batch_size is None or (algorithm.step.oracle is not None and algorithm.step.oracle.kind == "full"):
            return Drawn(None)
        if isinstance(self.batch_size, Coins):
            return Drawn(tossed(self.seed, orders.round, orders.id, n, self.batch_size, orders.steps))
        if isinstance(self.batch_size, Disjoint):
            return Drawn(parted(self.seed, orders.round, orders.id, n, self.batch_size.steps, orders.steps))
        return Drawn(batches(self.seed, orders.round, orders.id, n, self.batch_size, orders.steps))

    def members(self, algorithm: Algorithm, client: int, n: int) -> np.ndarray:
        """The sample positions [M, B] of each of a client's blocks, of `in_blocks`; the same in every round.

        Raises:
            UserError: the client has fewer samples than blocks.
        """
        assert algorithm.step.blocks is not None
        if n < algorithm.step.blocks:
            raise UserError(
                f"client {client} has {n} samples, which cannot be cut in {algorithm.step.blocks} blocks; give the "
                "method fewer blocks or its clients more samples"
            )
        order = rng.generator(self.seed, rng.Purpose.BLOCK, 0, client).permutation(n)
        return in_blocks(order, algorithm.step.blocks)

    def width(self, algorithm: Algorithm, n: int) -> int:
        """The most samples in one step of a client that holds n; with coins, the mean."""
        if algorithm.step.blocks is not None:
            return -(-n // algorithm.step.blocks)
        if isinstance(self.batch_size, Coins):
            return math.ceil(n * self.batch_size.probability)
        return min(self.batch_size, n) if isinstance(self.batch_size, int) else -(-n // epoch_steps(n, self.batch_size))

    def full_cost(self, algorithm: Algorithm, n: np.ndarray) -> np.ndarray:
        """Mini-batches [S] in a full gradient of clients that hold n [S] samples."""
        if algorithm.step.blocks is not None:
            return np.full(len(n), algorithm.step.blocks, np.int64)
        if not isinstance(self.batch_size, int):
            return np.full(len(n), epoch_steps(1, self.batch_size), np.int64)
        return np.asarray(-(-n // self.batch_size))


# -- step sizes ----------------------------------------------------------------------------------------------------
#
# A factor on the step size is a pure function of the round's number, so that a run that is resumed, or made longer,
# meets the same step sizes, and the server tells each client the one of its round. The local solver takes the same
# functions of the step's number (`local.step_schedule`).

WHAT = "schedule of step sizes"
Rate = Callable[[int], float]
"""Round, from 0 -> a number > 0: the local step size of the round, or a factor on it."""

Warm = Annotated[
    int, Field(ge=0, description="rounds over which the step size rises to its full value, in equal parts")
]
Rounds = Annotated[Count, about("round from which on the factor stays at the floor")]
Floor = Annotated[Fraction, about("factor at the end of the schedule")]


@definition()
def constant(warmup: Warm = 0) -> Rate:
    """The same in every round, after a warm-up if there is one."""
    return lambda round: _warm(round, warmup)


@definition()
def cosine(rounds: Rounds, floor: Floor = 0.01, warmup: Warm = 0) -> Rate:
    """Half a cosine from 1 to the floor over so many rounds, the warm-up among them (Loshchilov and Hutter, 2017)."""
    return _falling("cosine", rounds, warmup, lambda share: floor + (1 - floor) * (1 + math.cos(math.pi * share)) / 2)


@definition()
def linear(rounds: Rounds, floor: Floor = 0.01, warmup: Warm = 0) -> Rate:
    """A straight line from 1 to the floor over so many rounds, the warm-up among them."""
    return _falling("linear", rounds, warmup, lambda share: 1 - (1 - floor) * share)


@definition()
def step(
    every: Annotated[Count, about("rounds between two reductions")],
    factor: Annotated[Fraction, about("factor of each reduction")] = 0.1,
    warmup: Warm = 0,
) -> Rate:
    """Falls by a factor every so many rounds, as torch's StepLR by epochs."""
    return lambda round: _warm(round, warmup) * factor ** (round // every)


def _warm(round: int, warmup: int) -> float:
    return min((round + 1) / warmup, 1.0) if warmup else 1.0


def _falling(name: str, rounds: int, warmup: int, factor: Callable[[float], float]) -> Rate:
    """`factor`: share of the rounds after the warm-up -> what the step size is multiplied by."""
    if warmup >= rounds:
        raise UserError(f"{name} with rounds {rounds} has no round after a warmup of {warmup}; give a shorter warmup")

    def rate(round: int) -> float:
        share = min(max(round - warmup, 0) / (rounds - warmup), 1.0)
        return _warm(round, warmup) * factor(share)

    return rate


RATES: dict[str, Callable[..., Rate]] = by_name(constant, cosine, linear, step)
"""How the local step size goes on from round to round, by name."""


def rates() -> Mapping[str, Callable[..., Rate]]:
    """`RATES`, and functions (round, options...) -> factor of your own by import path, `package.module:function`."""
    return Open(RATES, WHAT, _own)


def _own(function: Callable[..., float], path: str) -> Callable[..., Rate]:
    called = with_options(function, path, WHAT, ("round",))

    def make(**options: Any) -> Rate:
        return partial(called, **options)

    make.__signature__, make.__doc__ = inspect.signature(called), function.__doc__  # type: ignore[attr-defined]
    return make


def rate_at(lr: float | Rate, round: int) -> float:
    """The local step size of a round.

    Raises:
        UserError: a function of one's own gives no number > 0.
    """
    if not callable(lr):
        return lr
    value = lr(round)
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UserError(f"the step size of round {round} is {value!r}; the function of rounds must give a number > 0")
    return float(value)


def scaled(lr: float, rate: Rate) -> Rate:
    """A step size times a schedule's factor."""
    return lambda round: lr * rate_at(rate, round)
