"""What a private run spends: (epsilon, delta) by round, and the noise that a budget asks for. Google's dp-accounting.

The unit is a client, a sample or a person. Of a client: two runs are neighbours if they differ in one client's
messages, which are there in one and count as zeros in the other; that there are N clients, and who was asked in a round
where that is no secret coin, is public.
    central, sampling poisson: a Gaussian mechanism subsampled with q = S/N (amplification by sampling);
    central, any other sampling: a Gaussian mechanism in the rounds that the client is drawn for. No amplification is
        claimed: for S of N without replacement the bounds are of another kind of neighbours, with twice the
        sensitivity, and for cyclic or available-only clients there is none.
    local: whoever sees the messages sees who sent them, and two messages of one client may lie 2 C apart: z/2, in the
        same rounds.
Of a sample, or of a person with all its rows at a client: neighbours differ in one sample, or person, of one client,
whose gradients count as zeros in one of them. Every local step is a Gaussian mechanism subsampled with q, the chance of
a sample or person to be in it, with as many steps in a round as any client has in any; with disjoint batches, every
node of a tree that it is in is a Gaussian mechanism (`method.step.noise`).
Rounds are those of the client that is drawn for most, where the draws are known before the run, and else all.
Rounds compose by their privacy loss distribution (Koskela et al., 2020; Doroshenko et al., 2022, connect the dots),
which is pessimistic: epsilon is never too small. The noise is a discrete Gaussian on whole numbers, which spends no
more than a Gaussian whose variance is smaller by `LOST` (`method.contract.grid`).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from fedconcord.support.errors import UserError

DIGITS = 4  # of a calibrated noise multiplier, rounded up
GRID = 1e-3  # of privacy losses
LOST = 2.0**-44  # of the variance: (4 / 2^24)^2
KEYED = "noise and coins keyed by the seed, as in every simulation"


class Spending(NamedTuple):
    """The accountant's view of a run."""

    noise: float  # standard deviation of the noise over how far one client can move what is seen; > 0
    chance: float  # that a client is in a round, or a sample in a step, by a secret coin; 1 claims nothing
    delta: float
    steps: int = 1  # of a round, or nodes of its trees, each of which spends
    most: tuple[int, ...] | None = None  # [t] of the first t rounds that any one client is in; None: all

    def epsilon(self, rounds: int) -> float:
        """What so many rounds spend, of no more than `most` has; 0 before the first.

        Raises:
            UserError: dp-accounting is not installed.
        """
        times = self.steps * (rounds if self.most is None else self.most[rounds])
        return _epsilon(self.noise, self.chance, self.delta, times) if times > 0 else 0.0

    def rounds(self, limit: float, most: int) -> int:
        """How many rounds of `most` spend no more than the limit."""
        if self.epsilon(most) <= limit:
            return most
        low, high = 0, most  # spends no more, spends more
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.epsilon(middle) <= limit else (low, middle)
        return low


class Budget(NamedTuple):
    """What a private run spends, and may spend."""

    spending: Spending
    limit: float | None  # epsilon
    asked: int  # rounds
    said: str  # in words, without what is spent
    generator: str = KEYED  # where noise and coins come from
    unit: Literal["client", "sample", "person"] = "client"  # of protection
    of_client: Spending | None = None  # what is spent of a client as well, by noise on sums of messages

    @property
    def rounds(self) -> int:
        """How many of the rounds that are asked for it can afford."""
        return self.asked if self.limit is None else self.spending.rounds(self.limit, self.asked)


def spending(noise: float, kind: Literal["central", "local"], poisson: float | None, delta: float) -> Spending:
    """Of a noise multiplier z > 0; `poisson`: the probability of a client's own coin, None with another sampling."""
    noise *= math.sqrt(1 - LOST)
    if kind == "local":
        return Spending(noise / 2, 1.0, delta)
    return Spending(noise, 1.0 if poisson is None else poisson, delta)


@lru_cache(maxsize=256)
def calibrate(
    epsilon: float, delta: float, kind: Literal["central", "local"], poisson: float | None, rounds: int
) -> float:
    """The smallest noise multiplier z, to four digits and rounded up, whose `rounds` rounds spend at most epsilon.

    Raises:
        UserError: dp-accounting is not installed.
    """

    from scipy.optimize import brentq  # type: ignore[import-untyped]  # which runs without privacy need not pay

    def spent(noise: float) -> float:
        return spending(noise, kind, poisson, delta).epsilon(rounds)

    low = high = 1.0
    while spent(high) > epsilon:
        low, high = high, 2 * high
    while spent(low) <= epsilon:
        low, high = low / 2, low
    size = brentq(lambda s: math.log(spent(math.exp(s)) / epsilon), math.log(low), math.log(high), xtol=1e-5)
    unit = 10.0 ** (math.floor(size / math.log(10)) - DIGITS + 1)
    count = math.floor(math.exp(size) / unit)
    while spent(_written(count, unit)) > epsilon:
        count += 1
    return _written(count, unit)


def _written(count: int, unit: float) -> float:
    """So many units of a power of ten, as the number that is written so."""
    return float(f"{count * unit:.{DIGITS}g}")


def version() -> str:
    """Of the library."""
    from importlib.metadata import version as of

    return of("dp-accounting")


@lru_cache(maxsize=4096)
def _epsilon(noise: float, chance: float, delta: float, times: int) -> float:
    return float(_once(noise, chance).self_compose(times).get_epsilon_for_delta(delta))


@lru_cache(maxsize=8)
def _once(noise: float, chance: float) -> Any:
    """The privacy loss distribution of a round or a step, on a grid that its losses, of about 1/z^2 + 1/z, ask for."""
    try:
        from dp_accounting.pld import privacy_loss_distribution as losses
    except ImportError as error:
        raise UserError(
            f"differential privacy is accounted by dp-accounting, which is missing ({error}); "
            "pip install 'fedconcord[privacy]'"
        ) from None
    grid = min(GRID * max(1.0, (0.5 / noise) ** 2), 20 * GRID / noise)
    return losses.from_gaussian_mechanism(noise, sampling_prob=chance, value_discretization_interval=grid)
