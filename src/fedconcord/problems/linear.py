"""Linear models on real data: logistic and softmax regression, LASSO, ridge and least squares, sparse regression."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch

from fedconcord.basis.errors import UserError
from fedconcord.basis.parameters import Chance, NotNegative, Positive, about
from fedconcord.core import rng
from fedconcord.data.dataset import Dataset
from fedconcord.data.digits import digits
from fedconcord.models.dense import logreg
from fedconcord.problems.convex import Convex
from fedconcord.problems.regularised import Regularised
from fedconcord.problems.regularisers import Weight, l1
from fedconcord.problems.supervised import Supervised

L2 = Annotated[Positive, about("weight of l2/2 ||x||^2 in every f_i")]
Skew = Annotated[Chance, about("fraction of the samples dealt in order of the label, the rest at random")]
By = Annotated[Literal["client", "size"], about("what the objective is a mean over: clients, or samples (p_i by size)")]


def from_dataset(
    data: Dataset,
    parts: Sequence[np.ndarray],
    *,
    kind: Literal["softmax", "logistic"] = "softmax",
    l2: float = 0.0,
    objective: By = "client",
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Convex:
    """A classification data set, flattened, over clients that hold these train samples."""
    data = data.scaled()
    train, test = (x.reshape(len(x), int(np.prod(data.shape))) for x in (data.train_x, data.test_x))
    return Convex(
        kind,
        [train[part] for part in parts],
        [data.train_y[part] for part in parts],
        l2=l2,
        sizes=np.array([len(part) for part in parts], np.float64) if objective == "size" else None,
        test=(test, data.test_y) if len(data.test_y) else None,
        dtype=dtype,
        device=device,
    )


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
    data = digits(Path(), seed)
    parts = _deal(data.train_y, n_clients, skew, seed)
    return from_dataset(data, parts, l2=l2, objective=objective, dtype=dtype, device=device)


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
    parts = _deal(y, n_clients, skew, seed)
    return from_dataset(data, parts, kind="logistic", l2=l2, objective=objective, dtype=dtype, device=device)


def lasso_diabetes(
    seed: int, n_clients: int, dtype: torch.dtype, device: torch.device, /, lam: Weight = 0.05, skew: Skew = 0.8
) -> Regularised:
    """LASSO on scikit-learn's diabetes data: mean squared error / 2 + lam ||x||_1.

    442 patients, 10 standardised features and a constant, target standardised (Efron et al., Least Angle Regression,
    2004); a share `skew` of the patients is dealt in order of the target.
    """
    return Regularised(_diabetes(seed, n_clients, dtype, device, 0.0, skew), l1(lam))


def ridge_diabetes(
    seed: int,
    n_clients: int,
    dtype: torch.dtype,
    device: torch.device,
    /,
    l2: Annotated[NotNegative, about("weight of l2/2 ||x||^2 in every f_i; 0 is least squares")] = 0.01,
    skew: Skew = 0.8,
) -> Convex:
    """Ridge regression (l2 = 0: least squares) on scikit-learn's diabetes data, optimum known.

    Data as for `lasso_diabetes`.
    """
    return _diabetes(seed, n_clients, dtype, device, l2, skew)


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


def _diabetes(seed: int, n_clients: int, dtype: torch.dtype, device: torch.device, l2: float, skew: float) -> Convex:
    from sklearn.datasets import load_diabetes  # a second to import; nothing else here needs it

    bunch = load_diabetes(scaled=False)
    x = (bunch.data - bunch.data.mean(0)) / bunch.data.std(0)
    y = (bunch.target - bunch.target.mean()) / bunch.target.std()
    parts = _deal(y, n_clients, skew, seed)
    sizes = np.array([len(part) for part in parts], np.float64)
    clients = [x[part] for part in parts], [y[part] for part in parts]
    return Convex("squared", *clients, l2=l2, sizes=sizes, dtype=dtype, device=device)


def _deal(labels: np.ndarray, n_clients: int, skew: float, seed: int) -> list[np.ndarray]:
    """Sample indices of each client: a share `skew` in order of label, the rest at random; nearly equal sizes."""
    if not 1 <= n_clients <= len(labels):
        raise UserError(f"cannot deal {len(labels)} samples to {n_clients} clients; give 1 to {len(labels)} clients")
    order = rng.generator(seed, rng.Purpose.PARTITION).permutation(len(labels))
    cut = round(skew * len(labels))
    ranked = order[:cut][np.argsort(labels[order[:cut]], kind="stable")]
    dealt = np.concatenate([np.arange(cut) * n_clients // max(cut, 1), np.arange(len(labels) - cut)[::-1] % n_clients])
    return [np.sort(np.concatenate([ranked, order[cut:]])[dealt == i]) for i in range(n_clients)]
