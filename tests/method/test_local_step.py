"""The local step: every method and setting as `plain_step.py` has it, and every piece on every way to take steps."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from test_engines import SCHEDULE, assert_same, run, small
from torch import Tensor

import plain_step
from fedconcord.execution.engines import Serial, Stacked
from fedconcord.execution.job import Job
from fedconcord.federation.objectives import quadratics
from fedconcord.federation.objectives.regularisers import l1
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import At, Local, Oracle, Place, Traits
from fedconcord.method.contract.nested import Beside, Look, Moreau
from fedconcord.method.contract.optimisers import Aligned, Lion, MeanGradient
from fedconcord.method.contract.pairs import Window
from fedconcord.method.contract.pieces import (
    Ascent,
    Clip,
    Constant,
    Decay,
    Dual,
    Limit,
    Momentum,
    Newton,
    Perturbed,
    Piece,
    Pull,
    Scale,
    Snapshot,
    Table,
)
from fedconcord.method.step import sizes, step
from fedconcord.method.step.compiled import in_one_call
from fedconcord.method.step.fused import fused
from fedconcord.method.step.graphs import Graphs, replay_or_take
from fedconcord.method.step.samples import Alone, Batches, Samples
from fedconcord.method.step.sizes import Fixed, StepSize, delta, dog, normed
from fedconcord.method.step.solver import Solver, refuse
from fedconcord.method.step.walk import Chain, Walked, response, rows_of, walk
from fedconcord.method.wrappers.optimisers import LocalOptimiser, adamw, muon, sign
from fedconcord.support.errors import UserError
from plain_step import falling
from table import TABLE, make
from tiers import tiers

# -- methods and settings ------------------------------------------------------------------------------------------

SETTINGS = {
    "plain": Solver(),
    "momentum": Solver(momentum=0.9, step_schedule=falling(0.9)),
    "nesterov": Solver(momentum=0.8, step_schedule=falling(0.9), nesterov=True),
    "decay and clip": Solver(weight_decay=0.1, clip=0.2),
    "full": Solver(oracle=Oracle("full")),
    "sam": Solver(oracle=Oracle("sam", 0.1), momentum=0.5),
    "svrg": Solver(oracle=Oracle("svrg"), momentum=0.5, clip=0.5),
    "tolerance": Solver(tolerance=0.05, weight_decay=0.3),
    "limit": Solver(weight_decay=0.1, momentum=0.5, clip_direction=0.2),
    "released": Solver(weight_decay=0.1, clip_direction=0.2, clip_form="released"),
    "delta": Solver(pace=delta(), weight_decay=0.1),
    "dog": Solver(pace=dog()),
    "normed": Solver(pace=normed(), clip_direction=0.5),
    "lbfgs": Solver(kind="lbfgs", weight_decay=0.1),
}
NESTED = ("ditto", "apfl", "pfedme", "perfedavg")  # of further gradients; test_personal has their closed forms
ALLOWED = [
    (name, key)
    for name in METHODS
    for key, solver in SETTINGS.items()
    if name not in NESTED and refuse(solver, make(name)) is None
]
QUICK = ("scaffold", "fednova", "feddyn", "mfl", "losac", "mimesvrg", "fedadmm_inexact", "fedsmoo", "fedhybrid")
QUICK_SETTINGS = ("tolerance", "released", "delta")  # of two methods; all of them are plain


@pytest.mark.parametrize(
    ("name", "key"),
    tiers(
        ALLOWED,
        quick=[
            (name, key)
            for name, key in ALLOWED
            if (name in QUICK and key == "plain") or (name in ("scaffold", "losac") and key in QUICK_SETTINGS)
        ],
    ),
)
def test_every_method_and_setting_is_the_reference(name: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unequal steps and short batches; one client by itself, cohorts that make gradients, and cohorts that add them."""
    schedule = replace(SCHEDULE, lr=0.1 if SETTINGS[key].pace is None else 1.0)
    schedule = replace(schedule, cohort=8) if TABLE[name].everyone else schedule
    problems = {"dense": small("dense"), "generic": small("generic")}
    if name == "fedhybrid":
        problems = {"convex": quadratics(0, 8, torch.float64, torch.device("cpu"))}
    for problem in problems.values():
        job = Job(problem, make(name), schedule, SETTINGS[key], Serial())
        with monkeypatch.context() as patch:
            patch.setattr(step, "solve", plain_step.solve)
            expected = run(job, 3)
        for engine in (Serial(), Stacked(3, 2)):
            assert_same(run(replace(job, engine=engine), 3), expected)


# -- pieces --------------------------------------------------------------------------------------------------------

D = 36 * 8 + 8 + 8 * 3 + 3
STEPS = np.array([3, 3, 2, 1, 0])


def vectors(*shape: int) -> Tensor:
    return torch.as_tensor(np.random.default_rng(len(shape)).standard_normal(shape))


class Row(NamedTuple):
    """A piece in a step of its own, and which ways of taking steps accept it: fused, compiled, recorded."""

    pieces: tuple[Piece, ...]
    accepted: str  # of F, C and R
    size: StepSize | str = Fixed(0.1)
    prox: Callable[[Tensor, float], Tensor] | None = None
    tolerance: float | None = None


PULL, ZEROS = Pull(0.3, vectors(D)), torch.zeros(D, dtype=torch.float64)
EACH = vectors(5, 1).abs()


def later(optimiser: LocalOptimiser) -> tuple[Piece, ...]:
    """Its pieces, whose second moment has seen 20 steps."""
    *moments, last = optimiser.pieces(vectors(D), ())
    seen = [piece._replace(v=vectors(D).square()) for piece in moments]
    return *seen, last._replace(before=torch.full((1,), 20.0, dtype=torch.float64))


ROWS = {
    "nothing": Row((), "FCR"),
    "step sizes that shrink": Row((), "FCR", Fixed(0.1, falling(0.9))),
    "a regulariser": Row((Constant(vectors(D)),), "FR", prox=l1(0.1).prox),
    "a tolerance": Row((Decay(0.1), PULL), "", tolerance=1e-3),
    "ascent": Row((Ascent(0.1),), "FCR"),
    "perturbed": Row((Perturbed(vectors(5, D)),), "FCR"),
    "perturbed, one for all": Row((Perturbed(vectors(D)), Snapshot(vectors(D)), Scale(0.7), PULL), "FCR"),
    "perturbed, and an ascent from there": Row((Perturbed(vectors(5, D)), Ascent(0.1)), "R"),
    "perturbed, clipped, at a rule's sizes": Row((Perturbed(vectors(5, D)), Clip(0.2)), "CR", "delta"),
    "perturbed, beside, mixed": Row(
        (Perturbed(vectors(5, D)), Beside(0.5, 0.1, vectors(D), vectors(5, D), vectors(5, 1).sigmoid(), 0.1)), "CR"
    ),
    "adamw": Row((*adamw().pieces(vectors(D), ()), PULL), ""),
    "adamw, later and with another move": Row((*later(adamw()), PULL, Aligned(0.7, vectors(D))), ""),
    "signs": Row((*sign().pieces(ZEROS, ()), PULL), ""),
    "lion": Row((Lion(vectors(D), 0.9, 0.99, 0.1), PULL), ""),
    "muon": Row(muon().pieces(vectors(D), ((0, 8, 36),)), ""),
    "a window": Row((*adamw().pieces(vectors(D), ()), PULL, Window((torch.arange(D) % 3 > 0).double())), ""),
    "a mean of gradients": Row((MeanGradient(ZEROS), Scale(0.5)), ""),
    "ascent with a dual": Row((Ascent(0.1, vectors(5, D), vectors(D)),), "CR"),
    "beside": Row((Beside(0.5, 0.1, vectors(D), vectors(5, D)), PULL), "CR"),
    "beside, mixed": Row((Beside(0.5, 0.1, vectors(D), vectors(5, D), vectors(5, 1).sigmoid(), 0.1), PULL), "CR"),
    "beside, mixed, and a look": Row(
        (Look(0.1), Beside(0.5, 0.1, vectors(D), vectors(5, D), vectors(5, 1).sigmoid()), PULL), "R"
    ),
    "look": Row((Look(0.1), PULL), "CR"),
    "moreau": Row((Moreau(0.5, 3, 0.1, ZEROS), PULL), "CR"),
    "snapshot": Row((Snapshot(vectors(D)),), "FCR"),
    "snapshot with its mean": Row((Snapshot(vectors(D), vectors(5, D)), Scale(0.7), PULL), "CR"),
    "snapshot with its mean, and clip": Row((Snapshot(vectors(D), vectors(D)), Clip(0.2), PULL), "CR"),
    "snapshot, scaled": Row((Snapshot(vectors(D)), Scale(0.7), Constant(vectors(5, D))), "FCR"),
    "clip": Row((Clip(0.2),), "CR"),
    "ascent, snapshot and clip": Row((Ascent(0.1), Snapshot(vectors(D)), Clip(0.2)), "CR"),
    "table": Row((Table(vectors(5, 2, D), vectors(D), 0.5),), "C"),
    "table, a rate each, scaled": Row((Table(vectors(5, 2, D), vectors(5, D), EACH), Scale(0.7), PULL), "C"),
    "table and constant": Row((Table(vectors(5, 2, D), vectors(5, D), 0.5), Scale(0.7), Constant(vectors(D))), "C"),
    "scale": Row((Scale(0.7),), "FCR"),
    "scale, a number each": Row((Scale(EACH),), "CR"),
    "decay": Row((Decay(0.1),), "FCR"),
    "constant": Row((Constant(vectors(5, D)),), "FCR"),
    "constant, one for all": Row((Constant(vectors(D)), PULL), "FCR"),
    "dual": Row((Dual(vectors(D), 0.2, PULL.anchor), PULL), "FCR"),
    "dual, no pull": Row((Dual(vectors(5, D), 0.2, vectors(5, D)),), "FCR"),
    "dual and another anchor": Row((Dual(vectors(D), 0.2, vectors(D)), PULL), "FR"),
    "dual and constant": Row((Constant(vectors(D)), Dual(vectors(D), 0.2, PULL.anchor), PULL), "R"),
    "dual and momentum": Row((Dual(vectors(D), 0.2, PULL.anchor), Momentum(0.9, ZEROS), PULL), "CR"),
    "dual and table": Row((Table(vectors(5, 2, D), vectors(D), 0.5), Dual(vectors(D), 0.2, PULL.anchor), PULL), ""),
    "momentum": Row((Momentum(0.9, ZEROS),), "FCR"),
    "momentum from a buffer": Row((Momentum(0.9, vectors(D)),), "FCR"),
    "a buffer without momentum": Row((Momentum(0.0, vectors(5, D)),), "FCR"),
    "nesterov": Row((Momentum(0.9, vectors(D), nesterov=True),), "CR"),
    "momentum and all": Row(
        (
            *(Ascent(0.1), Snapshot(vectors(D)), Scale(0.7), Decay(0.1), Constant(vectors(5, D))),
            *(Momentum(0.5, vectors(D)), PULL),
        ),
        "FCR",
        Fixed(0.1, falling(0.9)),
    ),
    "pull": Row((PULL,), "FCR"),
    "pull, a number and an anchor each": Row((Pull(EACH, vectors(5, D)),), "CR"),
    "limit": Row((Decay(0.1), Constant(vectors(5, D)), PULL, Limit(0.2)), "R"),
    "the order of released": Row((Constant(vectors(D)), Clip(0.2), Decay(0.1), Pull(0.3, ZEROS)), "R"),
    "newton": Row((PULL, Newton(2 * torch.eye(D, dtype=torch.float64).expand(5, D, D))), ""),
    "delta": Row((), "FCR", "delta"),
    "delta and pull": Row((Decay(0.1), Constant(vectors(D)), PULL), "FCR", "delta"),
    "delta, ascent and snapshot": Row((Ascent(0.1), Snapshot(vectors(D)), Scale(0.7)), "FCR", "delta"),
    "delta and table": Row((Table(vectors(5, 2, D), vectors(D), 0.5), PULL), "C", "delta"),
    "delta and momentum": Row((Momentum(0.9, vectors(D)),), "R", "delta"),
    "dog": Row((Decay(0.1), PULL), "FCR", "dog"),
    "normed": Row((Scale(0.7), PULL), "FCR", "normed"),
    "normed and dual": Row((Dual(vectors(D), 0.2, PULL.anchor), PULL), "CR", "normed"),
}


def chain_of(row: Row, rows: slice | Tensor = slice(None)) -> Chain:
    """The row's steps, of these clients."""
    x, size = 0.1 * vectors(D), row.size
    if isinstance(size, str):
        start = x.expand(5, -1)[rows]
        size = sizes.begin(sizes.RULES[size](), 0.5, start, 0.4, None, 3)
    return Chain(x, tuple(rows_of(piece, rows) for piece in row.pieces), size, row.prox, row.tolerance)


def batches(network: str = "dense", accumulates: bool = True) -> Batches:
    """Three steps of five clients on up to four samples, the last of them a short batch."""
    objective, draw = small(network).objective, np.random.default_rng(3)
    places = np.arange(5)
    index = np.stack([draw.integers(a, b, (3, 4)) for a, b in itertools.pairwise(objective.offsets[:6])])
    weight = torch.full((5, 3, 4), 0.25, dtype=torch.float64)
    weight[:, 2] = torch.tensor([0.5, 0.5, 0.0, 0.0], dtype=torch.float64)
    blocks = torch.tensor([[0, 1, 1]]).expand(5, 3).contiguous()
    objective = objective if accumulates else replace(objective, accumulate=None)
    return Batches(objective, places, Samples(torch.as_tensor(index), weight), blocks)


def assert_walked(got: Walked, expected: Walked) -> None:
    assert got.taken.tolist() == expected.taken.tolist()
    assert [type(piece) for piece in got.pieces] == [type(piece) for piece in expected.pieces]
    pairs = [("x", got.x, expected.x)]
    for one, other in zip((*got.pieces, got.size), (*expected.pieces, expected.size), strict=True):
        pairs += [(f, a, b) for f, a, b in zip(one._fields, one, other, strict=True) if isinstance(a, Tensor)]
    for name, a, b in pairs:
        if name not in ("last", "start"):  # of a rule: scratch, and where the steps began
            assert torch.allclose(a, b, rtol=1e-12, atol=1e-13), name


@pytest.mark.parametrize("name", ROWS)
def test_every_way_takes_the_same_steps(name: str) -> None:
    """What accepts a chain does as `walk` does, what a row says is accepted is, and nothing that is given changes."""
    row = ROWS[name]
    source = batches()
    before = [value.clone() for piece in row.pieces for value in piece if isinstance(value, Tensor)]
    expected = walk(chain_of(row), source, STEPS)
    assert torch.equal(expected.x[-1], 0.1 * vectors(D))  # no steps, no move
    assert not torch.equal(expected.x[0], expected.x[-1])
    for way, letter in ((fused, "F"), (in_one_call, "C")):
        got = way(chain_of(row), source, STEPS)
        assert (got is not None) == (letter in row.accepted), letter
        if got is not None:
            assert_walked(got, expected)
    graphs = Graphs(lambda work: (work(), lambda: None))
    for _ in range(2):
        assert_walked(replay_or_take(graphs, lambda c, s: walk(c, s, STEPS), chain_of(row), source, STEPS), expected)
    assert (graphs.replays > 0) == ("R" in row.accepted)
    after = [value for piece in row.pieces for value in piece if isinstance(value, Tensor)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("name", ROWS)
def test_one_client_takes_the_steps_of_a_cohort(name: str) -> None:
    """By the objective's reference gradients; and who has other steps left changes nobody's."""
    row, source = ROWS[name], batches()
    expected = walk(chain_of(row), source, STEPS)
    assert source.samples is not None
    for i, count in enumerate(STEPS[:4]):
        samples = [batch[share > 0] for batch, share in zip(*(leaf[i, :count] for leaf in source.samples), strict=True)]
        alone = Alone(source.objective, samples, np.array([0, 1, 1]), source.objective.samples(i))
        got = walk(chain_of(row, torch.tensor([i])), alone, np.array([count]))
        assert torch.allclose(got.x[0], expected.x[i], rtol=1e-12, atol=1e-13)
        assert got.taken[0] == expected.taken[i]
        for one, other in zip(got.pieces, expected.pieces, strict=True):
            for field in one.traits.moves:
                assert torch.allclose(getattr(one, field)[0], getattr(other, field)[i], rtol=1e-12, atol=1e-13), field


@pytest.mark.parametrize("name", ROWS)
def test_what_is_known_of_unit_gradients_is_the_walk(name: str) -> None:
    """||a_i||_1 by `response`, beside the same chain on gradients of ones, where only what has a `unit` acts."""
    row = ROWS[name]
    chain = chain_of(row)._replace(prox=None, tolerance=None)
    walked = walk(chain, batches(), STEPS)
    norm = response(chain, walked)
    assert norm.shape == (5, 1)
    assert float(norm[-1]) == 0.0
    kappa = chain.the(Scale).kappa if chain.the(Scale) else 1.0
    rho = chain.the(Pull).rho if chain.the(Pull) else 0.0
    momentum = chain.the(Momentum) or Momentum(0.0, ZEROS)
    moved, buffer = torch.zeros(5, 1, dtype=torch.float64), torch.zeros(5, 1, dtype=torch.float64)
    base = chain.size.eta if isinstance(chain.size, Fixed) else walked.size.lr
    factor = getattr(chain.size, "schedule", None) or (lambda k: 1.0)
    for k in range(3):
        eta = base * factor(k) if isinstance(chain.size, Fixed) else walked.size.etas[:, k : k + 1]
        buffer = momentum.beta * buffer + kappa
        v = kappa + momentum.beta * buffer if momentum.nesterov else buffer
        moved = torch.where(torch.as_tensor(STEPS)[:, None] > k, moved + eta * (v - rho * moved), moved)
    assert torch.allclose(norm, moved / base, rtol=1e-12)


def test_every_piece_has_a_row() -> None:
    """A piece without one would be judged by nothing."""
    from fedconcord.method.contract import nested, optimisers, pairs, pieces

    everything = [value for file in (pieces, nested, optimisers, pairs) for value in vars(file).values()]
    known = {value for value in everything if isinstance(value, type) and hasattr(value, "apply")}
    known -= {pieces.Piece}
    assert known == {type(piece) for row in ROWS.values() for piece in row.pieces}


class Sign(NamedTuple):
    """A piece that is neither linear in the gradients nor a term of the problem."""

    @property
    def traits(self) -> Traits:
        return Traits(Place.OPTIMISER)

    def apply(self, v: Tensor, at: At) -> Tensor:
        return v.sign()


@pytest.mark.parametrize(
    ("name", "solver", "reason"),
    [
        ("fednova", Solver(), "which steps with Sign do not have"),
        ("fedavg", Solver(kind="lbfgs"), "and Sign is no term of it"),
    ],
)
@pytest.mark.parametrize("engine", [Serial(), Stacked(None)])
def test_a_piece_that_lacks_what_is_asked_for_is_refused(
    name: str, solver: Solver, reason: str, engine: Serial | Stacked
) -> None:
    """Neither of them is computed without it; where nobody asks, the piece is taken as it is."""
    method = make(name)
    signed = replace(method, start=lambda down, row, client: method.start(down, row, client).having(Sign()))
    with pytest.raises(UserError, match=reason):
        run(Job(small("dense"), signed, SCHEDULE, solver, engine), 1)
    free = replace(make("fedavg"), start=lambda x, row, client: Local(x, Sign()))
    assert torch.isfinite(run(Job(small("dense"), free, SCHEDULE, engine=engine), 1).server.x).all()
