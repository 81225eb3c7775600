"""Server optimisers and the wrapper that gives one to a method.

Adaptive ones: Reddi et al., ICLR 2021 (FedOpt), Algorithm 2: m_0 = 0, v_0 = tau^2, no bias correction,
x <- x + lr m / (sqrt(v) + tau), where Delta is the method's own step x^{t+1} - x^t.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fedconcord.core import Algorithm, Cohort, Tree
from fedconcord.errors import UserError
from fedconcord.identity import UNNAMED, Identity, definition
from fedconcord.transforms.lift import lift_server

LR = Annotated[float, Field(gt=0, description="server step size")]
Beta1 = Annotated[float, Field(ge=0, lt=1, description="decay of the first moment")]
Beta2 = Annotated[float, Field(ge=0, lt=1, description="decay of the second moment")]
Tau = Annotated[float, Field(gt=0, description="adaptivity: added to the root, and its square starts the moment")]


class Optimizer(NamedTuple):
    """`init(x) -> state` and `step(state, delta) -> (move, state)`, vectors [d]."""

    init: Callable[[Tensor], Tree]
    step: Callable[[Tree, Tensor], tuple[Tensor, Tree]]
    identity: Identity = UNNAMED


class Moments(NamedTuple):
    m: Tensor  # [d]
    v: Tensor  # [d]


@definition()
def sgd(lr: LR = 1.0) -> Optimizer:
    """The method's step, scaled."""
    return Optimizer(lambda x: (), lambda state, delta: (lr * delta, state))


@definition()
def momentum(beta: Annotated[float, Field(ge=0, lt=1, description="momentum")] = 0.9, lr: LR = 1.0) -> Optimizer:
    """Heavy ball on the method's steps: b <- beta b + Delta, x <- x + lr b (FedAvgM; FedNova's server momentum)."""

    def step(buffer: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        buffer = beta * buffer + delta
        return lr * buffer, buffer

    return Optimizer(torch.zeros_like, step)


def _adaptive(second: Callable[[Tensor, Tensor], Tensor], lr: float, beta1: float, tau: float) -> Optimizer:
    def step(state: Moments, delta: Tensor) -> tuple[Tensor, Moments]:
        state = Moments(beta1 * state.m + (1 - beta1) * delta, second(state.v, delta.square()))
        return lr * state.m / (state.v.sqrt() + tau), state

    return Optimizer(lambda x: Moments(torch.zeros_like(x), torch.full_like(x, tau**2)), step)


@definition()
def adam(lr: LR = 0.1, beta1: Beta1 = 0.9, beta2: Beta2 = 0.99, tau: Tau = 1e-3) -> Optimizer:
    """FedAdam's server step."""
    return _adaptive(lambda v, square: beta2 * v + (1 - beta2) * square, lr, beta1, tau)


@definition()
def yogi(lr: LR = 0.1, beta1: Beta1 = 0.9, beta2: Beta2 = 0.99, tau: Tau = 1e-3) -> Optimizer:
    """FedYogi's server step."""
    return _adaptive(lambda v, square: v - (1 - beta2) * square * torch.sign(v - square), lr, beta1, tau)


@definition()
def adagrad(lr: LR = 0.1, beta1: Beta1 = 0.9, tau: Tau = 1e-3) -> Optimizer:
    """FedAdagrad's server step."""
    return _adaptive(lambda v, square: v + square, lr, beta1, tau)


class Served(NamedTuple):
    """A method's server state beside its optimiser's."""

    inner: Any  # the method's own state
    optimizer: Any  # the optimiser's state

    @property
    def x(self) -> Tensor:
        """The model that rounds start from [d]."""
        x: Tensor = self.inner.x
        return x


@definition()
def with_server(algorithm: Algorithm, optimizer: Optimizer) -> Algorithm:
    """The same method with its server step passed through an optimiser.

    Only x is moved: running sums such as SCAFFOLD's c are the method's own. A method whose server state holds earlier
    models (A-FedPD, FedDyn's mean) keeps them as it made them.

    Raises:
        UserError: the method has a server optimiser already.
    """

    if algorithm.served:
        raise UserError("the method has a server optimiser of its own; set that one's options, or leave `server` out")

    lifted = lift_server(algorithm, lambda inner, x: Served(inner, optimizer.init(x)))

    def update(server: Served, total: Tree, cohort: Cohort) -> Served:
        after = algorithm.update(server.inner, total, cohort)
        move, state = optimizer.step(server.optimizer, after.x - server.x)
        return Served(after._replace(x=server.x + move), state)

    return replace(lifted, served=True, update=update)
