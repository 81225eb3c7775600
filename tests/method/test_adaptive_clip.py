"""Adaptive clipping: the paper's equations, what it costs, what it follows, and that engines and settings have it."""

import csv
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.pld import pld_privacy_accountant
from dp_accounting.rdp import rdp_privacy_accountant
from scipy.stats import lognorm
from test_privacy import COVERED, DELTA, QUICK, D, N, S, cohort_of, command, drawn, job, messages, protected, settings
from test_wire import far

import fedconcord
from fedconcord.execution.engines import Stacked, Wire
from fedconcord.execution.job import accountant, advance, checkpoint, plan_of, start
from fedconcord.execution.run.folder import read_description
from fedconcord.federation.objectives import quadratics
from fedconcord.federation.participation import sampling
from fedconcord.federation.participation.clock import lognormal
from fedconcord.federation.participation.dropout import fixed
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Algorithm, Phases, Sender
from fedconcord.method.wrappers.late import with_late_replies
from fedconcord.method.wrappers.privacy import Counted, adaptive, clip_of, with_adaptive_privacy, with_privacy
from fedconcord.method.wrappers.server import momentum, with_server
from fedconcord.method.wrappers.uploads import quantise, with_uploads
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.sources import from_nested
from fedconcord.support.errors import UserError
from fedconcord.testing.bench import run
from table import TABLE, make

CLIP = 0.25  # within it are some messages of the jobs of `job`


def private(name: str = "scaffold", noise: float = 0.3, **clip: Any) -> Algorithm:
    return with_adaptive_privacy(make(name), adaptive(**{"start": CLIP, **clip}), noise, cohort_of(name))


# -- what it costs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("noise", "bits", "q", "rounds"), [(1.0, 5.0, 0.1, 100), (2.0, 1.5, 0.5, 30), (0.6, 0.4, 1, 3)]
)
def test_messages_and_bits_together_cost_what_the_noise_costs(noise: float, bits: float, q: float, rounds: int) -> None:
    """Two Gaussians in a round, of sensitivities 1 and 1/2, in dp-accounting's own composition, against one of z."""
    noises = adaptive(bits=bits).noises(noise, 100)
    assert noises.bits == bits
    both = [dp_event.GaussianDpEvent(noises.messages), dp_event.GaussianDpEvent(noises.bits / 0.5)]
    spent = [
        rdp_privacy_accountant.RdpAccountant(orders=range(2, 64))
        .compose(dp_event.PoissonSampledDpEvent(q, event), rounds)
        .get_epsilon(DELTA)
        for event in (dp_event.ComposedDpEvent(both), dp_event.GaussianDpEvent(noise))
    ]
    assert spent[0] == pytest.approx(spent[1], rel=1e-9)
    by_loss = pld_privacy_accountant.PLDAccountant(value_discretization_interval=1e-3)
    for event in both:  # without sampling, so that the two may be composed one after the other
        by_loss.compose(event, rounds)
    here = accountant.spending(noise, "central", None, DELTA).epsilon(rounds)
    assert by_loss.get_epsilon(DELTA) == pytest.approx(here, rel=2e-3)


def test_the_bits_have_the_papers_noise_and_never_a_dear_one() -> None:
    assert adaptive().noises(1.829, 100).bits == 5.0
    assert adaptive().noises(1.829, 100).messages == pytest.approx(1 / math.sqrt(1 / 1.829**2 - 1 / 10**2), rel=1e-12)
    assert adaptive().noises(2.0, 3).bits == 2.0  # 3/20 would spend more than all there is
    assert adaptive().noises(2.0, 3).messages == pytest.approx(2 / math.sqrt(0.75), rel=1e-12)
    assert adaptive(bits=7.0).noises(0.0, 100) == (0.0, 0.0)
    with pytest.raises(UserError, match=r"bits 1 of adaptive clipping spend by themselves .* bits of more than 1"):
        with_adaptive_privacy(METHODS["fedavg"](), adaptive(bits=1.0), 2.0, S)


# -- the mechanism -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.0, 1.7])
def test_a_round_is_the_papers_equation(noise: float) -> None:
    """x + (1/S) (sum_i clip(u_i) + z_Delta C n) and C exp(-eta (b~ - gamma)), for SCAFFOLD's two vectors."""
    plain, clip, rate, gamma, bits, size = METHODS["scaffold"](), 1.6, 0.3, 0.8, 1.1, 5
    rule = adaptive(quantile=gamma, start=clip, rate=rate, bits=bits)
    this = job(with_adaptive_privacy(plain, rule, noise, size), sampler=sampling.poisson(), cohort=size)
    sent, server = messages(plain, this)
    assert len(sent) not in (0, size)
    extra = drawn(0, 0, 2 * D + 1)
    wide = 1 / math.sqrt(1 / noise**2 - 1 / (2 * bits) ** 2) if noise else 0.0
    both, share = wide * clip * extra[:-1], 0.5 + (bits if noise else 0.0) * float(extra[-1]) / size
    within = set()
    for up in sent.values():
        norm = math.sqrt(float(up.x.square().sum() + up.c.square().sum()))
        within.add(norm <= clip)
        both += protected(torch.cat(list(up)), clip, wide)
        share += ((norm <= clip) - 0.5) / size
    assert within == {True, False}
    got = run(this, 1).server
    assert far((got.inner.x, got.inner.c), (server.x + both[:D] / size, server.c + both[D:] / N)) < 1e-13
    assert float(got.clip) == pytest.approx(clip * math.exp(-rate * (share - gamma)), rel=1e-6 if noise else 1e-13)


def test_a_round_of_nobody_has_the_noise_of_both() -> None:
    this = job(private("fedavg", 2.0), cohort=S, sampler=sampling.poisson())
    states = [start(this)]
    for _ in range(40):
        states.append(advance(this, states[-1]))
    empty = [t for t in range(40) if not len(plan_of(this, states[t]).ids)]
    assert empty
    noises = adaptive().noises(2.0, S)
    for t in empty:
        (before, after), extra = (states[k].server for k in (t, t + 1)), drawn(t, 0, D + 1)
        assert far(after.inner.x, before.inner.x + noises.messages * before.clip * extra[:D] / S) < 1e-13
        share = 0.5 + noises.bits * float(extra[D]) / S
        assert float(after.clip / before.clip) == pytest.approx(math.exp(-0.2 * (share - 0.5)), rel=1e-6)


@pytest.mark.parametrize("name", sorted(COVERED))
def test_without_noise_a_wide_clip_is_the_method_itself_and_one_number_more_each_way(name: str) -> None:
    cohort = cohort_of(name)
    want = run(job(make(name), cohort=cohort), 5)
    got = run(job(private(name, 0.0, start=1e9), cohort=cohort), 5)
    assert far(got.server.inner, want.server) < 1e-12
    for more, less in ((got.bytes_up, want.bytes_up), (got.bytes_down, want.bytes_down)):
        assert more == less + 5 * cohort * 8


@pytest.mark.parametrize("name", sorted(COVERED))
def test_engines_agree(name: str) -> None:
    """One by one, in chunks and over the wire; with an empty round and lost clients where the method allows them."""
    cohort = cohort_of(name)
    rules = {} if TABLE[name].everyone else {"sampler": sampling.poisson(), "dropout": fixed(0.3)}
    this = job(private(name), cohort=cohort, **rules)
    want = run(this, 4)
    for engine in (Stacked(None), Stacked(2), Wire()):
        got = run(replace(this, engine=engine), 4)
        assert far(got.server, want.server) < 1e-12
        assert far(got.store.gather(np.arange(N)), want.store.gather(np.arange(N))) < 1e-12
        assert (got.bytes_up, got.bytes_down) == (want.bytes_up, want.bytes_down)


def test_it_composes_with_server_optimisers_and_compressed_uploads() -> None:
    """Of what a coarse quantiser makes longer, no client moves the sum by more than C."""
    this = job(with_uploads(with_server(private(), momentum(0.5)), quantise(1)))
    longest, noises = {"sent": 0.0, "counted": 0.0}, adaptive().noises(0.3, S)

    def contribute(up: Any, sender: Sender, cohort: Any) -> Any:
        share = this.algorithm.contribute(up, sender, cohort)
        raw = torch.cat([quantise(1).decode(leaf.content, D) for leaf in up.inner])
        counted = torch.cat(list(share.inner)) * noises.messages / 2**24
        for name, vector in (("sent", raw), ("counted", counted)):
            longest[name] = max(longest[name], float(vector.norm()))
        return share

    want = run(replace(this, algorithm=replace(this.algorithm, contribute=contribute)), 6)
    assert longest["sent"] > 1.1
    assert longest["counted"] <= 1 + 1e-12
    assert far(run(replace(this, engine=Wire()), 6).server, want.server) < 1e-12
    assert clip_of(want.server) == float(want.server.inner.clip)


def test_no_client_moves_the_sums_by_more_than_is_accounted() -> None:
    """The server bounds messages and bits by itself, and a message that is not finite counts in neither."""
    algorithm, seen = private("fedavg"), list[Any]()

    def contribute(up: Counted, sender: Sender, cohort: Any) -> Any:
        seen.append(algorithm.contribute(Counted(1e6 * up.inner, 1e6 * up.within), sender, cohort))
        return seen[-1]

    run(job(replace(algorithm, contribute=contribute)), 2)
    assert len(seen) == 2 * S
    noises = adaptive().noises(0.3, S)
    assert all(float(share.inner.double().norm()) * noises.messages <= 2**24 for share in seen)
    assert {abs(int(share.within)) for share in seen} == {math.floor(2**24 / noises.bits / 2)}

    def finish(down: Any, row: Any, done: Any, client: Any) -> Any:
        up, new = METHODS["fedavg"]().finish(down, row, done, client)
        return torch.where(up == 0, up, math.inf), new

    broken = with_adaptive_privacy(replace(METHODS["fedavg"](), finish=finish), adaptive(), 0.0, S)
    this = job(broken)
    before = start(this).server
    got = run(this, 3)
    assert torch.equal(got.server.x, before.x)
    assert torch.equal(got.server.clip, before.clip)
    assert not got.refused


# -- what it follows -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start_at", "noise"), [(0.1, 0.0), (4.0, 1.0)])
@pytest.mark.parametrize("gamma", [0.3, 0.9])
def test_the_clip_follows_the_quantile_of_a_known_distribution(gamma: float, start_at: float, noise: float) -> None:
    """Messages of lognormal length, drawn anew in each round; from below and from above."""
    n, spread, plain = 60, 0.8, METHODS["fedavg"]()

    def finish(down: Any, row: Any, done: Any, client: Any) -> Any:
        up, new = plain.finish(down, row, done, client)
        z = torch.special.ndtri(client.noise(1))
        return torch.exp(spread * z) * up / up.norm(dim=-1, keepdim=True).clamp(min=1e-300), new

    rule = adaptive(quantile=gamma, start=start_at)
    problem = quadratics(1, n, torch.float64, torch.device("cpu"), dim=D, blocks=2)
    this = job(with_adaptive_privacy(replace(plain, finish=finish), rule, noise, n), cohort=n)
    this = replace(this, problem=problem, engine=Stacked(None))
    state, clips = start(this), list[float]()
    for t in range(110):
        state = advance(this, state)
        clips += [float(state.server.clip)] * (t >= 60)
    assert lognorm.cdf(np.array(clips), spread).mean() == pytest.approx(gamma, abs=0.03)


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "why"),
    [
        (lambda: METHODS["mimesvrg"](), "send their gradients before"),
        (lambda: METHODS["losac"](init="gradient"), "send gradients before round 0"),
        (
            lambda: replace(METHODS["fedpd"](), phases=Phases(settle=METHODS["fedpd"]().phases.settle)),
            "send whole models",
        ),
        (lambda: METHODS["fedavg"](weights="size"), "weights size go by how many samples"),
        (lambda: METHODS["fedpaq"](), "compresses messages before they are clipped"),
        (lambda: METHODS["fednova"](weights="uniform"), "numbers such as their local steps"),
        (lambda: METHODS["fedvra"](d="fednova"), "not linear in the messages alone"),
        (lambda: private("fedavg"), "protected already"),
        (lambda: with_privacy(METHODS["fedavg"](), 1.0, 1.0, "central", S), "protected already"),
    ],
)
def test_methods_that_it_does_not_cover_are_refused_with_the_reason(
    algorithm: Callable[[], Algorithm], why: str
) -> None:
    cohort = N if algorithm().needs.everyone else S
    with pytest.raises(UserError, match=why):
        start(job(with_adaptive_privacy(algorithm(), adaptive(), 1.0, cohort), cohort=cohort))


def test_schedules_that_it_does_not_cover_are_refused_with_the_reason() -> None:
    with pytest.raises(UserError, match="messages weigh 1/3, and 4 clients are expected"):
        start(job(private("fedavg"), cohort=4))
    with pytest.raises(UserError, match="may draw a client twice"):
        start(job(private("fedavg"), sampler=sampling.by_size()))
    with pytest.raises(UserError, match="a late reply"):
        start(job(with_late_replies(private("fedavg")), late="keep", devices=lognormal(0.5), deadline=5.0))


def test_a_job_resumes_bit_for_bit_and_another_rule_is_another_job(tmp_path: Path) -> None:
    path, this = tmp_path / "checkpoint.safetensors", job(private(), sampler=sampling.poisson())
    want = run(this, 6)
    checkpoint.save(this, run(this, 3), path)
    state = checkpoint.load(this, path)
    for _ in range(3):
        state = advance(this, state)
    assert far(state.server, want.server) == 0.0
    constant = with_privacy(METHODS["scaffold"](), CLIP, 0.3, "central", S)
    for other in (constant, private(quantile=0.6), private(rate=0.1), private(bits=3.0), private(noise=0.4)):
        with pytest.raises(UserError, match="belongs to another job"):
            checkpoint.load(replace(this, algorithm=other), path)


# -- runs ----------------------------------------------------------------------------------------------------------


def rows(folder: Path) -> list[dict[str, str]]:
    with open(folder / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_spends_what_a_constant_clip_spends_and_says_where_its_own_is(tmp_path: Path) -> None:
    def given(clip: float | str) -> dict[str, Any]:
        return {**QUICK, "epsilon": 4.0, "dp_clip": clip}

    constant = fedconcord.run("fedavg", **given(0.5), rounds=6, out=tmp_path / "constant")
    whole = fedconcord.run("fedavg", **given("adaptive(0.7, start=0.2)"), rounds=6, out=tmp_path / "whole")
    assert [row["epsilon"] for row in rows(whole.folder)] == [row["epsilon"] for row in rows(constant.folder)]
    clips = [float(row["clip"]) for row in rows(whole.folder)]
    assert clips[0] == pytest.approx(0.2)
    assert len({*clips}) == 7
    assert "clip" not in rows(constant.folder)[0]
    assert not {"clip", "epsilon"} & {*whole.metrics}
    saved = read_description(whole.folder)
    assert saved["config"]["privacy"]["clip"] == "adaptive(quantile=0.7,start=0.2)"
    assert saved["privacy"]["clip"] == clips[-1]
    assert saved["privacy"]["epsilon"] == float(rows(constant.folder)[-1]["epsilon"])
    noises = adaptive().noises(saved["config"]["privacy"]["noise"], 4)
    for part in ("from 0.2 towards quantile 0.7", f"noise {noises.messages:.4g} C and {noises.bits:.4g} on how many"):
        assert part in saved["privacy"]["said"]
    job = {**given("adaptive(0.7, start=0.2)"), "settings": settings(noise=saved["config"]["privacy"]["noise"])}
    part = fedconcord.run("fedavg", **job, rounds=3, out=tmp_path / "part")
    part = fedconcord.run(resume=part.folder, rounds=6)
    assert (part.folder / "metrics.csv").read_bytes() == (whole.folder / "metrics.csv").read_bytes()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"clip": "adaptive"}, "privacy.clip adaptive alone protects nobody"),
        ({"clip": "adaptve", "noise": 1.0}, r"unknown clipping 'adaptve' \(did you mean 'adaptive'\?\)"),
        ({"clip": "adaptive(quantile=1)", "noise": 1.0}, "quantile must be a number > 0 and < 1, given 1"),
        ({"clip": "adaptive(bits=0.5)", "noise": 1.0}, "bits 0.5 of adaptive clipping spend by themselves"),
        ({"clip": "adaptive", "noise": 1.0, "kind": "local"}, "use central, or a number for the clip"),
        ({"clip": -1.0, "noise": 1.0}, "privacy.clip must be a number > 0 or a rule such as adaptive"),
    ],
)
def test_wrong_settings_are_one_sentence(given: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=why) as refused:
        fedconcord.run("fedavg", **QUICK, rounds=3, out=tmp_path / "a", settings=settings(**given))
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "a").exists()


def test_a_method_of_a_comparison_may_have_its_own() -> None:
    own = "scaffold(privacy.clip=adaptive(0.7),privacy.noise=1.5)"
    found = resolve_run(from_nested({"data": "quadratics", "clients": 8, "method": own}, "a test"))
    assert (found.privacy.clip, found.privacy.noise) == ("adaptive(quantile=0.7)", 1.5)


@pytest.mark.slow
def test_the_command_takes_it(tmp_path: Path) -> None:
    given = ["--data", "quadratics", "--clients", "8", "--cohort", "4", "--rounds", "3", "--out", str(tmp_path / "a")]
    said = command("run", *given, "--dp-noise", "1.5", "--dp-clip", "adaptive(start=0.2)")
    clip = float(rows(tmp_path / "a")[-1]["clip"])
    assert f"; C is {clip:.4g} after them" in said
