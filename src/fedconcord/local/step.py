"""The client's step of one client by itself, with the objective's reference gradients.

    (assignment, objective, place, down, row, orders) -> (up, new row)

Every engine computes this: a simulation for all clients side by side, a client that stands alone for itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedconcord.core import Done, Local, Objective, Orders, Tree, model_of, tree_map
from fedconcord.local import lbfgs
from fedconcord.local.assignment import (
    Assignment,
    client_of,
    close_rows,
    curvature,
    local_regulariser,
    open_rows,
    with_oracle,
)
from fedconcord.local.samples import Alone
from fedconcord.local.walk import walk


class Step(NamedTuple):
    """What a client made of a round."""

    up: Tree  # its message
    row: Tree  # its new state [...], as it is stored
    gradient_steps: int  # mini-batch gradients; a full gradient counts its mini-batches


def ask(assignment: Assignment, objective: Objective, place: int, down: Tree, row: Tree) -> Tensor:
    """The message of a prelude, before the local steps: the client's full gradient [d] at the server's model."""
    x = model_of(down)
    own, _, _ = open_rows(objective, x, _stack(row), np.array([place]))
    return own.gradient(x, objective.samples(place))


def passes(assignment: Assignment, objective: Objective, place: int) -> int:
    """Mini-batches in a full gradient of a client."""
    return int(assignment.draws.full_cost(assignment.algorithm, objective.counts(np.array([place])))[0])


def client_step(
    assignment: Assignment,
    objective: Objective,
    place: int,
    down: Tree,
    row: Tree,
    orders: Orders,
    gradient: Tensor | None = None,
) -> Step:
    """One client's round.

    Args:
        objective: of this client, or of several among which it is at `place`.
        down: what the server broadcast; where there is a prelude, with the cohort's total in it.
        row: the client's state [...] before the round, as it is stored.
        orders: the server's, for this client and round.
        gradient: its full gradient [d] at the server's model, where a prelude had it evaluated.
    """
    algorithm, oracle, x = assignment.algorithm, assignment.oracle, model_of(down)
    held = objective.samples(place)
    full_cost = passes(assignment, objective, place)
    own, rows, private = open_rows(objective, x, _stack(row), np.array([place]))
    state = _first(rows)
    client = client_of(objective, orders, algorithm.phases.late)
    evaluations = 0
    if assignment.uses_full_gradient:
        if gradient is None:
            gradient = own.gradient(x, held)
            evaluations += 0 if orders.answers else full_cost
        client = client._replace(gradient=gradient)
    if algorithm.step.hessian_at is not None:
        client = client._replace(hessian=curvature(own, algorithm.step.hessian_at(down, state), place, orders.id))
    local = with_oracle(algorithm.start(down, state, client), oracle, x, client.gradient)
    drawn = assignment.draws.draw(algorithm, orders, len(held))
    first = int(objective.offsets[place])
    steps = [held] * orders.steps
    if drawn.batches is not None and oracle.kind != "full":
        batches = (batch[batch >= 0] for batch in drawn.batches)
        steps = [first + torch.as_tensor(batch, device=objective.device) for batch in batches]
    done, cost = solve(own, assignment, local, steps, drawn.blocks, held, orders.lr, full_cost)
    up, state = algorithm.finish(down, state, done, client)
    return Step(up, _first(close_rows(_stack(state), private)), evaluations + cost)


def solve(
    objective: Objective,
    assignment: Assignment,
    local: Local,
    steps: list[Tensor],
    blocks: np.ndarray | None,
    whole: Tensor,
    lr: float,
    full_cost: int = 1,
) -> tuple[Done, int]:
    """The local steps of one client, a cohort of one, and the mini-batch gradients that they evaluated.

    Args:
        steps: the samples of each step.
        blocks: the block of each step, for tables.
        whole: all samples of the client.
        full_cost: mini-batches in a full gradient.
    """
    local, number = local.map(_with_axis), np.array([len(steps)])
    chain = assignment.chain(local, lr, number, local_regulariser(objective, assignment.algorithm))
    if assignment.solver.kind == "lbfgs":
        walked, passes = lbfgs.minimisers(objective, chain, [whole], number)
        evaluations = full_cost * int(passes[0])
    else:
        walked = walk(chain, Alone(objective, steps, blocks, whole), number)
        evaluations = int(assignment.costs(chain, np.array([full_cost]), walked)[0])
    return _without_axis(assignment.done(local, chain, walked)), evaluations


def _with_axis(leaf: Any) -> Any:
    return leaf[None] if isinstance(leaf, Tensor) and leaf.ndim else leaf


def _without_axis(done: Done) -> Done:
    """What a cohort of one is told, with vectors [d] and numbers []."""
    pieces = (
        tree_map(lambda leaf: leaf[0] if isinstance(leaf, Tensor) and leaf.ndim else leaf, p) for p in done.pieces
    )
    numbers = (None if number is None else number[0, 0] for number in done[4:])
    return Done(done.x[0], done.steps[0, 0], done.normaliser[0, 0], tuple(pieces), *numbers)


def _stack(row: Tree) -> Tree:
    return tree_map(lambda leaf: leaf[None], row)


def _first(rows: Tree) -> Tree:
    return tree_map(lambda leaf: leaf[0], rows)
