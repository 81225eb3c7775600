"""Server optimisers and the wrapper that gives one to a method.

Adaptive ones: Reddi et al., ICLR 2021 (FedOpt), Algorithm 2: m_0 = 0, v_0 = tau^2, no bias correction,
x <- x + lr m / (sqrt(v) + tau), where Delta is the method's own step x^{t+1} - x^t. Options for what other code does:
FL-Simulator's Adam has v_0 = 0; optax (FedJAX), whose eps is tau, has v_0 = 0 and the bias correction
m / (1 - beta1^t), v / (1 - beta2^t) in adam, the correction, v_0 = 1e-6 and m_0 = -1e-6 in yogi, and in adagrad
beta1 = 0, v_0 = 0.1, tau = 0 and its eps inside the root: eps_root.

Extrapolation: Jhunjhunwala, Wang, Joshi, ICLR 2023 (FedExP), Algorithm 1, on any method, as SCAFFOLD-ExP there:
x <- x + max(1, mean ||Delta_i||^2 / (2 (||Delta||^2 + eps))) Delta, where Delta_i are the moves of the cohort, and the
answer is the mean of the last two x. The mean has the weights of the method's own step (released code: by size). Each
client sends one number more, ||Delta_i||^2. Deviations from the released code: eps is the paper's, where the code has
eps times the cohort, shrunk with the squared local step size; after one round the code's answer is x^1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedconcord.method.contract import Algorithm, Client, Cohort, Done, Sender, Tree, model_of
from fedconcord.method.contract.identity import UNNAMED, Identity, definition
from fedconcord.method.wrappers.lift import lift, moved
from fedconcord.support.errors import UserError
from fedconcord.support.factories import Search, by_name
from fedconcord.support.parameters import BelowOne, NotNegative, Positive, about

LR = Annotated[Positive, about("server step size"), Search(0.01, 2.0)]
Beta1 = Annotated[BelowOne, about("decay of the first moment")]
Beta2 = Annotated[BelowOne, about("decay of the second moment")]
Tau = Annotated[NotNegative, about("adaptivity: added to the root")]
V0 = Annotated[NotNegative | None, about("second moment at the start; if none, the square of tau")]
M0 = Annotated[float, about("first moment at the start")]
EpsRoot = Annotated[NotNegative, about("added inside the root")]
Correction = Annotated[bool, about("whether to divide the moments by 1 - beta^t")]
Eps = Annotated[Positive, about("added to the squared length of the mean move"), Search(1e-3, 0.1)]
Units = Literal["moves", "gradients"]


class Optimizer(NamedTuple):
    """`init(x) -> state` and `step(state, delta) -> (move, state)`, vectors [d]."""

    init: Callable[[Tensor], Tree]
    step: Callable[[Tree, Tensor], tuple[Tensor, Tree]]
    units: Units = "moves"  # of delta and move; gradients: both over the round's local step size
    stretch: Callable[[Tensor, Tensor], Tensor] | None = None
    """(delta [d], mean over clients of ||x_i - x||^2 []) -> [], what delta is multiplied by before the step."""
    answer: Callable[[Tree, Tensor], Tensor] | None = None  # (state, x) -> [d] the answer; None: x
    identity: Identity = UNNAMED


class Moments(NamedTuple):
    m: Tensor  # [d]
    v: Tensor  # [d]
    t: Tensor | tuple[()] = ()  # [] steps so far, where bias correction counts them


@definition()
def sgd(lr: LR = 1.0) -> Optimizer:
    """The method's step, scaled."""
    return Optimizer(lambda x: (), lambda state, delta: (lr * delta, state))


@definition()
def momentum(
    beta: Annotated[BelowOne, about("momentum"), Search(0.0, 0.95, "linear")] = 0.9,
    lr: LR = 1.0,
    units: Annotated[
        Units,
        about(
            "unit of the momentum buffer: moves, or gradients, as in FedNova's code; the two differ when "
            "the local step size decays"
        ),
    ] = "moves",
) -> Optimizer:
    """Heavy ball on the method's steps: b <- beta b + Delta, x <- x + lr b (FedAvgM; FedNova's server momentum).

    In gradients, as FedNova's released code: b <- beta b + Delta / eta_t, x <- x + lr eta_t b.
    """

    def step(buffer: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        buffer = beta * buffer + delta
        return lr * buffer, buffer

    return Optimizer(torch.zeros_like, step, units)


@definition()
def nesterov(
    beta: Annotated[BelowOne, about("momentum"), Search(0.0, 0.95, "linear")] = 0.9, lr: LR = 0.7
) -> Optimizer:
    """Nesterov's momentum on the method's steps: b <- beta b + Delta, x <- x + lr (Delta + beta b).

    torch.optim.SGD's form; DiLoCo's outer optimiser (Douillard et al. 2023), with its step size 0.7. One above 1 is
    allowed; a step is lr / (1 - beta) times Delta in the long run.
    """

    def step(buffer: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        buffer = beta * buffer + delta
        return lr * (delta + beta * buffer), buffer

    return Optimizer(torch.zeros_like, step)


def _adaptive(
    second: Callable[[Tensor, Tensor], Tensor],
    *,
    lr: float,
    beta1: float,
    tau: float,
    v0: float | None,
    eps_root: float,
    corrected: float | None = None,
    m0: float = 0.0,
) -> Optimizer:
    """An optimiser by its rule for the second moment, from it and the squared step; `corrected`: beta2, for the bias.

    Raises:
        UserError: nothing keeps the denominator from 0.
    """
    if tau == 0 and eps_root == 0:
        raise UserError("tau 0 and eps_root 0 let the server divide by 0; give one of them > 0")

    def init(x: Tensor) -> Moments:
        v = torch.full_like(x, tau**2 if v0 is None else v0)
        return Moments(torch.full_like(x, m0), v, () if corrected is None else x.new_zeros(()))

    def step(state: Moments, delta: Tensor) -> tuple[Tensor, Moments]:
        m = beta1 * state.m + (1 - beta1) * delta
        v = second(state.v, delta.square())
        if corrected is None:
            return lr * m / ((v + eps_root).sqrt() + tau), Moments(m, v)
        t = state.t + 1  # type: ignore[operator]
        unbiased = v / (1 - corrected**t)
        return lr * m / (1 - beta1**t) / ((unbiased + eps_root).sqrt() + tau), Moments(m, v, t)

    return Optimizer(init, step)


@definition()
def adam(
    lr: LR = 0.1,
    beta1: Beta1 = 0.9,
    beta2: Beta2 = 0.99,
    tau: Tau = 1e-3,
    v0: V0 = None,
    bias_correction: Correction = False,
    eps_root: EpsRoot = 0.0,
) -> Optimizer:
    """FedAdam's server step."""
    corrected = beta2 if bias_correction else None
    return _adaptive(
        lambda v, square: beta2 * v + (1 - beta2) * square,
        lr=lr,
        beta1=beta1,
        tau=tau,
        v0=v0,
        eps_root=eps_root,
        corrected=corrected,
    )


@definition()
def yogi(
    lr: LR = 0.1,
    beta1: Beta1 = 0.9,
    beta2: Beta2 = 0.99,
    tau: Tau = 1e-3,
    v0: V0 = None,
    bias_correction: Correction = False,
    eps_root: EpsRoot = 0.0,
    m0: M0 = 0.0,
) -> Optimizer:
    """FedYogi's server step."""
    corrected = beta2 if bias_correction else None

    def second(v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - beta2) * square * torch.sign(v - square)

    return _adaptive(second, lr=lr, beta1=beta1, tau=tau, v0=v0, eps_root=eps_root, corrected=corrected, m0=m0)


@definition()
def adagrad(lr: LR = 0.1, beta1: Beta1 = 0.9, tau: Tau = 1e-3, v0: V0 = None, eps_root: EpsRoot = 0.0) -> Optimizer:
    """FedAdagrad's server step."""
    return _adaptive(lambda v, square: v + square, lr=lr, beta1=beta1, tau=tau, v0=v0, eps_root=eps_root)


@definition()
def extrapolation(eps: Eps = 1e-3) -> Optimizer:
    """FedExP's server step: longer where the clients' moves disagree; the answer is the mean of the last two models.

    Jhunjhunwala, Wang, Joshi, ICLR 2023, Algorithm 1; each client sends the square of its move's length.
    """
    return Optimizer(
        init=torch.zeros_like,  # the last move
        step=lambda last, delta: (delta, delta),
        stretch=lambda delta, square: (square / (2 * (delta.square().sum() + eps))).clamp(min=1.0),
        answer=lambda last, x: x - last / 2,
    )


class Measured(NamedTuple):
    """A message, or a sum of contributions, beside the length of the move."""

    inner: Any  # the method's own
    square: Tensor  # [] ||x_i - x||^2


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
    models (A-FedPD, FedDyn's mean) keeps them as it made them; one whose answer is such a model keeps its answer too.

    Raises:
        UserError: the method has a server optimiser already, its model is a running sum that nothing else may move, or
            its messages are protected or aggregated by a robust rule and the optimiser would have clients send more.
    """
    stretch, answer = optimizer.stretch, optimizer.answer
    if algorithm.facts.server_optimiser:
        raise UserError("the method has a server optimiser of its own; set that one's options, or leave `server` out")
    if why := dict(algorithm.facts.unfit).get("server"):
        raise UserError(f"the method cannot have a server optimiser, as {why}; leave `server` out")
    if stretch is not None and (algorithm.facts.protection is not None or algorithm.phases.combine is not None):
        what = "aggregated by a robust rule" if algorithm.facts.protection is None else "private"
        raise UserError(
            f"server {optimizer.identity.name} has clients send the length of their moves beside messages that are "
            f"{what}, and the length would not be; use another server optimiser"
        )
    if stretch is not None:
        if dict(algorithm.identity.parameters).get("server_lr", 1.0) != 1.0:  # it would be divided out again
            raise UserError(
                f"server {optimizer.identity.name} finds the server's step; leave the method's server_lr at 1"
            )
        algorithm = _measured(algorithm)

    lifted = lift(algorithm, server=lambda inner, x: Served(inner, optimizer.init(x)))

    def through(server: Served, after: Tree, cohort: Cohort, square: Tensor | None = None) -> Served:
        unit = cohort.lr if optimizer.units == "gradients" else 1.0
        delta = (after.x - server.x) / unit
        if stretch is not None and square is not None:
            delta = stretch(delta, square) * delta
        move, state = optimizer.step(server.optimizer, delta)
        return Served(moved(after, server.x + unit * move), state)

    def update(server: Served, total: Tree, cohort: Cohort) -> Served:
        after = algorithm.update(server.inner, total, cohort)
        return through(server, after, cohort, None if stretch is None else total.square)

    def models(server: Served) -> Mapping[str, Tensor]:
        offered = algorithm.models(server.inner)
        if answer is None or next(iter(offered)) != "server":
            return offered
        return {"last two": answer(server.optimizer, server.x), **offered}

    unheard = algorithm.phases.unheard
    return replace(
        lifted,
        update=update,
        models=models,
        phases=lifted.phases._replace(
            asynchronous=algorithm.phases.asynchronous,
            unheard=unheard and (lambda server, cohort: through(server, unheard(server.inner, cohort), cohort)),
        ),
        needs=algorithm.needs._replace(lr=algorithm.needs.lr or optimizer.units == "gradients"),
        facts=lifted.facts._replace(server_optimiser=True),
    )


def _measured(algorithm: Algorithm) -> Algorithm:
    """The same method whose clients send the square of their move's length too."""

    def finish(down: Tree, row: Tree, done: Done, client: Client) -> tuple[Measured, Tree]:
        up, row = algorithm.finish(down, row, done, client)
        square = (done.x - model_of(down)).square().sum(-1, keepdim=True)
        return Measured(up, square.reshape(done.steps.shape)), row

    def contribute(up: Measured, sender: Sender, cohort: Cohort) -> Measured:
        return Measured(algorithm.contribute(up.inner, sender, cohort), sender.w * up.square)

    return replace(
        algorithm,
        finish=finish,
        contribute=contribute,
        update=lambda server, total, cohort: algorithm.update(server, total.inner, cohort),
    )


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = by_name(sgd, momentum, nesterov, adam, yogi, adagrad, extrapolation)
"""Server optimisers by name."""
