"""The client's step: of one client by itself with the objective's reference gradients, the local steps of a cohort
side by side, and L-BFGS on clients' problems.

    (assignment, objective, place, down, row, orders) -> (up, new row)

Every engine computes this: a simulation for all clients side by side, a client that stands alone for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedconcord.method.contract import (
    Algorithm,
    Done,
    Drawn,
    Local,
    Objective,
    Orders,
    Tree,
    model_of,
    tree_leaves,
    tree_map,
)
from fedconcord.method.contract.pieces import HasPotential
from fedconcord.method.step.assignment import (
    Assignment,
    client_of,
    close_rows,
    curvature,
    local_regulariser,
    open_rows,
    with_conditions,
    with_oracle,
)
from fedconcord.method.step.code import trained
from fedconcord.method.step.compiled import in_one_call
from fedconcord.method.step.fused import fused
from fedconcord.method.step.graphs import Graphs, replay_or_take
from fedconcord.method.step.private import SHARED, Joint, apart, joint_of
from fedconcord.method.step.samples import Alone, Batches, batches, blocks_of, everything, losses, with_features
from fedconcord.method.step.walk import Chain, Source, Walked, rows_of, walk


class Step(NamedTuple):
    """What a client made of a round."""

    up: Tree  # its message
    row: Tree  # its new state [...], as it is stored
    gradient_steps: int  # mini-batch gradients; a full gradient counts its mini-batches


def ask(algorithm: Algorithm, objective: Objective, place: int, down: Tree, row: Tree) -> Tensor:
    """The message of a prelude, before the local steps: the client's full gradient [d] at the server's model."""
    x, places = model_of(down), np.array([place])
    in_x, rows, private = open_rows(objective, x, _stack(row), places)
    in_x, joint = with_conditions(in_x, algorithm, down, rows, places), joint_of(objective, private)
    return joint.shared(in_x.gradient(joint.one(x), objective.samples(place)))


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
    whole, places = objective.samples(place), np.array([place])
    full_cost = passes(assignment, objective, place)
    in_x, rows, private = open_rows(objective, x, _stack(row), places)
    state = _first(rows)
    in_x = with_conditions(in_x, algorithm, down, rows, places, [orders])
    joint = joint_of(objective, private)
    at = joint.one(x)
    client = client_of(objective, orders, algorithm.phases.late)
    evaluations = 0
    if assignment.uses_full_gradient:
        if gradient is None:
            gradient = in_x.gradient(at, whole)
            evaluations += 0 if orders.answers else full_cost
        client = client._replace(gradient=joint.shared(gradient))
    if algorithm.needs.loss:
        client = client._replace(loss=losses(in_x, at[None], places)[0])
    if algorithm.step.hessian_at is not None:
        point = joint.one(algorithm.step.hessian_at(down, state))
        client = client._replace(hessian=curvature(in_x, point, place, orders.id, joint.width))
    local = with_oracle(algorithm.start(down, state, client), oracle, at, gradient)
    all_steps = joint.orders(orders)
    draws = assignment.draws.draw(algorithm, all_steps, len(whole))
    steps = _samples_of(objective, place, None if oracle.kind == "full" else draws.batches, all_steps.steps)
    if algorithm.step.code is None:
        end = solve(in_x, assignment, local, steps, draws.blocks, whole, orders.lr, full_cost, joint)
    else:
        cohort, count = _by_code(in_x, assignment, joint.local(local.map(_with_axis)), [steps], [orders], joint.width)
        end = _without_axis(cohort), count
    whole_end, cost = end
    done, private = joint.cut(with_features(in_x, algorithm, whole_end, places), private)
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
    joint: Joint = SHARED,
) -> tuple[Done, int]:
    """The local steps of one client, a cohort of one, and the mini-batch gradients that they evaluated.

    Args:
        steps: the samples of each step; behind them those of steps on its private part alone.
        blocks: the block of each step, for tables.
        whole: all samples of the client.
        full_cost: mini-batches in a full gradient.
        joint: the client's private part; then what is told is of [x | y].
    """
    before, full = joint.before(len(steps)), np.array([full_cost])
    local, number = joint.local(local.map(_with_axis)), np.array([len(steps) - before])
    evaluations, opening = 0, joint.opening(local)
    if opening is not None:
        last = None if blocks is None else blocks[len(steps) - before :]
        source = Alone(objective, steps[len(steps) - before :], last, whole)
        chain = assignment.chain(opening, lr, np.array([before]), None, shared=joint.width)
        walked = walk(chain, source, np.array([before]))
        local, evaluations = local.starting(walked.x), int(assignment.costs(chain, full, walked)[0])
    regulariser = local_regulariser(objective, assignment.algorithm)
    chain = assignment.chain(local, lr, number, regulariser, shared=joint.width)
    if assignment.solver.kind == "lbfgs":
        walked, full_gradients = minimisers(objective, chain, [whole], number)
        evaluations = full_cost * int(full_gradients[0])
    else:
        walked = walk(chain, Alone(objective, steps, blocks, whole), number)
        evaluations += int(assignment.costs(chain, full, walked)[0])
    return _without_axis(assignment.done(local, chain, walked)), evaluations


def _by_code(
    objective: Objective,
    assignment: Assignment,
    local: Local,
    samples: Sequence[list[Tensor]],
    orders: Sequence[Orders],
    shared: int | None,
) -> tuple[Done, int]:
    """What code of the user's makes of clients' problems, and its steps; `samples` of each client and step."""
    code, counts = assignment.algorithm.step.code, np.array([len(steps) for steps in samples])
    assert code is not None
    regulariser = local_regulariser(objective, assignment.algorithm)
    chain = assignment.chain(local, orders[0].lr, counts, regulariser, shared=shared)
    walked = trained(objective, chain, code, samples, orders)
    return assignment.done(local, chain, walked), int(walked.taken.sum())


def _samples_of(objective: Objective, place: int, positions: np.ndarray | None, steps: int) -> list[Tensor]:
    """The samples of each step of a client; positions [K, B] inside it, -1 pads; None: all samples at each step."""
    if positions is None:
        return [objective.samples(place)] * steps
    first = int(objective.offsets[place])
    return [first + torch.as_tensor(batch[batch >= 0], device=objective.device) for batch in positions]


def _with_axis(leaf: Any) -> Any:
    return leaf[None] if isinstance(leaf, Tensor) and leaf.ndim else leaf


def _without_axis(done: Done) -> Done:
    """What a cohort of one is told, with vectors [d] and numbers []."""
    pieces = (
        tree_map(lambda leaf: leaf[0] if isinstance(leaf, Tensor) and leaf.ndim else leaf, p) for p in done.pieces
    )
    numbers = [None if number is None else number[0, 0] for number in (done.step_size, done.power, done.curvature)]
    gradient = None if done.gradient is None else done.gradient[0]
    single = Done(done.x[0], done.steps[0, 0], done.normaliser[0, 0], tuple(pieces), *numbers)
    return single._replace(gradient=gradient)


def _stack(row: Tree) -> Tree:
    return tree_map(lambda leaf: leaf[None], row)


def _first(rows: Tree) -> Tree:
    return tree_map(lambda leaf: leaf[0], rows)


def tables_of(local: Local, rows: Tree) -> tuple[Tensor, ...]:
    """The tables [S, M, d] of clients' rows that their steps move: a copy of one costs as much as the steps do."""
    moved = [getattr(piece, name) for piece in local.pieces for name in piece.traits.moves]
    return tuple(leaf for leaf in tree_leaves(rows).values() if leaf.ndim > 2 and any(leaf is one for one in moved))


# -- a cohort, side by side ----------------------------------------------------------------------------------------


def solve_together(
    objective: Objective,
    assignment: Assignment,
    local: Local,
    places: np.ndarray,
    orders: Sequence[Orders],
    is_compiled: bool = False,
    graphs: Graphs | None = None,
    joint: Joint = SHARED,
    tables: tuple[Tensor, ...] = (),
) -> tuple[Done, int]:
    """The local steps of clients, sorted by steps, most first; and the mini-batch gradients that they took.

    Args:
        is_compiled: all steps of a client in one compiled call, where `step.compiled` knows them.
        graphs: where to record and replay steps whose kernels are the same every round.
        joint: the clients' private parts; then what is told is of [x | y].
        tables: of `tables_of`, which the steps may move where they lie.
    """
    counts, steps = objective.counts(places), np.array([order.steps for order in orders], np.int64)
    full = assignment.draws.full_cost(assignment.algorithm, counts)  # of a full gradient
    regulariser, local = local_regulariser(objective, assignment.algorithm), joint.local(local)
    chain = assignment.chain(local, orders[0].lr, steps, regulariser, graphs is None, joint.width)
    if assignment.solver.kind == "lbfgs":
        walked, full_gradients = minimisers(objective, chain, [objective.samples(int(i)) for i in places], steps)
        return assignment.done(local, chain, walked), int((full_gradients * full).sum())
    draws = [
        assignment.draws.draw(assignment.algorithm, joint.orders(order), int(n))
        for order, n in zip(orders, counts, strict=True)
    ]
    if assignment.algorithm.step.code is not None:
        mine = zip(places.tolist(), draws, orders, strict=True)
        samples = [_samples_of(objective, place, one.batches, order.steps) for place, one, order in mine]
        return _by_code(objective, assignment, local, samples, orders, joint.width)

    def source_of(draws: Sequence[Drawn]) -> Batches:
        is_full = draws[0].batches is None or assignment.oracle.kind == "full"
        samples = everything(objective, places) if is_full else batches(objective, places, draws)
        return Batches(objective, places, samples, None if draws[0].blocks is None else blocks_of(objective, draws))

    evaluations, opening = 0, joint.opening(local)
    if opening is not None:
        cut = [apart(draw, order.steps) for draw, order in zip(draws, orders, strict=True)]
        draws, before = [first for first, _ in cut], np.array([joint.before(order.steps) for order in orders])
        first_chain = assignment.chain(opening, orders[0].lr, before, None, shared=joint.width)
        opened = walk(first_chain, source_of([rest for _, rest in cut]), before)
        chain, local = chain._replace(x=opened.x), local.starting(opened.x)
        evaluations = int(assignment.costs(first_chain, full, opened).sum())
    source, chain = source_of(draws), chain._replace(tables=tables)
    ways = (in_one_call, fused) if is_compiled else (fused,)

    def take(chain: Chain, source: Source) -> Walked:
        for way in ways:
            walked = way(chain, source, steps)
            if walked is not None:
                return walked
        return walk(chain, source, steps)

    if graphs is None or objective.conditions is not None or joint.y is not None:  # a recorded step would repeat them
        walked = take(chain, source)
    else:
        walked = replay_or_take(graphs, take, chain, source, steps)
    return assignment.done(local, chain, walked), evaluations + int(assignment.costs(chain, full, walked).sum())


# -- L-BFGS on clients' local problems, by torch's own implementation, one at a time: line searches do not batch ---


def minimisers(
    objective: Objective, chain: Chain, samples: Sequence[Tensor], steps: np.ndarray
) -> tuple[Walked, np.ndarray]:
    """The minimisers of clients' problems, and the full gradients [S] that each of them took.

    Args:
        samples: all samples of each client.
        steps: [S] iterations at most.
    """
    results = []
    for k, (start, all_of_it, most) in enumerate(zip(chain.x.expand(len(steps), -1), samples, steps, strict=True)):
        pieces = tuple(rows_of(piece, torch.tensor(k)) for piece in chain.pieces)  # vectors [d]
        mine = objective.taking(torch.tensor([k]), 0)
        results.append(minimise(mine, chain._replace(x=start, pieces=pieces), all_of_it, int(most)))
    x, taken, passes = zip(*results, strict=True)
    return Walked(torch.stack(x), (), chain.size, np.array(taken)), np.array(passes)


def minimise(objective: Objective, chain: Chain, samples: Tensor, steps: int) -> tuple[Tensor, int, int]:
    """At most `steps` L-BFGS iterations (strong Wolfe) on L_i(x) = f_i(x) and the potentials of the chain's pieces.

    Stops early when ||grad L_i||^2 <= the chain's tolerance.

    Args:
        chain: of one client, vectors [d].
        samples: all of the client's samples.

    Returns: the minimiser found [d], the iterations and the gradient evaluations it took.
    """
    x = chain.x.detach().clone().requires_grad_()
    # the caller's tolerance is the rule, not torch's; the line search keeps its own, as rounding ends it anyway
    optimiser = torch.optim.LBFGS([x], max_iter=1, history_size=10, line_search_fn="strong_wolfe", tolerance_grad=0.0)
    evaluations = taken = 0

    def value_at() -> Tensor:
        nonlocal evaluations
        evaluations += 1
        optimiser.zero_grad()
        with torch.enable_grad():
            value = objective.loss(x, samples)
            for number, piece in enumerate(chain.pieces):
                value = piece.potential(value, chain.view(x, number)) if isinstance(piece, HasPotential) else value
            value.backward()  # type: ignore[no-untyped-call]
        return value

    for _ in range(steps):
        before = x.detach().clone()
        taken += 1
        optimiser.step(value_at)  # type: ignore[no-untyped-call]
        if torch.equal(before, x):  # rounding leaves nothing to gain
            break
        if chain.tolerance is not None:
            value_at()
            assert x.grad is not None
            if float(x.grad.square().sum()) <= chain.tolerance:
                break
    return x.detach(), taken, evaluations
