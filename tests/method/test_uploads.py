"""Compressed uploads: what a compressor promises, what a message weighs, and what becomes of the methods."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from test_fixed_points import gap, job, run

from fedconcord.execution.engines import Serial, Stacked
from fedconcord.execution.job import Job, State, advance, checkpoint, start
from fedconcord.federation.objectives import Quadratic
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.method.algorithms import METHODS
from fedconcord.method.algorithms.fedavg import fedpaq
from fedconcord.method.contract import Algorithm, Phases, tree_bytes, tree_leaves
from fedconcord.method.wrappers.server import Optimizer, extrapolation, momentum, with_server
from fedconcord.method.wrappers.uploads import (
    COMPRESSORS,
    NONE,
    Compressor,
    Levels,
    none,
    quantise,
    topk,
    variance,
    with_uploads,
)
from fedconcord.support import factories
from fedconcord.support.errors import UserError
from table import TABLE, make
from tiers import tiers

ALL = {
    "quantise": quantise(127),
    "coarse": quantise(2),
    "wide": quantise(1000),
    "kept": quantise(2, feedback=True),
    "topk": topk(0.34),
}


def draws(count: int, d: int) -> torch.Tensor:
    return torch.as_tensor(np.random.default_rng(0).random((count, d)))


def vector(d: int) -> torch.Tensor:
    v = torch.as_tensor(np.random.default_rng(1).standard_normal(d))
    v[3] = 0.0
    return v


# -- compressors alone ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [1, 3, 127])
def test_quantise_is_unbiased(levels: int) -> None:
    """Every entry's mean over 40,000 draws is within 5 standard errors; the nearest level would be far outside."""
    v, count = vector(12), 40_000
    q = quantise(levels)
    got = q.decode(q.encode(v.expand(count, -1), draws(count, 12)), 12)
    error = (got.mean(0) - v).abs() / (got.std(0) / count**0.5).clamp(min=1e-12)
    assert got[:, 3].abs().max() == 0.0
    assert float(error.max()) < 5.0
    nearest = q.decode(q.encode(v, torch.full((12,), 0.5, dtype=v.dtype)), 12)
    assert float(((nearest - v).abs() / (got.std(0) / count**0.5).clamp(min=1e-12)).max()) > 50.0


@pytest.mark.parametrize("levels", [1, 3, 20, 127])
@pytest.mark.parametrize("d", [4, 50, 2000])
def test_quantise_is_within_its_bounds(levels: int, d: int) -> None:
    """|Q(v) - v| < norm / levels an entry, E ||Q(v) - v||^2 <= omega ||v||^2, and not by a factor of more than 4."""
    v, q = vector(d), quantise(levels)
    off = q.decode(q.encode(v.expand(400, -1), draws(400, d)), d) - v
    norm = float(v.norm())
    assert float(off.abs().max()) <= norm / levels * (1 + 1e-12)
    relative = float(off.square().sum(-1).mean()) / norm**2
    assert 0.25 * variance(levels, d) < relative < 1.05 * variance(levels, d)


@pytest.mark.parametrize("levels", [1, 3, 127])
def test_with_feedback_quantise_contracts(levels: int) -> None:
    """E ||C(v) - v||^2 <= omega / (1 + omega) ||v||^2 whatever the levels: errors cannot feed on themselves."""
    v, q, omega = vector(500), quantise(levels, feedback=True), variance(levels, 500)
    off = q.decode(q.encode(v.expand(400, -1), draws(400, 500)), 500) - v
    assert float(off.square().sum(-1).mean()) <= 1.02 * omega / (1 + omega) * float(v.norm()) ** 2


def test_the_largest_level_is_reached_and_not_passed() -> None:
    """A single entry is the norm itself, and a draw rounded up to 1 in float32 adds no level."""
    for levels, dtype in ((127, torch.int8), (128, torch.int16), (32767, torch.int16)):
        v = torch.tensor([0.0, -3.7, 0.0])
        content = quantise(levels).encode(v, torch.ones(3))
        assert content.level.dtype == dtype
        assert content.level.tolist() == [0, -levels, 0]
        assert torch.allclose(quantise(levels).decode(content, 3), v, rtol=1e-6)


def test_zeros_stay_zeros_and_a_diverged_client_shows() -> None:
    for compressor in (quantise(7), topk(0.4)):
        zeros, draw = torch.zeros(2, 5), torch.rand(2, 5)
        content = compressor.encode(zeros, draw)
        assert compressor.decode(content, 5).abs().max() == 0.0
        assert not isinstance(content, Levels) or content.level.abs().max() == 0
        for bad in (float("nan"), float("inf")):
            v = torch.tensor([1.0, bad, 0.0, 2.0, 3.0])
            assert not compressor.decode(compressor.encode(v, draw[0]), 5).isfinite().all()


def test_topk_sends_the_largest() -> None:
    v = torch.tensor([[0.1, -5.0, 2.0, 0.0, 3.0], [1.0, 0.0, 0.0, -2.0, 0.5]])
    got = topk(0.4).decode(topk(0.4).encode(v, None), 5)
    assert got.tolist() == [[0.0, -5.0, 0.0, 0.0, 3.0], [1.0, 0.0, 0.0, -2.0, 0.0]]
    assert topk(0.01).encode(v, None).value.shape == (2, 1)  # at least one
    assert torch.equal(topk(1.0).decode(topk(1.0).encode(v, None), 5), v)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("quantise(levels=0)", "levels must be an integer between 1 and 32767, given 0"),
        ("quantise(levels=32768)", "levels must be an integer between 1 and 32767, given 32768"),
        ("topk(fraction=0.0)", "fraction must be a number > 0 and <= 1, given 0.0"),
        ("topk(1.5)", "fraction must be a number > 0 and <= 1, given 1.5"),
        ("quantize", "did you mean 'quantise'"),
    ],
)
def test_wrong_settings_are_one_sentence(text: str, wrong: str) -> None:
    with pytest.raises(UserError, match=wrong.replace("(", r"\(")):
        factories.build(COMPRESSORS, "compressor", text)


# -- messages ------------------------------------------------------------------------------------------------------

D = 6  # of the quadratics


@pytest.mark.parametrize("engine", [Serial(), Stacked(None)])
@pytest.mark.parametrize(
    ("name", "compressor", "each"),
    [
        ("fedavg", none(), 8 * D),
        ("fedavg", quantise(127), 8 + D),
        ("fedavg", quantise(128), 8 + 2 * D),
        ("fedavg", topk(0.34), 2 * (8 + 4)),
        ("fednova", quantise(127), 8 + D + 2 * 8),  # ||a_i||_1 and tau travel as they are
        ("scaffold", quantise(127), 2 * (8 + D)),
        ("scaffold", topk(0.34), 2 * 2 * (8 + 4)),
        ("mimesvrg", quantise(127), 8 * D + 8 + D),  # the gradient of the prelude travels whole
    ],
)
def test_bytes_are_those_of_the_message(name: str, compressor: Compressor, each: int, engine: Serial | Stacked) -> None:
    this = replace(job(with_uploads(make(name), compressor)), engine=engine)
    assert run(this, 3).bytes_up == 3 * 5 * each
    assert run(this, 3).bytes_down == run(replace(this, algorithm=make(name)), 3).bytes_down


def same(a: State, b: State, tolerance: float = 1e-12) -> None:
    rows = [tree_leaves(s.store.gather(s.store.ids())) if len(s.store) else {} for s in (a, b)]
    assert (a.bytes_up, a.bytes_down, rows[0].keys()) == (b.bytes_up, b.bytes_down, rows[1].keys())
    pairs = [(tree_leaves(a.server)[k], v) for k, v in tree_leaves(b.server).items()]
    for x, y in pairs + [(rows[0][k], rows[1][k]) for k in rows[1]]:
        assert x.shape == y.shape
        assert float((x - y).abs().max()) <= tolerance * max(1.0, float(y.abs().max()))


def everyone(name: str, algorithm: Algorithm) -> Job:
    return job(algorithm, 20 if TABLE[name].everyone else 5)


SENT_WHOLE = ("mfl", "fedsmoo")  # momentum, duals
CHANGES = [name for name in TABLE if name not in ("fedpd", "fedpaq", "fedasync", *SENT_WHOLE)]


def test_what_is_sent_whole_is_not_compressed() -> None:
    """Momentum and duals replace the server's, so that what is lost of them is no change that shrinks."""
    refused = [name for name in TABLE if "upload" in dict(make(name).facts.unfit)]
    assert sorted(refused) == sorted(SENT_WHOLE)
    for name in refused:
        with pytest.raises(UserError, match="uploads need changes, which errors shrink with, and its clients"):
            run(everyone(name, with_uploads(make(name), ALL["topk"])), 1)


@pytest.mark.parametrize("how", ["coarse", "kept", "topk"])
@pytest.mark.parametrize("name", CHANGES)
def test_every_method_on_every_engine(name: str, how: str) -> None:
    """One client at a time and in chunks: the same draws, errors and bytes."""
    this = everyone(name, with_uploads(make(name), ALL[how]))
    same(run(replace(this, engine=Stacked(3)), 5), run(replace(this, engine=Serial()), 5))


@pytest.mark.parametrize("name", [*CHANGES, "losac_gradient"])
def test_nothing_lost_is_the_method_itself(name: str) -> None:
    """Top-k with all entries: feedback wraps every hook of the method and changes nothing."""
    method = make("losac", init="gradient") if name == "losac_gradient" else make(name)
    name = name.removesuffix("_gradient")
    got, want = run(everyone(name, with_uploads(method, topk(1.0))), 6), run(everyone(name, method), 6)
    rows = got.store.gather(got.store.ids())
    assert all(error.abs().max() == 0.0 for error in rows.error)
    for tree, wanted in ((got.server, want.server), (rows.inner, want.store.gather(want.store.ids()))):
        assert tree_leaves(tree).keys() == tree_leaves(wanted).keys()
        assert all(torch.equal(leaf, tree_leaves(wanted)[key]) for key, leaf in tree_leaves(tree).items())


def test_vectors_of_a_message_and_clients_share_no_draw() -> None:
    """SCAFFOLD's two vectors are parallel in its first round: with common draws their levels would be opposite."""
    seen = []
    base = with_uploads(METHODS["scaffold"](), quantise(2))
    spy = replace(base, contribute=lambda up, *rest: (seen.append(up), base.contribute(up, *rest))[1])
    this = job(spy)
    run(this, 2)
    x, c = seen[0].x.content.level, seen[0].c.content.level
    assert torch.equal(x.sign() * c.sign(), -(x * c != 0).to(torch.int8))
    assert not torch.equal(x, -c)
    plain, again = run(job(with_uploads(METHODS["scaffold"](), quantise(2))), 2), run(this, 2)
    assert torch.equal(plain.server.x, again.server.x)


@pytest.mark.parametrize("how", ALL)
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "afedpd", "losac"])
def test_resume_is_bit_for_bit(name: str, how: str, tmp_path: Path) -> None:
    this = job(with_uploads(make(name), ALL[how]))
    state = run(this, 4)
    checkpoint.save(this, state, tmp_path / "state.safetensors")
    again = checkpoint.load(this, tmp_path / "state.safetensors")
    for _ in range(4):
        state, again = advance(this, state), advance(this, again)
    same(again, state, 0.0)
    errors = tree_bytes(this.algorithm.init_client(this.problem.init(0))) - tree_bytes(
        make(name).init_client(this.problem.init(0))
    )
    vectors = 2 if name in ("scaffold", "losac") else 1
    assert errors == (vectors * 8 * D if ALL[how].feedback else 0)


def test_none_is_the_method_itself() -> None:
    method = METHODS["scaffold"]()
    assert with_uploads(method, none()) is method
    assert none() is NONE


def test_a_model_of_one_parameter_travels_as_it_is() -> None:
    one = Quadratic(torch.ones(4, 1, 1, 1).double(), torch.arange(4.0).double().reshape(4, 1, 1))
    for compressor in ALL.values():
        for engine in (Serial(), Stacked(None)):
            jobs = [
                Job(one, method, Schedule(0, 2, 0.1, unit="steps"), engine=engine)
                for method in (with_uploads(METHODS["scaffold"](), compressor), METHODS["scaffold"]())
            ]
            got, want = run(jobs[0], 5), run(jobs[1], 5)
            assert torch.equal(got.server.x, want.server.x)
            assert got.bytes_up == want.bytes_up


@pytest.mark.parametrize("optimizer", [momentum(0.5), extrapolation()], ids=["momentum", "extrapolation"])
def test_with_a_server_optimiser_in_either_order(optimizer: Optimizer) -> None:
    method = METHODS["scaffold"]()
    inside = run(job(with_server(with_uploads(method, topk(0.5)), optimizer)), 8)
    outside = run(job(with_uploads(with_server(method, optimizer), topk(0.5))), 8)
    same(inside, outside, 0.0)


# -- what is refused -----------------------------------------------------------------------------------------------


def test_whole_models_are_refused() -> None:
    """FedPD averages models; its cohort is right, so the reason is the upload."""
    for how in ("quantise", "topk"):
        with pytest.raises(UserError, match="sends whole models"):
            start(job(with_uploads(METHODS["fedpd"](), ALL[how]), 20))
        with pytest.raises(UserError, match="sends whole models"):
            start(job(with_uploads(METHODS["fedasync"](), ALL[how]), 5))
    with pytest.raises(UserError, match="fedpd needs all 20 clients in every round, and a cohort of 5 may leave some"):
        start(job(with_uploads(METHODS["fedpd"](), ALL["topk"]), 5))  # who takes part comes first


def test_uploads_are_compressed_once() -> None:
    with pytest.raises(UserError, match="the method compresses its own uploads"):
        start(job(with_uploads(fedpaq(), ALL["topk"])))


def test_feedback_needs_every_message() -> None:
    method = replace(METHODS["fedavg"](), phases=Phases(communicates=lambda cohort: cohort.round % 2 == 0))
    with pytest.raises(UserError, match="leaves messages out"):
        start(job(with_uploads(method, topk())))
    assert run(job(with_uploads(method, quantise())), 4).bytes_up == 2 * 5 * (8 + D)


# -- what becomes of the methods -----------------------------------------------------------------------------------

EXACT = [name for name, row in TABLE.items() if row.exact == "partial"]


@pytest.mark.parametrize(
    ("name", "how"),
    tiers(
        [(name, how) for name in EXACT for how in ("kept", "topk")],
        quick=[("scaffold", "kept")],
    ),
)
def test_with_feedback_exact_methods_stay_exact(name: str, how: str) -> None:
    """Two of six entries, or levels -2 .. 2, and they still go to the optimum."""
    assert gap(job(with_uploads(make(name), ALL[how])), 600) < 1e-6


@pytest.mark.parametrize("compressor", [quantise(2), topk(0.34, feedback=False)], ids=["quantise", "topk"])
@pytest.mark.parametrize("name", tiers(EXACT, quick=("scaffold", "losac")))
def test_without_feedback_they_do_not(name: str, compressor: Compressor) -> None:
    """The test above can fail."""
    assert not gap(job(with_uploads(make(name), compressor)), 300) < 1e-2


def test_topk_without_feedback_stalls_and_with_it_converges() -> None:
    """Gradient descent on f(x) = 1/2 ||x - (3, 2, 1)||^2 split over two clients that pull against each other.

    Client 1 always sends its first entry, +10 and then less; client 2 its first, -10: what both want of the other two
    entries is never sent.
    """
    b = torch.tensor([[13.0, 2.0, 1.0], [-7.0, 2.0, 1.0]], dtype=torch.float64)
    two = Quadratic(torch.eye(3).double().expand(2, 1, 3, 3), b[:, None])

    def answer(feedback: bool) -> torch.Tensor:
        method = with_uploads(METHODS["fedsgd"](), topk(0.34, feedback))
        x: torch.Tensor = run(Job(two, method, Schedule(0, 2, 0.02), engine=Stacked(None)), 600).server.x
        return x

    stalled, converged = answer(False), answer(True)
    assert stalled.tolist() == pytest.approx([3.0, 0.0, 0.0], abs=1e-3)
    assert float((converged - torch.tensor([3.0, 2.0, 1.0])).abs().max()) < 0.2  # of the order of the step size


@pytest.mark.slow
def test_running_sums_drift_without_feedback_and_are_exact_with_it() -> None:
    """SCAFFOLD: c - mean c_i grows from zero; with feedback c = mean (c_i - e_i) at every round."""

    def drift(feedback: bool, rounds: int) -> tuple[float, float, State]:
        state = run(job(with_uploads(METHODS["scaffold"](), quantise(8, feedback))), rounds)
        rows = state.store.gather(np.arange(20))
        own, error = (rows.inner, rows.error[1]) if feedback else (rows, torch.zeros(20, D))
        c = state.server.c
        return float((c - own.c.mean(0)).norm()), float((c - (own.c - error).mean(0)).norm()), state

    for rounds in (1, 20):
        plain, _, _ = drift(False, rounds)
        kept, exact, _ = drift(True, rounds)
        assert plain > 1e-3
        assert exact < 1e-14
        assert kept > 1e-6
    # at the end: grad F = -(c - mean c_i), so the drift says how far from the optimum it stops
    this = job(with_uploads(METHODS["scaffold"](), quantise(8)))
    _, _, end = drift(False, 500)
    assert isinstance(this.problem, Quadratic)
    gradient = this.problem.H_mean.mean(0) @ end.server.x - this.problem.b_mean.mean(0)
    rows = end.store.gather(np.arange(20))
    assert torch.allclose(gradient, -(end.server.c - rows.c.mean(0)), atol=1e-12)
    assert drift(True, 500)[0] < 1e-12


def test_fedpaq_is_fedavg_with_quantised_uploads() -> None:
    """At 32767 levels it is FedAvg but for the last digits, at 3 it is not; over many draws its mean is FedAvg."""
    fedavg = run(job(METHODS["fedavg"]()), 1).server.x

    def one_round(levels: int, seed: int = 1) -> torch.Tensor:
        this = job(fedpaq(levels))
        # the seed of the draws alone: the cohort and its work stay those of seed 1
        keyed = replace(this, schedule=_OtherNoise(this.schedule, seed))
        x: torch.Tensor = advance(keyed, start(keyed)).server.x
        return x

    assert float((one_round(32767) - fedavg).norm() / fedavg.norm()) < 1e-4
    off = torch.stack([one_round(3, seed) for seed in range(300)]) - fedavg
    assert float(off.norm(dim=-1).min()) > 1e-3
    assert float((off.mean(0).abs() / (off.std(0) / 300**0.5)).max()) < 4.5


class _OtherNoise:
    """A schedule whose plans draw their noise from another seed."""

    def __init__(self, schedule: Schedule, seed: int) -> None:
        self.schedule, self.own = schedule, seed
        self.seed, self.cohort, self.draws = schedule.seed, schedule.cohort, schedule.draws
        self.refuse = schedule.refuse

    def plan(self, *arguments):
        return self.schedule.plan(*arguments)._replace(seed=self.own)
