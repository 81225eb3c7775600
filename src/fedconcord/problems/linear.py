"""Sparse linear models on real data: LASSO, ridge and least squares, sparse multinomial logistic regression."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import torch

from fedconcord.basis.parameters import NotNegative, about
from fedconcord.data.digits import digits
from fedconcord.models.dense import logreg
from fedconcord.problems.convex import Convex, Skew, _deal
from fedconcord.problems.regularised import Regularised
from fedconcord.problems.regularisers import Weight, l1
from fedconcord.problems.supervised import Supervised


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
    held = np.array([len(part) for part in parts], np.float64)
    clients = [x[part] for part in parts], [y[part] for part in parts]
    return Convex("squared", *clients, l2=l2, sizes=held, dtype=dtype, device=device)
