"""The plan of a federation: sizes against runs, seconds against the clock, tables against figures by hand."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedconcord.execution.engines import Serial
from fedconcord.execution.job import Job, advance, row_bytes, start
from fedconcord.federation.objectives import quadratics
from fedconcord.federation.participation.clock import Device, equal
from fedconcord.federation.participation.sampling import drawn_by, uniform
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import fixed
from fedconcord.insight.advice.planner import Federation, counts, device_of, planned, read_algorithm, rows_of, sizes_of
from fedconcord.interface.cli import call
from fedconcord.method.contract import Algorithm, tree_bytes
from fedconcord.method.wrappers.uploads import quantise, topk, with_uploads
from fedconcord.support.errors import UserError
from table import TABLE, make

DIM, CLIENTS, ROUNDS = 7, 6, 3
PHONE = device_of("phone", 0.0)


def federation(**other: Any) -> Federation:
    return Federation(**({"clients": 10**8, "cohort": 10**4, "rounds": 1000, "model": 10**7, "device": PHONE} | other))


def run_of(algorithm: Algorithm, cohort: int, **other: Any) -> Job:
    problem = quadratics(0, CLIENTS, torch.float32, torch.device("cpu"), dim=DIM, blocks=6)
    return Job(problem, algorithm, Schedule(0, cohort, 0.01, fixed(2), "steps", **other), engine=Serial())


METHODS = [name for name in TABLE if make(name).phases.communicates is None]


@pytest.mark.parametrize("name", METHODS)
def test_sizes_are_those_of_a_run_to_the_byte(name: str) -> None:
    totals: list[int] = []

    def noted(server: Any, total: Any, cohort: Any) -> Any:
        totals.append(tree_bytes(total))
        return algorithm.update(server, total, cohort)

    algorithm = make(name)
    cohort = CLIENTS if algorithm.needs.everyone or TABLE[name].everyone else 4
    job = run_of(replace(algorithm, update=noted), cohort)
    before = start(job)
    state, came = before, set(job.schedule.plan(0, algorithm, job.problem.roster).ids.tolist())
    joined = 0
    for t in range(ROUNDS):
        ids = {*job.schedule.plan(t, algorithm, job.problem.roster).ids.tolist()}
        joined, came = joined + len(ids - came), came | ids
        state = advance(job, state)
    of = Federation(CLIENTS, cohort, ROUNDS, 4 * DIM, PHONE)
    sizes = sizes_of(name, algorithm, of)
    cost = sizes.cost
    assert sizes.before == before.bytes_up // CLIENTS
    assert state.bytes_up - before.bytes_up == ROUNDS * cohort * cost.up
    down = ROUNDS * cohort * (cost.down + cost.settled) + joined * cost.x0
    assert state.bytes_down - before.bytes_down == down
    assert sizes.server == tree_bytes(state.server)
    assert sizes.row == row_bytes(job)
    answer = 0 if algorithm.phases.prelude is None else 4 * DIM
    assert {one + answer for one in totals} == {sizes.total}
    assert sizes.rounds is None


@pytest.mark.parametrize("compressor", [topk(0.3), quantise(8)], ids=["topk", "quantise"])
def test_compressed_messages_go_up_and_whole_totals_between_servers(compressor: Any) -> None:
    algorithm = with_uploads(make("scaffold"), compressor)
    job = run_of(algorithm, 4)
    state = advance(job, start(job))
    sizes = sizes_of("scaffold", algorithm, Federation(CLIENTS, 4, 1, 4 * DIM, PHONE))
    assert state.bytes_up == 4 * sizes.cost.up
    assert sizes.total == 2 * 4 * DIM


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "afedpd", "mimesvrg"])
def test_a_client_takes_as_long_as_on_the_clock(name: str) -> None:
    """Equal devices whose links are so slow that bytes decide; a gradient takes no time in the plan."""
    device = Device(1e-12, 100.0, 300.0, 0.25)
    job = run_of(make(name), CLIENTS, devices=equal(*device))
    state = advance(job, start(job))
    of = Federation(CLIENTS, CLIENTS, 1, 4 * DIM, device)
    assert planned(sizes_of(name, make(name), of), of).client == pytest.approx(state.simulated_seconds, rel=1e-9)


def test_the_worked_figures() -> None:
    """10 MB, phones, ports of 1.25 GB/s, one vector each way."""
    assert counts(10**5, 1) == [10**5]
    assert [counts(10**3, 2)[1], counts(10**4, 2)[1], counts(10**5, 2)[1]] == [32, 100, 316]
    assert counts(10**6, 3) == [10**6, 10**4, 100]
    for cohort, flat, cpu, edges in ((10**3, 8, 13, 0.25), (10**4, 80, 130, 0.8), (10**5, 800, 1300, 2.5)):
        of = federation(cohort=cohort)
        plan = planned(sizes_of("fedavg", make("fedavg"), of), of)
        assert plan.client == pytest.approx(9.7)
        one, two = (layout.tiers for layout in plan.layouts[:2])
        assert one[0].bytes_up == one[0].bytes_down == cohort * 10**7
        assert (one[0].seconds_up, one[0].seconds_down, one[0].cpu_seconds) == pytest.approx((flat, flat, cpu))
        assert [tier.seconds_up for tier in two] == pytest.approx([edges, edges], rel=0.05)
        assert plan.enough == 1212
    assert plan.best == 2
    assert plan.layouts[2].seconds < 2 * plan.client < plan.layouts[1].seconds


def test_bytes_of_a_tier_are_those_of_its_messages() -> None:
    of = federation(cohort=1000)
    (low, high) = planned(sizes_of("afedpd", make("afedpd"), of), of).layouts[1].tiers
    assert (low.servers, low.children, high.servers, high.children) == (32, 32, 1, 32)
    assert (low.bytes_down, low.bytes_up) == (1000 * 3 * 10**7, 1000 * 10**7)
    assert (high.bytes_down, high.bytes_up) == (32 * 3 * 10**7, 32 * 10**7)
    assert low.stream == (3 + 1 + 32) * 10**7
    assert high.replies == (2 + 1 + 32) * 10**7


def test_who_comes_again_is_as_cohorts_are_drawn() -> None:
    """N = 2,000 clients, 60 a round: the counts over 100 rounds, to five standard deviations of 40 seeds' mean."""
    n, cohort, rounds, seeds = 2000, 60, 100, 40
    of = federation(clients=n, cohort=cohort, rounds=rounds)
    rows = rows_of(sizes_of("scaffold", make("scaffold"), of), of)
    sizes, seen = np.ones(n), []
    for seed in range(seeds):
        visits = np.zeros(n)
        for t in range(rounds):
            visits[drawn_by(uniform(), seed, t, cohort, sizes, np.zeros_like).ids] += 1
        seen.append(((visits > 0).sum(), (visits > 1).sum()))
    mean, error = np.mean(seen, 0), np.std(seen, 0) / seeds**0.5
    assert abs(mean[0] - rows.distinct) < 5 * error[0]
    assert abs(mean[1] - rows.again) < 5 * error[1]


def test_rows_by_how_often_clients_come() -> None:
    def rows(**other: Any) -> Any:
        of = federation(**other)
        return rows_of(sizes_of("scaffold", make("scaffold"), of), of)

    seldom = rows()
    assert (seldom.visits, seldom.most) == (pytest.approx(0.1), 10**14)
    assert seldom.again == pytest.approx(0.47e6, rel=0.01)
    assert "hardly ever read" in seldom.advice
    assert rows(clients=10**4, rounds=1).again == 0  # all of them once
    assert "rows pay: keep them at the clients" in rows(clients=10**6).advice
    assert "rows pay a little" in rows(clients=10**7).advice
    assert rows(is_stored=True).traffic == 2 * 10**4 * 10**7
    with pytest.raises(UserError, match=r"scaffold: rows in a store of the servers grow to 1 PB, .* = 1; rows pay a"):
        rows(cohort=10**5, is_stored=True)
    assert rows(cohort=10**5).most == 10**15  # at the clients it is no sum on one machine


def test_what_cannot_be_had_is_said() -> None:
    of = federation()
    plan = planned(sizes_of("vrlsgd", make("vrlsgd"), of), of)
    assert "needs all 100000000 clients in every round" in str(plan.sizes.rounds)
    assert plan.replies is None
    plan = planned(sizes_of("scaffold", make("scaffold"), of), of)
    assert (plan.replies, plan.ports) == (pytest.approx(10**4 / 19.3), 9)
    plan = planned(sizes_of("fedcm", make("fedcm"), of), of)  # two vectors down, and one up
    assert plan.replies is not None
    assert plan.ports == math.ceil(plan.replies * 2 * 10**7 / (1.25 * 10**9))
    _, median = read_algorithm("fedavg(aggregate=median)")
    assert len(planned(sizes_of("median", median, of), of).layouts) == 1


def test_the_command_prints_a_table_and_json(tmp_path: Path) -> None:
    words = ["plan", "--clients", "1e8", "--cohort", "1e4", "--model-bytes", "10e6", "--methods", "fedavg,scaffold"]
    words += ["--prices", "server=2,gb=0.1"]
    command = [sys.executable, "-m", "fedconcord", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    assert "100,000,000 clients, 10,000 replies a round" in done.stdout
    assert "fedavg: one server is enough up to 1,212 replies a round" in done.stdout
    assert "rows are hardly ever read" in done.stdout
    done = subprocess.run([*command, "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    plan = json.loads(done.stdout)
    assert [one["sizes"]["cost"]["up"] for one in plan["methods"]] == [10**7, 2 * 10**7]
    first = plan["methods"][0]
    layout = first["layouts"][first["best"]]
    assert first["hourly"]["server"] == 2 * 101
    sent = sum(tier["bytes_down"] for tier in layout["tiers"]) + sum(tier["bytes_up"] for tier in layout["tiers"][1:])
    assert first["hourly"]["gb"] == pytest.approx(0.1 * sent / 1e9 * 3600 / layout["seconds"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--clients many", "--clients must be an integer from 1 to 1e18, as in 100000 or 1e5, given 'many'"),
        ("--cohort 1.5", "--cohort must be an integer"),
        ("--cohort 1e9", "a cohort of 1000000000 cannot be drawn from 100000000 clients"),
        ("--model-bytes 10", "--model-bytes must be a multiple of 4, the bytes of a float32, given '10'"),
        ("--links train", "--links must be phone, site, datacentre or up:down:latency"),
        ("--links 1:x:0", "--links must be a number >= 1, given 'x'"),
        ("--work -1", "--work must be a number >= 0, given '-1'"),
        ("--port nan", "--port must be a number >= 1, given 'nan'"),
        ("--methods ,", "--methods names no method; give one or more, as in fedavg,scaffold"),
        ("--rows moon", "--rows must be clients or store, given 'moon'"),
        ("--methods fedadam(server=momentum(0.9))", "the method has a server optimiser of its own, given server"),
        ("--prices server", "--prices must be some of server=, gb= and store="),
        ("--prices store=1", "--prices store= is of rows in a store of the servers; give --rows store too"),
        ("--methods fedavgg", "unknown method 'fedavgg' (did you mean 'fedavg'?)"),
        ("--methods fedavg(local.lr=1)", "method fedavg: a plan does not look at local.lr; leave it out"),
        ("--methods fedhybrid", "method fedhybrid: no messages can be formed for a model of 10000000000 bytes"),
    ],
)
def test_a_mistake_is_a_sentence(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    name, value = words.split()
    asked = {"--clients": "1e8", "--cohort": "1e4", "--model-bytes": "1e10", "--methods": "fedavg"} | {name: value}
    assert call(["plan", *(word for pair in asked.items() for word in pair)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
