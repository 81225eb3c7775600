"""Conformance checks for local optimisers: `check_optimiser(factory)`.

contract    the factory gives a LocalOptimiser with a step size and a name, whose pieces stand where a step has them
rest        a direction of 0 moves nothing but what decay moves: the optimum of a corrected method stays where it is
rows        a client's steps do not depend on the clients beside it
methods     FedAvg, SCAFFOLD and FedDyn with it pass `check_algorithm`, with moments that are reset, kept and shared
exact       with full gradients and steps that shrink, SCAFFOLD and FedDyn with it come a hundred times nearer to the
            optimum of unlike quadratics than FedAvg does
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import torch
from torch import Tensor

from fedconcord.execution.job import Job, advance, start
from fedconcord.federation.objectives import Quadratic, quadratics
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import fixed
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Algorithm
from fedconcord.method.contract.pieces import At, Place
from fedconcord.method.step.walk import with_own_state
from fedconcord.method.wrappers.optimisers import LocalOptimiser, States, with_optimiser
from fedconcord.testing.bench import DIM
from fedconcord.testing.check import CheckFailedError, algorithm_checks
from fedconcord.testing.compare import MismatchError, fail

Make = Callable[..., LocalOptimiser]

MATRICES = ((0, DIM // 2, 2),)  # that the models of the checks are said to have
PLACES = (Place.MEASURE, Place.DIRECTION, Place.TRANSFORM)


def check_optimiser(factory: Make, lr: float = 0.05) -> None:
    """Run every check on a local optimiser; returns if it passes all.

    Args:
        factory: makes the optimiser; called anew by every check.
        lr: step size that suits quadratics of curvatures from 1/4 to 1 and models of size 1.

    Raises:
        CheckFailedError: at the first check that fails.
    """
    for name, check in optimiser_checks(factory, lr):
        try:
            check()
        except MismatchError as mismatch:
            raise CheckFailedError(name, *mismatch.args) from None


def optimiser_checks(factory: Make, lr: float = 0.05) -> Iterator[tuple[str, Callable[[], None]]]:
    """The checks of `check_optimiser`, same arguments, as (name, call) pairs for a parametrised test."""
    yield "contract", lambda: _contract(factory)
    yield "rest", lambda: _rest(factory)
    yield "rows", lambda: _rows(factory)
    states: tuple[States, ...] = ("reset", "kept", "shared")
    for method, state in product(("fedavg", "scaffold", "feddyn"), states):

        def inside(method: str = method, state: States = state) -> Algorithm:
            return with_optimiser(METHODS[method](), factory()._replace(state=state), MATRICES)

        yield from ((f"{method} {state} {name}", check) for name, check in algorithm_checks(inside, lr=lr))
    yield "exact", lambda: _exact(factory, lr)


def _contract(factory: Make) -> None:
    optimiser = factory()
    if not isinstance(optimiser, LocalOptimiser):
        fail("a LocalOptimiser from the factory", type(optimiser).__name__)
    if not optimiser.identity.name:
        fail("a factory under @definition, by which checkpoints know it", "an optimiser without a name")
    if not optimiser.lr > 0:
        fail("a usual step size above 0", str(optimiser.lr))
    places = [piece.traits.place for piece in optimiser.pieces(torch.zeros(DIM).double(), MATRICES)]
    if places.count(Place.TRANSFORM) != 1 or not set(places) <= set(PLACES):
        fail("one piece at TRANSFORM, others at MEASURE or DIRECTION", str([place.name for place in places]))


def _moves(factory: Make, gradients: Tensor, x: Tensor) -> Tensor:
    """What a piece after piece makes of gradients [K, S, d], one step each at x [S, d]: moves [K, S, d]."""
    pieces = [with_own_state(piece, len(x)) for piece in factory().pieces(x[0], MATRICES)]
    in_order = tuple(sorted(pieces, key=lambda piece: piece.traits.place))
    moves = []
    for k, g in enumerate(gradients):
        v = g.clone()
        for piece in in_order:
            v = piece.apply(v, At(x, lambda at: at, None, k, in_order))
        moves.append(v.clone())
    return torch.stack(moves)


def _rest(factory: Make) -> None:
    zero = torch.zeros(3, 2, DIM, dtype=torch.float64)
    moves = _moves(factory, zero, zero[0])
    if bool((moves != 0).any()):
        fail("no move where the direction is 0", f"one of {float(moves.abs().max()):.3g}")


def _rows(factory: Make) -> None:
    draw = torch.Generator().manual_seed(0)
    gradients = torch.randn(4, 3, DIM, dtype=torch.float64, generator=draw)
    x = torch.randn(3, DIM, dtype=torch.float64, generator=draw)
    together = _moves(factory, gradients, x)
    for i in range(3):
        alone = _moves(factory, gradients[:, i : i + 1], x[i : i + 1])
        gap = float((together[:, i : i + 1] - alone).abs().max())
        if not gap < 1e-12:
            fail("the same moves of a client alone and beside others", f"client {i} is {gap:.3g} off")


def _exact(factory: Make, lr: float) -> None:
    problem = quadratics(7, 5, torch.float64, torch.device("cpu"), dim=DIM, blocks=1, condition=4.0)
    methods = {"fedavg": METHODS["fedavg"](), "scaffold": METHODS["scaffold"](), "feddyn": METHODS["feddyn"](alpha=1)}
    ends = {name: _gap(problem, with_optimiser(each, factory(), MATRICES), lr) for name, each in methods.items()}
    for name in ("scaffold", "feddyn"):
        if not ends[name] < 0.01 * ends["fedavg"]:
            fail(
                f"{name} within 1/100 of FedAvg's distance from the optimum, {ends['fedavg']:.2g}", f"{ends[name]:.2g}"
            )


def _gap(problem: Quadratic, algorithm: Algorithm, lr: float) -> float:
    """Distance from the optimum after 400 rounds of 5 steps that shrink."""
    schedule = Schedule(0, 5, lr, fixed(5), "steps", lr_decay=0.98)
    job = Job(problem, algorithm, schedule)
    state = start(job)
    for _ in range(400):
        state = advance(job, state)
    x = next(iter(algorithm.models(state.server).values()))
    return float((x - problem.optimum(np.full(5, 0.2))).norm())
