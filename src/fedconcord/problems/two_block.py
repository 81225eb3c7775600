"""Two-block problems: min over x and y_i in Y_i of sum_i p_i f_i(x, y_i), y_i private to client i.

Wang et al., AAAI 2023 (FedVRA), section 4. `Stated` makes one from a loss and a projection in plain Python;
`PrivateBlocks` is what every two-block problem here hands to the engines while a client takes its steps on x.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap

from fedconcord.basis.errors import UserError
from fedconcord.core import Evaluator, Objective, Private, Problem, Regulariser, Roster, objective_of, roster_of
from fedconcord.problems.alone import alone
from fedconcord.problems.vectorised import hessian_of, vectorised

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
        if ids is not None:
            ordered, slots = torch.as_tensor(ids, device=self.device).sort()
            self._ids, self._slots = ordered, slots
        self._shared = ids is None

    def _blocks(self, samples: Tensor) -> Tensor:
        """y [S, ...] of the clients that own the rows of samples [S, B]."""
        if self._shared:
            return self.private.expand(len(samples), *self.private.shape)
        owner = self.parent.owner[samples[:, 0]]
        return self.private[self._slots[torch.searchsorted(self._ids, owner)]]

    def _total(self, x: Tensor, y: Tensor, weight: Tensor, *inputs: Tensor) -> Tensor:
        return self.parent.losses(x, y, inputs) @ weight

    def _mean(self, x: Tensor, y: Tensor, *inputs: Tensor) -> Tensor:
        return self.parent.losses(x, y, inputs).mean()

    def loss(self, x: Tensor, samples: Tensor) -> Tensor:
        return self._mean(x, self._blocks(samples[None])[0], *self.parent.inputs(samples))

    def gradient(self, x: Tensor, samples: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            loss = self.loss(x, samples)
        return torch.autograd.grad(loss, x)[0]

    def gradients(self, x: Tensor, samples: Tensor, weight: Tensor | None) -> Tensor:
        if len(x) == 1 and weight is None:
            return self.gradient(x[0], samples[0])[None]
        blocks, inputs = self._blocks(samples), self.parent.inputs(samples)
        with vectorised(f"the model or loss of {type(self.parent).__name__}"):
            if weight is None:
                out: Tensor = vmap(grad(self._mean))(x, blocks, *inputs)
            else:
                out = vmap(grad(self._total))(x, blocks, weight, *inputs)
        return out

    def hessian(self, x: Tensor, samples: Tensor) -> Tensor:
        return hessian_of(lambda at: self.loss(at, samples), x)

    def init(self, seed: int) -> Tensor:
        return self.parent.init(seed)

    @property
    def objective(self) -> Objective:
        """Of all clients in x alone; `objective_in_both` has the steps on y too."""
        return replace(
            objective_of(self, lambda place: self.parent.alone(place).objective), regulariser=self.parent.regulariser
        )

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
