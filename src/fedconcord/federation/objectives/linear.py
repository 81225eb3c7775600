"""Linear models on real data: logistic and softmax regression, LASSO, ridge and least squares, sparse regression.

`Convex` are smooth convex clients whose optimum is known to rounding: f_i(x) = mean over its samples of
loss(W a + b, y) + l2/2 ||x||^2 with x = (W, b) flat. The l2 term belongs to the objective: every gradient, the
reference optimum and the reported loss have it. (The local solver's `weight_decay` is another thing: it changes the
local step alone, and no metric knows it.)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.data.offline import digits
from fedconcord.federation.models import logreg
from fedconcord.federation.objectives.common import alone
from fedconcord.federation.objectives.optimum import Optimum, optimum
from fedconcord.federation.objectives.regularisers import Regularised, Weight, l1
from fedconcord.federation.objectives.supervised import Supervised
from fedconcord.method.contract import Evaluator, Objective, Roster, objective_of, rng, roster_of
from fedconcord.support.errors import UserError
from fedconcord.support.parameters import Chance, NotNegative, Positive, about

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

    def _inputs(self, features: np.ndarray) -> Tensor:
        """[n, q] -> [n, q + 1] with the constant of the intercept."""
        return F.pad(torch.as_tensor(features, dtype=self.dtype, device=self.device), (0, 1), value=1.0)

    def _targets(self, targets: np.ndarray) -> Tensor:
        kind = torch.int64 if self.kind == "softmax" else self.dtype
        return torch.as_tensor(targets, dtype=kind, device=self.device)

    @cached_property
    def optimum(self) -> Optimum:
        """The minimiser of sum_i p_i f_i with p by `sizes`, found once, in float64.

        Raises:
            UserError: there is none (without l2, classes that a linear model separates).
        """
        exact = self
        if self.dtype != torch.float64:
            exact = object.__new__(Convex)
            exact.__dict__ |= {k: v for k, v in self.__dict__.items() if k not in ("objective", "roster")}
            exact.__dict__ |= {"dtype": torch.float64, "a": self.a.double()}
            exact.y = self.y if self.kind == "softmax" else self.y.double()
        return optimum(exact)

    @cached_property
    def objective(self) -> Objective:
        return objective_of(self, lambda place: alone(self, place, ("a", "y")).objective)

    @cached_property
    def roster(self) -> Roster:
        return roster_of(self.offsets, self.sizes, self.label_counts)

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
        gap, distance = loss - best.value, float((at - best.x).norm())
        figures = {"loss": loss, "gap": max(gap, 0.0) if np.isfinite(gap) else gap, "distance": distance}
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


L2 = Annotated[Positive, about("weight of l2/2 ||x||^2 in every f_i")]
Skew = Annotated[Chance, about("fraction of the samples dealt in order of the label, the rest at random")]
By = Annotated[Literal["client", "size"], about("what the objective is a mean over: clients, or samples (p_i by size)")]
Ridge = Annotated[NotNegative, about("weight of l2/2 ||x||^2 in every f_i; 0 is least squares")]


def _dealt(
    kind: Kind,
    data: Dataset,
    n_clients: int,
    skew: float,
    seed: int,
    l2: float,
    objective: By,
    dtype: torch.dtype,
    device: torch.device,
) -> Convex:
    """A data set, flattened and dealt to the clients."""
    data = data.scaled()
    train, test = (x.reshape(len(x), int(np.prod(data.shape))) for x in (data.train_x, data.test_x))
    parts = _deal(data.train_y, n_clients, skew, seed)
    samples = [train[part] for part in parts], [data.train_y[part] for part in parts]
    sizes = np.array([len(part) for part in parts], np.float64) if objective == "size" else None
    tested = (test, data.test_y) if len(data.test_y) else None
    return Convex(kind, *samples, l2=l2, sizes=sizes, test=tested, dtype=dtype, device=device)


def softmax_digits(
    seed: int,
    n_clients: int,
    dtype: torch.dtype,
    device: torch.device,
    /,
    l2: L2 = 0.01,
    skew: Skew = 0.8,
    objective: By = "client",
) -> Convex:
    """Multinomial logistic regression on scikit-learn's digits, l2 regularised, optimum known.

    1,437 training and 360 test images, 8 x 8, 10 classes; d = 650.
    """
    return _dealt("softmax", digits(Path(), seed), n_clients, skew, seed, l2, objective, dtype, device)


def logistic_cancer(
    seed: int,
    n_clients: int,
    dtype: torch.dtype,
    device: torch.device,
    /,
    l2: L2 = 0.01,
    skew: Skew = 0.8,
    objective: By = "client",
) -> Convex:
    """Logistic regression on scikit-learn's breast cancer data, l2 regularised, optimum known.

    569 samples (UCI, Wolberg et al. 1995), 30 standardised features, malignant or benign; d = 31, no test set.
    """
    from sklearn.datasets import load_breast_cancer  # a second to import; nothing else here needs it

    bunch = load_breast_cancer()
    x, y = (bunch.data - bunch.data.mean(0)) / bunch.data.std(0), bunch.target.astype(np.int64)
    data = Dataset("cancer", x, y, x[:0], y[:0], 2)
    return _dealt("logistic", data, n_clients, skew, seed, l2, objective, dtype, device)


def lasso_diabetes(
    seed: int, n_clients: int, dtype: torch.dtype, device: torch.device, /, lam: Weight = 0.05, skew: Skew = 0.8
) -> Regularised:
    """LASSO on scikit-learn's diabetes data: mean squared error / 2 + lam ||x||_1.

    442 patients, 10 standardised features and a constant, target standardised (Efron et al., Least Angle Regression,
    2004); a share `skew` of the patients is dealt in order of the target.
    """
    return Regularised(ridge_diabetes(seed, n_clients, dtype, device, 0.0, skew), l1(lam))


def ridge_diabetes(
    seed: int, n_clients: int, dtype: torch.dtype, device: torch.device, /, l2: Ridge = 0.01, skew: Skew = 0.8
) -> Convex:
    """Ridge regression (l2 = 0: least squares) on scikit-learn's diabetes data, optimum known.

    Data as for `lasso_diabetes`.
    """
    from sklearn.datasets import load_diabetes  # a second to import; nothing else here needs it

    bunch = load_diabetes(scaled=False)
    x = (bunch.data - bunch.data.mean(0)) / bunch.data.std(0)
    y = (bunch.target - bunch.target.mean()) / bunch.target.std()
    data = Dataset("diabetes", x, y, x[:0], y[:0], 1)
    return _dealt("squared", data, n_clients, skew, seed, l2, "size", dtype, device)


def sparse_digits(
    seed: int, n_clients: int, dtype: torch.dtype, device: torch.device, /, lam: Weight = 0.003, skew: Skew = 0.8
) -> Regularised:
    """Multinomial logistic regression with an l1 term on scikit-learn's digits.

    1,437 training and 360 test images, 8 x 8, 10 classes; d = 650, start at the layer's default initialisation.
    """
    data = digits(Path(), seed)
    parts = _deal(data.train_y, n_clients, skew, seed)
    smooth = Supervised(lambda: logreg(data.shape, data.classes), data, parts, dtype=dtype, device=device)
    return Regularised(smooth, l1(lam))


def _deal(labels: np.ndarray, n_clients: int, skew: float, seed: int) -> list[np.ndarray]:
    """Sample indices of each client: a share `skew` in order of label, the rest at random; nearly equal sizes."""
    if not 1 <= n_clients <= len(labels):
        raise UserError(f"cannot deal {len(labels)} samples to {n_clients} clients; give 1 to {len(labels)} clients")
    order = rng.generator(seed, rng.Purpose.PARTITION).permutation(len(labels))
    cut = round(skew * len(labels))
    ranked = order[:cut][np.argsort(labels[order[:cut]], kind="stable")]
    dealt = np.concatenate([np.arange(cut) * n_clients // max(cut, 1), np.arange(len(labels) - cut)[::-1] % n_clients])
    return [np.sort(np.concatenate([ranked, order[cut:]])[dealt == i]) for i in range(n_clients)]
