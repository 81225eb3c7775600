"""The contract between a method, the engines that run it and the problems it is run on.

A method is an `Algorithm`: a bundle of pure functions over flat vectors. Shapes in comments are those of one client.
An engine may hand the functions one client (vectors `[d]`, scalars `[]`) or a stacked cohort (vectors `[S, d]`, scalars
`[S, 1]`, the server's own vectors `[d]`), so they are written with broadcasting arithmetic and reduce, where they must,
over the last dimension with `keepdim=True`.

A round, as every engine runs it:

    down   = broadcast(server)
    local  = start(down, row, client)            the local problem: where to start, the method's pieces of a step
    done   = <the engine's local loop>
    up,row = finish(down, row, done, client)     the message up and the client's new state
    total  = sum over the cohort of contribute(up, sender, cohort)        or what `combine` makes of them
    server = update(server, total, cohort)
    row    = settle.row(settle.send(down, server), row)    only for methods whose client state depends on the aggregate

`start` and `finish` run at the client and see its orders; `contribute` and `update` run at the server.

What does not fit is in groups: `phases` has a message before the local steps (Mime), all clients once before round 0,
rounds without messages (FedPD) and contributions kept apart in place of their sum; `step` what a method prescribes of
the local steps, `needs` what it reads that costs something, `facts` what it says of itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from torch import Tensor

from fedconcord.method.contract.code import Code
from fedconcord.method.contract.facts import Facts, StepNoise
from fedconcord.method.contract.identity import UNNAMED, Identity
from fedconcord.method.contract.objective import Regulariser
from fedconcord.method.contract.pieces import Piece
from fedconcord.method.contract.terms import Term
from fedconcord.method.contract.trees import Tree, tree_map

P = TypeVar("P")
Weights = Literal["uniform", "size", "unbiased"]
"""How the server weighs the cohort; see `contract.weights`."""


class Population(NamedTuple):
    """What a method may know of all clients before round 0."""

    n: int  # number of clients N
    p: Tensor  # [N] weight of each client in the objective, sum 1


class Client(NamedTuple):
    """What a client knows in one round: its orders and what it computed. Scalars are [] or, stacked, [S, 1]."""

    id: Tensor  # [] int64
    p: Tensor  # [] its weight in the objective, only if the algorithm asks (`needs.weight`); NaN otherwise
    steps: Tensor  # [] local steps K_i of this round
    lr: float  # local step size eta of this round
    noise: Callable[[int], Tensor]  # n -> [n] uniform on [0, 1), keyed by (seed, round, client); the same each call
    gradient: Tensor | None = None  # [d] grad f_i(x^t), only if the algorithm asks (`needs.full_gradient`)
    loss: Tensor | None = None  # [] f_i(x^t), only if the algorithm asks (`needs.loss`)
    hessian: Tensor | None = None  # [d, d] only if the algorithm asks (`step.hessian_at`)
    late: Tensor | None = None  # [] 1 where its reply comes in a later round, for `wrappers.late`
    discrete: Callable[[int], Tensor] | None = None  # n -> [n] int64 of `contract.discrete`, keyed as `noise`


class Sender(NamedTuple):
    """What the server knows of a client whose message it takes in. Scalars are [] or, stacked, [S, 1]."""

    id: Tensor  # [] int64
    w: Tensor  # [] weight of this client's move in the server's step
    p: Tensor  # [] weight of this client in the objective
    steps: Tensor  # [] local steps K_i that it was given
    inclusion: Tensor  # [] probability that the client takes part in the round; NaN where nobody knows it
    lr: float | Tensor  # local step size eta that it was given; [] in an asynchronous update
    late: Tensor | None = None  # [] 1 where the reply comes in a later round


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
    normal: Callable[[int], Tensor] | None = None  # n -> [n] standard normal, keyed by (seed, round)
    discrete: Callable[[int], Tensor] | None = None  # n -> [n] int64 of `contract.discrete`, for privacy


class Local:
    """The local problem: where its steps start, and the pieces that the method puts into each of them.

    A step hands the gradient of its samples from piece to piece (`pieces`), the method's and those that the user
    chose, and moves by eta times what comes out; the regulariser's proximal step of size eta follows, unless the method
    leaves that to the server.

    Args:
        x: [d] the starting point.
        pieces: in any order, one of a kind; each knows its place in a step.
        lr_scale: a factor on eta.
        first: [] the first step size under a rule, in place of the rule's; of `normed`, 0 is none.
    """

    def __init__(self, x: Tensor, *pieces: Piece, lr_scale: float = 1.0, first: float | Tensor | None = None) -> None:
        self.x, self.pieces, self.lr_scale, self.first = x, pieces, lr_scale, first

    def having(self, *pieces: Piece) -> Local:
        """The same local problem with more pieces."""
        return Local(self.x, *self.pieces, *pieces, lr_scale=self.lr_scale, first=self.first)

    def starting(self, x: Tensor) -> Local:
        """The same local problem from another starting point."""
        return Local(x, *self.pieces, lr_scale=self.lr_scale, first=self.first)

    def map(self, f: Callable[[Any], Any]) -> Local:
        """The same local problem with f of every tensor and number."""
        pieces = (tree_map(f, piece) for piece in self.pieces)
        return Local(f(self.x), *pieces, lr_scale=self.lr_scale, first=f(self.first))

    def piece(self, kind: type[P]) -> P | None:
        """Its piece of this kind, if it has one."""
        return next((piece for piece in self.pieces if isinstance(piece, kind)), None)


class Done(NamedTuple):
    """What the local steps of a round came to."""

    x: Tensor  # [d] the client's model after its local steps
    steps: Tensor  # [] local steps taken
    normaliser: Tensor  # [] ||a_i||_1: the response of (x_start - x) / eta to gradients that are all 1 (FedNova)
    pieces: tuple[Piece, ...] = ()  # the method's, with what they move as it ended
    step_size: Tensor | None = None  # [] the last step size under a rule; None where steps have the round's
    power: Tensor | None = None  # [] mean of ||D_k||^2 over the steps, where the rule has it
    curvature: Tensor | None = None  # [] the largest ||D_k - D_{k-1}|| / ||x_k - x_{k-1}|| that delta saw; 0: none
    gradient: Tensor | None = None  # [d] mean of the gradients that the steps took, where `MeanGradient` is in them
    features: Tensor | None = None  # [C, F + 1] sums of its features by class at x, and counts; if terms ask for those

    def piece(self, kind: type[P]) -> P:
        """The method's piece of this kind.

        Raises:
            LookupError: its local problem had none.
        """
        for piece in self.pieces:
            if isinstance(piece, kind):
                return piece
        raise LookupError(f"the local problem has no piece {kind.__name__} that could have ended")


class Oracle(NamedTuple):
    """Which gradient of f_i a local step uses."""

    kind: Literal["minibatch", "full", "sam", "lesam", "svrg", "saga"] = "minibatch"  # `step.solver` says what each is
    radius: float = 0.0  # sam, lesam: length of the ascent
    blocks: int = 0  # saga: M blocks a client


class Rule(NamedTuple):
    """A rule by which every client finds its local step sizes; `step.sizes` has the formulas."""

    kind: Literal["delta", "dog", "normed"] = "delta"  # which formula
    first: float = 0.2  # delta: the first step size of a round; dog: the first distance over 1 + ||x||; normed: length
    gamma: float = 2.0  # delta: steps are at most gamma / 2 over the observed curvature,
    growth: float = 0.1  # at most sqrt(1 + growth theta) times the last one
    bound: float = 10.0  # and at most this many times the first; normed: at most this many times the first's length


class Prelude(NamedTuple):
    """A message of every client before the local steps: its full gradient at x^t."""

    contribute: Callable[[Tensor, Sender, Cohort], Tree]  # (gradient [d], ...), summed over the cohort
    absorb: Callable[[Tree, Tree], Tree]  # (down, total) -> down; the total is sent to the cohort


class Prologue(NamedTuple):
    """All clients once before round 0, with their block gradients at x^0."""

    row: Callable[[Tree, Tensor], Tree]  # (row, blocks [M, d]) -> row
    send: Callable[[Tensor, Tensor], Tree]  # (blocks [M, d], p_i []) -> its message, summed over all clients
    update: Callable[[Tree, Tree], Tree]  # (server, total) -> server


class Settle(NamedTuple):
    """A message to every client whose reply counted, after the server's step: its state depends on the aggregate."""

    send: Callable[[Tree, Tree], Tree]  # (down as broadcast, server after the step) -> the message
    row: Callable[[Tree, Tree], Tree]  # (message, row after `finish`) -> row


class Portion(NamedTuple):
    """Which part of the model a client holds, where clients hold different ones; the rest is 0 there, and does not
    travel."""

    first: Callable[[np.ndarray], np.ndarray]  # ids [S] -> [S] the lowest id of a client that holds the same part
    cut: Callable[[Tree, int], Tree]  # (broadcast or message, client) -> what of it travels
    fill: Callable[[Tree, int], Tree]  # the inverse, with zeros for the rest


class Phases(NamedTuple):
    """What a method exchanges beside one message of each client in each round; `Algorithm` explains the fields."""

    prologue: Prologue | None = None
    prelude: Prelude | None = None
    combine: Callable[[Tree, Tree, Sender, Cohort], Tree] | None = None
    settle: Settle | None = None
    communicates: Callable[[Cohort], bool] | None = None
    unheard: Callable[[Tree, Cohort], Tree] | None = None
    late: bool = False
    asynchronous: Literal["damped", "undamped"] | None = None
    portion: Portion | None = None


class Needs(NamedTuple):
    """What a method reads that costs a message or rules out a setting; `Algorithm` explains the fields."""

    everyone: bool = False
    inclusion: bool = False
    weight: bool = False
    x0: bool = False
    full_gradient: bool = False
    loss: bool = False
    normaliser: bool = False
    mean_gradient: bool = False
    lr: bool = False


class Step(NamedTuple):
    """What a method prescribes of its clients' local steps; `Algorithm` explains the fields."""

    oracle: Oracle | None = None
    size: Rule | None = None
    steps: int | None = None
    blocks: int | None = None
    hessian_at: Callable[[Tree, Tree], Tensor] | None = None
    regularise: Literal["local", "server"] = "local"
    fixed: bool = False
    optimiser: str | None = None
    code: Code | None = None
    addition: Callable[[Tree], Tensor] | None = None
    term: Term | None = None
    previous: Callable[[Tree, Tensor], Tensor] | None = None
    prototypes: Callable[[Tree], Tensor] | None = None
    noise: StepNoise | None = None


@dataclass(frozen=True)
class Algorithm:
    """One method with its hyper-parameters. The server's state has a field `x`, the model that rounds start from.

    What every method writes stands flat. The rest is in four groups whose fields have defaults: `Phases`, `Needs`,
    `Step` and `Facts`.

    Attributes:
        init: (x^0 [d], population) -> the server's state.
        start: (down, row, client) -> its local problem.
        finish: (down, row, done, client) -> (message, new row).
        contribute: (message, sender, cohort) -> what is summed; tensors only.
        update: (server, total, cohort) -> server.
        broadcast: server -> what the cohort is sent: the model x [d], or what has it as a field `x`.
        init_client: x^0 [d] -> a client's state before its first round.
        models: server -> the models that it offers, by name; the first one is the method's result.
        client_model: (row, x [d]) -> the client's own model [d], x the server's; for methods whose result is one model
                per client.
        weights: how the server weighs the cohort; see `contract.weights`.
        phases: what is exchanged beside one message of each client in each round.
            prologue: all clients are asked once before round 0.
            prelude: a message of each client before its local steps.
            combine: (server, contributions [S, ...], senders, cohort) -> total, in place of their sum; scalars are
                [S, 1].
            settle: a message to each client after the server's step.
            communicates: cohort -> whether messages go either way this round; None: always.
            unheard: (server, cohort) -> the server after a round without replies; None: as it was.
            late: whether late replies are kept for the round they come in.
            asynchronous: whether contributions made from earlier models may be summed. damped: by sender.w alone, in
                which the model's part is linear, and what enters a running sum has none of it; undamped: as they are.
            portion: the part of the model that each client holds; None: all of it.
        needs: what the method reads that costs a message or rules out a setting.
            everyone: it takes all clients in every round.
            inclusion: it reads sender.inclusion, so only samplings with known probabilities will do.
            weight: it reads client.p: its weight in the objective is told to the client.
            x0: `init_client` uses the values of x^0, which a client that joins late is sent.
            full_gradient: start and finish get grad f_i(x^t) in client.gradient.
            loss: they get f_i(x^t) in client.loss: one pass over the client's samples, of no gradient.
            normaliser: it reads done.normaliser (NaN otherwise), so only local solvers that have one will do.
            mean_gradient: it reads done.gradient in place of done.normaliser where there is one, as under optimisers.
            lr: it uses lr beside done.normaliser, so steps must have its size and not a rule's.
        step: what the method prescribes of the local steps.
            oracle: which gradient a local step uses, in place of the local solver's.
            size: the rule of step sizes, in place of the local solver's; the round's lr is then a factor on them, 1.
            steps: the number of local steps, in place of the local work (FedSGD: 1).
            blocks: M, the number of blocks that a client's samples are cut in; a local step draws one.
            hessian_at: (down, row) -> [d]: client.hessian is taken there.
            regularise: who takes proximal steps; the server's are in `update`.
            fixed: the local step is the method's own: momentum and L-BFGS would change the method.
            optimiser: the name of the local optimiser that the method was given (`wrappers.optimisers`).
            moments: whether clients send moments of it, or a direction, which are no changes.
            code: the user's local training in place of the steps (`wrappers.code`).
            addition: down -> [D] what the server adds to the frozen weights below low-rank factors; its models are
                [d + D] then.
            term: of the clients' loss (`wrappers.terms`).
            previous: (row, x^t [d]) -> the client's last model, x^t where there is none; for terms that ask.
            prototypes: down -> [C, F + 1], mean features of each class and 1, or 0 where there are none; clients then
                send `done.features`.
            noise: what differential privacy of samples does to each step's gradient; None: nothing.
        facts: what the method says of itself; it changes no round.
            group: the mechanism that it is listed under, such as "control variates".
            memory: what its clients remember that stands for their gradients; see `Memory`.
            invariant: what holds only while contributions are summed: a sum over clients' rows, in words.
            protection: what differential privacy does to messages; None: nothing.
            server_optimiser: whether its aggregate passes through a server optimiser.
            adapted: the `eval.personalise` that judges its model, which is made to be adapted; None: it is not.
            factors: its rule for low-rank factors; it runs on no other model than theirs.
            remedies: which differences between clients it is made for; see `Remedy`.
            recommendations: federations in which it is worth tuning first.
            cautions: federations in which it is not worth its costs.
            theory: (ids, inclusion, steps, lr, smoothness) of n clients -> what its theory says of its step sizes.
            numbers: server -> numbers of its state by name, which stand among a run's metrics.
        refuse: (population, cohort size S) -> why it cannot run, or None.
        identity: which method with which parameters; see `contract.identity`.
    """

    init: Callable[[Tensor, Population], Tree]
    start: Callable[[Tree, Tree, Client], Local]
    finish: Callable[[Tree, Tree, Done, Client], tuple[Tree, Tree]]
    contribute: Callable[[Tree, Sender, Cohort], Tree]
    update: Callable[[Tree, Tree, Cohort], Tree]
    broadcast: Callable[[Tree], Tree] = lambda server: server.x
    init_client: Callable[[Tensor], Tree] = lambda x: ()
    models: Callable[[Tree], Mapping[str, Tensor]] = lambda server: {"server": server.x}
    client_model: Callable[[Tree, Tensor], Tensor] | None = None
    weights: Weights = "uniform"
    phases: Phases = Phases()
    needs: Needs = Needs()
    step: Step = Step()
    facts: Facts = Facts()
    refuse: Callable[[Population, int], str | None] = lambda population, cohort: None
    identity: Identity = UNNAMED


def model_of(down: Tree) -> Tensor:
    """The server's model x^t [d] in what it broadcast."""
    x: Tensor = down if isinstance(down, Tensor) else down.x
    return x
