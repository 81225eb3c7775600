"""What every form of the local step shares: what a client is told before round 0, the chain of its steps, what
it knows, and its row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedconcord.method.contract import (
    Algorithm,
    Client,
    Conditions,
    Done,
    Draws,
    Local,
    Objective,
    Oracle,
    Orders,
    Parts,
    Regulariser,
    Rule,
    Settle,
    Snapshot,
    Tree,
    TwoBlockRow,
    model_of,
    rng,
)
from fedconcord.method.contract.optimisers import MeanGradient
from fedconcord.method.contract.pieces import (
    HasPotential,
    HasUnit,
    Limit,
    Piece,
    Pull,
    gradients_of,
)
from fedconcord.method.step import sizes
from fedconcord.method.step.noise import with_noise
from fedconcord.method.step.order import (
    in_released_order,
    is_narrow,
    plain,
    split,
    together,
    user_pieces,
    with_one_constant,
)
from fedconcord.method.step.sizes import StepSize
from fedconcord.method.step.solver import Solver
from fedconcord.method.step.walk import Chain, Walked, response
from fedconcord.support.errors import UserError


class Assignment(NamedTuple):
    """What every client of a job knows before round 0; the rest comes with its orders."""

    algorithm: Algorithm
    solver: Solver
    draws: Draws

    @property
    def oracle(self) -> Oracle:
        """The gradient oracle in force: the method's own if it names one."""
        return self.algorithm.step.oracle or self.solver.oracle

    @property
    def rule(self) -> Rule | None:
        """The rule of local step sizes in force: the method's own if it has one; None for the round's."""
        return self.algorithm.step.size or self.solver.pace

    @property
    def uses_full_gradient(self) -> bool:
        """Whether a client's local problem or its message is made with its full gradient at the server's model."""
        return self.algorithm.needs.full_gradient or self.oracle.kind == "svrg"

    @property
    def uses_normaliser(self) -> bool:
        """Whether the method is told ||a_i||_1, for which the sizes of a rule's steps are kept."""
        return self.algorithm.needs.normaliser and self.solver.kind == "sgd"

    def chain(
        self,
        local: Local,
        lr: float,
        steps: np.ndarray,
        regulariser: Regulariser | None,
        on_host: bool = True,
        shared: int | None = None,
    ) -> Chain:
        """The local steps [S] of a cohort, as `walk` takes them: the method's pieces and the solver's, in their order.

        Args:
            local: of a cohort; of one client, with a leading axis.
            lr: the round's step size.
            steps: [S] of every client.
            regulariser: whose proximal steps clients take.
            on_host: a number that all clients share may be read from its tensor.
            shared: d, where the local problem is one of u = [x | y] with a private part y of the model.

        Raises:
            UserError: a piece of the method does not go with what is asked for.
        """
        local = split(local, self.solver)
        solver, pieces = self.solver, self.pieces(local, shared)
        for piece in pieces:
            kind = type(piece).__name__
            if self.uses_normaliser and not isinstance(piece, HasUnit | Limit):  # of which `refuse` judges by its form
                raise UserError(f"the method divides by ||a_i||_1, which steps with {kind} do not have")
            if solver.kind == "lbfgs" and not isinstance(piece, HasPotential):
                raise UserError(f"L-BFGS minimises the client's problem, and {kind} is no term of it; use sgd")
        mine = local.pieces if shared is not None else ()
        alone = {id(piece) for piece in mine if is_narrow(piece, local.x.shape[-1])}
        narrow = tuple(id(piece) in alone for piece in pieces)
        if on_host:
            pieces = [plain(piece) for piece in pieces]
        stiffness = sum(piece.rho for piece in pieces if isinstance(piece, Pull)) + solver.weight_decay
        if solver.clip_direction is not None and solver.clip_form == "released":
            pieces = in_released_order(pieces, solver.clip_direction)
        if self.rule is None:
            size: StepSize = solver.sizes(lr * local.lr_scale)
        else:
            x = local.x.expand(len(steps), -1)
            most = int(steps.max(initial=0)) if self.uses_normaliser else None
            size = sizes.begin(self.rule, lr * local.lr_scale, x, stiffness, local.first, most)
        prox = None if regulariser is None else regulariser.prox
        if shared is not None:
            return Chain(local.x, tuple(pieces), size, prox, solver.tolerance, shared, narrow)
        return Chain(local.x, with_one_constant(pieces), size, prox, solver.tolerance)

    def pieces(self, local: Local, shared: int | None = None) -> list[Piece]:
        """What is in each step, in its order: the method's pieces, and of the user's those that it has none for."""
        return together(local, user_pieces(self.solver, self.oracle, local.x, shared))

    def costs(self, chain: Chain, full: np.ndarray, walked: Walked) -> np.ndarray:
        """Mini-batch gradients [S] that the steps of clients evaluated; `full` [S]: those in a full gradient."""
        each = gradients_of(chain.pieces) * (full if self.oracle.kind == "full" else 1)
        cost: np.ndarray = (each + (0 if chain.tolerance is None else full)) * walked.taken
        return cost

    def done(self, local: Local, chain: Chain, walked: Walked) -> Done:
        """What the method is told of the steps."""
        count = torch.as_tensor(walked.taken, device=walked.x.device).to(walked.x.dtype)[:, None]
        normaliser = response(chain, walked) if self.uses_normaliser else count * torch.nan
        ended = {type(piece): piece for piece in walked.pieces}
        pieces = tuple(ended.get(type(piece), piece) for piece in local.pieces)
        mean = ended.get(MeanGradient)
        gradient = mean.total / count.clamp(min=1) if isinstance(mean, MeanGradient) else None
        return Done(walked.x, count, normaliser, pieces, *sizes.summary(walked.size, count), gradient=gradient)


# -- what clients know and keep ----------------------------------------------------------------------------------------


def clients_of(objective: Objective, orders: Sequence[Orders], keeps_late: bool) -> Client:
    """What the clients with these orders know, scalars stacked as [S, 1]."""

    def column(values: Iterable[float], dtype: torch.dtype = objective.dtype) -> Tensor:
        return torch.tensor(list(values), dtype=dtype, device=objective.device)[:, None]

    def rows(draw: Callable[[Orders], np.ndarray], dtype: torch.dtype) -> Tensor:
        return torch.as_tensor(np.stack([draw(one) for one in orders])).to(dtype=dtype, device=objective.device)

    return Client(
        id=column((one.id for one in orders), torch.int64),
        p=column(one.p for one in orders),
        steps=column(one.steps + one.waited for one in orders),
        lr=orders[0].lr,
        noise=lambda n: rows(
            lambda one: rng.generator(one.seed, rng.Purpose.NOISE, one.round, one.id).random(n), objective.dtype
        ),
        late=column(float(one.late) for one in orders) if keeps_late else None,
        discrete=lambda n: rows(lambda one: rng.noise(n, one.seed, one.round, one.id), torch.int64),
    )


def client_of(objective: Objective, orders: Orders, keeps_late: bool) -> Client:
    """What one client knows, scalars as []."""
    client = clients_of(objective, [orders], keeps_late)
    noise, discrete = client.noise, client.discrete
    assert discrete is not None
    return client._replace(
        id=client.id[0, 0],
        p=client.p[0, 0],
        steps=client.steps[0, 0],
        noise=lambda n: noise(n)[0],
        late=None if client.late is None else client.late[0, 0],
        discrete=lambda n: discrete(n)[0],
    )


def local_regulariser(objective: Objective, algorithm: Algorithm) -> Regulariser | None:
    """The regulariser whose proximal steps are the clients'."""
    return objective.regulariser if algorithm.step.regularise == "local" else None


def with_oracle(local: Local, oracle: Oracle, x: Tensor, gradient: Tensor | None) -> Local:
    """The local problem whose mini-batch gradients are SVRG-corrected around the server's model x, if asked."""
    if oracle.kind != "svrg":
        return local
    return local.having(Snapshot(x, gradient))


def open_rows(objective: Objective, x: Tensor, held: Tree, places: np.ndarray) -> tuple[Objective, Tree, Tensor | None]:
    """Stored rows [S, ...] as (the objective in x, the method's rows, the new private blocks if there are any).

    Where parts of the model are private the objective is that of u = [x | y], and y moves with x (`step.private`).
    """
    if objective.private is None:
        return objective, held, None
    if isinstance(objective.private, Parts):
        return objective.private.both, held.row, held.private
    private = objective.private.step(x, held.private, places)
    return objective.private.objective(private, places), held.row, private


def with_term_of(objective: Objective, algorithm: Algorithm, x: Tensor, rows: Tree, places: np.ndarray) -> Objective:
    """The objective with the method's term in its loss, if it has one, and with what the term looks at.

    Args:
        x: [d] the server's model.
        rows: the method's, [S, ...]; None before clients have any.
        places: [S] of the clients.

    Raises:
        UserError: this problem cannot have such a term.
    """
    step, term = algorithm.step, algorithm.step.term
    if term is None:
        return objective
    if objective.under is None:
        raise UserError(
            f"term {term.name} is of a model's outputs, and this problem has no model; leave local.term out"
        )
    conditions = (objective.conditions or Conditions())._replace(term=term)
    if term.looks_at("server"):
        conditions = conditions._replace(server=x)
    if term.looks_at("previous"):
        previous = x.expand(len(places), -1) if rows is None or step.previous is None else step.previous(rows, x)
        conditions = conditions._replace(previous=previous)
    if "class_counts" in term.needs and objective.class_counts is not None:
        conditions = conditions._replace(class_counts=objective.class_counts(places))
    return objective.under(conditions)


def with_conditions(
    objective: Objective,
    algorithm: Algorithm,
    down: Tree,
    rows: Tree,
    places: np.ndarray,
    orders: Sequence[Orders] = (),
) -> Objective:
    """The objective under what the round of these clients has beside the model and the samples, if anything.

    Args:
        down: what the server broadcast.
        rows: the method's, [S, ...].
        places: [S] of the clients.
        orders: of each client, in the order of the rows; none for gradients at the server's model.
    """
    objective = with_term_of(objective, algorithm, model_of(down), rows, places)
    conditions = objective.conditions
    for name, of in (("addition", algorithm.step.addition), ("prototypes", algorithm.step.prototypes)):
        if of is not None:
            conditions = (conditions or Conditions())._replace(**{name: of(down).flatten()})  # type: ignore[arg-type]
    if objective.draws is not None and orders:
        draws = (rng.generator(one.seed, rng.Purpose.MASK, one.round, one.id) for one in orders)
        streams = np.array([draw.integers(-(2**63), 2**63, dtype=np.int64) for draw in draws])
        masks = torch.as_tensor(streams, device=objective.device)[:, None]
        conditions = (conditions or Conditions())._replace(masks=masks)
    if conditions is not None and conditions is not objective.conditions:
        assert objective.under is not None
        objective = objective.under(conditions)
    if algorithm.step.noise is None or not orders:  # a look at gradients, as a diagnosis takes; no method has one
        return objective
    return with_noise(objective, algorithm.step.noise, objective.counts(places), orders)


def close_rows(rows: Tree, private: Tensor | None) -> Tree:
    """The inverse: what is stored."""
    return rows if private is None else TwoBlockRow(rows, private)


def settled(settle: Settle, sent: Tree, held: Tree) -> Tree:
    """Stored rows after the server's message `sent`."""
    if isinstance(held, TwoBlockRow):
        return held._replace(row=settle.row(sent, held.row))
    return settle.row(sent, held)


def curvature(objective: Objective, x: Tensor, place: int, client: int, shared: int | None = None) -> Tensor:
    """The Hessian [d, d] of a client at x [d], or with `shared` d of it in x at [x | y].

    Raises:
        UserError: it has a negative eigenvalue, so a Newton step would climb.
    """
    assert objective.hessian is not None
    square = objective.hessian(x, objective.samples(place))[:shared, :shared]
    eigenvalues = torch.linalg.eigvalsh(square)
    if eigenvalues[0] < -1e-6 * eigenvalues[-1].abs():
        raise UserError(
            f"client {client}'s Hessian has the negative eigenvalue {float(eigenvalues[0]):.3g}: Newton steps need a "
            "convex problem; use a convex model such as logreg, or a method without Newton steps"
        )
    return square


def block_gradients(objective: Objective, assignment: Assignment, place: int, client: int, x: Tensor) -> Tensor:
    """Gradients [M, d] of a client's blocks at x [d]."""
    n = int(objective.offsets[place + 1] - objective.offsets[place])
    members = assignment.draws.members(assignment.algorithm, client, n)
    is_in = members >= 0
    samples = torch.as_tensor(np.where(is_in, members, 0) + objective.offsets[place], device=objective.device)
    objective = with_term_of(objective, assignment.algorithm, x, None, np.full(len(members), place))
    weight = torch.as_tensor(is_in / is_in.sum(-1, keepdims=True)).to(samples.device, objective.dtype)
    return objective.gradients(x.expand(len(members), -1), samples, None if is_in.all() else weight)
