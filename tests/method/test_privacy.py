"""Differential privacy: the mechanism against its equations, the accountant against closed forms, what is refused."""

import csv
import itertools
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.pld import pld_privacy_accountant
from dp_accounting.rdp import rdp_privacy_accountant
from scipy.stats import norm
from test_wire import far

import fedconcord
from fedconcord.execution.engines import Serial, Stacked, Wire
from fedconcord.execution.job import Job, accountant, advance, checkpoint, plan_of, start
from fedconcord.execution.run.folder import read_description
from fedconcord.federation.objectives import quadratics
from fedconcord.federation.participation import sampling
from fedconcord.federation.participation.clock import lognormal
from fedconcord.federation.participation.dropout import fixed
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import uniform
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Algorithm, Phases, Sender, rng
from fedconcord.method.wrappers.late import with_late_replies
from fedconcord.method.wrappers.privacy import clipped, uncovered, with_privacy
from fedconcord.method.wrappers.server import momentum, with_server
from fedconcord.method.wrappers.uploads import quantise, topk, with_uploads
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.sources import from_nested
from fedconcord.support.errors import UserError
from fedconcord.testing.bench import run
from table import TABLE, make

N, S, D, SEED = 7, 3, 6, 3
DELTA = 1e-5
COVERED = {name for name, row in TABLE.items() if row.private}


def job(algorithm: Algorithm, **changes: Any) -> Job:
    schedule = Schedule(seed=SEED, cohort=S, lr=0.05, work=uniform(1, 4), unit="steps", batch_size=2)
    problem = quadratics(1, N, torch.float64, torch.device("cpu"), dim=D, blocks=5)
    problem.x0 = torch.linspace(-1, 1, D, dtype=torch.float64)
    return Job(problem, algorithm, replace(schedule, **changes), engine=Serial())


def cohort_of(name: str) -> int:
    return N if TABLE[name].everyone else S


# -- what a clip cuts off ------------------------------------------------------------------------------------------


def test_what_a_clip_cuts_off_is_missing_in_running_sums_for_good() -> None:
    """c = mean c_i in every round under a clip that cuts nothing; under a small one it is another, though messages are
    shorter than it in the end."""

    def apart(clip: float) -> float:
        state = run(job(with_privacy(METHODS["scaffold"](), clip, 0.0, "central", S)), 200)
        c_i = state.store.export()["c"]
        return float((state.server.c - c_i.sum(0) / N).norm() / c_i.norm(dim=-1).max())

    assert apart(1e6) < 1e-12
    assert apart(0.5) > 0.1


# -- the accountant ------------------------------------------------------------------------------------------------


def analytic(noise: float, epsilon: float) -> float:
    """delta of the Gaussian mechanism with sensitivity 1: Balle and Wang, ICML 2018, Theorem 8."""
    a, b = 1 / (2 * noise), epsilon * noise
    return float(norm.cdf(a - b) - math.exp(epsilon) * norm.cdf(-a - b))


@pytest.mark.parametrize(("noise", "rounds"), [(0.7, 1), (4.0, 1), (20.0, 100), (3.0, 7), (60.0, 1000)])
def test_without_amplification_rounds_are_one_gaussian_of_noise_over_their_root(noise: float, rounds: int) -> None:
    """delta at the accountant's epsilon is that of the closed form, from below and within a hundredth."""
    found = accountant.spending(noise, "central", None, DELTA).epsilon(rounds)
    exact = analytic(noise / math.sqrt(rounds), found)
    assert 0.98 * DELTA < exact <= DELTA * (1 + 1e-6)


@pytest.mark.parametrize(("noise", "q"), [(1.0, 0.1), (0.6, 0.5), (2.0, 0.02)])
def test_one_poisson_round_is_the_integral_of_its_densities(noise: float, q: float) -> None:
    """The hockey stick between (1 - q) N(0, z^2) + q N(1, z^2) and N(0, z^2), in the worse of its directions."""
    epsilon = accountant.spending(noise, "central", q, DELTA).epsilon(1)

    x = np.linspace(-12 * noise, 1 + 12 * noise, 1_000_001)
    without, there = norm.pdf(x, 0, noise), norm.pdf(x, 1, noise)
    mixed = (1 - q) * without + q * there

    def stick(upper: np.ndarray, lower: np.ndarray) -> float:
        return float(np.trapezoid(np.maximum(upper - math.exp(epsilon) * lower, 0.0), x))

    exact = max(stick(mixed, without), stick(without, mixed))
    assert 0.97 * DELTA < exact <= DELTA * (1 + 1e-4)


@pytest.mark.parametrize(("noise", "q", "rounds"), [(1.0, 0.1, 100), (2.0, 0.25, 30)])
def test_it_is_the_library_called_by_hand_and_below_its_renyi_bound(noise: float, q: float, rounds: int) -> None:
    found = accountant.spending(noise, "central", q, DELTA).epsilon(rounds)
    event = dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(noise))
    by_loss = pld_privacy_accountant.PLDAccountant(value_discretization_interval=1e-3)
    by_renyi = rdp_privacy_accountant.RdpAccountant(orders=range(2, 64))
    assert found == pytest.approx(by_loss.compose(event, rounds).get_epsilon(DELTA), rel=1e-3)
    renyi = by_renyi.compose(event, rounds).get_epsilon(DELTA)
    assert 0.7 * renyi < found < renyi


def test_calibrated_noise_is_the_smallest_to_four_digits() -> None:
    for kind, q, epsilon, rounds in (("central", 0.2, 3.0, 50), ("central", None, 8.0, 20), ("local", 0.2, 8.0, 20)):
        noise = accountant.calibrate(epsilon, DELTA, kind, q, rounds)  # type: ignore[arg-type]
        assert accountant.spending(noise, kind, q, DELTA).epsilon(rounds) <= epsilon  # type: ignore[arg-type]
        assert accountant.spending(noise * 0.999, kind, q, DELTA).epsilon(rounds) > epsilon  # type: ignore[arg-type]
    central, local = (accountant.calibrate(8.0, DELTA, kind, None, 20) for kind in ("central", "local"))  # type: ignore[arg-type]
    assert local == pytest.approx(2 * central, rel=2e-3)  # two messages of a client lie 2 C apart


def test_a_budget_affords_the_rounds_that_spend_no_more() -> None:
    spending = accountant.spending(2.0, "central", 0.3, DELTA)
    for limit in (0.2, 2.0, 2.5, 1e9):
        afforded = [t for t in range(1, 13) if spending.epsilon(t) <= limit]
        assert spending.rounds(limit, 12) == len(afforded)
    assert spending.rounds(0.2, 12) == 0 < spending.rounds(2.0, 12) < spending.rounds(2.5, 12) < 12
    assert spending.epsilon(0) == 0.0


def test_a_missing_library_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting.pld", None)
    with pytest.raises(UserError, match=r"pip install 'fedconcord\[privacy\]'"):
        accountant.spending(1.2345, "central", 0.3, DELTA).epsilon(1)


# -- the mechanism -------------------------------------------------------------------------------------------------


def test_clipping_bounds_all_tensors_together() -> None:
    torch.manual_seed(0)
    up = tuple(10.0**k * torch.randn(4, 5, dtype=torch.float64) for k in (-3, 0, 2))
    up = tuple(leaf * torch.tensor([[1e-4], [1.0], [0.0], [1e5]], dtype=torch.float64) for leaf in up)
    got = clipped(up, 0.3)
    for row in range(4):
        before, after = (torch.cat([leaf[row] for leaf in tree]) for tree in (up, got))
        short = before.norm() <= 0.3
        assert float(after.norm()) == pytest.approx(min(0.3, float(before.norm())), rel=1e-12)
        assert torch.equal(after, before) == bool(short)
        assert far(clipped(tuple(leaf[row] for leaf in up), 0.3), tuple(leaf[row] for leaf in got)) < 1e-15
    assert [bool(torch.cat([leaf[row] for leaf in up]).norm() <= 0.3) for row in range(4)] == [
        True,
        False,
        True,
        False,
    ]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e200])
def test_a_message_that_is_not_finite_counts_as_zeros(bad: float) -> None:
    up = (torch.tensor([[1.0, bad], [0.1, 0.2]], dtype=torch.float64), torch.ones(2, 2, dtype=torch.float64))
    got = clipped(up, 10.0)
    assert all(leaf[0].abs().max() == 0 for leaf in got)
    assert all(torch.equal(leaf[1], sent[1]) for leaf, sent in zip(got, up, strict=True))


def messages(plain: Algorithm, of: Job) -> tuple[dict[int, Any], Any]:
    """What the clients of the first round send without privacy, and the server before it."""
    sent: dict[int, Any] = {}

    def finish(down: Any, row: Any, done: Any, client: Any) -> Any:
        up, new = plain.finish(down, row, done, client)
        sent[int(client.id)] = up
        return up, new

    watched = replace(of, algorithm=replace(plain, finish=finish))
    state = start(watched)
    advance(watched, state)
    return sent, state.server


def drawn(round: int, client: int, n: int) -> torch.Tensor:
    """Noise [n] of deviation 1."""
    return torch.as_tensor(rng.noise(n, SEED, round, client)).double() / 2**24


def protected(up: torch.Tensor, clip: float, noise: float) -> torch.Tensor:
    """A message [L] clipped to C; with noise in whole steps of z C / 2^24, and shorter by half their diagonal."""
    step = noise * clip / 2**24
    up = up * min(1.0, (clip - step * math.sqrt(len(up)) / 2) / float(up.norm()))
    return torch.round(up / step) * step if noise else up


@pytest.mark.parametrize("kind", ["central", "local"])
@pytest.mark.parametrize("noise", [0.0, 1.7])
def test_a_round_is_the_papers_equation(kind: str, noise: float) -> None:
    """x + (1/S) (sum_i clip(u_i) + z C n) and c + (1/N) (...) for SCAFFOLD, S the expected cohort, not who came."""
    plain, clip = METHODS["scaffold"](), 0.05
    this = job(with_privacy(plain, clip, noise, kind, S), sampler=sampling.poisson())  # type: ignore[arg-type]
    sent, server = messages(plain, this)
    assert len(sent) not in (0, S)
    both, lengths = torch.zeros(2 * D, dtype=torch.float64), list[float]()
    for i, up in sent.items():
        lengths.append(float(torch.cat(list(up)).norm()))
        both += protected(torch.cat(list(up)), clip, noise)
        both += noise * clip * drawn(0, i, 2 * D) * (kind == "local")
    both += noise * clip * drawn(0, 0, 2 * D) * (kind == "central")
    x, c = both[:D], both[D:]
    assert max(lengths) > clip
    got = run(this, 1).server
    assert far((got.x, got.c), (server.x + x / S, server.c + c / N)) < 1e-13


@pytest.mark.parametrize("name", sorted(COVERED))
def test_a_wide_clip_without_noise_is_the_method_itself(name: str) -> None:
    cohort = cohort_of(name)
    want = run(job(make(name), cohort=cohort), 5)
    got = run(job(with_privacy(make(name), 1e9, 0.0, "central", cohort), cohort=cohort), 5)
    assert far(got.server, want.server) < 1e-12
    assert (got.bytes_up, got.bytes_down) == (want.bytes_up, want.bytes_down)


@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, "central") for name in sorted(COVERED)), ("fedavg", "local"), ("scaffold", "local"), ("losac", "local")],
)
def test_engines_agree(name: str, kind: str) -> None:
    """One by one, in chunks and over the wire; with an empty round and lost clients where the method allows them."""
    cohort = cohort_of(name)
    rules = {} if TABLE[name].everyone else {"sampler": sampling.poisson(), "dropout": fixed(0.3)}
    private = with_privacy(make(name), 0.1, 0.3, kind, cohort)  # type: ignore[arg-type]
    this = job(private, cohort=cohort, **rules)
    want = run(this, 4)
    for engine in (Stacked(None), Stacked(2), Wire()):
        got = run(replace(this, engine=engine), 4)
        assert far(got.server, want.server) < 1e-12
        everyone = np.arange(N)
        assert far(got.store.gather(everyone), want.store.gather(everyone)) < 1e-12


def test_all_contribute_by_one_map() -> None:
    """Whatever the server knows of its senders, a method is told the same of all: here it would weigh them by it. Who
    it is no method may ask."""
    plain = METHODS["fedavg"]()

    def by(sender: Sender) -> torch.Tensor:
        known = torch.stack([sender.w, sender.p, sender.inclusion])
        return known.nan_to_num(0.0).sum(0)

    private = with_privacy(
        replace(plain, contribute=lambda up, sender, cohort: by(sender) * up), 1e9, 0.0, "central", S
    )
    this = job(private, sampler=sampling.poisson())
    sent, server = messages(plain, this)
    weight = 1 / S + 1 / N + S / N
    assert far(run(this, 1).server.x, server.x + weight * torch.stack(list(sent.values())).sum(0)) < 1e-13


def test_a_round_of_nobody_has_its_noise() -> None:
    """Else it would show that nobody was drawn. The server's momentum goes on in it, as in any round."""
    private = with_server(with_privacy(METHODS["fedavg"](), 0.5, 2.0, "central", 1), momentum(0.5))
    for engine in (Serial(), Stacked(None), Wire()):
        this = replace(job(private, cohort=1, sampler=sampling.poisson()), engine=engine)
        state, empty = start(this), 0
        for t in range(12):
            here = len(plan_of(this, state).ids)
            before, state = state.server, advance(this, state)
            if not here:
                buffer = 0.5 * before.optimizer + 2.0 * 0.5 * drawn(t, 0, D)
                assert far((state.server.x, state.server.optimizer), (before.x + buffer, buffer)) < 1e-13
                empty += 1
        assert empty > 0
    plain = job(with_server(METHODS["fedavg"](), momentum(0.5)), cohort=1, sampler=sampling.poisson())
    states = [start(plain)]
    for _ in range(12):
        states.append(advance(plain, states[-1]))
    idle = [not len(plan_of(plain, state).ids) for state in states[:-1]]
    same = [torch.equal(a.server.x, b.server.x) for a, b in itertools.pairwise(states)]
    assert same == idle


def test_what_a_compressor_makes_longer_is_clipped_again() -> None:
    """One client moves the sum by at most C, though a coarse quantiser's messages decode to longer ones."""
    private = with_privacy(METHODS["fedavg"](), 0.2, 0.0, "central", S)
    coarse = with_uploads(private, quantise(1))
    moved: list[tuple[float, float]] = []

    def contribute(up: Any, sender: Sender, cohort: Any) -> Any:
        share = coarse.contribute(up, sender, cohort)
        raw = quantise(1).decode(up.content, D)
        moved.append((float(raw.norm()), S * float(share.norm())))
        return share

    run(job(replace(coarse, contribute=contribute)), 6)
    assert max(raw for raw, _ in moved) > 0.21
    assert max(share for _, share in moved) <= 0.2 * (1 + 1e-12)


@pytest.mark.parametrize("how", [quantise(7, feedback=True), topk(0.5)])
def test_compression_after_noise_sees_nothing_else(how: Any) -> None:
    """Local noise: what is sent is a function of the noisy message, so that its error is of that message too."""
    private = with_privacy(METHODS["scaffold"](), 0.2, 1.0, "local", S)
    this = job(with_uploads(private, how))
    sent, _ = messages(private, this)
    state = run(this, 1)
    for i, up in sent.items():
        error = state.store.gather(np.array([i])).error
        for vector, lost in zip((up.x, up.c), error, strict=True):
            assert float((vector - lost[0]).norm()) > 0  # something was sent
    got = run(replace(this, engine=Wire()), 3)
    assert far(got.server, run(this, 3).server) < 1e-12


def test_poisson_is_a_coin_a_client() -> None:
    """Sizes of 4,000 draws are binomial: mean, variance, empty rounds within 5 standard errors; no client favoured."""
    n, cohort, draws = 9, 2, 4000
    sampler, q = sampling.poisson(), 2 / 9
    drawn = [sampler.draw(1, t, cohort, np.ones(n), np.zeros_like) for t in range(draws)]
    size = np.array([len(one.ids) for one in drawn])
    assert abs(size.mean() - cohort) < 5 * math.sqrt(n * q * (1 - q) / draws)
    assert size.var() == pytest.approx(n * q * (1 - q), rel=0.15)
    empty = (1 - q) ** n
    assert abs((size == 0).mean() - empty) < 5 * math.sqrt(empty * (1 - empty) / draws)
    count = np.bincount(np.concatenate([one.ids for one in drawn]), minlength=n)
    assert np.abs(count / draws - q).max() < 5 * math.sqrt(q * (1 - q) / draws)
    assert all(one.inclusion.tolist() == [q] * len(one.ids) for one in drawn)


# -- what it covers ------------------------------------------------------------------------------------------------


def test_which_methods_it_covers_is_found_from_their_functions() -> None:
    assert {name for name in METHODS if uncovered(make(name)) is None} == COVERED


@pytest.mark.parametrize(
    ("algorithm", "why"),
    [
        (lambda: METHODS["mimesvrg"](), "send their gradients before"),
        (lambda: METHODS["losac"](init="gradient"), "send gradients before round 0"),
        (lambda: METHODS["fedpd"](), "leaves out messages"),
        (
            lambda: replace(METHODS["fedpd"](), phases=Phases(settle=METHODS["fedpd"]().phases.settle)),
            "send whole models",
        ),
        (lambda: METHODS["fedavg"](weights="size"), "weights size go by how many samples"),
        (lambda: METHODS["fedpaq"](), "compresses messages before they are clipped"),
        (lambda: with_uploads(METHODS["scaffold"](), topk(0.5)), "compresses messages before they are clipped"),
        (lambda: METHODS["fedcm"](), "numbers such as their local steps"),
        (lambda: METHODS["fednova"](weights="uniform"), "numbers such as their local steps"),
        (lambda: METHODS["fedvra"](a=[7.0, 1.0, *[7.0] * (N - 2)]), "counts a message by who sent it"),
        (lambda: METHODS["fedvra"](d=[10.0, 1.0, *[10.0] * (N - 2)]), "counts a message by who sent it"),
        (
            lambda: replace(METHODS["fedavg"](), contribute=lambda up, sender, cohort: sender.id * up),
            "counts a message by who sent it",
        ),
        (lambda: METHODS["fedvra"](d="fednova"), "not linear in the messages alone"),
        (lambda: with_privacy(METHODS["fedavg"](), 1.0, 1.0, "central", S), "protected already"),
        (lambda: replace(METHODS["fedavg"](), contribute=lambda up, sender, cohort: up**2), "not linear"),
        (lambda: replace(METHODS["fedavg"](), contribute=lambda up, sender, cohort: up + 1), "not linear"),
        (lambda: replace(METHODS["fedavg"](), contribute=lambda up, sender, cohort: sender.steps * up), "not linear"),
        (
            lambda: replace(METHODS["fedavg"](), contribute=lambda up, sender, cohort: up.reshape(6)),
            "tried on a model of",
        ),
    ],
)
def test_methods_that_it_does_not_cover_are_refused_with_the_reason(algorithm: Any, why: str) -> None:
    cohort = N if algorithm().needs.everyone else S
    this = job(with_privacy(algorithm(), 1.0, 1.0, "central", cohort), cohort=cohort)
    with pytest.raises(UserError, match=why) as refused:
        start(this)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sampler": sampling.power_of_choice(candidates=5)}, "goes by losses"),
        ({"sampler": sampling.by_size()}, "may draw a client twice"),
        ({"sampler": sampling.with_replacement()}, "may draw a client twice"),
        ({"cohort": 4}, "messages weigh 1/3, and 4 clients are expected"),
        ({"late": "keep", "devices": lognormal(0.5), "deadline": 5.0}, "a late reply"),
    ],
)
def test_schedules_that_it_does_not_cover_are_refused_with_the_reason(changes: Mapping[str, Any], why: str) -> None:
    private = with_privacy(METHODS["fedavg"](), 1.0, 1.0, "central", S)
    with pytest.raises(UserError, match=why):
        start(job(with_late_replies(private) if "late" in changes else private, **changes))


def test_a_private_job_is_another_job_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    plain, path = METHODS["scaffold"](), tmp_path / "checkpoint.safetensors"
    this = job(with_privacy(plain, 0.1, 1.0, "central", S), sampler=sampling.poisson())
    want = run(this, 6)
    checkpoint.save(this, run(this, 3), path)
    state = checkpoint.load(this, path)
    for _ in range(3):
        state = advance(this, state)
    assert all(torch.equal(a, b) for a, b in zip(state.server, want.server, strict=True))
    assert torch.equal(state.store.gather(np.arange(N)).c, want.store.gather(np.arange(N)).c)
    others = [plain, *(with_privacy(plain, *given, S) for given in ((0.2, 1.0, "central"), (0.1, 2.0, "central")))]  # type: ignore[arg-type]
    for other in (*others, with_privacy(plain, 0.1, 1.0, "local", S)):
        with pytest.raises(UserError, match="belongs to another job"):
            checkpoint.load(replace(this, algorithm=other), path)


# -- runs ----------------------------------------------------------------------------------------------------------

QUICK = {"data": "quadratics", "clients": 8, "cohort": 4, "sampling": "poisson", "lr": 0.05}


def settings(**more: Any) -> dict[str, Any]:
    return {f"privacy.{key}": value for key, value in more.items()}


def spent(folder: Path) -> list[float]:
    with open(folder / "metrics.csv", newline="") as file:
        return [float(row["epsilon"]) for row in csv.DictReader(file)]


def test_a_run_says_what_it_spends(tmp_path: Path) -> None:
    got = fedconcord.run("fedavg", **QUICK, rounds=6, epsilon=4.0, out=tmp_path, settings=settings(clip=0.5))
    saved = read_description(got.folder)
    noise, column = saved["config"]["privacy"]["noise"], spent(got.folder)
    assert noise == accountant.calibrate(4.0, DELTA, "central", 0.5, 6)
    spending = accountant.spending(noise, "central", 0.5, DELTA)
    assert column == [spending.epsilon(t) for t in range(7)]
    assert saved["privacy"]["epsilon"] == column[-1] <= 4.0
    assert (saved["privacy"]["delta"], saved["privacy"]["limit"], saved["privacy"]["unit"]) == (1e-5, 4.0, "client")
    assert "stopped" not in saved
    assert "epsilon" not in got.metrics
    again = fedconcord.run(resume=got.folder, rounds=9)  # the budget is spent: the noise stays, and nothing is done
    assert (again.rounds, again.status) == (6, "complete")
    assert "its budget of epsilon 4 is spent" in read_description(got.folder)["stopped"]


@pytest.mark.parametrize(
    ("sampling", "kind", "q"),
    [
        ("poisson", "central", 0.5),
        ("uniform", "central", None),
        ("bernoulli(0.5)", "central", None),
        ("cyclic", "central", None),
        ("poisson", "local", None),
    ],
)
def test_only_poisson_and_central_noise_are_amplified(sampling: str, kind: str, q: float | None) -> None:
    given = {"data": "quadratics", "clients": 8, "sampling": sampling, "rounds": 6, "local": {"lr": 0.05}}
    given |= {"privacy": {"clip": 1.0, "epsilon": 4.0, "kind": kind}} | ({} if "0.5" in sampling else {"cohort": 4})
    found = resolve_run(from_nested(given, "a test")).privacy
    times = {"cyclic": 3}.get(sampling, 6)  # of 6 rounds a client may well be in all by `uniform`
    assert found.noise == accountant.calibrate(4.0, DELTA, kind, q, times)  # type: ignore[arg-type]


def test_a_budget_with_noise_ends_the_run_and_resumes_to_the_same_bits(tmp_path: Path) -> None:
    job = {**QUICK, "settings": settings(clip=0.5, noise=1.5, epsilon=6.0)}
    whole = fedconcord.run("scaffold", **job, rounds=40, out=tmp_path / "whole")
    spending = accountant.spending(1.5, "central", 0.5, DELTA)
    assert spending.epsilon(whole.rounds) <= 6.0 < spending.epsilon(whole.rounds + 1)
    assert 3 < whole.rounds < 40
    assert spent(whole.folder)[-1] == spending.epsilon(whole.rounds)
    assert f"stopped at round {whole.rounds}" in read_description(whole.folder)["stopped"]
    part = fedconcord.run("scaffold", **job, rounds=3, out=tmp_path / "part")
    assert (part.rounds, "stopped" in read_description(part.folder)) == (3, False)
    part = fedconcord.run(resume=part.folder, rounds=40)
    names = ("metrics.csv", "model.safetensors")
    assert [(part.folder / name).read_bytes() for name in names] == [
        (whole.folder / name).read_bytes() for name in names
    ]


@pytest.mark.parametrize(
    ("given", "more", "why"),
    [
        ({"epsilon": 8.0}, {}, r"privacy.epsilon 8 needs a bound .* give privacy.clip too"),
        ({"clip": 1.0}, {}, r"privacy.clip 1 alone protects nobody"),
        ({"clip": 1.0, "noise": 0.0, "epsilon": 1.0}, {}, r"privacy.noise 0 meets no epsilon"),
        ({"clip": 1.0, "noise": 1e-5}, {}, r"privacy.noise 1e-05 protects nobody; give 0"),
        ({"clip": "adaptive", "noise": 1e-5}, {}, r"privacy.noise 1e-05 protects nobody; give 0"),
        ({"clip": 1.0, "noise": 0.5, "epsilon": 1.0}, {}, r"one round with privacy.noise 0.5 spends epsilon"),
        ({"clip": 1.0, "noise": 1.0, "delta": 0.2}, {}, r"privacy.delta 0.2 lets one of 8 clients"),
        ({"clip": -1.0, "noise": 1.0}, {}, r"privacy.clip must be a number > 0"),
        ({"clip": 1.0, "noise": 1.0}, {"sampling": "by_size"}, r"may draw a client twice"),
        ({"clip": 1.0, "noise": 1.0}, {"method": "mimesvrg"}, r"send their gradients before"),
        (
            {"clip": 1.0, "noise": 1.0},
            {"method": "fedavg(privacy.clop=2)"},
            r"unknown key 'privacy.clop' \(did you mean 'privacy.clip'\?\)",
        ),
    ],
)
def test_wrong_settings_are_one_sentence(given: Any, more: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=why) as refused:
        fedconcord.run(
            **{"method": "fedavg", **QUICK, **more}, rounds=3, out=tmp_path / "a", settings=settings(**given)
        )
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (
            {"eval.personalise": "finetune(steps=1)", "validation": 0.2},
            "eval.personalise .* which privacy does not cover",
        ),
        ({"eval.patience": 3, "validation": 0.2}, "eval.patience chooses the model by validation_loss"),
    ],
)
def test_what_would_release_more_is_refused(more: Any, why: str, tmp_path: Path) -> None:
    private = settings(clip=1.0, noise=1.0) | more
    with pytest.raises(UserError, match=why):
        fedconcord.run("fedavg", data="digits", model="logreg", rounds=1, out=tmp_path / "a", settings=private)


def test_tables_that_are_scaled_by_the_clients_sums_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    lines = [f"{k % 4},{k * 0.1},{'yes' if k % 3 else 'no'}" for k in range(60)]
    path.write_text("\n".join(["site,age,ill", *lines]) + "\n")
    own = {"data": str(path), "label_column": "ill", "client_column": "site", "model": "logreg", "rounds": 1}
    with pytest.raises(UserError, match="scaled by exact sums over the clients"):
        fedconcord.run("fedavg", **own, settings=settings(clip=1.0, noise=1.0), out=tmp_path / "a")


def command(*given: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "fedconcord", *given],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_the_command_says_what_a_run_spends(tmp_path: Path) -> None:
    job = ["--data", "quadratics", "--clients", "8", "--cohort", "4", "--rounds", "3", "--out", str(tmp_path / "a")]
    said = command("run", *job, "--epsilon", "5", "--delta", "1e-6", "--dp-clip", "2", "--set", "privacy.kind=local")
    noise = read_description(tmp_path / "a")["config"]["privacy"]["noise"]
    assert noise == accountant.calibrate(5.0, 1e-6, "local", None, 3)
    end = f"at delta 1e-06 after 3 rounds; messages clipped to 2, noise {noise:g} times that, noise on each message"
    assert re.search(rf"privacy of a client: epsilon (5|4\.99\d) {re.escape(end)}", said)


@pytest.mark.slow
def test_the_command_compares_budgets(tmp_path: Path) -> None:
    """Two budgets, the same method without privacy, and a baseline, which is not private, on one page."""
    methods = "fedavg,fedavg(privacy.clip=1,privacy.epsilon=4,label=tight),fedavg(privacy.clip=1,privacy.epsilon=9)"
    given = ["--data", "digits", "--model", "logreg", "--clients", "60", "--cohort", "30", "--rounds", "3"]
    more = ["--sampling", "poisson", "--methods", methods, "--baselines", "local", "--out", str(tmp_path / "c")]
    said = command("compare", *given, *more)
    assert re.search(r"tight: epsilon (4|3\.99\d) at delta 1e-05 for a client after 3 rounds", said)
    runs = {path: json.loads(path.read_text()) for path in sorted((tmp_path / "c").glob("*/*/run.json"))}
    private = {run["label"]: run["privacy"]["limit"] for run in runs.values() if "privacy" in run}
    assert private == {"tight": 4.0, "fedavg(privacy.clip=1,privacy.epsilon=9)": 9.0}
    assert len(runs) == 4
    page = (tmp_path / "c" / "report.html").read_text()
    assert "Differential privacy of a client" in page
    assert "Poisson sampling with probability 0.5" in page
