"""Supervised learning whose samples are persons: whoever has several rows at a client counts once, with all of them.

    f_i(x) = mean over the persons k of client i of  f_ik(x) = mean over the rows of k of the loss of a row

What a local step does with samples it then does with persons: batches are of persons, with all rows of each, and with
differential privacy of samples (`step.noise`) it is the gradient of f_ik that is clipped. That is user-level DP-SGD,
by a coin for each user and a bound on each user's mean gradient: DP-SGD-ULS of Charles et al., 2024, arXiv 2407.07737,
with all rows of a user in place of some; after McMahan et al., ICLR 2018. With one row a person it is `Supervised`, to
the bits.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedconcord.federation.data.inputs import numbered
from fedconcord.federation.objectives.common import hessian_of
from fedconcord.federation.objectives.supervised import Supervised
from fedconcord.method.contract import Conditions, Evaluator, Objective, Roster, roster_of


class Persons:
    """The f_i above. Models are judged on rows, as those of `Supervised` are.

    Args:
        rows: the model, the loss and the rows of all clients.
        persons: [n] whose each training row is, in the order of `rows`. Rows of two clients are of two persons.
    """

    def __init__(self, rows: Supervised, persons: np.ndarray) -> None:
        self.rows, self.persons = rows, persons
        clients = len(rows.offsets) - 1
        owner = np.repeat(np.arange(clients), np.diff(rows.offsets))
        number = numbered(owner, persons)
        counts, order = np.bincount(number), np.argsort(number, kind="stable")
        first = np.cumsum(counts) - counts
        many = np.bincount(owner[order[first]], minlength=clients)
        self.offsets = np.concatenate([[0], np.cumsum(many)]).astype(np.int64)
        self._counts, self._first, self._order = (
            torch.as_tensor(one, device=rows.device) for one in (counts, first, order)
        )
        self.init = rows.init
        self.evaluator: Evaluator = rows

    @cached_property
    def objective(self) -> Objective:
        return self._of(self.rows.objective)

    @cached_property
    def roster(self) -> Roster:
        return roster_of(self.offsets, label_counts=self.rows.label_counts)

    def _alone(self, place: int) -> Objective:
        first, last = self.rows.offsets[place : place + 2]
        return Persons(self.rows.alone(place), self.persons[first:last]).objective

    def _of(self, inner: Objective) -> Objective:
        """The objective of persons whose rows are another one's samples."""

        def each(x: Tensor, persons: Tensor) -> Tensor:
            """The gradients [S, d] of f_ik at x [S, d], a person [S] each: those with as many rows at once, so that
            none depends on how many another has."""
            out, counts = torch.empty_like(x), self._counts[persons]
            for count in torch.unique(counts).tolist():
                here = (counts == count).nonzero()[:, 0]
                at = inner if inner.conditions is None else inner.taking(here, inner.conditions.step)
                out[here] = at.gradients(x[here], self._rows(persons[here], count), None)
            return out

        def gradients(x: Tensor, samples: Tensor, weight: Tensor | None) -> Tensor:
            if weight is None:
                weight = torch.full_like(samples, 1 / samples.shape[-1], dtype=x.dtype)
            columns = zip(samples.T, weight.T[..., None], strict=True)
            return torch.stack([share * each(x, persons) for persons, share in columns]).sum(0)

        def gradient(x: Tensor, samples: Tensor) -> Tensor:
            return gradients(x[None], samples[None], None)[0]

        def loss(x: Tensor, samples: Tensor) -> Tensor:
            counts = self._counts[samples].tolist()
            mine = (self._rows(person, count) for person, count in zip(samples, counts, strict=True))
            return torch.stack([inner.loss(x, rows) for rows in mine]).mean()

        def under(conditions: Conditions) -> Objective:
            assert inner.under is not None
            return self._of(inner.under(conditions))

        return replace(
            inner,
            offsets=self.offsets,
            gradient=gradient,
            gradients=gradients,
            loss=loss,
            hessian=lambda x, samples: hessian_of(lambda at: loss(at, samples), x),
            alone=self._alone,
            under=under,
            each=None,
            accumulate=None,
            network=None,
            class_counts=None,
            feature_sums=None,
            train=None,
        )

    def _rows(self, persons: Tensor, count: int) -> Tensor:
        """The rows [..., count] of persons [...] who have so many each."""
        return self._order[self._first[persons][..., None] + torch.arange(count, device=persons.device)]
