"""Robust aggregation: what the server makes of contributions that it sees apart, in place of their weighted sum.

A rule replaces the mean of what clients send, leaf by leaf of a contribution, so that quantities of different units are
never compared. Every client counts once: weights that clients could claim, such as their number of samples, do not buy
influence; the total is the rule's value times the sum of the weights, which is 1 but for unbiased ones. Methods whose
server keeps a sum over clients' own rows (SCAFFOLD's c, FedDyn's h) are refused: only the sum preserves it.

trimmed_mean, median: Yin et al., ICML 2018. geometric_median: smoothed Weiszfeld, RFA, Pillutla et al., IEEE TSP 2022,
Algorithm 2. krum, multi_krum: Blanchard et al., NeurIPS 2017. centred_clip: Karimireddy et al., ICML 2021, Algorithm 2.
norm_clip: Sun et al., 2019. Deviations: the weights above; RFA weighs clients by size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fedconcord.method.contract import Algorithm, Cohort, Population, Sender, Tree, tree_leaves, tree_map
from fedconcord.method.contract.identity import UNNAMED, Identity, definition
from fedconcord.method.wrappers.forms import contribution, message
from fedconcord.method.wrappers.lift import lift
from fedconcord.support.factories import by_name
from fedconcord.support.parameters import BelowOne, Count, Positive, about

Hostile = Annotated[int, Field(ge=0, description="hostile clients in a round that the rule withstands")]
Radius = Annotated[Positive, about("largest l2 norm of a contribution")]
Turns = Count


class Rule(NamedTuple):
    """What stands for the mean of contributions [S, k] -> [k]."""

    reduce: Callable[[Tensor, Tensor], Tensor] | None  # (contributions [S, k], centre [k]) -> [k]; None: the mean
    refuse: Callable[[int], str | None] = lambda cohort: None  # why it cannot serve a cohort of so many
    length: bool = False  # it compares a contribution with a length, and so takes one vector alone
    momentum: float | None = None  # centre <- momentum * centre + (1 - momentum) * aggregate; None: the centre is 0
    identity: Identity = UNNAMED


@definition()
def mean() -> Rule:
    """The weighted sum, as the method has it."""
    return Rule(None)


@definition()
def trimmed_mean(
    share: Annotated[
        float, Field(ge=0, lt=0.5, description="fraction of the clients that is left out at each end")
    ] = 0.2,
) -> Rule:
    """The mean of each coordinate without its largest and smallest values.

    Yin et al., ICML 2018, Definition 2; floor(share S) values at each end.
    """
    return Rule(lambda rows, centre: _trimmed(rows, int(share * len(rows) + 1e-9)))


@definition()
def median() -> Rule:
    """The median of each coordinate; of an even number of clients the mean of the two in the middle.

    Yin et al., ICML 2018, Definition 1.
    """
    return Rule(lambda rows, centre: _trimmed(rows, (len(rows) - 1) // 2))


@definition()
def geometric_median(
    iterations: Annotated[Turns, about("iterations of Weiszfeld's algorithm, from the coordinates' median on")] = 32,
    smoothing: Annotated[Positive, about("smallest distance; shorter ones count as this")] = 1e-6,
) -> Rule:
    """The point with the least sum of distances to the contributions, by smoothed Weiszfeld steps.

    Pillutla et al., IEEE TSP 2022 (RFA), Algorithm 2; deviation: it starts from the coordinates' median.
    """

    def reduce(rows: Tensor, centre: Tensor) -> Tensor:
        point: Tensor = _trimmed(rows, (len(rows) - 1) // 2)
        for _ in range(iterations):
            weight = 1.0 / torch.linalg.vector_norm(rows - point, dim=1, keepdim=True).clamp(min=smoothing)
            point = (weight * rows).sum(0) / weight.sum()
        return point

    return Rule(reduce)


@definition()
def krum(hostile: Hostile = 1) -> Rule:
    """The contribution whose S - f - 2 nearest others are nearest.

    Blanchard et al., NeurIPS 2017; needs S >= 2 f + 3 in every round.
    """
    return Rule(lambda rows, centre: rows[_nearest(rows, hostile)[0]], _enough(hostile))


@definition()
def multi_krum(
    hostile: Hostile = 1,
    keep: Annotated[Turns | None, about("contributions that are averaged, at most; if none, S - f - 2")] = None,
) -> Rule:
    """The mean of the contributions that Krum ranks first.

    Blanchard et al., NeurIPS 2017.
    """

    def reduce(rows: Tensor, centre: Tensor) -> Tensor:
        return rows[_nearest(rows, hostile)[: keep or max(1, len(rows) - hostile - 2)]].mean(0)

    return Rule(reduce, _enough(hostile))


@definition()
def norm_clip(radius: Radius) -> Rule:
    """The mean of contributions cut to a length.

    Sun et al., 2019, "Can you really backdoor federated learning?", without its noise.
    """
    return Rule(lambda rows, centre: _clipped(rows, radius).mean(0), length=True)


@definition()
def centred_clip(
    radius: Annotated[Positive, about("largest distance of a contribution from the centre")],
    iterations: Annotated[Turns, about("iterations of the centre in a round")] = 1,
    momentum: Annotated[
        BelowOne, about("momentum of the centre between rounds; at 0 it is the last round's aggregate")
    ] = 0.0,
) -> Rule:
    """The centre plus the mean of the contributions' differences to it, cut to a length.

    Karimireddy et al., ICML 2021, Algorithm 2; the centre before round 0 is 0.
    """

    def reduce(rows: Tensor, centre: Tensor) -> Tensor:
        for _ in range(iterations):
            centre = centre + _clipped(rows - centre, radius).mean(0)
        return centre

    return Rule(reduce, length=True, momentum=momentum)


AGGREGATES: dict[str, Callable[..., Rule]] = by_name(
    mean, trimmed_mean, median, geometric_median, krum, multi_krum, norm_clip, centred_clip
)


def _trimmed(rows: Tensor, cut: int) -> Tensor:
    middle = rows if cut == 0 else rows.sort(0).values[cut : len(rows) - cut]
    return middle.mean(0)


def _clipped(rows: Tensor, radius: float) -> Tensor:
    length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    factor: Tensor = radius / length.clamp(min=radius)
    return rows * factor


def _nearest(rows: Tensor, hostile: int) -> Tensor:
    """Contributions in Krum's order [S]. A round that clients were lost in may have too few: one neighbour then."""
    apart = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square()
    near = apart.sort(1).values[:, 1 : 1 + max(1, len(rows) - hostile - 2)]
    order: Tensor = near.sum(1).argsort(stable=True)
    return order


def _enough(hostile: int) -> Callable[[int], str | None]:
    def refuse(cohort: int) -> str | None:
        if cohort >= 2 * hostile + 3:
            return None
        return (
            f"Krum withstands f hostile clients among 2 f + 3 or more, given f {hostile} and cohort {cohort}; use a "
            f"cohort of {2 * hostile + 3}, or a smaller f"
        )

    return refuse


# -- the wrappers --------------------------------------------------------------------------------------------------


class Centred(NamedTuple):
    """A method's server state beside its rule's."""

    inner: Any  # the method's own state
    centre: Any  # [d] that contributions are clipped around; nothing where the rule has none

    @property
    def x(self) -> Tensor:
        """The model that rounds start from [d]."""
        x: Tensor = self.inner.x
        return x


def apart(algorithm: Algorithm) -> Algorithm:
    """The same method with contributions handed to `combine` unweighted and apart, which sums them with their weights.

    It refuses methods for which a contribution is not the client's weight times something of its own.
    """
    if algorithm.phases.combine is not None:
        return algorithm

    def contribute(up: Tree, sender: Sender, cohort: Cohort) -> Tree:
        return algorithm.contribute(up, sender._replace(w=torch.ones_like(sender.w)), cohort)

    def combine(server: Tree, rows: Tree, senders: Sender, cohort: Cohort) -> Tree:
        return tree_map(lambda leaf: (senders.w * leaf).sum(0), rows)

    def refuse(population: Population, cohort: int) -> str | None:
        return algorithm.refuse(population, cohort) or _why_summed(algorithm, population)

    return replace(algorithm, contribute=contribute, phases=algorithm.phases._replace(combine=combine), refuse=refuse)


@definition()
def with_aggregate(algorithm: Algorithm, rule: Rule) -> Algorithm:
    """The same method with a robust rule in place of the weighted mean of its contributions."""
    reduce, momentum = rule.reduce, rule.momentum
    if reduce is None:
        return algorithm

    def around(inner: Tree, x: Tensor) -> Centred:
        return Centred(inner, () if momentum is None else torch.zeros_like(x))

    def combine(server: Centred, rows: Tree, senders: Sender, cohort: Cohort) -> Tree:
        def one(leaf: Tensor) -> Tensor:
            flat = leaf.reshape(len(leaf), -1)
            centre = torch.zeros_like(flat[0]) if momentum is None else server.centre
            return senders.w.sum() * reduce(flat, centre).reshape(leaf.shape[1:])

        return tree_map(one, rows)

    def update(server: Centred, total: Tree, cohort: Cohort) -> Centred:
        after: Centred = lifted.update(server, total, cohort)
        if momentum is None:
            return after
        (aggregate,) = tree_leaves(total).values()
        return after._replace(centre=momentum * server.centre + (1 - momentum) * aggregate)

    def refuse(population: Population, cohort: int) -> str | None:
        reason = separate.refuse(population, cohort) or rule.refuse(cohort)
        if algorithm.phases.combine is not None:
            reason = reason or (
                f"the method's server weighs what clients send by a rule of its own, which {rule.identity.name} would "
                "replace; use aggregate mean, or a method such as fedavg"
            )
        if reason is not None or not rule.length:
            return reason
        if len(tree_leaves(_shares(algorithm, population)[0])) == 1:
            return None
        return (
            f"{rule.identity.name or 'the rule'} cuts what clients send to one length, and this method's send several "
            "quantities of different units; use median or another rule without a length"
        )

    separate = apart(algorithm)
    lifted = lift(separate, server=around)
    return replace(lifted, phases=lifted.phases._replace(combine=combine), update=update, refuse=refuse)


def _why_summed(algorithm: Algorithm, population: Population) -> str | None:
    """Why the contributions of a method must be summed, or None."""
    how = "use aggregate mean, or a method such as fedavg"
    if algorithm.facts.invariant is not None:
        return f"the method keeps {algorithm.facts.invariant}, which only the sum of all contributions preserves; {how}"
    if algorithm.phases.prelude is not None:
        return f"the method's clients send gradients before their local steps too, which are summed as they are; {how}"
    once, twice = _shares(algorithm, population)
    pairs = zip(tree_leaves(once).values(), tree_leaves(twice).values(), strict=True)
    if all(torch.allclose(2 * a, b) for a, b in pairs):
        return None
    return f"the method's contributions are not a client's weight times what it sends, so that no mean is there; {how}"


def _shares(algorithm: Algorithm, population: Population) -> tuple[Tree, Tree]:
    """What a client that moved contributes with weight 1, and with weight 2."""
    up = message(algorithm, population.p.new_ones(2), 0.5)
    return contribution(algorithm, up, population.p, 1.0), contribution(algorithm, up, population.p, 2.0)
