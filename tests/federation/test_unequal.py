"""Unequal clients: who takes part, who is lost, who is late, and how long it all takes."""

import csv
import itertools
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from test_engines import SCHEDULE, assert_same, run, small
from test_fixed_points import gap, job

from fedconcord.execution.engines import Serial, Stacked, Wire
from fedconcord.execution.job import Job, State, advance, checkpoint, plan_of, start
from fedconcord.federation.objectives import quadratics
from fedconcord.federation.participation import availability, clock, dropout, sampling, work
from fedconcord.federation.participation.clock import Device
from fedconcord.federation.participation.participation import Rules, choose
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Orders, Plan, roster_of, tree_bytes
from fedconcord.method.contract.round import behind
from fedconcord.method.step.assignment import client_of
from fedconcord.method.wrappers.forms import forms
from fedconcord.method.wrappers.late import with_late_replies
from fedconcord.support.errors import UserError
from table import TABLE, make
from tiers import tiers

SIZES = np.array([1.0, 2, 3, 4, 10])
SLOW = clock.lognormal(spread=1.0, jitter=0.3)
KNOWN = {name: make() for name, make in sampling.SAMPLERS.items() if name != "power_of_choice"}


def taking(rules: Rules, rounds: int, n: int = 5, cohort: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How often each client took part and was drawn, and the sum of 1 / P(takes part) when it did [N]."""
    seen, drawn, inverse = np.zeros(n), np.zeros(n), np.zeros(n)
    for t in range(rounds):
        now = choose(rules, 3, t, cohort, SIZES[:n], np.zeros_like)
        seen[now.ids] += 1
        drawn[now.ids] += now.times / now.expected
        inverse[now.ids] += 1 / now.inclusion
    return seen, drawn, inverse


@pytest.mark.parametrize("name", KNOWN)
def test_samplers_keep_the_probabilities_they_state(name: str) -> None:
    """Horvitz-Thompson sums have mean 1 for every client; a probability wrong by 5 % fails."""
    rounds = 20_000
    _, drawn, inverse = taking(Rules(KNOWN[name]), rounds)
    assert np.abs(drawn / rounds - 1).max() < 0.05
    assert np.abs(inverse / rounds - 1).max() < 0.05


def test_uniform_draws_pass_a_chi_square_test() -> None:
    for name in ("uniform", "with_replacement", "cyclic"):
        seen = np.zeros(5)
        for t in range(10_000):
            now = KNOWN[name].draw(3, t, 2, SIZES, np.zeros_like)
            seen[now.ids] += now.times
        expected = seen.sum() / 5
        assert ((seen - expected) ** 2 / expected).sum() < 18.5, name  # 4 degrees of freedom, 1 in 1000


def test_draws_with_replacement_are_unbiased_exactly() -> None:
    """Over all N^S equally likely draws the unbiased weights have mean p, and 1{drawn} / P(drawn) has mean 1."""
    weight, present = np.zeros(3), np.zeros(3)
    p = np.array([0.2, 0.3, 0.5])
    for draws in itertools.product(range(3), repeat=2):
        law = p[list(draws)].prod()
        now = sampling._counted(np.array(draws), 2, lambda ids: p[ids])
        weight[now.ids] += law * p[now.ids] * now.times / now.expected
        present[now.ids] += law / now.inclusion
    assert np.allclose(weight, p, atol=1e-15)
    assert np.allclose(present, 1, atol=1e-15)


def test_cyclic_takes_everybody_once_a_cycle() -> None:
    cycle = [KNOWN["cyclic"].draw(0, t, 2, SIZES, np.zeros_like).ids.tolist() for t in range(3)]
    assert sorted(i for turn in cycle for i in turn) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "rule",
    [
        availability.coins(0.2, 0.9),
        pytest.param(availability.per_client([0.1, 0.9, 0.5, 0.3, 0.7]), marks=pytest.mark.slow),
        pytest.param(availability.day_night(0.2, 0.8, period=7), marks=pytest.mark.slow),
        availability.markov(0.2, 0.1),
    ],
    ids=["coins", "per_client", "day_night", "markov"],
)
@pytest.mark.parametrize("name", tiers(["everyone", "bernoulli"], quick=("everyone",)))
def test_available_clients_have_known_probabilities(rule: availability.Availability, name: str) -> None:
    rules = Rules(KNOWN[name], rule)
    assert rules.known()
    _, drawn, inverse = taking(rules, 30_000)
    assert np.abs(drawn / 30_000 - 1).max() < 0.1
    assert np.abs(inverse / 30_000 - 1).max() < 0.1


def test_uniform_among_those_available_has_unknown_probabilities() -> None:
    rules = Rules(KNOWN["uniform"], availability.coins(0.2, 0.9))
    assert not rules.known()
    assert all(np.isnan(choose(rules, 0, t, 2, SIZES, np.zeros_like).inclusion).all() for t in range(5))


def test_a_schedule_takes_whom_its_rules_name(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("round,client\n0,1\n0,3\n2,4\n")
    there = Schedule(0, 3, 0.1, availability=availability.trace(str(tmp_path / "trace.csv")))
    roster, method = roster_of(np.arange(6), np.array([1.0, 2, 3, 4, 10])), make("fedavg")
    assert [there.plan(t, method, roster).ids.tolist() for t in range(3)] == [[1, 3], [], [4]]
    one = Schedule(0, 1, 0.1, sampler=sampling.by_size())
    drawn = np.bincount([int(i) for t in range(3000) for i in one.plan(t, method, roster).ids], minlength=5)
    assert np.abs(drawn / 3000 - np.array([1, 2, 3, 4, 10]) / 20).max() < 0.03


def test_a_markov_chain_is_stationary_sticky_and_the_same_after_a_resume() -> None:
    n, rounds = 400, 200
    chain = availability.markov(leave=0.1, join=0.3)
    on = np.zeros((rounds, n), bool)
    for t in range(rounds):
        on[t, chain.draw(1, t, n).ids] = True
    assert abs(on.mean() - 0.75) < 0.01
    assert abs(on[0].mean() - 0.75) < 0.08
    assert abs((on[:-1] & ~on[1:]).sum() / on[:-1].sum() - 0.1) < 0.01
    for t in (7, 3, 120):  # asked out of order, by a new object
        assert np.flatnonzero(on[t]).tolist() == availability.markov(0.1, 0.3).draw(1, t, n).ids.tolist()
        assert np.flatnonzero(on[t]).tolist() == chain.draw(1, t, n).ids.tolist()


def test_a_trace_says_who_is_there(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("round,client\n0,1\n0,3\n2,4\n")
    rule = availability.trace(str(path))
    assert [rule.draw(0, t, 5).ids.tolist() for t in range(4)] == [[1, 3], [], [4], [1, 3]]
    with pytest.raises(UserError, match="names client 4, and there are clients 0 to 3"):
        rule.draw(0, 0, 4)
    path.write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="is no trace of availability"):
        availability.trace(str(path))


def test_work_that_stays_with_its_client() -> None:
    once = work.by_client(1, 50)
    assert [once(0, 0, i) for i in range(20)] == [once(0, 9, i) for i in range(20)]
    assert len({once(0, 0, i) for i in range(20)}) > 8
    assert [work.per_client([3, 1, 2])(0, 5, i) for i in range(3)] == [3, 1, 2]


def planned(job: Job, round: int) -> Plan:
    """The plan of a round at the starting point."""
    return plan_of(job, start(job)._replace(round=round))


def test_work_in_seconds_is_what_the_device_does_in_them() -> None:
    p = small()
    devices = clock.lognormal(spread=1.0)
    schedule = replace(SCHEDULE, cohort=8, devices=devices, unit="seconds", work=lambda *key: 0.055)
    plan = planned(Job(p, make("fedavg"), schedule), 2)
    wanted = [max(1, int(0.055 / devices(5, 2, i).step)) for i in range(8)]
    assert plan.steps.tolist() == wanted
    assert len(set(wanted)) > 2
    sam = planned(Job(p, make("fedsam"), schedule), 2)  # two gradients a step
    assert sam.steps.tolist() == [max(1, int(0.055 / (2 * devices(5, 2, i).step))) for i in range(8)]


def test_power_of_choice_takes_the_highest_losses() -> None:
    p = small()
    this = Job(p, make("fedavg"), replace(SCHEDULE, cohort=2, sampler=sampling.power_of_choice(8)), engine=Serial())
    before = start(this)
    plan = plan_of(this, before)
    loss = [float(p.loss(before.server.x, torch.arange(p.offsets[i], p.offsets[i + 1]))) for i in range(8)]
    assert plan.ids.tolist() == sorted(np.argsort(loss)[-2:].tolist())
    after = advance(this, before)
    assert after.bytes_down == (8 + 2) * p.dim * 8
    assert after.bytes_up == 2 * p.dim * 8 + 8 * 8


# -- time ----------------------------------------------------------------------------------------------------------


def three(algorithm_name: str = "fedavg", late: str = "keep", **options: object) -> Job:
    """Two clients that take 0.4 s and one that takes 2.5 s a round, one full-gradient step each."""

    def devices(seed: int, round: int, client: int) -> Device:
        return Device(2.5 if client == 2 else 0.4, 1e300, 1e300, 0.0)

    algorithm = METHODS[algorithm_name](**options)
    schedule = Schedule(seed=0, cohort=3, lr=0.1, devices=devices, deadline=1.0, late=late)  # type: ignore[arg-type]
    problem = quadratics(0, 3, torch.float64, torch.device("cpu"), dim=2, blocks=1)
    return Job(problem, with_late_replies(algorithm) if late == "keep" else algorithm, schedule, engine=Serial())


@pytest.mark.parametrize("engine", [Serial(), Stacked(None), Stacked(1)])
def test_a_late_reply_by_hand(engine: Serial | Stacked) -> None:
    this = replace(three(), engine=engine)
    p, d = this.problem, 2

    def move(i: int, x: torch.Tensor) -> torch.Tensor:
        return -0.1 * p.gradient(x, torch.tensor([i]))

    x0 = p.init(0)
    x1 = x0 + (move(0, x0) + move(1, x0)) / 2
    x2 = x1 + (move(0, x1) + move(1, x1)) / 2
    x3 = x2 + (move(0, x2) + move(1, x2) + move(2, x0)) / 3  # client 2's reply, from the model of round 0
    x4 = x3 + (move(0, x3) + move(1, x3)) / 2  # it works again, and is late again
    state = start(this)
    seconds = []
    for wanted in (x1, x2, x3, x4):
        state = advance(this, state)
        seconds.append(state.simulated_seconds)
        assert float((state.server.x - wanted).abs().max()) < 1e-15
    assert np.allclose(np.diff([0, *seconds]), [1.0, 1.0, 0.5, 1.0])
    assert state.bytes_up == (2 + 2 + 3 + 2) * d * 8  # a reply that is on its way has not come
    assert state.bytes_down == (3 + 2 + 2 + 3) * d * 8
    assert state.gradient_steps == 3 + 2 + 2 + 3


def test_who_only_answers() -> None:
    """Who has steps behind its reply, be it one; the server counts these."""
    waited = [0, 1, 2]
    assert [Orders(0, 0, 0, 0.1, 0, waited=steps).answers for steps in waited] == [False, True, True]
    zeros = np.zeros(3)
    plan = Plan(0, np.arange(3), np.array([3, 0, 0]), zeros, zeros, zeros, 0.1, 0, waited=np.array(waited))
    assert plan.answers.tolist() == [False, True, True]
    assert behind(plan).tolist() == [3, 1, 2]
    assert float(client_of(small().objective, Orders(0, 0, 1, 0.1, 0, waited=2), False).steps) == 3
    assert plan._replace(waited=None).answers.tolist() == [False] * 3


def test_a_late_reply_discarded_by_hand() -> None:
    this = three(late="discard")
    state = run(this, 2)
    assert state.simulated_seconds == pytest.approx(2.0)
    assert state.bytes_up == 2 * 2 * 2 * 8
    assert state.bytes_down == 2 * 3 * 2 * 8
    assert state.gradient_steps == 4  # client 2 does 0.4 of a step


def test_the_deadline_ends_the_work_of_lost_clients_too() -> None:
    """Ten steps of 0.1 s each, a deadline after 0.45 s: nobody does more than four of them, lost or not."""

    def devices(seed: int, round: int, client: int) -> Device:
        return Device(0.1, 1e300, 1e300, 0.0)

    schedule = Schedule(
        *(0, 40, 0.1, work.fixed(10), "steps"), devices=devices, deadline=0.45, dropout=dropout.fixed(0.5)
    )
    problem = quadratics(0, 40, torch.float64, torch.device("cpu"), dim=2, blocks=1)
    done = planned(Job(problem, METHODS["fedavg"](), schedule), 0)
    assert len(done.aside.lost) == 40
    assert done.aside.gradient_steps <= 4 * 40
    alone = planned(Job(problem, METHODS["fedavg"](), replace(schedule, dropout=None)), 0)
    assert alone.aside.gradient_steps == 4 * 40


def test_the_clock_and_bytes_have_x0_and_what_follows_the_servers_step() -> None:
    """By hand: 8 bytes a number, 1,000 bytes a second, latency 0.1 s, d = 2, no work that takes time."""

    def devices(seed: int, round: int, client: int) -> Device:
        return Device(1e-300, 1000.0, 1000.0, 0.1)

    problem = quadratics(0, 6, torch.float64, torch.device("cpu"), dim=2, blocks=1)
    schedule = Schedule(0, 2, 0.1, devices=devices, sampler=sampling.SAMPLERS["cyclic"]())
    for name in ("fedadmm_inexact", "afedpd", "scaffold"):  # x^0 to those that join; a message after the step; neither
        this = Job(problem, METHODS[name](), schedule, engine=Serial())
        cost, x0 = this.cost, 16 if this.algorithm.needs.x0 else 0
        state = start(this)
        for t in range(5):  # every client for the first time in rounds 0 to 2
            after = advance(this, state)
            joins = x0 if 0 < t < 3 else 0
            settle = 0.1 + cost.settled / 1000 if cost.settled else 0.0
            wait = 2 * 0.1 * cost.exchanges + (cost.down + cost.up + joins) / 1000 + settle
            assert after.simulated_seconds - state.simulated_seconds == pytest.approx(wait, rel=1e-12), (name, t)
            assert after.bytes_down - state.bytes_down == 2 * (cost.down + cost.settled + joins), (name, t)
            state = after
        again = replace(this, schedule=replace(schedule))  # as after a resume: nothing of the rounds before is known
        assert plan_of(again, state._replace(round=2)).seconds == plan_of(this, state._replace(round=2)).seconds


@pytest.mark.parametrize("engine", [Serial(), Stacked(1), Stacked(None), Wire()])
def test_x0_of_lost_clients_is_counted(engine: Serial | Stacked | Wire) -> None:
    """It was sent to them, and is sent again when they come back: they kept nothing."""
    problem = quadratics(0, 6, torch.float64, torch.device("cpu"), dim=2, blocks=1)
    schedule = Schedule(3, 3, 0.05, dropout=dropout.fixed(0.5))
    this = Job(problem, METHODS["fedadmm_inexact"](), schedule, engine=engine)
    state, known, sent = start(this), set[int](), 0
    for t in range(6):
        plan = plan_of(this, state)
        reached = {*plan.ids.tolist(), *plan.aside.lost}
        sent += len(reached) * this.cost.down + (16 * len(reached - known) if t else 0)
        sent += len(plan.ids) * this.cost.settled
        known |= set(plan.ids.tolist())
        state = advance(this, state)
        assert state.bytes_down == sent, t


def test_times_are_sums_of_messages_and_work() -> None:
    device = Device(step=0.5, up=100.0, down=200.0, latency=0.25)
    took = clock.times([device], clock.Cost(down=400, up=300, exchanges=2), np.array([6]))
    assert (took.down.item(), took.compute.item(), took.up.item()) == (0.5 + 2.0, 3.0, 0.5 + 3.0)
    assert clock.times([device], clock.Cost(400, 300), np.array([6]), talks=False).total.item() == 3.0


@pytest.mark.parametrize("name", METHODS)
def test_the_cost_of_a_client_is_what_its_round_costs(name: str) -> None:
    """Found on tensors without values, before anything runs."""
    problem = quadratics(0, 8, torch.float64, torch.device("cpu")) if name == "fedhybrid" else small()
    this = Job(problem, make(name), replace(SCHEDULE, cohort=8 if TABLE[name].everyone else 5, devices=SLOW))
    before = start(this)
    plan = plan_of(this, before)
    after, size = advance(this, before), len(plan.ids)
    assert after.bytes_up == size * this.cost.up
    settled = tree_bytes(forms(this.algorithm, problem.init(0)).settled)  # sent when the round is over
    assert after.bytes_down == size * (this.cost.down + settled)
    full_cost = this.schedule.draws.full_cost(this.algorithm, problem.roster.samples[plan.ids])
    assert after.gradient_steps == this.cost.gradients(plan.steps, full_cost).sum()


# -- every method under every rule ---------------------------------------------------------------------------------

LIMITS = {
    "dropout": {"dropout": dropout.fixed(0.3)},
    "discard": {"deadline": 0.25, "devices": SLOW},
    "keep": {"deadline": 0.2, "devices": SLOW, "late": "keep"},
}


@pytest.mark.parametrize(
    ("name", "limit"),
    tiers(
        [(name, limit) for name in METHODS for limit in LIMITS],
        quick=[*((name, "dropout") for name in [*METHODS][::3]), *(("scaffold", limit) for limit in LIMITS)],
    ),
)
def test_every_method_works_or_is_refused(name: str, limit: str, tmp_path: Path) -> None:
    """Engines agree to 1e-12, and a run that is interrupted while replies are on their way goes on to the same bits."""
    algorithm = with_late_replies(make(name)) if limit == "keep" else make(name)
    problem = quadratics(0, 8, torch.float64, torch.device("cpu")) if name == "fedhybrid" else small()
    cohort = 8 if TABLE[name].everyone else 5
    this = Job(problem, algorithm, replace(SCHEDULE, cohort=cohort, **LIMITS[limit]), engine=Stacked(2))
    if TABLE[name].everyone or (limit == "keep" and name == "mimesvrg"):
        with pytest.raises(
            UserError, match=r"all 8 clients in every round, and .* may leave some out|use late discard"
        ):
            start(this)
        return
    whole = run(this, 6)
    assert bool(torch.isfinite(whole.server.x).all())
    assert_same(run(replace(this, engine=Serial()), 6), whole)
    checkpoint.save(this, run(this, 3), tmp_path / "c")
    fresh = replace(this, schedule=replace(this.schedule))  # remembers no round
    state = checkpoint.load(fresh, tmp_path / "c")
    for _ in range(3):
        state = advance(fresh, state)
    assert torch.equal(state.server.x, whole.server.x)
    assert state[3:] == whole[3:]
    assert_same(state, whole, 0.0)
    if limit == "keep":
        comes = [planned(fresh, t).waited for t in range(6)]
        assert sum(int((waited > 0).sum()) for waited in comes if waited is not None) > 0


@pytest.mark.parametrize(
    ("name", "limit"),
    tiers(
        [
            (name, limit)
            for name in ("scaffold", "fednova_vr", "fedadmm", "feddyn", "losac", "fedvra")
            for limit in ("dropout", "keep")
        ],
        quick=[],
    ),
)
def test_exact_methods_stay_exact(name: str, limit: str) -> None:
    this = job(make(name) if limit == "dropout" else with_late_replies(make(name)), lr=0.05)
    rules = LIMITS[limit] if limit == "dropout" else LIMITS[limit] | {"deadline": 0.2}
    this = replace(this, schedule=replace(this.schedule, **rules))
    if limit == "keep":
        late = [planned(this, t).late for t in range(20)]
        assert sum(int(flags.sum()) for flags in late if flags is not None) > 5
    assert gap(this, 2 * TABLE[name].rounds) < 1e-9


def test_a_round_that_nobody_finishes_leaves_the_server_as_it_was() -> None:
    for name in ("fedavg", "feddyn", "fedadam"):
        this = Job(small(), make(name), replace(SCHEDULE, dropout=dropout.fixed(0.999999)), engine=Stacked(2))
        before = start(this)
        after = advance(this, before)
        assert torch.equal(after.server.x, before.server.x)
        assert (after.round, after.bytes_up, after.bytes_down) == (1, 0, 5 * this.problem.objective.dim * 8)
        assert 0 < after.gradient_steps < planned(replace(this, schedule=SCHEDULE), 0).steps.sum()


def test_lost_clients_keep_their_rows() -> None:
    this = Job(small(), make("scaffold"), replace(SCHEDULE, cohort=8, dropout=dropout.fixed(0.5)), engine=Serial())
    state: State = advance(this, start(this))
    assert state.store.ids().tolist() == planned(this, 0).ids.tolist()
    assert 0 < len(state.store.ids()) < 8


def test_weights_stay_unbiased_under_dropout_and_coins() -> None:
    schedule = Schedule(
        0,
        5,
        0.1,
        sampler=sampling.everyone(),
        availability=availability.coins(0.3, 0.9),
        dropout=dropout.by_client(0.0, 0.5),
    )
    p = quadratics(0, 5, torch.float64, torch.device("cpu"))
    this = Job(p, METHODS["fedavg"](weights="unbiased"), schedule)
    total, state = np.zeros(5), start(this)
    for t in range(8000):
        plan = plan_of(this, state._replace(round=t))
        total[plan.ids] += plan.w / 8000
    assert np.abs(total / (p.sizes / p.sizes.sum()) - 1).max() < 0.08


@pytest.mark.parametrize(
    ("name", "options", "rules", "reason"),
    [
        ("fedavg", {"weights": "unbiased"}, {"deadline": 1.0, "devices": SLOW}, "not known with this deadline"),
        ("fedvra", {"d": "inverse_p"}, {"sampler": sampling.power_of_choice(6)}, "not known with this sampling"),
        ("fedvra", {"d": "inverse_p"}, {"availability": availability.coins(0.5, 1.0)}, "with this availability"),
        ("fedavg", {}, {"deadline": 1.0}, "a deadline needs the times of clients; set devices"),
        ("fedavg", {}, {"late": "keep"}, "late keep needs a deadline"),
        ("fedavg", {}, {"unit": "seconds"}, "local work in seconds needs the times"),
    ],
)
def test_what_cannot_be_had_together_is_refused(name: str, options: dict, rules: dict, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        start(Job(small(), METHODS[name](**options), replace(SCHEDULE, **rules)))


@pytest.mark.slow
def test_the_command_runs_with_all_of_it_and_resumes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedconcord"]
    settings = {
        "availability": "markov(0.2,0.5)",
        "dropout": "0.1",
        "devices": "lognormal(1.0,jitter=0.2)",
        "deadline": "0.3",
        "late": "keep",
        "local.seconds": "0.1",
        "checkpoint.every": "0",
    }
    given = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}

    def call(*arguments: str) -> None:
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, env=environment, timeout=300)
        assert done.returncode == 0, done.stderr

    common = ["run", "--method", "scaffold", "--model", "logreg", *given]
    call(*common, "--rounds", "8", "--out", str(tmp_path / "whole"))
    call(*common, "--rounds", "4", "--out", str(tmp_path / "parts"))
    call("run", "--resume", str(tmp_path / "parts"), "--rounds", "8")
    tables = [(tmp_path / name / "metrics.csv").read_text() for name in ("whole", "parts")]
    assert tables[0] == tables[1]
    seconds = [float(row["simulated_seconds"]) for row in csv.DictReader(tables[0].splitlines())]
    assert seconds[0] == 0
    assert all(0 < b - a <= 0.3 + 1e-12 for a, b in itertools.pairwise(seconds))
    kept = json.loads((tmp_path / "whole" / "run.json").read_text())["config"]
    assert (kept["dropout"], kept["late"]) == ("fixed(chance=0.1)", "keep")
