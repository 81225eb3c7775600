"""Which pieces meet in a step: of the method, of the user, and of what is around a method."""

from functools import partial

import pytest
from test_engines import SCHEDULE, small

from fedconcord.execution.job import Job
from fedconcord.method.contract import Algorithm, Constant, Local, Oracle
from fedconcord.method.contract.pieces import Ascent, Clip, Momentum, gradients_of
from fedconcord.method.step.order import together, user_pieces
from fedconcord.method.step.solver import Solver, refuse
from fedconcord.method.wrappers.ditto import with_ditto
from fedconcord.method.wrappers.perturbed import with_estimated_ascent
from fedconcord.support.errors import UserError
from plain_step import falling
from table import make

SAM, PLAIN = Oracle("sam", 0.1), Solver()


def cost(algorithm: Algorithm, solver: Solver = PLAIN) -> float:
    return Job(small("dense"), algorithm, SCHEDULE, solver).cost.gradients


@pytest.mark.parametrize(
    "makes",
    [
        partial(cost, make("perfedavg"), Solver(oracle=SAM)),
        partial(cost, make("pfedme"), Solver(oracle=SAM)),
        partial(cost, with_estimated_ascent(make("perfedavg"), 0.1)),
        partial(cost, with_estimated_ascent(make("pfedme"), 0.1)),
    ],
)
def test_two_points_for_one_gradient_are_refused(makes: partial[float]) -> None:
    """One of them would be left out, or move the inner gradient alone."""
    with pytest.raises(UserError, match=r"gradients at points of its own; leave local\.oracle at minibatch"):
        makes()


def test_a_second_model_beside_another_is_refused() -> None:
    for inner in ("apfl", "ditto"):
        with pytest.raises(UserError, match="a step has one Beside"):
            cost(with_ditto(make(inner)))


def test_a_radius_beside_the_method_s_own_is_refused() -> None:
    assert refuse(Solver(oracle=Oracle("sam", 0.3)), make("fedsam")) is not None
    assert refuse(Solver(oracle=make("fedsam").step.oracle), make("fedsam")) is None


def test_the_user_s_pieces_stand_among_the_method_s() -> None:
    x = small("dense").init(0)
    pieces = together(Local(x, Constant(x)), user_pieces(Solver(momentum=0.5, clip=1.0), SAM, x))
    assert [type(piece) for piece in pieces] == [Ascent, Clip, Constant, Momentum]
    assert gradients_of(pieces) == 2


def test_a_schedule_of_steps_that_a_method_sizes_is_refused() -> None:
    for method in ("fedadmm_inexact", "mfl"):
        assert "step_schedule" in str(refuse(Solver(step_schedule=falling(0.9)), make(method)))
