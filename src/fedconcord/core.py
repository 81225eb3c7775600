"""The contract between a method, the engines that run it and the problems it is run on.

A method is an `Algorithm`: a bundle of pure functions over flat vectors. Shapes in comments are those of one client.
An engine may hand the functions one client (vectors `[d]`, scalars `[]`) or a stacked cohort (vectors `[S, d]`, scalars
`[S, 1]`, the server's own vectors `[d]`), so they are written with broadcasting arithmetic and reduce, where they must,
over the last dimension with `keepdim=True`.

A round, as every engine runs it:

    down   = broadcast(server)
    local  = start(down, row, client)            the local problem: where to start, what to add to the gradient
    done   = <the engine's local loop>
    up,row = finish(down, row, done, client)     the message up and the client's new state
    total  = sum over the cohort of contribute(up, client, cohort)
    server = update(server, total, cohort)
    row    = settle(down, server, row)           only for methods whose client state depends on the aggregate

Hooks for what does not fit: `prelude` (a message before the local steps, Mime), `prologue` (all clients once before
round 0), `communicates` (rounds without messages, FedPD), `blocks` (a table of block gradients, SAGA and LoSAC).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from fedconcord.identity import UNNAMED, Identity

Tree = Any
"""A tensor, a NamedTuple of trees, or () for nothing."""

Weights = Literal["uniform", "size", "unbiased"]
"""How the server weighs the cohort; see `heterogeneity.weights`."""


class Population(NamedTuple):
    """What a method may know of all clients before round 0."""

    n: int  # number of clients N
    p: Tensor  # [N] weight of each client in the objective, sum 1


class Regulariser(NamedTuple):
    """A non-smooth convex term psi of the objective sum_i p_i f_i(x) + psi(x). Vectors are [..., d]."""

    name: str
    value: Callable[[Tensor], Tensor]  # psi(x) [...]
    prox: Callable[[Tensor, float], Tensor]  # (x, eta) -> argmin_z psi(z) + ||z - x||^2 / (2 eta)


class Client(NamedTuple):
    """What a client (or the server, of a client) knows in one round. Scalars are [] or, stacked, [S, 1]."""

    id: Tensor  # [] int64
    w: Tensor  # [] weight of this client's move in the server's step
    p: Tensor  # [] weight of this client in the objective
    steps: Tensor  # [] local steps K_i of this round
    inclusion: Tensor  # [] probability that this client takes part in the round; NaN where nobody knows it
    lr: float  # local step size eta of this round
    noise: Callable[[int], Tensor]  # n -> [n] uniform on [0, 1), keyed by (seed, round, client); the same each call
    gradient: Tensor | None = None  # [d] grad f_i(x^t), only if the algorithm asks (`full_gradient`)
    hessian: Tensor | None = None  # [d, d] only if the algorithm asks (`hessian_at`)
    late: Tensor | None = None  # [] 1 where its reply comes in a later round, for `late.with_late_replies`


class Cohort(NamedTuple):
    """Scalars of a round that the server knows before the messages arrive. The cohort are those whose replies do."""

    round: int  # t, from 0
    n: int  # clients in the population N
    size: int  # clients in the cohort S
    mass: float  # sum of p_i over the cohort
    mean_steps: float  # sum of p_i K_i over the cohort / mass
    dim: int  # d
    coin: float  # uniform on [0, 1), keyed by (seed, round)
    lr: float  # local step size eta of this round
    regulariser: Regulariser | None = None  # of the objective


class Tilt(NamedTuple):
    """SAM's ascent of length radius goes along g - own - common, and own += ascent - common at every step."""

    own: Tensor  # [d]
    common: Tensor  # [d]


class Local(NamedTuple):
    """The local problem. A step is x <- x - eta * (filter(scale * g + linear) + prox * (x - anchor)), followed by the
    regulariser's proximal step of size eta unless the algorithm leaves that to the server.

    `filter` is the local solver's momentum; clipping and weight decay act on g before it. The fields below `scale` are
    for methods that need them: with a table, g is g - table[j] for the step's block j, then linear += table_rate * that
    and table[j] = g; with a dual rate, linear += dual_rate * (x - anchor) after every step.
    """

    x: Tensor  # [d] starting point
    linear: Tensor | None = None  # [d] constant part of the direction
    prox: float | Tensor = 0.0  # [] weight rho of the pull to the anchor; a tensor where it differs by client
    anchor: Tensor | None = None  # [d] needed when prox is not 0
    scale: float | Tensor = 1.0  # [] kappa, weight of the stochastic gradient
    lr_scale: float = 1.0  # factor on eta
    snapshot: Tensor | None = None  # [d] z: g becomes g(x) - g(z) on the same samples (SVRG, Mime)
    table: Tensor | None = None  # [M, d] last gradient of each block (SAGA, LoSAC)
    table_rate: float | Tensor = 0.0  # []
    dual_rate: float = 0.0  # (ADMM with inexact steps)
    momentum: float | None = None  # in place of the solver's (MFL)
    buffer: Tensor | None = None  # [d] the momentum buffer at the start, in place of none (MFL)
    tilt: Tilt | None = None  # of SAM's ascent (FedSMOO)
    metric: Tensor | None = None  # [d, d] the direction, pull included, is solved against it (Newton clients)


class Done(NamedTuple):
    """What the local solver reports."""

    x: Tensor  # [d] the client's model after its local steps
    steps: Tensor  # [] local steps taken
    normaliser: Tensor  # [] ||a_i||_1: the response of (x_start - x) / eta to gradients that are all 1 (FedNova)
    linear: Tensor | None = None  # [d] as it ended, where steps change it
    table: Tensor | None = None  # [M, d] as it ended
    buffer: Tensor | None = None  # [d] momentum buffer as it ended
    tilt: Tensor | None = None  # [d] the tilt's own part as it ended


class Oracle(NamedTuple):
    """Which gradient of f_i a local step uses."""

    kind: Literal["minibatch", "full", "sam", "svrg", "saga"] = "minibatch"  # svrg: g(x) - g(x^t) + grad f_i(x^t)
    radius: float = 0.0  # sam: g at x + radius * g / (||g|| + 1e-7), same mini-batch
    blocks: int = 0  # saga: M blocks a client; the engines do not see it, `oracles.with_table` makes it of a method


class Prelude(NamedTuple):
    """A message of every client before the local steps: its full gradient at x^t, in client.gradient."""

    contribute: Callable[[Client, Cohort], Tree]  # summed over the cohort
    absorb: Callable[[Tree, Tree], Tree]  # (down, total) -> down; the total is sent to the cohort


class Prologue(NamedTuple):
    """All clients once before round 0, with their block gradients at x^0."""

    row: Callable[[Tree, Tensor], Tree]  # (row, blocks [M, d]) -> row
    contribute: Callable[[Tensor, Tensor], Tree]  # (blocks [M, d], p_i []), summed over all clients
    update: Callable[[Tree, Tree], Tree]  # (server, total) -> server


@dataclass(frozen=True)
class Algorithm:
    """One method with its hyper-parameters. The server's state has a field `x`, the model that rounds start from."""

    init: Callable[[Tensor, Population], Tree]
    start: Callable[[Tree, Tree, Client], Local]
    finish: Callable[[Tree, Tree, Done, Client], tuple[Tree, Tree]]
    contribute: Callable[[Tree, Client, Cohort], Tree]  # of an upload, which holds tensors only
    update: Callable[[Tree, Tree, Cohort], Tree]
    broadcast: Callable[[Tree], Tree] = lambda server: server.x
    init_client: Callable[[Tensor], Tree] = lambda x: ()  # a client's state before its first round, from x^0
    settle: Callable[[Tree, Tree, Tree], Tree] | None = None
    models: Callable[[Tree], Mapping[str, Tensor]] = lambda server: {"server": server.x}  # first one is the answer
    weights: Weights = "uniform"
    regularise: Literal["local", "server"] = "local"  # who takes proximal steps; the server's are in `update`
    oracle: Oracle | None = None  # overrides the local solver's
    steps: int | None = None  # overrides the local work (FedSGD: 1)
    full_gradient: bool = False  # start and finish get grad f_i(x^t) in client.gradient
    hessian_at: Callable[[Tree, Tree], Tensor] | None = None  # (down, row) -> [d]: client.hessian is taken there
    normalised: bool = False  # uses done.normaliser (NaN otherwise), so only local solvers that have one will do
    per_step: bool = False  # divides by done.steps, so only local steps of one size will do, not L-BFGS's iterations
    stepwise: bool = False  # its local step is its own: momentum and L-BFGS would change the method
    blocks: int | None = None  # M: a client's samples are cut in M blocks and a local step draws one
    prelude: Prelude | None = None
    prologue: Prologue | None = None
    communicates: Callable[[Cohort], bool] | None = None  # False: no message goes either way this round
    served: bool = False  # has a server optimiser
    inclusion: bool = False  # uses client.inclusion, so only samplings with known probabilities will do
    keeps_late: bool = False  # late replies are kept for the round they come in
    refuse: Callable[[Population, int], str | None] = lambda population, cohort: None  # why it cannot run, or None
    identity: Identity = UNNAMED  # which method with which parameters; see `identity`


class Problem(Protocol):
    """What the engines may ask of the clients' objectives f_i(x) = mean over its samples of f_ij(x).

    Samples of all clients lie in one list, client after client: those of client i are offsets[i] .. offsets[i+1]-1.
    """

    dim: int  # d
    offsets: np.ndarray  # [N + 1] int64
    sizes: np.ndarray  # [N] float64, what weights by size are proportional to
    dtype: torch.dtype
    device: torch.device

    @property
    def regulariser(self) -> Regulariser | None:
        """The non-smooth term of the objective."""
        ...

    def init(self, seed: int) -> Tensor:
        """The starting point x^0 [d], keyed by the seed."""
        ...

    def gradient(self, x: Tensor, samples: Tensor) -> Tensor:
        """Mean gradient [d] at x [d] over the samples [B]: the reference, one client at a time."""
        ...

    def loss(self, x: Tensor, samples: Tensor) -> Tensor:
        """Mean loss [] at x [d] over the samples [B]; differentiable in x."""
        ...

    def gradients(self, x: Tensor, samples: Tensor, weight: Tensor | None) -> Tensor:
        """Gradients [S, d] at x [S, d], row s over samples [S, B] with weight [S, B] (None: 1/B each).

        Padding carries weight 0 and any valid sample index; the result may alias no input.
        """
        ...

    def hessian(self, x: Tensor, samples: Tensor) -> Tensor:
        """Hessian [d, d] of the mean loss at x [d] over the samples [B]; UserError where d is too large for it."""
        ...

    def evaluate(self, x: Tensor) -> dict[str, float]:
        """Metrics of the model x [d]; never called inside the timed path."""
        ...

    def export(self, x: Tensor) -> Mapping[str, Tensor]:
        """The model x [d] as the named tensors that its user knows."""
        ...

    def label_counts(self) -> np.ndarray | None:
        """Samples of each class at each client [N, classes], or None where there are no classes."""
        ...


@runtime_checkable
class TwoBlock(Problem, Protocol):
    """A problem min over x and y_i of sum_i p_i f_i(x, y_i) with y_i private to client i (FedVRA, section 4).

    Before its local steps on x a client takes its steps on y_i at the server's x; y_i is kept with the client's state.
    """

    private: Tensor  # [...] y_i before a client's first round, padded to the largest client

    def private_step(self, x: Tensor, private: Tensor, ids: np.ndarray) -> Tensor:
        """The new y_i [S, ...] of these clients, from steps at the server's model x [d]."""
        ...

    def given(self, private: Tensor, ids: np.ndarray) -> Problem:
        """The problem in x alone for these clients, their y_i [S, ...] held fixed."""
        ...


Accumulate = Callable[[Tensor, float, float, Tensor, Tensor, Tensor | None], None]
"""(into [S, d], beta, alpha, x [S, d], samples [S, B], weight [S, B] or None): into <- beta * into + alpha * gradients.

The gradients are those of `Problem.gradients` at x. `into` may be x; with beta 0 it may hold anything.
"""


@runtime_checkable
class Accumulates(Problem, Protocol):
    """A problem that may have a hand-written kernel, which adds a gradient to what it is for without making it first.

    `accumulate` and `gradients` may then be called from several threads at once.
    """

    accumulate: Accumulate | None


class TwoBlockRow(NamedTuple):
    """A client's state in a two-block problem."""

    row: Tree  # the method's
    private: Tensor  # [...] y_i


def n_clients(problem: Problem) -> int:
    """The number of clients N."""
    return len(problem.offsets) - 1


class Aside(NamedTuple):
    """What a round costs besides its plan: clients that were asked only, and those that were lost."""

    down: int = 0  # clients that got the model
    bytes_up: int = 0
    gradient_steps: int = 0


class Plan(NamedTuple):
    """Everything drawn for one round, the same on every engine. Arrays follow `ids`, which is sorted."""

    round: int
    ids: np.ndarray  # [S] int64, sorted, distinct
    steps: np.ndarray  # [S] int64 local steps
    w: np.ndarray  # [S] float64 aggregation weights
    p: np.ndarray  # [S] float64 objective weights
    inclusion: np.ndarray  # [S] float64 probability that the client takes part; NaN where nobody knows it
    batches: list[np.ndarray] | None  # S arrays [K_i, B] of sample positions inside the client, -1 pads; None: all
    lr: float  # local step size
    seed: int  # of the keys of noise
    coin: float = 0.0  # the round's coin
    full_cost: np.ndarray | None = None  # [S] mini-batches in a full gradient of the client; None: 1 each
    blocks: list[np.ndarray] | None = None  # S arrays [K_i] of block indices, for table methods
    late: np.ndarray | None = None  # [S] bool, its reply comes in a later round; None: none does
    waited: np.ndarray | None = None  # [S] int64 steps behind a late reply that comes now (`steps` is 0); None: all 0
    aside: Aside = Aside()
    seconds: float = 0.0  # simulated length of the round


# -- trees of NamedTuples ------------------------------------------------------------------------------------------


def tree_map(f: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:
    """Apply f to corresponding tensors of trees of one structure."""
    if isinstance(tree, tuple):
        mapped = [tree_map(f, *leaves) for leaves in zip(tree, *rest, strict=True)]
        return type(tree)(*mapped) if hasattr(tree, "_fields") else tuple(mapped)
    return f(tree, *rest)


def tree_leaves(tree: Tree, prefix: str = "") -> dict[str, Any]:
    """Leaves by dotted field name, in order: State(x, c) -> {'x': ..., 'c': ...}; a bare tensor has the name ''."""
    if isinstance(tree, tuple):
        names = getattr(tree, "_fields", None) or [str(k) for k in range(len(tree))]
        found: dict[str, Any] = {}
        for name, leaf in zip(names, tree, strict=True):
            found |= tree_leaves(leaf, f"{prefix}.{name}" if prefix else name)
        return found
    return {prefix: tree}


def tree_unflatten(like: Tree, leaves: Mapping[str, Any], prefix: str = "") -> Tree:
    """The inverse of `tree_leaves` for a tree of the same structure as `like`."""
    if isinstance(like, tuple):
        names = getattr(like, "_fields", None) or [str(k) for k in range(len(like))]
        parts = [
            tree_unflatten(leaf, leaves, f"{prefix}.{name}" if prefix else name)
            for name, leaf in zip(names, like, strict=True)
        ]
        return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)
    return leaves[prefix]


def tree_bytes(tree: Tree) -> int:
    """Bytes of a message or state: every tensor counts numel * itemsize, a Python number (broadcasts only) 8."""
    return sum(
        leaf.numel() * leaf.element_size() if isinstance(leaf, Tensor) else 8 for leaf in tree_leaves(tree).values()
    )
