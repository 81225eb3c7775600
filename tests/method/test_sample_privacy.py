"""Differential privacy of samples: a step against its equation, what a sample moves, what is spent, who is refused."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.pld import pld_privacy_accountant
from dp_accounting.rdp import rdp_privacy_accountant
from safetensors.torch import load_file
from torch import nn

import fedconcord
from fedconcord.execution.engines import Serial, Stacked, Wire
from fedconcord.execution.job import Job, advance, plan_of, start
from fedconcord.execution.job.refusals import reasons
from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.objectives import Supervised
from fedconcord.federation.participation.sampling import SAMPLERS, likely_rounds
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import Coins, Keyed, epoch_steps, poisson, uniform
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Algorithm, Orders, rng
from fedconcord.method.contract.discrete import SIGMA
from fedconcord.method.contract.grid import Grid
from fedconcord.method.step.assignment import with_conditions
from fedconcord.method.step.noise import _of_samples
from fedconcord.method.step.solver import ORACLES, Solver
from fedconcord.method.wrappers.samples import with_sample_privacy
from fedconcord.method.wrappers.terms import ntd, with_term
from fedconcord.study.settings.job import build
from fedconcord.study.settings.privacy import budget_of
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.settings import Config
from fedconcord.study.settings.sources import Source
from fedconcord.support.errors import UserError
from fedconcord.testing.bench import run
from table import TABLE, make

SEED, CLIP, NOISE, Q = 5, 0.4, 1.3, 0.3
SIZES = (9, 4, 13, 1)
COVERED = {
    *(
        "fedavg",
        "fedavgm",
        "fedadam",
        "fedyogi",
        "fedadagrad",
        "fedexp",
        "fedpaq",
        "fedprox",
        "fedcm",
        "mfl",
        "fednova",
    ),
    *("scaffold", "vrlsgd", "feddyn", "fedpd", "fedadmm", "fedvra", "afedpd", "afedpd_share", "auto", "fednova_vr"),
    *("fedadmm_inexact", "fedasync", "ca2fl"),
}


def problem(dropped: float = 0.0, seed: int = 0) -> Supervised:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(sum(SIZES), 5))
    y = draw.integers(0, 3, sum(SIZES))
    data = Dataset("some", x, y, x[:6], y[:6], 3)
    ends = np.cumsum((0, *SIZES))
    parts = [np.arange(a, b) for a, b in pairwise(ends)]

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Dropout(dropped), nn.Linear(4, 3))

    return Supervised(model, data, parts, dtype=torch.float64)


def job(algorithm: Algorithm, engine: Any = None, noise: float = NOISE, dropped: float = 0.0, **solver: Any) -> Job:
    schedule = Schedule(SEED, len(SIZES), 0.1, uniform(1, 4), "steps", poisson(Q))
    private = with_sample_privacy(algorithm, CLIP, noise, Q)
    return Job(problem(dropped), private, schedule, Solver(**solver), engine or Serial())


def after(one: Job, rounds: int = 2) -> torch.Tensor:
    x: torch.Tensor = run(one, rounds).server.x
    return x


def stepped(
    x: torch.Tensor, gradients: Sequence[torch.Tensor], n: int, noise: float, client: int, k: int
) -> torch.Tensor:
    """DP-SGD's step k of a client by hand: clip each gradient, add the keyed noise, divide by q n."""
    total = torch.zeros_like(x)
    for g in gradients:
        total += g * min(1.0, CLIP / float(g.norm()))
    if noise:
        total += torch.as_tensor(rng.noise(len(x), SEED, 0, client, k)) * (noise * CLIP / SIGMA)
    return x - 0.1 * total / (Q * n)


# -- a step ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [NOISE, 0.0])
@pytest.mark.parametrize("engine", [Serial(), Stacked()])
def test_local_steps_are_the_papers_equation(engine: Any, noise: float) -> None:
    """Every client's steps of a round by hand: clip each gradient, add the keyed noise, divide by q n."""
    one = job(METHODS["fedavg"](weights="uniform"), engine, noise)
    of, x0 = one.problem, one.problem.init(SEED)
    plan, ends = plan_of(one, start(one)), []
    for client, steps in zip(plan.ids.tolist(), plan.steps.tolist(), strict=True):
        x, n, first = x0.clone(), SIZES[client], sum(SIZES[:client])
        tosses = rng.generator(SEED, rng.Purpose.BATCH, 0, client).random(steps * n).reshape(steps, n)
        for k in range(steps):
            batch = [of.objective.gradient(x, torch.tensor([first + j])) for j in np.flatnonzero(tosses[k] < Q)]
            x = stepped(x, batch, n, noise, client, k)
        ends.append(x)
    state = advance(one, start(one))
    tolerance = 1e-6 if noise else 1e-12  # of whole numbers, in steps of z C / 2^24
    torch.testing.assert_close(state.server.x, torch.stack(ends).mean(0), rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", sorted(COVERED))
def test_engines_agree(name: str) -> None:
    """A step of whole numbers may round to the next one where a gradient has another last bit: 2^-24 of C each."""
    ends = [after(job(make(name), engine)) for engine in (Serial(), Stacked(), Stacked(chunk=2), Wire())]
    for end in ends[1:]:
        torch.testing.assert_close(end, ends[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("noise", [NOISE, 0.0])
def test_dropout_and_terms_are_the_clients_own_still(noise: float) -> None:
    plain = METHODS["fedavg"](weights="uniform")
    for algorithm, dropped in ((plain, 0.5), (with_term(plain, ntd()), 0.0)):
        ends = [after(job(algorithm, engine, noise, dropped)) for engine in (Serial(), Stacked(), Wire())]
        for end in ends[1:]:
            torch.testing.assert_close(end, ends[0], rtol=0, atol=1e-6)
        assert (ends[0] - after(job(plain, None, noise))).abs().max() > 1e-4


def test_samples_of_one_step_have_masks_of_their_own() -> None:
    """One sample asked thirteen times in a step has thirteen masks, as thirteen samples have."""
    one = job(METHODS["fedavg"](), None, 0.0, 0.5)
    plain = Job(one.problem, METHODS["fedavg"](), one.schedule)
    few, x = with_noise_of(plain, client=2), one.problem.init(SEED) + 0.3
    each = _of_samples(few, few.conditions._replace(place=torch.zeros(1, 1)), 0, 13)
    rows = each.gradients(x.expand(13, -1), torch.full((13, 1), 15), None)
    assert len({tuple((row == 0).tolist()) for row in rows}) > 4


def with_noise_of(one: Job, client: int) -> Any:
    orders = [Orders(0, client, 3, 0.1, SEED)]
    x, places = one.problem.init(SEED), np.array([client])
    return with_conditions(one.problem.objective, one.algorithm, x, (), places, orders).taking(slice(None), 0)


def test_a_step_that_nobody_is_in_has_noise_alone() -> None:
    few = with_noise_of(job(METHODS["fedavg"]()), client=1)
    x, nobody = torch.zeros(few.dim, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)
    g = few.gradient(x, nobody)
    drawn = rng.noise(few.dim, SEED, 0, 1)
    torch.testing.assert_close(g, torch.as_tensor(drawn).double() * (NOISE * CLIP / SIGMA) / (Q * SIZES[1]))
    filler = few.gradients(x[None], torch.full((1, 5), 9), torch.zeros(1, 5, dtype=torch.float64))
    assert torch.equal(filler[0], g)


def test_coins_that_all_fall_the_other_way_are_a_step_of_every_model(tmp_path: Path) -> None:
    """Also of one whose gradients a kernel computes, which has nothing to shape where there is no sample."""
    fedconcord.run(
        settings=settings(**{"local.batch_size": "poisson(0.0005)", "local.steps": 3}, rounds=1), out=tmp_path / "run"
    )


def test_one_sample_moves_a_sum_by_no_more_than_the_clip() -> None:
    """In whole numbers, whatever its gradient is: twice as long, huge, or not finite, which counts as zeros."""
    one = job(METHODS["fedavg"]())
    few, x = with_noise_of(one, client=0), one.problem.init(SEED)
    everyone = torch.arange(9)
    unit = NOISE * CLIP / SIGMA / (Q * 9)
    moved = [(few.gradient(at, everyone) - few.gradient(at, everyone[:-1])) / unit for at in (x, 3 * x, 30 * x)]
    assert max(float(one.norm()) for one in moved) <= SIGMA / NOISE + 1e-3
    assert float(moved[0].norm()) > 0.99 * SIGMA / NOISE  # the bound is met, or the test could not fail
    broken = few.gradient(torch.full_like(x, math.inf), everyone)
    assert bool(broken.isfinite().all())


def test_chunks_of_samples_give_the_same_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = after(job(METHODS["scaffold"]()))
    monkeypatch.setattr("fedconcord.method.step.noise.AT_ONCE", 50)
    torch.testing.assert_close(after(job(METHODS["scaffold"]())), whole, rtol=0, atol=1e-6)  # or a step beside it


def test_rounding_has_room_in_the_clip() -> None:
    """Sums of many vectors, with one and without it: in whole numbers no further apart than the mechanism's bound."""
    draw = np.random.default_rng(0)
    for d, n, noise in ((3, 5, 1.0), (40_000, 30, 50.0), (500, 2000, 900.0)):
        grid = Grid(CLIP, noise)
        room = grid.room(d, n)
        v = draw.normal(size=(n, d))
        v *= room / np.linalg.norm(v, axis=1, keepdims=True)
        orders = draw.permutation(n - 1), draw.permutation(n)
        without, with_ = (torch.as_tensor(np.add.reduce(v[order])) for order in orders)
        apart = (grid.rounded(with_) - grid.rounded(without)).double().norm()
        assert 0.9 * SIGMA / noise < apart <= SIGMA / noise
    with pytest.raises(UserError, match="leaves nothing of a gradient of 10000 numbers"):
        Grid(CLIP, 2e5).room(10_000, 5)


def test_every_draw_of_noise_is_used_once() -> None:
    """No two steps of any client and round have the same noise."""
    seen: list[tuple[int, ...]] = []

    def draw(n: int, seed: int, round: int, client: int, step: int) -> np.ndarray:
        seen.append((seed, round, client, step))
        return rng.noise(n, seed, round, client, step)

    one = job(METHODS["fedavg"]())
    noise = one.algorithm.step.noise
    assert noise is not None
    step = one.algorithm.step._replace(noise=noise._replace(draw=draw))
    after(replace(one, algorithm=replace(one.algorithm, step=step)), 3)
    assert len(seen) == len(set(seen)) >= 3 * len(SIZES)


# -- batches ---------------------------------------------------------------------------------------------------------


def test_batches_are_coins() -> None:
    """Each sample of each step by its own coin: counts are binomial, and no pair of steps is alike."""
    drawn = Keyed(SEED, poisson(0.25)).draw(METHODS["fedavg"](), Orders(0, 0, 4000, 0.1, SEED), 6).batches
    assert drawn is not None
    counts = (drawn >= 0).sum(1)
    law = np.array([math.comb(6, k) * 0.25**k * 0.75 ** (6 - k) for k in range(7)]) * 4000
    observed = np.bincount(counts, minlength=7)
    assert ((observed - law) ** 2 / law).sum() < 22.5  # chi-square, six degrees, 0.1 %
    each = np.bincount(drawn[drawn >= 0], minlength=6) / 4000
    assert np.abs(each - 0.25).max() < 0.03
    assert all(len(set(row[row >= 0])) == (row >= 0).sum() for row in drawn)
    assert (Coins(1.0).probability, epoch_steps(7, poisson(0.3)), epoch_steps(10**6, poisson(0.05))) == (1.0, 4, 20)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "afedpd"])
def test_coins_without_privacy_are_means_of_who_came(name: str) -> None:
    """And no step at all where nobody did, which the client of one sample meets often, on every engine."""
    one = job(make(name))
    plain = replace(one, algorithm=make(name))
    ends = [after(replace(plain, engine=engine), 3) for engine in (Serial(), Stacked(), Stacked(chunk=2), Wire())]
    for end in ends[1:]:
        torch.testing.assert_close(end, ends[0], rtol=0, atol=1e-12)
    assert bool(ends[0].isfinite().all())


# -- what is spent -----------------------------------------------------------------------------------------------------


def settings(**more: Any) -> dict[str, Any]:
    """By dotted key."""
    given = {"data": "digits", "model": "logreg", "partition": "iid", "clients": 4, "cohort": 4, "rounds": 3, "seed": 1}
    local = {"local.lr": 0.5, "local.batch_size": "poisson(0.1)"}
    return {**given, **local, "privacy.unit": "sample", "privacy.clip": 1.0, "privacy.noise": 1.1, **more}


def config_of(**more: Any) -> Config:
    return resolve_run(Source(settings(**more), dict.fromkeys(settings(**more), "here")))


@pytest.mark.parametrize(
    ("local", "method", "steps"),
    [
        ({}, "fedavg", 10),
        ({"local.epochs": "uniform(1,3)"}, "fedavg", 30),
        ({"local.epochs": "per_client([1, 4, 1, 1])"}, "fedavg", 40),
        ({"local.steps": 7}, "scaffold", 7),
        ({}, "fedsgd", 1),
    ],
)
def test_every_local_step_spends(local: dict[str, Any], method: str, steps: int) -> None:
    """By hand with dp-accounting, and below its bound by Renyi divergences, which is what Opacus accounts by."""
    budget = budget_of(config_of(**local, method=method))
    assert budget is not None
    assert budget.unit == "sample"
    event = dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(1.1))
    by_loss = pld_privacy_accountant.PLDAccountant(value_discretization_interval=1e-3)
    by_renyi = rdp_privacy_accountant.RdpAccountant(orders=range(2, 64))
    epsilon = budget.spending.epsilon(3)
    assert epsilon == pytest.approx(by_loss.compose(event, 3 * steps).get_epsilon(1e-5), rel=1e-3)
    renyi = by_renyi.compose(event, 3 * steps).get_epsilon(1e-5)
    assert 0.6 * renyi < epsilon < renyi


@pytest.mark.parametrize("unit", [{}, {"privacy.unit": "client", "local.batch_size": 20}])
@pytest.mark.parametrize("sampling", ["uniform", "cyclic", "bernoulli", "with_size"])
def test_rounds_count_for_who_is_in_them(sampling: str, unit: dict[str, Any]) -> None:
    """As often as the client that is drawn most, where all draws are known before the run."""
    if sampling == "with_size":
        more: dict[str, Any] = {"sampling": "uniform", "availability": "coins(0.9,1)"}
    else:
        more = {"sampling": sampling}
    config = config_of(clients=12, cohort=3, rounds=20, **more, **unit)
    budget, one = budget_of(config), build(config)
    assert budget is not None
    counts, state, most = np.zeros(12), start(one), [0]
    for t in range(20):
        ids = plan_of(one, state._replace(round=t)).ids
        counts[ids] += 1
        most.append(int(counts.max()))
    is_known = sampling in ("uniform", "cyclic")
    assert budget.spending.most == (tuple(most) if is_known else None)
    assert most[-1] < 20
    whole = budget.spending._replace(most=None)
    for t in (1, 7, 20):
        assert budget.spending.epsilon(t) == whole.epsilon(most[t] if is_known else t)
    assert (f"a client is in {most[-1]} of 20 rounds at most" in budget.said) == is_known


@pytest.mark.parametrize("sampling", ["uniform", "cyclic"])
def test_noise_is_found_for_the_draws_of_all_seeds(sampling: str) -> None:
    """One noise, which hardly any seed's draws are too many for; a tenth of the rounds' number is far too few."""
    more = {"privacy.noise": None, "privacy.epsilon": 4.0, "sampling": sampling, "local.steps": 1}
    budgets = [budget_of(config_of(clients=50, cohort=5, rounds=60, seed=seed, **more)) for seed in range(40)]
    assert len({budget.spending.noise for budget in budgets if budget}) == 1
    most = [budget.spending.most[-1] for budget in budgets if budget and budget.spending.most]
    assert len(most) == 40
    times = likely_rounds(SAMPLERS[sampling]().identity, 5, 50, 60)
    assert sum(one > times for one in most) <= 2
    assert times < 20
    spent = [budget.spending.epsilon(60) for budget in budgets if budget]
    assert max(spent) <= 4.0 or max(most) > times
    assert min(spent) > 2.0


def test_a_run_says_what_it_spends_and_of_what(tmp_path: Path) -> None:
    out = tmp_path / "run"
    fedconcord.run(settings=settings(**{"privacy.noise": None, "privacy.epsilon": 3.0}), out=out)
    privacy = json.loads((out / "run.json").read_text())["privacy"]
    assert privacy["unit"] == "sample"
    assert 2.9 < privacy["epsilon"] <= 3.0
    assert "10 local steps a round at most, each sample in each with probability 0.1" in privacy["said"]


def test_baselines_stand_beside_it_without_privacy(tmp_path: Path) -> None:
    fedconcord.compare(["fedavg"], settings=settings(seed=None), baselines=["pooled", "local"], out=tmp_path / "some")
    said = {path.parent.parent.name: "privacy" in json.loads(path.read_text()) for path in tmp_path.rglob("run.json")}
    assert said == {"fedavg": True, "pooled": False, "local": False}


def test_a_budget_ends_the_run_and_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    limited = settings(rounds=9, **{"privacy.noise": 1.5, "privacy.epsilon": 3.0})
    whole = fedconcord.run(settings=limited, out=tmp_path / "whole")
    assert "its budget of epsilon 3 is spent" in json.loads((tmp_path / "whole" / "run.json").read_text())["stopped"]
    assert 1 < whole.rounds < 9
    fedconcord.run(settings=settings(rounds=1, **{"privacy.noise": 1.5}), out=tmp_path / "parts")
    fedconcord.run(resume=tmp_path / "parts", rounds=whole.rounds)
    once, again = (load_file(tmp_path / one / "model.safetensors") for one in ("whole", "parts"))
    assert all(torch.equal(once[name], again[name]) for name in once)


# -- who is refused ----------------------------------------------------------------------------------------------------


def test_which_methods_it_covers_is_computed_from_what_they_need() -> None:
    covered = set()
    for name in TABLE:
        if not list(reasons(job(make(name)))):
            covered.add(name)
    assert covered == COVERED


def test_coins_of_another_chance_or_none_are_refused() -> None:
    """In Python the schedule and the method are made apart."""
    one = job(METHODS["fedavg"]())
    for size in (4, None, poisson(2 * Q)):
        (why,) = reasons(replace(one, schedule=replace(one.schedule, batch_size=size)))
        assert why.endswith("give the schedule work.poisson(0.3)")


@pytest.mark.parametrize(
    ("algorithm", "solver", "why"),
    [
        (METHODS["mimesvrg"](), {}, "takes full gradients"),
        (METHODS["losac"](blocks=1), {}, "keeps a table of gradients"),
        (METHODS["fedsam"](), {}, "several of the same samples"),
        (METHODS["ditto"](), {}, "several of the same samples"),
        (METHODS["qffl"](), {}, "asks for clients' losses"),
        (METHODS["fedavg"](), {"oracle": ORACLES["svrg"]()}, "set local.oracle to minibatch"),
        (METHODS["fedavg"](), {"kind": "lbfgs"}, "use local SGD"),
        (METHODS["fedavg"](), {"tolerance": 0.1}, "leave it out"),
    ],
)
def test_methods_that_see_samples_otherwise_are_refused(algorithm: Algorithm, solver: dict[str, Any], why: str) -> None:
    given = list(reasons(job(algorithm, **solver)))
    assert any("privacy of samples" in one and why in one for one in given), given


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"local.batch_size": 10}, "give all three, as in --dp-unit sample --batch-size"),
        ({"privacy.clip": None, "privacy.noise": None}, "given privacy.clip none"),
        ({"privacy.clip": "adaptive"}, "clips gradients; give a number"),
        ({"privacy.kind": "local"}, "leave it out"),
        ({"privacy.delta": 0.01}, "samples be published whole"),
        ({"local.batch_size": "poisson(1.5)"}, "probability"),
        ({"local.batch_size": "posson(0.5)"}, "poisson"),
        ({"clock": "asynchronous(2)", "devices": "lognormal"}, "how often a client takes part"),
        ({"eval.personalise": "finetune(1)", "validation": 0.2}, "does not cover"),
    ],
)
def test_settings_that_would_release_more_are_one_sentence(more: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        fedconcord.run(settings=settings(**more), out=tmp_path / "run")
    assert why in str(raised.value)


def test_batch_norm_and_terms_that_look_at_others_are_refused() -> None:
    with pytest.raises(UserError, match="clips the gradient of each sample alone, and term logit_calibration"):
        fedconcord.run(settings=settings(**{"local.term": "logit_calibration"}))


def test_a_diagnosis_looks_at_plain_gradients_and_an_audit_refuses(tmp_path: Path) -> None:
    fedconcord.run(settings=settings(rounds=1), out=tmp_path / "run")
    assert fedconcord.diagnose(folder=tmp_path / "run", out=tmp_path / "looks").page.exists()
    with pytest.raises(UserError, match="no reading of steps that have noise of their own"):
        fedconcord.audit(["fedavg"], round=1, settings=settings(rounds=1, seed=None), out=tmp_path / "audit")


def test_robust_rules_and_compression_see_nothing_else() -> None:
    """What is made of noisy messages spends no more: aggregation rules, attacks in a simulation, compressors."""
    assert budget_of(config_of(aggregate="median", upload="quantise(8)", hostile="sign_flip(0.3)")) == budget_of(
        config_of()
    )


def test_noise_is_of_whole_numbers() -> None:
    """A gradient with its noise is a whole number of steps of z C / 2^24: no last bits that tell what was noised."""
    few, grid = with_noise_of(job(METHODS["fedavg"]()), client=2), Grid(CLIP, NOISE)
    g = few.gradient(torch.ones(few.dim, dtype=torch.float64), torch.arange(13, 26)) * (Q * 13)
    steps = g / (NOISE * CLIP / SIGMA)
    torch.testing.assert_close(steps, steps.round(), rtol=0, atol=1e-4)
    assert grid.clip == CLIP
