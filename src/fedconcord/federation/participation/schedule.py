"""What is drawn for a round: the cohort, its local work, its batches and its weights. A pure function of the keys.

`Pooled` are the rounds of a model that is trained on all samples in one place, with the budget of a federation's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from fedconcord.federation.participation.availability import Availability
from fedconcord.federation.participation.clock import Cost, Devices
from fedconcord.federation.participation.dropout import Dropout
from fedconcord.federation.participation.events import (
    Clock,
    Lengths,
    Moment,
    Update,
    beginning,
    in_flight,
    next_update,
)
from fedconcord.federation.participation.jobs import Amount, job_lengths, refusal_of_clock
from fedconcord.federation.participation.participation import Reply, Rules, Turnout, View, choose, refusal, turnout
from fedconcord.federation.participation.sampling import Sampler, uniform
from fedconcord.federation.participation.servers import Edges, distinct
from fedconcord.federation.participation.work import Keyed, Rate, Size, Work, epoch_steps, fixed, rate_at
from fedconcord.method.contract import Algorithm, Aside, Cohort, Orders, Plan, Roster, rng, weights
from fedconcord.support.errors import UserError

BLIND = "this schedule must know the run to plan a round; use fedconcord.execution.job.plan_of"


@dataclass(frozen=True)
class Schedule:
    """Draws every round's plan from (seed, round, client), so that all methods of a comparison meet the same one.

    `work` counts `unit`s; seconds are those of the clients' `devices`, and buy at least one step. `batch_size` None
    means that every step uses all samples of the client. Methods with a table of M blocks draw a block a step
    instead of a batch; an epoch is then M steps.
    """

    seed: int  # of every draw
    cohort: int  # clients S that are drawn in a round
    lr: float | Rate  # local step size, or the one of each round
    work: Work = fixed(1)  # of a client in a round
    unit: Literal["epochs", "steps", "seconds"] = "epochs"  # of the work
    batch_size: Size = None  # samples of a step; all of the client's if none
    lr_decay: float = 1.0  # the local step size of round t is lr * lr_decay ** t
    sampler: Sampler = uniform()  # who is drawn
    lr_drops: tuple[tuple[int, float], ...] = ()  # (round, factor): from that round on, the step size is times that
    availability: Availability | None = None  # who could take part; everybody if none
    dropout: Dropout | None = None  # who is lost in mid-round; nobody if none
    devices: Devices | None = None  # how long clients take; without, no time is simulated
    deadline: float | None = None  # seconds of a round
    late: Literal["discard", "keep"] = "discard"  # replies after the deadline
    tree: Edges | None = None  # servers between the clients and the root; none if none
    clock: Clock | None = None  # asynchronous: a round is one update, of `cohort` replies; none: rounds wait
    _memo: dict[str, _Past] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def rules(self) -> Rules:
        """Who takes part."""
        return Rules(self.sampler, self.availability, self.dropout, self.devices, self.deadline, self.late, self.tree)

    @property
    def draws(self) -> Keyed:
        """What the clients draw by themselves."""
        return Keyed(self.seed, self.batch_size)

    def refuse(self, algorithm: Algorithm, n: int) -> str | None:
        """Why this schedule cannot run the method on N clients, or None."""
        if self.unit == "seconds" and self.devices is None:
            return "local work in seconds needs the times of clients; set devices, for example lognormal(0.5)"
        if self.clock is not None:
            return refusal_of_clock(self.clock, self.rules, algorithm, n, self.cohort)
        return refusal(self.rules, algorithm, n, self.cohort)

    def plan(self, round: int, algorithm: Algorithm, roster: Roster, view: View | None = None) -> Plan:
        """The plan of one round.

        Costs O(S), whatever N is, unless clients are not always available. Only plain cohorts can be planned without a
        view.
        """
        if self.clock is not None and self.devices is not None:
            return self._update(self.clock, round, algorithm, roster, view)
        if self.clock is not None:  # clients take the time they take: all may be sent orders, with the newest model
            return replace(self, cohort=roster.n, clock=None).plan(round, algorithm, roster, view)
        now = self._turnout(round, algorithm, roster, view)
        p, in_time = weights.share(algorithm.weights, roster.sizes, now.ids), ~now.late
        w = np.zeros(len(now.ids))
        w[in_time] = weights.cohort(algorithm.weights, p[in_time], now.times[in_time], now.expected[in_time])
        return Plan(
            round=round,
            ids=now.ids,
            steps=now.steps,
            w=w,
            p=p,
            inclusion=now.inclusion,
            lr=self._lr(round),
            seed=self.seed,
            coin=self._coin(round),
            times=now.times,
            expected=now.expected,
            late=now.late if algorithm.phases.late else None,
            waited=now.waited if algorithm.phases.late else None,
            aside=now.aside,
            seconds=now.seconds,
            servers=None if self.tree is None else self.tree.above(self.seed, now.ids),
            reached=() if self.tree is None else self._reached(self.tree, now),
        )

    def _reached(self, tree: Edges, now: Turnout) -> tuple[int, ...]:
        """How many servers of each tier the messages to a cohort pass: those above clients that work or are lost."""
        ids = np.append(now.ids[now.waited == 0], np.array(now.aside.lost, np.int64))
        return distinct(tree.above(self.seed, ids))

    def orders(self, algorithm: Algorithm, round: int, client: int, n: int) -> Orders:
        """What a client of n samples is told of a round, but for its weight p: where all reply at once, with no time
        simulated, it follows from what the client knows."""
        steps = self._steps(algorithm, round, client, n, 1)
        return Orders(round, client, steps, self._lr(round), self.seed)

    def _update(self, clock: Clock, round: int, algorithm: Algorithm, roster: Roster, view: View | None) -> Plan:
        """The plan of an update of asynchronous rounds."""
        if view is None:
            raise UserError(BLIND)
        cost = view.cost()
        now, past = self.update(round, algorithm, roster, cost), self._memo["last"]
        jobs, aside = np.sort(now.jobs, order="client"), np.concatenate([now.lost, now.stale])
        every = np.append(jobs, aside)
        ids, waves = jobs["client"], jobs["wave"]
        each = (self._work(algorithm, roster, *pair, cost).steps for pair in zip(waves, ids[:, None], strict=True))
        plan = self.plan_of_update(round, algorithm, roster, ids, np.concatenate([*each]), waves, jobs["version"])
        return plan._replace(
            aside=Aside(
                0,
                tuple(now.lost["client"].tolist()),
                int(aside["gradients"].sum()),
                tuple(now.stale["client"].tolist()),
                int((past.without(every["client"]) & (every["version"] > 0)).sum()),
            ),
            seconds=(now.after.tick - past.moment.tick) / 1e9,
            in_flight=in_flight(clock, now.after),
        )

    def update(self, round: int, algorithm: Algorithm, roster: Roster, cost: Cost) -> Update:
        """What the clock does until the update of a round, where one round costs a client so much. It depends on the
        updates before, of which the last is kept."""
        clock, policy = self.clock, self.availability
        assert clock is not None
        there = None if policy is None else lru_cache(1)(lambda slot: policy.draw(self.seed, slot, roster.n).ids)

        def following(past: _Past) -> Update:
            """The update after those; whoever was in none of them is sent x^0 beside a later model."""

            def lengths(wave: int, ids: np.ndarray) -> Lengths:
                work, joins = self._work(algorithm, roster, wave, ids, cost), past.without(ids) & (past.round >= 0)
                return job_lengths(self.rules, self.seed, wave, ids, work, cost, joins, clock.timeout)

            return next_update(clock, self.cohort, roster.n, self.seed, lengths, past.moment, there)

        past = self._memo.get("last")
        if past is None or past.round >= round or not past.is_of(algorithm, roster) or past.cost != cost:
            past = _Past(algorithm, roster.samples, cost=cost)
        now = past.following or following(past)
        for t in range(past.round + 1, round):
            joined = past.joined.union(now.jobs["client"].tolist()) if algorithm.needs.x0 else past.joined
            past = past._replace(round=t, moment=now.after, joined=joined)
            now = following(past)
        self._memo["last"] = past._replace(following=now)
        return now

    def plan_of_update(
        self,
        round: int,
        algorithm: Algorithm,
        roster: Roster,
        ids: np.ndarray,
        steps: np.ndarray,
        waves: np.ndarray,
        versions: np.ndarray,
    ) -> Plan:
        """The plan of an update of these clients' replies (ids [K], sorted), by what their jobs began with."""
        assert self.clock is not None
        p, ones = weights.share(algorithm.weights, roster.sizes, ids), np.ones(len(ids))
        staleness = self.clock.staleness
        damping = ones if staleness is None else staleness((round - versions).astype(np.float64))
        return Plan(
            round=round,
            ids=ids,
            steps=steps,
            w=weights.cohort(algorithm.weights, p, ones, ones) * damping,
            p=p,
            inclusion=np.full(len(ids), np.nan),
            lr=self._lr(round),
            seed=self.seed,
            coin=self._coin(round),
            wave=waves,
            version=versions,
            lrs=np.array([self._lr(int(version)) for version in versions]),
            damping=damping,
        )

    def _work(self, algorithm: Algorithm, roster: Roster, round: int, ids: np.ndarray, cost: Cost) -> Amount:
        """Of these clients in a round."""
        samples = roster.samples[ids]
        full = self.draws.full_cost(algorithm, samples)
        each = cost.step_gradients(full)
        pairs = zip(ids.tolist(), samples.tolist(), each.tolist(), strict=True)
        return Amount(np.array([self._steps(algorithm, int(round), i, n, g) for i, n, g in pairs], np.int64), full)

    def _turnout(self, round: int, algorithm: Algorithm, roster: Roster, view: View | None) -> Turnout:
        """Who takes part in a round. With late replies, or simulated seconds of x^0 for clients that join, it depends
        on the rounds before, of which the last is kept."""
        joining, nothing = self.devices is not None and algorithm.needs.x0, _Past(algorithm, roster.samples)
        if not joining and (self.deadline is None or self.late == "discard"):
            return self._next(round, algorithm, roster, view, nothing)
        past = self._memo.get("last")
        if past is None or past.round >= round or not past.is_of(algorithm, roster):
            past = nothing
        for t in range(past.round + 1, round):
            then = self._next(t, algorithm, roster, view, past)
            joined = past.joined.union(then.ids.tolist()) if joining else past.joined
            past = past._replace(round=t, pending=then.pending, joined=joined)
        self._memo["last"] = past
        return self._next(round, algorithm, roster, view, past)

    def _next(self, round: int, algorithm: Algorithm, roster: Roster, view: View | None, past: _Past) -> Turnout:
        may_lose = self.dropout is not None or (self.tree is not None and self.tree.lost > 0)
        needs = self.sampler.by_loss or may_lose or self.devices is not None
        if view is None and needs:
            raise UserError(BLIND)
        losses = np.zeros_like if view is None else view.losses
        drawn = choose(self.rules, self.seed, round, self.cohort, roster.sizes, losses, past.pending)
        cost = Cost(0, 0) if view is None or not needs else view.cost()
        steps, full = self._work(algorithm, roster, round, drawn.ids, cost)
        talks = True
        if view is not None and self.devices is not None and algorithm.phases.communicates is not None:
            p = weights.share(algorithm.weights, roster.sizes, drawn.ids)
            mass, coin = float(p.sum()), self._coin(round)
            mean = float(p @ steps) / mass if mass else 0.0
            talks = algorithm.phases.communicates(
                Cohort(round, roster.n, len(steps), mass, mean, view.dim, coin, self._lr(round))
            )
        # round 0 broadcasts it anyway
        joins = np.zeros(len(steps), bool) if round == 0 and talks else past.without(drawn.ids)
        return turnout(self.rules, self.seed, round, drawn, steps, full, cost, past.pending, talks, joins)

    def _lr(self, round: int) -> float:
        lr = rate_at(self.lr, round)
        return lr * self.lr_decay**round * math.prod(factor for first, factor in self.lr_drops if round >= first)

    def _coin(self, round: int) -> float:
        return float(rng.generator(self.seed, rng.Purpose.COIN, round).random())

    def _steps(self, algorithm: Algorithm, round: int, client: int, n: int, gradients: int) -> int:
        """Local steps of a client of n samples, each of which evaluates so many mini-batch gradients."""
        if algorithm.step.steps is not None:
            return algorithm.step.steps
        amount = self.work(self.seed, round, client)
        if self.unit == "steps":
            return int(amount)
        if self.unit == "seconds":
            assert self.devices is not None
            return max(1, int(amount / (gradients * self.devices(self.seed, round, client).step)))
        return int(amount) * (algorithm.step.blocks or epoch_steps(n, self.batch_size))


class _Past(NamedTuple):
    """What the rounds up to one leave to the next, for one method and federation."""

    algorithm: Algorithm
    samples: np.ndarray  # of the roster
    round: int = -1
    pending: tuple[Reply, ...] = ()
    joined: frozenset[int] = frozenset()  # clients that have x^0, for a method that needs it
    moment: Moment = beginning()  # after the last update of asynchronous rounds
    cost: Cost | None = None  # of a client's round, by which these go
    following: Update | None = None  # the update after them

    def is_of(self, algorithm: Algorithm, roster: Roster) -> bool:
        return self.algorithm is algorithm and self.samples is roster.samples

    def without(self, ids: np.ndarray) -> np.ndarray:
        """[S] bool: which of these clients have no x^0, where the method needs it."""
        return np.array([self.algorithm.needs.x0 and i not in self.joined for i in ids.tolist()], bool)


@dataclass(frozen=True)
class Pooled:
    """One client that holds all samples takes in every round as many local steps, of the same size and on as many
    samples each, as the cohort of a federated round takes together.

    Args:
        of: the federation's schedule.
        clients: its roster.
    """

    of: Schedule
    clients: Roster = field(compare=False)

    @property
    def seed(self) -> int:
        return self.of.seed

    @property
    def cohort(self) -> int:
        return 1

    @property
    def draws(self) -> Keyed:
        """Epochs of fresh permutations of all samples."""
        return self.of.draws

    def refuse(self, algorithm: Algorithm, n: int) -> str | None:
        """Why the federation's rounds cannot be planned, or None."""
        return self.of.refuse(algorithm, self.clients.n)

    def plan(self, round: int, algorithm: Algorithm, roster: Roster, view: View | None = None) -> Plan:
        """The plan of one round; nobody takes part where nobody does in the federation."""
        theirs = self.of.plan(round, algorithm, self.clients, view)
        there = min(len(theirs.ids), 1)
        one = np.ones(there)
        steps = np.full(there, theirs.steps.sum(), np.int64)
        return Plan(round, np.zeros(there, np.int64), steps, one, one, one, theirs.lr, theirs.seed)
