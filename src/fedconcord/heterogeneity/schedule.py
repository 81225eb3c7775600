"""What is drawn for a round: the cohort, its local work, its batches and its weights. A pure function of the keys."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import torch

from fedconcord import rng
from fedconcord.core import Algorithm, Cohort, Plan, Population
from fedconcord.errors import UserError
from fedconcord.heterogeneity import weights
from fedconcord.heterogeneity.availability import Availability
from fedconcord.heterogeneity.clock import Cost, Devices
from fedconcord.heterogeneity.dropout import Dropout
from fedconcord.heterogeneity.sampling import Sampler, uniform
from fedconcord.heterogeneity.turnout import Reply, Rules, Turnout, View, choose, refusal, turnout
from fedconcord.heterogeneity.work import Work, batches, epoch_steps, fixed


@dataclass(frozen=True)
class Schedule:
    """Draws every round's plan from (seed, round, client), so that all methods of a comparison meet the same one.

    `work` counts `unit`s; seconds are those of the clients' `devices`, and buy at least one step. `batch_size` None
    means that every step uses all samples of the client. Methods with a table of M blocks draw a block a step
    instead of a batch; an epoch is then M steps.
    """

    seed: int
    cohort: int
    lr: float
    work: Work = fixed(1)
    unit: Literal["epochs", "steps", "seconds"] = "epochs"
    batch_size: int | None = None
    lr_decay: float = 1.0  # the local step size of round t is lr * lr_decay ** t
    sampler: Sampler = uniform()
    lr_drops: tuple[
        tuple[int, float], ...
    ] = ()  # (round, factor): from that round on the step size is times the factor
    availability: Availability | None = None  # who could take part; everybody if none
    dropout: Dropout | None = None  # who is lost in mid-round; nobody if none
    devices: Devices | None = None  # how long clients take; without, no time is simulated
    deadline: float | None = None  # seconds of a round
    late: Literal["discard", "keep"] = "discard"  # replies after the deadline
    _memo: dict[str, _Seen] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def rules(self) -> Rules:
        """Who takes part."""
        return Rules(self.sampler, self.availability, self.dropout, self.devices, self.deadline, self.late)

    def refuse(self, algorithm: Algorithm, n: int) -> str | None:
        """Why this schedule cannot run the method on N clients, or None."""
        if self.unit == "seconds" and self.devices is None:
            return "local work in seconds needs the times of clients; set devices, for example lognormal(0.5)"
        population = Population(n, torch.full((n,), 1 / n))
        return refusal(
            self.rules,
            algorithm.keeps_late,
            algorithm.inclusion or algorithm.weights == "unbiased",
            n > 1 and algorithm.refuse(population, n) is None and algorithm.refuse(population, n - 1) is not None,
        )

    def plan(
        self, round: int, algorithm: Algorithm, offsets: np.ndarray, sizes: np.ndarray, view: View | None = None
    ) -> Plan:
        """The plan of one round for clients with these sample offsets [N + 1] and sizes [N].

        Costs O(S) and the cohort's batches, whatever N is, unless clients are not always available; `sizes` must be the
        same array every round for that. Only plain cohorts can be planned without a view.
        """
        now = self._turnout(round, algorithm, offsets, sizes, view)
        ids = now.ids
        held = (offsets[ids + 1] - offsets[ids]).tolist()
        chosen, blocks = None, None
        if algorithm.blocks is not None:
            pairs = [self._blocks(algorithm, round, int(i), offsets, k) for i, k in zip(ids, now.steps, strict=True)]
            blocks, chosen = [block for block, _ in pairs], [samples for _, samples in pairs]
        elif self.batch_size is not None and not (algorithm.oracle is not None and algorithm.oracle.kind == "full"):
            chosen = [
                batches(self.seed, round, int(i), n, self.batch_size, k)
                for i, n, k in zip(ids, held, now.steps.tolist(), strict=True)
            ]
        p, heard = weights.share(algorithm.weights, sizes, ids), ~now.late
        w = np.zeros(len(ids))
        w[heard] = weights.cohort(algorithm.weights, p[heard], now.times[heard], now.expected[heard])
        full_cost = _full_costs(algorithm, np.array(held, np.int64), self.batch_size)
        return Plan(
            round=round,
            ids=ids,
            steps=now.steps,
            w=w,
            p=p,
            inclusion=now.inclusion,
            batches=chosen,
            lr=self._lr(round),
            seed=self.seed,
            coin=self._coin(round),
            full_cost=np.where(now.waited > 0, 0, full_cost),  # a client that only answers evaluates nothing
            blocks=blocks,
            late=now.late if algorithm.keeps_late else None,
            waited=now.waited if algorithm.keeps_late else None,
            aside=now.aside,
            seconds=now.seconds,
        )

    def _turnout(
        self, round: int, algorithm: Algorithm, offsets: np.ndarray, sizes: np.ndarray, view: View | None
    ) -> Turnout:
        """Who takes part in a round; with late replies it depends on the rounds before, of which the last is kept."""
        if self.deadline is None or self.late == "discard":
            return self._next(round, algorithm, offsets, sizes, view, ())
        seen = self._memo.get("last")
        if seen is None or seen.round >= round or not seen.is_of(algorithm, offsets, sizes):
            seen = _Seen(-1, (), algorithm, offsets, sizes)
        for t in range(seen.round + 1, round):
            seen = seen._replace(round=t, pending=self._next(t, algorithm, offsets, sizes, view, seen.pending).pending)
        self._memo["last"] = seen
        return self._next(round, algorithm, offsets, sizes, view, seen.pending)

    def _next(
        self,
        round: int,
        algorithm: Algorithm,
        offsets: np.ndarray,
        sizes: np.ndarray,
        view: View | None,
        pending: tuple[Reply, ...],
    ) -> Turnout:
        needs = self.sampler.by_loss or self.dropout is not None or self.devices is not None
        if view is None and needs:
            raise UserError("this schedule must know the run to plan a round; use training.plan_of")
        losses = np.zeros_like if view is None else view.losses
        drawn = choose(self.rules, self.seed, round, self.cohort, sizes, losses, pending)
        cost = Cost(0, 0) if view is None or not needs else view.cost()
        held = offsets[drawn.ids + 1] - offsets[drawn.ids]
        full = _full_costs(algorithm, held, self.batch_size)
        each = cost.step_gradients(full)
        pairs = zip(drawn.ids.tolist(), held.tolist(), each.tolist(), strict=True)
        steps = np.array([self._steps(algorithm, round, i, n, g) for i, n, g in pairs], np.int64)
        talks = True
        if view is not None and self.devices is not None and algorithm.communicates is not None:
            p = weights.share(algorithm.weights, sizes, drawn.ids)
            mass, coin = float(p.sum()), self._coin(round)
            mean = float(p @ steps) / mass if mass else 0.0
            talks = algorithm.communicates(
                Cohort(round, len(sizes), len(steps), mass, mean, view.dim, coin, self._lr(round))
            )
        return turnout(self.rules, self.seed, round, drawn, steps, full, cost, pending, talks)

    def _lr(self, round: int) -> float:
        return self.lr * self.lr_decay**round * math.prod(factor for first, factor in self.lr_drops if round >= first)

    def _coin(self, round: int) -> float:
        return float(rng.generator(self.seed, rng.Purpose.COIN, round).random())

    def members(self, client: int, algorithm: Algorithm, offsets: np.ndarray) -> list[np.ndarray]:
        """The sample positions of each of a client's M blocks, the same in every round.

        Raises:
            UserError: the client has fewer samples than blocks.
        """
        assert algorithm.blocks is not None
        n = int(offsets[client + 1] - offsets[client])
        if n < algorithm.blocks:
            raise UserError(
                f"client {client} has {n} samples, which cannot be cut in {algorithm.blocks} blocks; give the method "
                "fewer blocks or its clients more samples"
            )
        order = rng.generator(self.seed, rng.Purpose.BLOCK, 0, client).permutation(n)
        return np.array_split(order, algorithm.blocks)

    def _blocks(
        self, algorithm: Algorithm, round: int, client: int, offsets: np.ndarray, steps: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Drawn blocks [K] and their samples [K, B], -1 pads."""
        members = self.members(client, algorithm, offsets)
        padded = np.full((len(members), max(map(len, members))), -1, np.int64)
        for row, block in zip(padded, members, strict=True):
            row[: len(block)] = block
        drawn = rng.generator(self.seed, rng.Purpose.BLOCK, round + 1, client).integers(len(members), size=steps)
        return drawn, padded[drawn]

    def _steps(self, algorithm: Algorithm, round: int, client: int, n: int, gradients: int) -> int:
        """Local steps of a client of n samples, each of which evaluates so many mini-batch gradients."""
        if algorithm.steps is not None:
            return algorithm.steps
        amount = self.work(self.seed, round, client)
        if self.unit == "steps":
            return int(amount)
        if self.unit == "seconds":
            assert self.devices is not None
            return max(1, int(amount / (gradients * self.devices(self.seed, round, client).step)))
        return int(amount) * (algorithm.blocks or epoch_steps(n, self.batch_size))


class _Seen(NamedTuple):
    """What the rounds up to one leave to the next, for one method and problem."""

    round: int
    pending: tuple[Reply, ...]
    algorithm: Algorithm
    offsets: np.ndarray
    sizes: np.ndarray

    def is_of(self, algorithm: Algorithm, offsets: np.ndarray, sizes: np.ndarray) -> bool:
        same = self.algorithm is algorithm and self.offsets is offsets
        return same and (self.sizes is sizes or np.array_equal(self.sizes, sizes))


def _full_costs(algorithm: Algorithm, held: np.ndarray, batch_size: int | None) -> np.ndarray:
    """Mini-batches [S] in a full gradient of clients that hold so many samples."""
    if algorithm.blocks is not None:
        return np.full(len(held), algorithm.blocks, np.int64)
    return np.ones(len(held), np.int64) if batch_size is None else -(-held // batch_size)
