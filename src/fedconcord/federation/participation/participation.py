"""Who takes part in a round, and when the replies come: available, chosen, lost, late.

1. available: `availability` says who could take part; nobody whose late reply is on its way can.
2. chosen: `sampler`, among those available, or from all and then limited to those available.
3. lost: `dropout`, on the client's own coin, or on an edge server's above it (`tree`). It got the model and did a keyed
   share of its work, or all; nothing comes back, and its state is as before. The server learns it at that moment.
4. late: whoever is not through at the `deadline`. `discard`: it stops there, as one that is lost. `keep`: it goes on,
   and its reply counts in the round that it comes in, with that round's weights. A round waits for every reply on its
   way, up to its deadline, so a reply of T seconds is ceil(T / deadline) - 1 rounds late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from fedconcord.federation.participation import clock, dropout
from fedconcord.federation.participation.availability import Availability
from fedconcord.federation.participation.clock import Cost, Devices
from fedconcord.federation.participation.dropout import Dropout
from fedconcord.federation.participation.sampling import Drawn, Losses, Sampler, drawn_by
from fedconcord.federation.participation.servers import Edges
from fedconcord.method.contract import Algorithm, Aside


class View(NamedTuple):
    """What a planner may know of a run besides the sizes of its clients."""

    cost: Callable[[], Cost]  # of one client's round
    losses: Losses  # at the server's model before the round
    dim: int  # d


class Reply(NamedTuple):
    """A late reply on its way."""

    client: int
    steps: int  # behind it
    times: float  # how often its client was drawn
    round: int  # that it comes in
    left: float  # seconds of that round until it does


class Turnout(NamedTuple):
    """Who takes part in a round: those who work and are not lost, and those whose late reply comes."""

    ids: np.ndarray  # [S] int64, sorted, distinct
    times: np.ndarray  # [S] float64, how often each was drawn
    expected: np.ndarray  # [S] float64, E[times]; NaN where nobody knows it
    inclusion: np.ndarray  # [S] float64, P(takes part); NaN where nobody knows it
    steps: np.ndarray  # [S] int64 of this round
    waited: np.ndarray  # [S] int64 behind a late reply that comes now
    late: np.ndarray  # [S] bool, its reply comes in a later round
    aside: Aside
    seconds: float  # length of the round
    pending: tuple[Reply, ...]  # replies on their way when the round ends


class Rules(NamedTuple):
    """The policies."""

    sampler: Sampler
    availability: Availability | None = None
    dropout: Dropout | None = None
    devices: Devices | None = None
    deadline: float | None = None  # seconds
    late: Literal["discard", "keep"] = "discard"
    tree: Edges | None = None

    def known(self) -> bool:
        """Whether the probabilities that clients take part are known."""
        offered = self.availability is None or (self.availability.known and self.sampler.from_all)
        return self.sampler.known and offered and self.deadline is None


def choose(
    rules: Rules, seed: int, round: int, cohort: int, sizes: np.ndarray, losses: Losses, busy: tuple[Reply, ...] = ()
) -> Drawn:
    """The cohort, before anybody is lost; `busy` cannot take part. Costs what the sampler costs, if all are there."""
    n, sampler = len(sizes), rules.sampler
    if rules.availability is None and not busy:
        return drawn_by(sampler, seed, round, cohort, sizes, losses)
    there = np.ones(n, bool)
    chance = np.ones(n)
    if rules.availability is not None:
        ids, chances = rules.availability.draw(seed, round, n)
        there[:] = False
        there[ids], chance[ids] = True, chances
    there[[reply.client for reply in busy]] = False
    if sampler.from_all:
        drawn = drawn_by(sampler, seed, round, cohort, sizes, losses)
        present = there[drawn.ids]
        ids, times, expected, inclusion = (column[present] for column in drawn[:4])
        return Drawn(ids, times, expected * chance[ids], inclusion * chance[ids])
    who = np.flatnonzero(there)
    if len(who) == 0:
        return Drawn(who, np.empty(0), np.empty(0), np.empty(0))
    drawn = drawn_by(sampler, seed, round, min(cohort, len(who)), sizes[who], lambda places: losses(who[places]))
    unknown = np.full(len(drawn.ids), np.nan)
    return Drawn(who[drawn.ids], drawn.times, unknown, unknown, drawn.asked)


def turnout(
    rules: Rules,
    seed: int,
    round: int,
    drawn: Drawn,
    steps: np.ndarray,
    full_cost: np.ndarray,
    cost: Cost,
    pending: tuple[Reply, ...],
    talks: bool = True,
    joins: np.ndarray | None = None,
) -> Turnout:
    """What becomes of a cohort.

    Args:
        drawn: the cohort [S], with its local steps [S] and the mini-batches [S] in a full gradient of each.
        pending: late replies on their way when the round begins.
        talks: whether messages go in this round; without, nobody is late.
        joins: [S] bool, who is sent x^0; None: nobody.
    """
    ids, times, expected, inclusion, asked = drawn
    share = np.ones(len(ids))  # of its work that a client does
    lost = late = np.zeros(len(ids), bool)
    if rules.dropout is not None:
        lost, at, chance = dropout.draw(rules.dropout, seed, round, ids)
        share = np.where(lost, at, share)
        expected, inclusion = expected * (1 - chance), inclusion * (1 - chance)
    if rules.tree is not None and rules.tree.lost:
        is_away, away = rules.tree.losses(seed, round, ids)
        lost, expected, inclusion = lost | is_away, expected * (1 - away), inclusion * (1 - away)
    gradients = cost.gradients(steps, full_cost)
    ends = np.zeros(len(ids))
    limit = np.inf if rules.deadline is None else rules.deadline
    if rules.devices is not None:
        took = clock.times([rules.devices(seed, round, int(i)) for i in ids], cost, gradients, talks, joins)
        ends = np.where(lost, took.down + share * took.compute, took.total)
        late = ~lost & (ends > limit)
        if rules.late == "discard":
            by_then = np.clip((limit - took.down) / np.maximum(took.compute, np.finfo(float).tiny), 0, 1)
            share = np.minimum(share, by_then)  # of those that are lost as well: the deadline ends their work too
            lost, late = lost | late, np.zeros(len(ids), bool)
    now = [reply for reply in pending if reply.round == round]
    waiting = [reply for reply in pending if reply.round > round]
    behind = np.ceil(ends / limit).astype(np.int64) - 1 if late.any() else np.zeros(len(ids), np.int64)
    waiting += [
        Reply(int(ids[k]), int(steps[k]), float(times[k]), round + int(behind[k]), float(ends[k] - behind[k] * limit))
        for k in np.flatnonzero(late)
    ]
    waits = [*np.minimum(ends, limit), *(reply.left for reply in now), *(limit for reply in waiting)]
    stay, come = ~lost, len(now)
    unknown = np.full(come, np.nan)
    who = np.append(ids[stay], np.array([reply.client for reply in now], np.int64))
    settle = 0.0
    if rules.devices is not None and talks:
        on_time = np.append(ids[stay & ~late], who[len(who) - come :])
        settle = clock.settling([rules.devices(seed, round, int(i)) for i in on_time], cost)
    order = np.argsort(who, kind="stable")
    return Turnout(
        ids=who[order],
        times=np.append(times[stay], [reply.times for reply in now])[order],
        expected=np.append(expected[stay], unknown)[order],
        inclusion=np.append(inclusion[stay], unknown)[order],
        steps=np.append(steps[stay], np.zeros(come, np.int64))[order],
        waited=np.append(np.zeros(len(who) - come, np.int64), np.array([r.steps for r in now], np.int64))[order],
        late=np.append(late[stay], np.zeros(come, bool))[order],
        aside=Aside(asked, tuple(ids[lost].tolist()), int((share * gradients)[lost].astype(np.int64).sum())),
        seconds=(float(max(waits)) if waits else rules.deadline or 0.0) + settle,
        pending=tuple(waiting),
    )


def refusal(rules: Rules, algorithm: Algorithm, n: int, cohort: int) -> str | None:
    """Why these rules cannot be had together, or with such a method on N clients; None if they can."""
    limits = {"availability": rules.availability, "dropout": rules.dropout, "deadline": rules.deadline}
    if rules.tree is not None:
        limits |= {"the loss of edge servers": rules.tree.lost or None}
        if algorithm.phases.combine is not None:
            return (
                "contributions that are not summed have to lie at one server, and edge servers (tree) send sums; leave "
                "tree out, or use aggregate mean and no attack that looks at other clients"
            )
        if rules.sampler.by_loss:
            return "clients' losses are asked one by one, and edge servers (tree) send sums; use another sampling"
    reasons = [name for name, rule in limits.items() if rule is not None]
    keep = rules.deadline is not None and rules.late == "keep"
    replayed = keep or (rules.devices is not None and algorithm.needs.x0)
    if algorithm.facts.protection is not None and (rules.sampler.by_loss or rules.sampler.repeats):
        how = "goes by losses, which clients send unprotected" if rules.sampler.by_loss else "may draw a client twice"
        return (
            f"differential privacy needs another sampling than this one, which {how}; use sampling poisson or uniform"
        )
    if rules.deadline is not None and rules.devices is None:
        return "a deadline needs the times of clients; set devices, for example lognormal(0.5)"
    if rules.deadline is None and rules.late == "keep":
        return "late keep needs a deadline, in simulated seconds"
    if replayed and rules.sampler.by_loss:
        what, instead = ("with late replies", "late discard") if keep else ("to which x^0 is sent", "no devices")
        return (
            f"clients are chosen by their loss, and a round {what} must be known without the model of the rounds "
            f"before; use another sampling, or {instead}"
        )
    if keep != algorithm.phases.late:
        return "late replies that are kept need the method wrapped by `with_late_replies`, and no other rule does"
    if algorithm.needs.everyone and n > 1:
        takes_all = rules.sampler.takes_all
        if takes_all != "always" and cohort < n:
            reasons = [f"a cohort of {cohort}", *reasons]
        elif takes_all == "never":
            reasons = ["the sampling", *reasons]
        if reasons:
            return (
                f"{algorithm.identity.method or 'the method'} needs all {n} clients in every round, and {reasons[0]} "
                f"may leave some out; use sampling uniform with cohort {n} and no availability, dropout or deadline, "
                "or a method that is made for partial participation, such as scaffold or afedpd"
            )
    if rules.sampler.repeats and (why := dict(algorithm.facts.unfit).get("repeats")):
        return f"this sampling may draw a client twice, and the method cannot have that, as {why}; use sampling uniform"
    if rules.sampler.by_size and rules.sampler.known:
        by = "this sampling counts samples by drawing large clients more often, and "
        if algorithm.weights == "size":
            return f"{by}weights size would count them once more; use weights uniform or unbiased, or sampling uniform"
        if algorithm.facts.invariant is not None:
            return f"{by}the method's running sums count clients alike; use sampling uniform, with objective samples"
    needs_inclusion = algorithm.needs.inclusion or algorithm.weights == "unbiased"
    if needs_inclusion and not rules.known():
        cause = "sampling" if not rules.sampler.known else "deadline" if rules.deadline is not None else "availability"
        return (
            "the method weighs clients by the probability that they take part (weights unbiased, or d inverse_p), "
            f"which is not known with this {cause}; use other weights, or sampling everyone with independent clients"
        )
    return None
