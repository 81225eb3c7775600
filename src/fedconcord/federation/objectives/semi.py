"""Semi-supervised classification with pseudo-labels: the task of FedVRA-U.

Wang et al., AAAI 2023, section 5.2; the objective is that of Wang et al. 2021b as FedCPSL (arXiv 2306.04155) gives it
in eq. (4), (41)-(43). Client i has n_i labelled samples (u, c) and m_i unlabelled u_j with pseudo-labels nu_ij on the
simplex of C classes; h_x(u) are the model's probabilities:

    f_i(x, nu_i) = -(1/n_i) sum log h_x(u)_c
                 + (1/m_i) sum_j [ -alpha_p <nu_ij, log h_x(u_j)> + alpha_r ( KL(nu_ij | 1/C) + KL(h_x(u_j) | 1/C) ) ]

The samples of a client are one list, labelled first. A labelled sample's f_ij carries the factor (n_i + m_i) / n_i, an
unlabelled one's (n_i + m_i) / m_i: their mean is f_i exactly, and that of a uniform mini-batch is f_i in expectation.
So every method, its batches and its weights by size (n_i + m_i) stay as they are.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.objectives.common import alone
from fedconcord.federation.objectives.evaluation import probe
from fedconcord.federation.objectives.supervised import Supervised
from fedconcord.federation.objectives.two_block import Inputs, objective_in_both
from fedconcord.method.contract import Evaluator, Objective, Regulariser, Roster, roster_of
from fedconcord.method.contract.weights import to_simplex
from fedconcord.support.errors import UserError
from fedconcord.support.parameters import Count, NotNegative, Positive, about

SLICE = 2048  # samples that go through the model at once, for their pseudo-labels
CLAMP = 1e-8  # of a pseudo-label before its logarithm, which is not bounded at the simplex's edge


class SemiSupervised:
    """The objective above. `private` is nu_i [m, C], m of the client that has most unlabelled samples, 1/C at first.

    A client's steps on nu_i, all at the server's x: nu_ij <- P( nu_ij - y_lr * s * grad ), P the projection onto the
    simplex and grad = -alpha_p log h(u_j) + alpha_r ( log max(nu_ij, clamp) + 1 + log C ); s is 1 ("sample"), or 1/m_i
    as in f_i itself ("mean"). With alpha_r = 0 enough steps end in hard labels; otherwise in
    softmax((alpha_p / alpha_r) log h).

    Args:
        build: makes the model; called under a keyed seed for every starting point.
        data: train and test arrays; the labels of unlabelled samples serve the evaluation only.
        parts: for each client the indices of its train samples, disjoint.
        labelled: for each client [n_i + m_i] bool, which of them have a label (`partitions.skew`).
        train_samples: training metrics are evaluated on a fixed keyed sample of this many points (all if fewer).

    Raises:
        UserError: a client without samples or labelled samples, with a label out of range, or with NaN in its samples.
    """

    def __init__(
        self,
        build: Callable[[], nn.Module],
        data: Dataset,
        parts: Sequence[np.ndarray],
        labelled: Sequence[np.ndarray],
        *,
        alpha_p: float = 1.0,
        alpha_r: float = 0.1,
        y_steps: int = 4,
        y_lr: float = 0.5,
        y_scale: Literal["sample", "mean"] = "sample",
        clamp: float = CLAMP,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        train_samples: int = 10_000,
        regulariser: Regulariser | None = None,
    ) -> None:
        for i, mask in enumerate(labelled):
            if not mask.any():
                raise UserError(
                    f"client {i} has no labelled sample among its {len(mask)}; label a larger fraction or use fewer "
                    "clients"
                )
        ordered = [np.concatenate([part[mask], part[~mask]]) for part, mask in zip(parts, labelled, strict=True)]
        # the probe of the supervised objective would be of hidden labels, so it is kept at one sample and not used
        self.base = Supervised(build, data, ordered, dtype=dtype, device=device, train_samples=1)
        if self.base.replaced.drops is not None or self.base.replaced.normalises:
            layer = self.base.replaced.drops or self.base.replaced.normalises[0]
            raise UserError(
                f"layer {layer!r} does otherwise in training than where the model answers, and semi-supervised clients "
                "guess labels with the model that they train; leave it out"
            )
        self.dim, self.offsets, self.sizes = self.base.dim, self.base.offsets, self.base.sizes
        self.dtype, self.device, self.regulariser = dtype, self.base.device, regulariser
        self.classes = data.classes
        self.alpha_p, self.alpha_r, self.y_steps, self.y_lr = alpha_p, alpha_r, y_steps, y_lr
        self.y_scale, self.clamp = y_scale, clamp
        with_label = np.array([mask.sum() for mask in labelled], np.int64)
        without = np.diff(self.offsets) - with_label
        self.unlabelled = without  # [N] m_i
        counts = np.diff(self.offsets)
        place = np.concatenate([np.arange(n) for n in counts]) - np.repeat(with_label, counts)
        factor = np.repeat(counts / with_label, counts)
        factor[place >= 0] = np.repeat(counts / np.maximum(without, 1), without)
        self.owner = torch.as_tensor(np.repeat(np.arange(len(counts)), counts), device=self.device)
        self.place = torch.as_tensor(np.maximum(place, -1), device=self.device)  # [n] row of nu_i, -1 where labelled
        self.factor = torch.as_tensor(factor).to(dtype=dtype, device=self.device)  # [n]
        # one row at least, so that an index into the block is valid where no client has unlabelled samples
        rows = max(int(without.max()), 1)
        self.private = torch.full((rows, self.classes), 1.0 / self.classes, dtype=dtype, device=self.device)
        self.probe = probe(len(place), train_samples, self.device)

    @cached_property
    def objective(self) -> Objective:
        return replace(objective_in_both(self), frozen=self.base.layout.digest)

    @cached_property
    def roster(self) -> Roster:
        return roster_of(self.offsets, self.sizes, self.label_counts)

    @property
    def evaluator(self) -> Evaluator:
        return self

    def alone(self, place: int) -> SemiSupervised:
        client = alone(self, place, ("owner", "place", "factor"), ("unlabelled",))
        client.base, client.owner = self.base.alone(place), torch.zeros_like(client.owner)
        client.probe = self.probe[:0].clone()
        return client

    def sampled(self, train_samples: int) -> SemiSupervised:
        """The same problem, with training metrics of another number of samples."""
        other = copy.copy(self)
        other.probe = probe(len(self.place), train_samples, self.device)
        return other

    def init(self, seed: int) -> Tensor:
        return self.base.init(seed)

    def inputs(self, samples: Tensor) -> Inputs:
        return self.base.x[samples], self.base.y[samples], self.place[samples], self.factor[samples]

    def losses(self, x: Tensor, y: Tensor, inputs: Inputs) -> Tensor:
        """f_ij [B] at x [d] with one client's pseudo-labels y [m, C]."""
        features, labels, place, factor = inputs
        log_h = self.base.logits(x, features).log_softmax(-1)
        supervised = -log_h.gather(-1, labels[:, None])[:, 0]
        return factor * torch.where(place < 0, supervised, self._pseudo(log_h, y[place.clamp(min=0)]))

    def _pseudo(self, log_h: Tensor, nu: Tensor) -> Tensor:
        """The unlabelled samples' terms [B], before the factor, from log h [B, C] and nu [B, C]."""
        fit = -(nu * log_h).sum(-1)
        log_c = math.log(self.classes)
        pseudo = (nu * nu.clamp(min=self.clamp).log()).sum(-1) + log_c
        model = (log_h.exp() * log_h).sum(-1) + log_c
        return self.alpha_p * fit + self.alpha_r * (pseudo + model)

    @torch.no_grad()
    def private_step(self, x: Tensor, private: Tensor, ids: np.ndarray) -> Tensor:
        """The clients' new pseudo-labels [S, m, C] from steps at x [d]; rows beyond a client's own stay as they are."""
        m = self.unlabelled[ids]
        row = torch.as_tensor(np.repeat(np.arange(len(ids)), m), device=self.device)
        place = np.concatenate([np.arange(count) for count in m])
        first = self.offsets[ids + 1] - m
        samples = torch.as_tensor(place + np.repeat(first, m), device=self.device)
        where = (row, torch.as_tensor(place, device=self.device))
        log_h = self._log_h(x, samples)
        nu, constant = private[where], 1.0 + math.log(self.classes)
        lr: float | Tensor = self.y_lr
        if self.y_scale == "mean":
            lr = self.y_lr / torch.as_tensor(np.repeat(m, m), device=self.device).to(self.dtype)[:, None]
        for _ in range(self.y_steps):
            g = self.alpha_r * (nu.clamp(min=self.clamp).log() + constant) - self.alpha_p * log_h
            nu = to_simplex(nu - lr * g)
        out = private.clone()
        out[where] = nu
        return out

    @torch.no_grad()
    def _log_h(self, x: Tensor, samples: Tensor) -> Tensor:
        """log h_x [B, C] of samples [B], in slices of bounded memory."""
        parts = [self.base.logits(x, self.base.x[part]).log_softmax(-1) for part in torch.split(samples, SLICE)]
        return torch.cat(parts)

    def best(self, log_h: Tensor) -> Tensor:
        """The pseudo-labels [..., C] that minimise f_i at a model with log h [..., C]: hard where alpha_r is 0."""
        if self.alpha_r == 0:
            return torch.nn.functional.one_hot(log_h.argmax(-1), self.classes).to(log_h)
        return (self.alpha_p / self.alpha_r * log_h).softmax(-1)

    @torch.no_grad()
    def evaluate(self, x: Tensor) -> dict[str, float]:
        """`test_accuracy` and `test_loss` as in supervised learning, and on a fixed sample of the training points
        `train_loss`, sum_i p_i min_nu f_i(x, nu) with p by size, and `pseudo_accuracy`, how many hidden labels the
        likeliest class hits.
        """
        measured = self.base.evaluate(x)
        log_h = self._log_h(x, self.probe)
        labels, hidden = self.base.y[self.probe], self.place[self.probe] >= 0
        supervised = -log_h.gather(-1, labels[:, None])[:, 0]
        values = self.factor[self.probe] * torch.where(hidden, self._pseudo(log_h, self.best(log_h)), supervised)
        right = (log_h.argmax(-1) == labels)[hidden]
        return {
            "test_accuracy": measured["test_accuracy"],
            "test_loss": measured["test_loss"],
            "train_loss": float(values.double().mean()),
            **({"pseudo_accuracy": float(right.double().mean())} if len(right) else {}),
        }

    def export(self, x: Tensor) -> dict[str, Tensor]:
        return self.base.export(x)

    def label_counts(self) -> np.ndarray | None:
        """Samples of each class at each client [N, C], hidden labels included."""
        return self.base.label_counts()


def semi(
    build: Callable[[], nn.Module],
    data: Dataset,
    parts: Sequence[np.ndarray],
    labelled: Sequence[np.ndarray],
    dtype: torch.dtype,
    device: torch.device,
    train_samples: int,
    /,
    alpha_p: Annotated[Positive, about("weight of the pseudo-labelled samples")] = 1.0,
    alpha_r: Annotated[NotNegative, about("weight of the entropies; 0 gives hard pseudo-labels")] = 0.1,
    y_steps: Annotated[Count, about("steps on the pseudo-labels in a round")] = 4,
    y_lr: Annotated[Positive, about("step size of these steps")] = 0.5,
    y_scale: Annotated[
        Literal["sample", "mean"], about("gradient of the pseudo-labels: that of a sample, or divided by m_i as in f_i")
    ] = "sample",
) -> SemiSupervised:
    """Semi-supervised classification with pseudo-labels that stay with their client (FedVRA-U's task)."""
    return SemiSupervised(
        build,
        data,
        parts,
        labelled,
        alpha_p=alpha_p,
        alpha_r=alpha_r,
        y_steps=y_steps,
        y_lr=y_lr,
        y_scale=y_scale,
        dtype=dtype,
        device=device,
        train_samples=train_samples,
    )
