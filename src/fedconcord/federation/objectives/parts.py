"""A problem whose model has a private part: min over x and y_i of sum_i p_i f_i(x, y_i), y_i with client i.

Its u = [x | y] is the whole problem's vector, with what is private behind what is shared (`Layout`). Methods, messages
and the server know x; the clients' steps are of u (`step.private`). FedPer (Arivazhagan et al. 2019) and LG-FedAvg
(Liang et al. 2020) are FedAvg on it, with private last layers and first ones; FedRep (Collins et al., ICML 2021) takes
its steps on y before those on x; FedBABU (Oh et al., ICLR 2022) trains x alone.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from fedconcord.federation.adapters import pairs
from fedconcord.federation.objectives.supervised import Supervised
from fedconcord.method.contract import Evaluator, Objective, Parts, Problem, Roster
from fedconcord.method.contract.flat import Layout


def with_private(
    problem: Supervised, patterns: str, seed: int, before: int | None = None, frozen: bool = False
) -> PrivateParts:
    """The problem whose model has these private parameters: patterns of their names as in `fnmatch`, separated by "|".

    Raises:
        UserError: a pattern matches no parameter.
    """
    whole = copy.copy(problem)
    for name in ("objective", "forward"):
        vars(whole).pop(name, None)
    statistics = problem.replaced.statistics
    whole.layout, whole._looked = Layout(problem.model, problem.layout.weights, patterns, statistics), None
    whole.pairs = pairs(whole.model, whole.layout)
    if not whole.layout.in_order:  # which kernels and compiled steps take for granted
        whole._kernel = None
    return PrivateParts(whole, whole.layout.shared, seed, before, frozen)


class PrivateParts:
    """The problem of x [d]; the rest of the whole problem's vector is private.

    Args:
        whole: of u = [x | y].
        shared: d.
        seed: whose starting point has every client's first y.
        before: steps on y alone that a client takes before those on x alone; None: the same steps move both.
        frozen: no step moves y.
    """

    def __init__(self, whole: Problem, shared: int, seed: int, before: int | None = None, frozen: bool = False) -> None:
        self.whole, self.dim = whole, shared
        self.first, self.before, self.frozen = whole.init(seed)[shared:], before, frozen

    @cached_property
    def objective(self) -> Objective:
        """In x, at the first y; `private` has that of u."""
        return self.of(self.whole.objective)

    def of(self, both: Objective) -> Objective:
        """The objective in x of f_i of u that are these."""
        d, hessian, under = self.dim, both.hessian, both.under

        def gradients(x: Tensor, samples: Tensor, weight: Tensor | None) -> Tensor:
            return both.gradients(self.joined(x), samples, weight)[:, :d]

        return replace(
            both,
            dim=d,
            gradient=lambda x, samples: both.gradient(self.joined(x), samples)[:d],
            gradients=gradients,
            loss=lambda x, samples: both.loss(self.joined(x), samples),
            each=None,
            alone=lambda place: self.of(both.alone(place)),
            hessian=hessian and (lambda x, samples: hessian(self.joined(x), samples)[:d, :d]),
            accumulate=None,
            network=None,
            matrices=tuple(one for one in both.matrices if one[0] + one[1] * one[2] <= d),
            under=under and (lambda conditions: self.of(under(conditions))),
            pairs=(),
            private=Parts(self.first, both, self.before, self.frozen),
        )

    def joined(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """[x | y] of x [..., d], at the first y if none is given."""
        return torch.cat([x, (self.first if y is None else y).expand(*x.shape[:-1], -1)], -1)

    @property
    def roster(self) -> Roster:
        return self.whole.roster

    @property
    def evaluator(self) -> Evaluator:
        return self

    def init(self, seed: int) -> Tensor:
        return self.whole.init(seed)[: self.dim]

    def evaluate(self, x: Tensor) -> dict[str, float]:
        """Of x with the first y: what a client has that never trained."""
        return self.whole.evaluator.evaluate(self.joined(x))

    def export(self, x: Tensor) -> Mapping[str, Tensor]:
        """Of x [d] with the first y, or of a client's own u [d + e]."""
        return self.whole.evaluator.export(x if len(x) > self.dim else self.joined(x))
