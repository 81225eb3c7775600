"""What a method says of itself, for lists, advice and diagnosis, which know no method by its name.

None of it changes a round. A method of another package states its own facts, and is listed, advised and diagnosed too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from torch import Tensor

Condition = Literal["seldom", "rare", "skewed", "equal work", "any"]
"""Where a recommendation or a caution holds; `fedconcord.insight.advice.choice` says when a federation is so."""

Remedy = Literal["unequal work", "drift", "dissimilar gradients", "stale memory"]
"""What a method is made for. unequal work: clients that take more steps count no more. drift: the ends of local steps
lie closer together. dissimilar gradients: each client's direction is corrected. stale memory: what an absent client
remembers moves as well."""

Unfit = Literal["server", "repeats", "step_schedule", "tolerance", "weight_decay", "optimiser", "upload"]
"""What a method's sums or counts cannot go with: a server optimiser, a client twice in a cohort, local settings."""


class Memory(NamedTuple):
    """What clients keep between rounds that equals their gradient grad f_i where the method has converged."""

    name: str  # what it is, in words: "control variate c_i"
    gradients: Callable[[Any, Any, Tensor, Tensor], Tensor]  # (server, rows [n, ...], p [n], grad F [d]) -> [n, d]
    total: Callable[[Any], Tensor | None] = lambda server: None  # server -> what it keeps for grad F [d], if it does
    is_dual: bool = False  # it is minus a dual variable of the constraint x_i = x
    moves_when_absent: bool = False  # it moves in rounds without the client too


class Recommendation(NamedTuple):
    """Federations in which the method is worth tuning first."""

    places: Mapping[Condition, int]  # place among the methods that are recommended where it holds: 1 is the best
    settings: str  # to begin with: "rho=0.1,local.lr=0.3"
    why: str


class Caution(NamedTuple):
    """A federation in which the method is not worth its costs."""

    condition: Condition
    why: str
    source: str = "measured"


class Inequality(NamedTuple):
    """One inequality left <= right of a method's theory, over the clients it was checked for."""

    formula: str
    holds: int  # clients for which it holds
    of: int  # clients
    left: float  # of the client for which left / right is largest
    right: float


class StepTheory(NamedTuple):
    """What a method's theory says of its step sizes in a federation."""

    conditions: list[Inequality]  # sufficient ones
    caveat: str  # a sentence beside those that do not hold: how much they matter
    advice: str  # a sentence: which parameters the theory would choose, or why it chooses none
    suggested: Mapping[str, float] | None = None  # those parameters, by name


class Protection(NamedTuple):
    """What differential privacy does to a client's message; see `wrappers.privacy`."""

    clip: float | None  # C, the largest l2 norm of all that a client sends in a round; None: it adapts (`adaptive`)
    noise: float  # z: the standard deviation of the Gaussian noise is z C, on each message or on their sum
    kind: Literal["central", "local"]  # who adds it: the server to the sum, or each client to its message


class StepNoise(NamedTuple):
    """What differential privacy of samples does to the gradient of a local step; see `wrappers.samples`."""

    clip: float  # C, the largest l2 norm of a sample's gradient
    noise: float  # z: the standard deviation of the Gaussian noise on the sum of clipped gradients is z C; 0: none
    probability: float  # q: the share of a client's samples that is in the batch of a step on average
    draw: Callable[[int, int, int, int, int], np.ndarray]  # (n, seed, round, client, step) -> [n] int64, as `rng.noise`
    leaves: int = 1  # steps below one tree of noise, in which each sample is once; 1: by coins, in any step


class Facts(NamedTuple):
    """What a method says of itself."""

    group: str = ""  # the mechanism that it is listed under, such as "control variates"
    memory: Memory | None = None  # what its clients remember that stands for their gradients
    invariant: str | None = None  # what holds only while contributions are summed: a sum over clients' rows, in words
    unfit: tuple[tuple[Unfit, str], ...] = ()  # what does not go with it, and why, in words that end a sentence
    protection: Protection | None = None  # what differential privacy does to messages; None: nothing
    server_optimiser: bool = False  # its aggregate passes through a server optimiser
    adapted: str | None = None  # its model is made to be adapted: the `eval.personalise` that judges it
    factors: str | None = None  # its rule for low-rank factors, whose places in x it knows: it runs on no other model
    remedies: tuple[Remedy, ...] = ()  # which differences between clients it is made for
    recommendations: tuple[Recommendation, ...] = ()  # federations in which it is worth tuning first
    cautions: tuple[Caution, ...] = ()  # federations in which it is not worth its costs
    theory: Callable[[np.ndarray, np.ndarray, np.ndarray, float, np.ndarray], StepTheory] | None = None
    """(ids, inclusion, steps, lr, smoothness) of n clients -> what its theory says of its step sizes."""
    numbers: Callable[[Any], Mapping[str, float]] = lambda server: {}
    """server -> numbers of its state by name, the same names in every round, which stand among a run's metrics."""
