"""Federated clustering as matrix factorisation with private cluster indicators.

The second task of FedVRA (Wang et al., AAAI 2023, section 4), which names it without an objective; this one is that of
Wang, Chang, Cui and Pang (IEEE TSP 2021) with indicators on the simplex. Client i's samples u_ij [q] are approximated
by W h_ij, the columns of W [q, k] being the shared centres and h_ij private, in the simplex of k clusters:

    f_i(W, H_i) = mean over j of  1/2 ||u_ij - W h_ij||^2 + rho/2 (1 - ||h_ij||^2)

The penalty is 0 at the simplex's vertices only. Between two centres at squared distance D, a sample belongs to one of
them where rho > D / 2, and f is the cost of k-means; above D it no longer leaves the one that it first fell to. With
rho = 0 samples mix centres.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedconcord.basis.errors import UserError
from fedconcord.basis.parameters import Count, NotNegative, Positive, about
from fedconcord.core import rng
from fedconcord.data.dataset import Dataset
from fedconcord.problems.regularisers import to_simplex
from fedconcord.problems.two_block import Stated


def clustering(
    data: Dataset,
    parts: Sequence[np.ndarray],
    dtype: torch.dtype,
    device: torch.device,
    /,
    k: Annotated[int, Field(ge=2, description="number of clusters")] = 10,
    rho: Annotated[NotNegative, about("penalty on samples that mix centres")] = 3.0,
    y_steps: Annotated[Count, about("steps on the indicators in a round")] = 10,
    y_lr: Annotated[Positive, about("step size of these steps")] = 0.1,
) -> Stated:
    """Federated clustering: k shared centres, indicators that stay with their client; labels serve the evaluation only.

    The centres start at Gaussian draws with the data's mean and standard deviation in every feature, keyed by the
    seed; indicators start at 1/k. Metrics: `loss`, the k-means cost (half the squared distance to the nearest centre,
    mean over the training samples), and `cluster_accuracy` and `test_cluster_accuracy`, the share of samples in the
    right class when clusters are matched to classes one to one as well as they can be.

    Raises:
        UserError: a client without samples or with NaN among them.
    """
    data = data.scaled()
    flat = data.train_x.reshape(len(data.train_x), -1)
    train = torch.as_tensor(flat[np.concatenate(parts)], dtype=dtype, device=device)  # [n, q]
    test = torch.as_tensor(data.test_x.reshape(len(data.test_x), -1), dtype=dtype, device=device)
    classes = data.train_y[np.concatenate(parts)]
    q = train.shape[1]

    def loss(x: Tensor, y: Tensor, u: Tensor, position: Tensor) -> Tensor:
        h = y[position]  # [B, k]
        residual = u - h @ x.reshape(q, k).T
        return 0.5 * residual.square().sum(-1) + 0.5 * rho * (1 - h.square().sum(-1))

    def start(seed: int) -> Tensor:
        draw = rng.generator(seed, rng.Purpose.INIT)
        mean, spread = train.mean(0).cpu().numpy(), train.std(0).cpu().numpy()
        centres = mean[:, None] + spread[:, None] * draw.standard_normal((q, k))
        return torch.as_tensor(centres.reshape(-1), dtype=dtype, device=device)

    def nearest(x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Squared distance [n] to the nearest centre, and which it is."""
        squared = torch.cdist(u, x.reshape(q, k).T).square()
        closest = squared.min(1)
        return closest.values, closest.indices

    def metrics(x: Tensor) -> dict[str, float]:
        squared, train_cluster = nearest(x, train)
        _, test_cluster = nearest(x, test)
        return {
            "loss": 0.5 * float(squared.double().mean()),
            "cluster_accuracy": matched(train_cluster.cpu().numpy(), classes, k, data.classes),
            "test_cluster_accuracy": matched(test_cluster.cpu().numpy(), data.test_y, k, data.classes),
        }

    clients = [(torch.as_tensor(flat[part], dtype=dtype, device=device),) for part in parts]
    if not clients:
        raise UserError("clustering needs at least one client")
    return Stated(
        loss,
        clients,
        start,
        torch.full((max(map(len, parts)), k), 1.0 / k, dtype=dtype, device=device),
        project=to_simplex,
        y_steps=y_steps,
        y_lr=y_lr,
        y_scale="sample",
        metrics=metrics,
    )


def matched(clusters: np.ndarray, labels: np.ndarray, k: int, classes: int) -> float:
    """The share of samples in the right class under the best one-to-one matching of clusters [n] to classes [n]."""
    # half a second to import, and nothing else here needs it
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]

    table = np.zeros((k, classes), np.int64)
    np.add.at(table, (clusters, labels), 1)
    rows, columns = linear_sum_assignment(-table)
    return float(table[rows, columns].sum() / len(labels))
