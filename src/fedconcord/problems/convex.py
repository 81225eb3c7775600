"""Regularised linear models on real data: smooth convex clients whose optimum is known to rounding.

f_i(x) = mean over its samples of loss(W a + b, y) + l2/2 ||x||^2 with x = (W, b) flat. The l2 term belongs to the
objective: every gradient, the reference optimum and the reported loss have it. (The local solver's `weight_decay` is
another thing: it changes the local step alone, and no metric knows it.)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedconcord.basis.errors import UserError
from fedconcord.core import Evaluator, Objective, Roster, objective_of, roster_of
from fedconcord.problems.alone import alone
from fedconcord.problems.optimum import Optimum, optimum

Kind = Literal["softmax", "logistic", "squared"]


class Convex:
    """Linear clients: multinomial logistic regression, logistic regression, least squares.

    Args:
        kind: the loss: `softmax`, cross-entropy of C scores; `logistic`, log(1 + exp(-y z)) with labels 0 and 1;
            `squared`, (z - y)^2 / 2.
        features: for each client its samples' features [n_i, q].
        targets: for each client its samples' labels (integers) or, for `squared`, numbers [n_i].
        l2: weight of the quadratic term, intercept included.
        sizes: [N] what weights by size, and with them the objective, are proportional to; equal if not given.
        test: features [m, q] and labels [m] for `test_accuracy`.

    Raises:
        UserError: a client without samples, a feature or target that is not finite, or labels outside the range.
    """

    def __init__(
        self,
        kind: Kind,
        features: Sequence[np.ndarray],
        targets: Sequence[np.ndarray],
        *,
        l2: float = 0.0,
        sizes: np.ndarray | None = None,
        test: tuple[np.ndarray, np.ndarray] | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        for i, (a, t) in enumerate(zip(features, targets, strict=True)):
            if len(t) == 0:
                raise UserError(f"client {i} of {len(targets)} has no samples; use fewer clients or another partition")
            if not (np.isfinite(a).all() and np.isfinite(t).all()):
                raise UserError(f"client {i} of {len(targets)} has features or targets that are not finite; clean them")
            if kind != "squared" and (t.min() < 0 or (kind == "logistic" and t.max() > 1)):
                raise UserError(f"client {i} has labels from {t.min()} to {t.max()}; number the classes from 0")
        self.kind, self.l2 = kind, l2
        self.dtype, self.device = dtype, torch.device(device)
        counts = np.array([len(t) for t in targets], np.int64)
        self.offsets = np.concatenate([[0], np.cumsum(counts)])
        self.sizes = np.ones(len(counts)) if sizes is None else np.asarray(sizes, np.float64)
        self.a, self.y = self._inputs(np.concatenate(features)), self._targets(np.concatenate(targets))
        self.test = None if test is None else (self._inputs(test[0]), self._targets(test[1]))
        self.outputs = 1 if kind != "softmax" else 1 + int(max(t.max() for t in targets))
        self.dim = self.outputs * self.a.shape[1]
        self._optimum: Optimum | None = None

    def _inputs(self, features: np.ndarray) -> Tensor:
        """[n, q] -> [n, q + 1] with the constant of the intercept."""
        return F.pad(torch.as_tensor(features, dtype=self.dtype, device=self.device), (0, 1), value=1.0)

    def _targets(self, targets: np.ndarray) -> Tensor:
        kind = torch.int64 if self.kind == "softmax" else self.dtype
        return torch.as_tensor(targets, dtype=kind, device=self.device)

    @property
    def optimum(self) -> Optimum:
        """The minimiser of sum_i p_i f_i with p by `sizes`, found once, in float64.

        Raises:
            UserError: there is none (without l2, classes that a linear model separates).
        """
        if self._optimum is None:
            exact = self
            if self.dtype != torch.float64:
                exact = object.__new__(Convex)
                exact.__dict__ |= {k: v for k, v in self.__dict__.items() if k not in ("objective", "roster")}
                exact.__dict__ |= {"dtype": torch.float64, "a": self.a.double()}
                exact.y = self.y if self.kind == "softmax" else self.y.double()
            self._optimum = optimum(exact)
        return self._optimum

    @cached_property
    def objective(self) -> Objective:
        return objective_of(self, lambda place: alone(self, place, ("a", "y")).objective)

    @cached_property
    def roster(self) -> Roster:
        return roster_of(self.offsets, self.sizes)._replace(label_counts=self.label_counts)

    @property
    def evaluator(self) -> Evaluator:
        return self

    def init(self, seed: int) -> Tensor:
        """Zero, for every seed."""
        return torch.zeros(self.dim, dtype=self.dtype, device=self.device)

    def scores(self, x: Tensor, a: Tensor) -> Tensor:
        """W a + b: x [..., d], a [..., B, q + 1] -> [..., B, outputs]."""
        return a @ x.reshape(*x.shape[:-1], self.outputs, -1).mT

    def _values(self, z: Tensor, y: Tensor) -> Tensor:
        """Loss of every sample: scores [..., C], targets [...] -> [...]."""
        if self.kind == "softmax":
            return z.logsumexp(-1) - z.gather(-1, y[..., None])[..., 0]
        z = z[..., 0]
        return F.softplus(z) - y * z if self.kind == "logistic" else 0.5 * (z - y).square()

    def _slopes(self, z: Tensor, y: Tensor) -> Tensor:
        """d loss / d scores: [..., C]."""
        if self.kind == "softmax":
            slope = torch.softmax(z, -1)
            return slope.scatter_add(-1, y[..., None], torch.full_like(slope[..., :1], -1.0))
        return (torch.sigmoid(z) if self.kind == "logistic" else z) - y[..., None]

    def loss(self, x: Tensor, samples: Tensor) -> Tensor:
        fit = self._values(self.scores(x, self.a[samples]), self.y[samples]).mean()
        return fit + 0.5 * self.l2 * x.square().sum()

    def gradient(self, x: Tensor, samples: Tensor) -> Tensor:
        return self.gradients(x[None], samples[None], None)[0]

    def gradients(self, x: Tensor, samples: Tensor, weight: Tensor | None) -> Tensor:
        a, y = self.a[samples], self.y[samples]
        slope = self._slopes(self.scores(x, a), y)
        slope = slope / samples.shape[1] if weight is None else slope * weight[..., None]
        g: Tensor = (slope.mT @ a).flatten(1)
        return g.add(x, alpha=self.l2) if self.l2 else g

    def hessian(self, x: Tensor, samples: Tensor) -> Tensor:
        a, z = self.a[samples], self.scores(x, self.a[samples])
        if self.kind == "softmax":
            s = torch.softmax(z, -1)
            inner = torch.diag_embed(s) - s[:, :, None] * s[:, None, :]
        elif self.kind == "logistic":
            s = torch.sigmoid(z)
            inner = (s * (1 - s))[..., None]
        else:
            inner = torch.ones_like(z)[..., None]
        q = a.shape[1]
        blocks = torch.empty(self.outputs, q, self.outputs, q, dtype=self.dtype, device=self.device)
        for c in range(self.outputs):
            for e in range(c + 1):
                blocks[c, :, e] = a.T @ (inner[:, c, e, None] * a)
                blocks[e, :, c] = blocks[c, :, e]  # each block is symmetric
        square = blocks.reshape(self.dim, self.dim) / len(samples)
        square.diagonal().add_(self.l2)
        return square

    @torch.no_grad()
    def evaluate(self, x: Tensor) -> dict[str, float]:
        """`loss`: F = sum_i p_i f_i, p by `sizes`; `gap`: F - F*, 0 below rounding; `distance`: ||x - x*||.

        And `test_accuracy` in [0, 1] where there are test samples.
        """
        best = self.optimum
        p = np.repeat(self.sizes / self.sizes.sum() / np.diff(self.offsets), np.diff(self.offsets))
        at = x.double()
        values = self._values(self.scores(at, self.a.double()), self.y if self.kind == "softmax" else self.y.double())
        weight = torch.as_tensor(p, device=self.device)
        loss = float(weight @ values + 0.5 * self.l2 * at.square().sum())
        gap = loss - best.value
        figures = {
            "loss": loss,
            "gap": max(gap, 0.0) if np.isfinite(gap) else gap,
            "distance": float((at - best.x).norm()),
        }
        if self.test is not None and self.kind != "squared":
            z = self.scores(x, self.test[0])
            guess = z.argmax(-1) if self.kind == "softmax" else (z[:, 0] > 0).to(self.dtype)
            figures["test_accuracy"] = float((guess == self.test[1]).double().mean())
        return figures

    def export(self, x: Tensor) -> dict[str, Tensor]:
        W = x.reshape(self.outputs, -1)
        return {"weight": W[:, :-1], "bias": W[:, -1]}

    def label_counts(self) -> np.ndarray | None:
        if self.kind == "squared":
            return None
        owner = np.repeat(np.arange(len(self.sizes)), np.diff(self.offsets))
        counts = np.zeros((len(self.sizes), max(self.outputs, 2)), np.int64)
        np.add.at(counts, (owner, self.y.cpu().numpy().astype(np.int64)), 1)
        return counts
