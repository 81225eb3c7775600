"""Two-block problems: min over x and y_i in Y_i of sum_i p_i f_i(x, y_i), y_i private to client i.

Wang et al., AAAI 2023 (FedVRA), section 4. `Stated` makes one from a loss and a projection in plain Python, as
`clustering` does; `PrivateBlocks` is what every two-block problem here hands to the engines while a client takes its
steps on x.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Protocol

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.func import grad, vmap

from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.objectives.common import alone, hessian_of, vectorised
from fedconcord.method.contract import (
    Evaluator,
    Objective,
    Private,
    Problem,
    Regulariser,
    Roster,
    objective_of,
    rng,
    roster_of,
)
from fedconcord.method.contract.weights import to_simplex
from fedconcord.support.errors import UserError
from fedconcord.support.parameters import Count, NotNegative, Positive, about

Inputs = tuple[Tensor, ...]
"""What a loss needs of samples: tensors [B, ...]."""


class Sampled(Problem, Protocol):
    """A problem whose per-sample losses f_ij(x, y_i) are known as one function."""

    dim: int
    offsets: np.ndarray
    dtype: torch.dtype
    device: torch.device
    regulariser: Regulariser | None
    private: Tensor  # [...] y_i before a client's first round
    owner: Tensor  # [n] int64 client of every sample

    def inputs(self, samples: Tensor) -> Inputs:
        """What `losses` needs of samples [..., B]: tensors [..., B, *]."""
        ...

    def losses(self, x: Tensor, y: Tensor, inputs: Inputs) -> Tensor:
        """f_ij(x, y_i) [B] at x [d] and one client's y [...]; differentiable in both."""
        ...

    def private_step(self, x: Tensor, private: Tensor, ids: np.ndarray) -> Tensor:
        """The new y_i [S, ...] of these clients after their steps at x [d]."""
        ...

    def alone(self, place: int) -> Sampled:
        """One client's problem, with copies of its own samples alone."""
        ...


class PrivateBlocks:
    """The problem in x alone for some clients, their y_i held fixed. The samples of a row belong to one client.

    Args:
        parent: the problem.
        private: [S, ...] y_i of the clients `ids`, or [...] one value for all clients.
        ids: [S] distinct, in any order; None with one value.
    """

    def __init__(self, parent: Sampled, private: Tensor, ids: np.ndarray | None = None) -> None:
        self.parent, self.private = parent, private
        self.dim, self.offsets, self.dtype, self.device = parent.dim, parent.offsets, parent.dtype, parent.device
        self._order = None if ids is None else torch.as_tensor(ids, device=self.device).sort()

    def _blocks(self, samples: Tensor) -> Tensor:
        """y [S, ...] of the clients that own the rows of samples [S, B]."""
        if self._order is None:
            return self.private.expand(len(samples), *self.private.shape)
        owner = self.parent.owner[samples[:, 0]]
        return self.private[self._order.indices[torch.searchsorted(self._order.values, owner)]]

    def _loss(self, x: Tensor, y: Tensor, inputs: Inputs, weight: Tensor | None = None) -> Tensor:
        each = self.parent.losses(x, y, inputs)
        return each.mean() if weight is None else each @ weight

    def loss(self, x: Tensor, samples: Tensor) -> Tensor:
        return self._loss(x, self._blocks(samples[None])[0], self.parent.inputs(samples))

    def gradient(self, x: Tensor, samples: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            loss = self.loss(x, samples)
        return torch.autograd.grad(loss, x)[0]

    def gradients(self, x: Tensor, samples: Tensor, weight: Tensor | None) -> Tensor:
        if len(x) == 1 and weight is None:
            return self.gradient(x[0], samples[0])[None]
        arguments = x, self._blocks(samples), self.parent.inputs(samples)
        with vectorised(f"the model or loss of {type(self.parent).__name__}"):
            out: Tensor = vmap(grad(self._loss))(*arguments, *([] if weight is None else [weight]))
        return out

    def hessian(self, x: Tensor, samples: Tensor) -> Tensor:
        return hessian_of(lambda at: self.loss(at, samples), x)

    def init(self, seed: int) -> Tensor:
        return self.parent.init(seed)

    @property
    def objective(self) -> Objective:
        """Of all clients in x alone; `objective_in_both` has the steps on y too."""
        return objective_of(self, lambda place: self.parent.alone(place).objective, self.parent.regulariser)

    @property
    def roster(self) -> Roster:
        return self.parent.roster

    @property
    def evaluator(self) -> Evaluator:
        return self.parent.evaluator


def objective_in_both(problem: Sampled) -> Objective:
    """The objective of a two-block problem; in x it is that of the private blocks before a client's first round."""
    return replace(
        PrivateBlocks(problem, problem.private).objective,
        private=Private(
            problem.private, problem.private_step, lambda y, places: PrivateBlocks(problem, y, places).objective
        ),
    )


class Stated:
    """A two-block problem stated in Python: f_i(x, y_i) = mean over client i's samples of loss(x, y_i, sample).

    A client first takes `y_steps` projected gradient steps y <- project(y - y_lr * c * grad_y f_i(x, y)) at the
    server's x, on all its samples, then the method's local steps on x.

    Args:
        loss: (x [d], y [...], samples [B, ...] a tensor each, position [B]) -> [B], in differentiable torch operations
            that torch.func.vmap understands. `position` counts the client's samples from 0: y[position] is each
            sample's own part of y, where y has one.
        clients: for each client the tensors [n_i, ...] that `loss` gets, first dimension its samples.
        x0: [d] the start of every seed, or a function of the seed.
        y0: [...] y_i before a client's first round. Where y has a part for each sample, it is as long as the largest
            client's samples; what lies beyond a client's own never enters its loss.
        project: the projection of y [...] onto Y_i; every y if not given.
        y_scale: c is 1, or with "sample" the client's number of samples, so that the step on a sample's own part of y
            does not shrink with it.
        metrics: x -> what to report of a model; `loss` at y0 if not given.
        sizes: [N] what weights by size are proportional to; the numbers of samples if not given.
        regulariser: a non-smooth term of the objective, in x.

    Raises:
        UserError: a client without samples, with tensors of unequal length, or with NaN or infinite values.
    """

    def __init__(
        self,
        loss: Callable[..., Tensor],
        clients: Sequence[Inputs],
        x0: Tensor | Callable[[int], Tensor],
        y0: Tensor,
        *,
        project: Callable[[Tensor], Tensor] = lambda y: y,
        y_steps: int = 1,
        y_lr: float = 0.1,
        y_scale: str = "mean",
        metrics: Callable[[Tensor], dict[str, float]] | None = None,
        sizes: np.ndarray | None = None,
        regulariser: Regulariser | None = None,
    ) -> None:
        for i, tensors in enumerate(clients):
            lengths = {len(tensor) for tensor in tensors}
            if len(lengths) != 1 or 0 in lengths:
                raise UserError(
                    f"client {i} of {len(clients)} has tensors of {sorted(lengths)} samples; give every client at "
                    "least one sample and each of its tensors one row a sample"
                )
            for k, tensor in enumerate(tensors):
                if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                    raise UserError(f"client {i} has NaN or infinite values in tensor {k}; remove those samples")
        if y_scale not in ("mean", "sample"):
            raise UserError(f"y_scale must be 'mean' or 'sample', given {y_scale!r}")
        counts = np.array([len(tensors[0]) for tensors in clients], np.int64)
        self._start = x0
        first = self.init(0)
        self.dim, self.dtype, self.device = first.numel(), first.dtype, first.device
        self.offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self.sizes = counts.astype(np.float64) if sizes is None else np.asarray(sizes, np.float64)
        self.regulariser, self.private = regulariser, y0
        self.owner = torch.as_tensor(np.repeat(np.arange(len(counts)), counts), device=self.device)
        self._data = tuple(torch.cat([tensors[k] for tensors in clients]) for k in range(len(clients[0])))
        self._position = torch.as_tensor(np.concatenate([np.arange(n) for n in counts]), device=self.device)
        self._loss, self._project, self._metrics = loss, project, metrics
        self._y_steps, self._y_lr, self._per_sample = y_steps, y_lr, y_scale == "sample"

    @cached_property
    def objective(self) -> Objective:
        return objective_in_both(self)

    @cached_property
    def roster(self) -> Roster:
        return roster_of(self.offsets, self.sizes)

    @property
    def evaluator(self) -> Evaluator:
        return self

    def alone(self, place: int) -> Stated:
        client = alone(self, place, ("_position", "owner"))
        first, last = self.offsets[place : place + 2].tolist()
        client._data = tuple(tensor[first:last].clone() for tensor in self._data)
        client.owner = torch.zeros_like(client.owner)
        client._metrics, client._start = None, torch.zeros_like(self.init(0))  # may be closures over all data
        return client

    def init(self, seed: int) -> Tensor:
        return self._start(seed) if callable(self._start) else self._start.clone()

    def inputs(self, samples: Tensor) -> Inputs:
        return (*(tensor[samples] for tensor in self._data), self._position[samples])

    def losses(self, x: Tensor, y: Tensor, inputs: Inputs) -> Tensor:
        return self._loss(x, y, *inputs)

    def private_step(self, x: Tensor, private: Tensor, ids: np.ndarray) -> Tensor:
        return torch.stack([self._steps(x, y, int(i)) for y, i in zip(private, ids, strict=True)])

    def _steps(self, x: Tensor, y: Tensor, client: int) -> Tensor:
        samples = torch.arange(self.offsets[client], self.offsets[client + 1], device=self.device)
        inputs, lr = self.inputs(samples), self._y_lr * (len(samples) if self._per_sample else 1)
        x = x.detach()
        for _ in range(self._y_steps):
            y = y.detach().requires_grad_()
            with torch.enable_grad():
                loss = self.losses(x, y, inputs).mean()
            y = self._project(y.detach() - lr * torch.autograd.grad(loss, y)[0])
        return y.detach()

    def evaluate(self, x: Tensor) -> dict[str, float]:
        if self._metrics is not None:
            return self._metrics(x)
        with torch.no_grad():
            values = [
                self.objective.loss(x, torch.arange(a, b, device=self.device))
                for a, b in zip(self.offsets[:-1], self.offsets[1:], strict=True)
            ]
        return {"loss": float(np.average([float(v) for v in values], weights=self.sizes))}

    def export(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": x}


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

    Matrix factorisation with private cluster indicators, the second task of FedVRA, which names it without an
    objective; this one is that of Wang, Chang, Cui and Pang (IEEE TSP 2021) with indicators on the simplex. Client i's
    samples u_ij [q] are approximated by W h_ij, the columns of W [q, k] being the shared centres and h_ij private, in
    the simplex of k clusters:

        f_i(W, H_i) = mean over j of  1/2 ||u_ij - W h_ij||^2 + rho/2 (1 - ||h_ij||^2)

    The penalty is 0 at the simplex's vertices only. Between two centres at squared distance D, a sample belongs to one
    of them where rho > D / 2, and f is the cost of k-means; above D it no longer leaves the one that it first fell to.
    With rho = 0 samples mix centres.

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
    first = torch.full((max(map(len, parts)), k), 1.0 / k, dtype=dtype, device=device)
    return Stated(
        loss, clients, start, first, project=to_simplex, y_steps=y_steps, y_lr=y_lr, y_scale="sample", metrics=metrics
    )


def matched(clusters: np.ndarray, labels: np.ndarray, k: int, classes: int) -> float:
    """The share of samples in the right class under the best one-to-one matching of clusters [n] to classes [n]."""
    # half a second to import, and nothing else here needs it
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]

    table = np.zeros((k, classes), np.int64)
    np.add.at(table, (clusters, labels), 1)
    rows, columns = linear_sum_assignment(-table)
    return float(table[rows, columns].sum() / len(labels))
