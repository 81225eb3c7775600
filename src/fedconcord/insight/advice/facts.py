"""What can be seen of a federation before it trains: who holds what, who comes how often, who does how much.

Data are measured on what clients hold; turnout and work on the plans that the server would draw, so that any sampling,
availability, dropout and deadline counts as what it is. No model is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from fedconcord.execution.job import Job, blank, plan_of
from fedconcord.execution.rows import Storage
from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.objectives.streamed import Streamed
from fedconcord.federation.partitions.describe import describe
from fedconcord.method.contract import rng, tree_bytes, weights
from fedconcord.study.settings.job import build
from fedconcord.study.settings.methods import single
from fedconcord.study.settings.problem import divided, problem_of
from fedconcord.study.settings.settings import Config
from fedconcord.support.errors import UserError
from fedconcord.support.yardstick import YARDSTICK

DRAWN = 100  # rounds whose plans stand for all
SEEN = 20_000  # samples whose features are looked at, about
FEATURES = 1_000  # features that are looked at, about
STREAM = 3  # of the partition's purpose: 0 draws it, 1 the labels that are removed, 2 the skew of features


class FederationFacts(NamedTuple):
    """A federation of N clients in numbers. None: not known for these data."""

    clients: int  # N
    rounds: int  # R
    cohort: float  # replies a round, mean
    lost: float  # share of the clients asked for work whose reply does not come
    samples: tuple[int, float, int]  # of a client: least, mean, most
    steps: tuple[int, float, int]  # of a client and round: least, mean, most
    step_spread: float  # standard deviation of the steps over their mean
    labels: float | None  # mean distance of a client's label mix to that of all, 0 to 2 (Zhao et al. 2018)
    chance: float | None  # the same, had these sizes been dealt at random
    features: float | None  # share of the features' variance that lies between clients, labels apart
    model_bytes: int
    objective: Literal["samples", "clients"] = "clients"  # what counts alike in what FedAvg minimises here

    @property
    def share(self) -> float:
        """Part of the clients whose reply counts in a round."""
        return self.cohort / self.clients

    @property
    def visits(self) -> float:
        """How often a client's reply counts in all rounds, mean."""
        return self.share * self.rounds

    @property
    def label_skew(self) -> float:
        """How far labels are from a random deal: 0 no further, 1 as far as can be. 0 where it is not known."""
        if self.labels is None or self.chance is None:
            return 0.0
        return max(0.0, (self.labels - self.chance) / (2 - self.chance))


def facts_of(config: Config) -> FederationFacts:
    """The facts of the settings of a run without its method (`choice.federation_of`), as FedAvg would meet it.

    Raises:
        UserError: the data cannot be read, or no method could run with these settings.
    """
    job = build(single(config, YARDSTICK, config.seed or 0))
    samples = job.problem.roster.samples
    steps, replies, lost = _turnout(job, config.rounds)
    labels = chance = features = None
    if config.partition is not None and not isinstance(problem_of(config), Streamed):
        dataset, parts = divided(config)
        labels, chance = label_distances(dataset, parts, config.seed or 0)
        features = feature_skew(dataset, parts)
    return FederationFacts(
        clients=len(samples),
        rounds=config.rounds,
        cohort=replies,
        lost=lost,
        samples=(int(samples.min()), float(samples.mean()), int(samples.max())),
        objective=weights.minimised(job.algorithm.weights),
        steps=(int(steps.min()), float(steps.mean()), int(steps.max())),
        step_spread=float(steps.std() / steps.mean()),
        labels=labels,
        chance=chance,
        features=features,
        model_bytes=tree_bytes(job.problem.init(job.schedule.seed)),
    )


def _turnout(job: Job, rounds: int) -> tuple[np.ndarray, float, float]:
    """Steps [K] of all replies, replies a round, and the share of those asked that is lost.

    Losses that a sampling asks for are those of x^0.
    """
    state, rounds = blank(replace(job, storage=Storage())), min(rounds, DRAWN)
    plans = [plan_of(job, state._replace(round=t)) for t in range(rounds)]
    steps = np.concatenate([plan.steps for plan in plans])
    if not len(steps):
        raise UserError(f"no client replies in the first {rounds} rounds; look at availability, dropout and deadline")
    lost = sum(len(plan.aside.lost) for plan in plans)
    return steps, len(steps) / rounds, lost / (lost + len(steps))


def label_distances(dataset: Dataset, parts: Sequence[np.ndarray], seed: int) -> tuple[float, float]:
    """The mean distance of the clients' labels to all (`describe`), and that of a random deal of the same sizes."""
    every = rng.generator(seed, rng.Purpose.PARTITION, STREAM).permutation(np.concatenate(parts))
    dealt = np.split(every, np.cumsum([len(part) for part in parts])[:-1])
    distance, by_chance = (float(describe(dataset, division).distance.mean()) for division in (parts, dealt))
    return distance, by_chance


def feature_skew(dataset: Dataset, parts: Sequence[np.ndarray]) -> float | None:
    """The share of the features' variance that lies between clients: the intraclass correlation of a one-way analysis
    of variance (its ANOVA estimate), mean over features, of samples less the mean of their class.

    None for symbols, and where no client has two samples. Clients that are noisier, not elsewhere, are not seen.
    """
    if dataset.scale is None and np.issubdtype(dataset.train_x.dtype, np.integer):
        return None
    most = max(2, SEEN // len(parts))
    groups = [part[:: -(-len(part) // most)] for part in parts]
    sizes = np.array([len(group) for group in groups])
    n, clients = int(sizes.sum()), len(parts)
    if clients < 2 or n <= clients:
        return None
    x = dataset.train_x[np.concatenate(groups)].reshape(n, -1)
    x = x[:, :: -(-x.shape[1] // FEATURES)].astype(np.float64)
    y = dataset.train_y[np.concatenate(groups)]
    if dataset.target == "class":
        for label in np.unique(y):
            x[y == label] -= x[y == label].mean(axis=0)
    else:
        x -= x.mean(axis=0)
    sums = np.add.reduceat(x, np.concatenate([[0], np.cumsum(sizes)[:-1]]), axis=0)
    between = (sums**2 / sizes[:, None]).sum(axis=0)
    within = ((x**2).sum(axis=0) - between) / (n - clients)
    usual = (n - (sizes**2).sum() / n) / (clients - 1)  # size of a client
    component = np.maximum(0, (between / (clients - 1) - within) / usual)
    varies = component + within > 1e-12
    return float((component[varies] / (component + within)[varies]).mean()) if varies.any() else None
