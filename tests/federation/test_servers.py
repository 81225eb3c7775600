"""Servers above servers: they nest to rounding, bytes between them are counted, a lost one takes its clients."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedconcord
from fedconcord.execution.engines import Engine, Serial, Stacked, Wire
from fedconcord.execution.job import Job, State, advance, checkpoint, plan_of, population_of, refusals, start
from fedconcord.federation.objectives import Quadratic, quadratics
from fedconcord.federation.participation.sampling import Drawn, Sampler
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.servers import Edges, edges, from_file
from fedconcord.federation.participation.work import by_client, fixed
from fedconcord.insight.advice.planner import Federation, device_of, sizes_of
from fedconcord.interface.cli import call
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import TRAIN, Algorithm, Phase, Plan, space_of, total_of, tree_leaves
from fedconcord.method.wrappers.robust import median, with_aggregate
from fedconcord.study.statistics.format import size
from fedconcord.support.errors import UserError
from table import TABLE, make

CLIENTS, DIM, ROUNDS = 12, 5, 4


def job_of(algorithm: Algorithm, tree: Edges | None, engine: Engine = Serial(), cohort: int = 9, **other: Any) -> Job:  # noqa: B008
    problem = quadratics(0, CLIENTS, torch.float64, torch.device("cpu"), dim=DIM, blocks=6)
    work = fixed(2) if algorithm.needs.everyone else by_client(1, 3)
    cohort = CLIENTS if algorithm.needs.everyone else cohort
    return Job(problem, algorithm, Schedule(3, cohort, 0.05, work, "steps", tree=tree, **other), engine=engine)


def after(job: Job, rounds: int = ROUNDS) -> State:
    state = start(job)
    for _ in range(rounds):
        state = advance(job, state)
    return state


def numbers(state: State) -> dict[str, torch.Tensor]:
    rows = {f"row {name}": leaf for name, leaf in state.store.export().items()}
    return {name: torch.as_tensor(leaf) for name, leaf in (tree_leaves(state.server) | rows).items()}


DEPTHS = {"one tier": edges(4), "two": edges(6, above=[2]), "three": edges(7, above=[4, 2])}


@pytest.mark.parametrize("name", [name for name in TABLE if make(name).phases.combine is None])
def test_sums_that_nest_are_those_of_one_server(name: str) -> None:
    """Every method whose contributions are summed, at depth 1, 2 and 3, to 1e-12; costs of clients to the byte."""
    algorithm = make(name)
    flat = after(job_of(algorithm, None))
    for tree in DEPTHS.values():
        for engine in (Serial(), Stacked(chunk=4, workers=1, kernel="torch")):
            nested = after(job_of(algorithm, tree, engine))
            for leaf, value in numbers(flat).items():
                torch.testing.assert_close(numbers(nested)[leaf], value, rtol=1e-12, atol=1e-12)
            assert (nested.bytes_up, nested.bytes_down) == (flat.bytes_up, flat.bytes_down)


def test_the_reference_engine_does_add_by_edges() -> None:
    """The numbers are such that the order of the sum shows: 1e16 + 1 is 1e16, and three ones together are not."""
    one = np.ones(4)
    servers = np.array([[1, 0], [0, 0], [0, 0], [0, 0]])
    plan = Plan(0, np.arange(4), one.astype(np.int64), one, one / 4, one, 0.1, 0)
    replies = {i: torch.full((1,), 1e16 if i == 0 else 1.0, dtype=torch.float64) for i in range(4)}
    phase = Phase(TRAIN, (), (), lambda up, sender, cohort: up)
    space = space_of(quadratics(0, 4, torch.float64, torch.device("cpu"), dim=1))
    assert float(total_of(phase, replies, space, plan)) == 1e16
    assert float(total_of(phase, replies, space, plan._replace(servers=servers))) == 1e16 + 4  # 1e16 + 3, rounded


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "losac", "feddyn", "mimesvrg", "afedpd", "vrlsgd"])
@pytest.mark.parametrize("depth", DEPTHS)
def test_bytes_between_servers_are_the_plans(name: str, depth: str) -> None:
    """A message down to each server on the way, a total up, a settling message down: sizes are the planner's."""
    tree, algorithm = DEPTHS[depth], make(name)
    job = job_of(algorithm, tree)
    state, cohort = after(job), job.schedule.cohort
    of = Federation(CLIENTS, cohort, ROUNDS, 4 * DIM, device_of("site", 0.0))
    sizes = sizes_of(name, algorithm, of)  # in float32: half as many bytes of tensors
    expected = np.zeros((len(tree.counts), 2), np.int64)
    if algorithm.phases.prologue is not None:
        expected += 2 * np.outer(tree.counts, (4 * DIM, sizes.before))
    for t in range(ROUNDS):
        ids = job.schedule.plan(t, algorithm, job.problem.roster).ids
        there = np.array([len(set(column)) for column in tree.above(3, ids).T.tolist()])
        expected += 2 * np.outer(there, (sizes.cost.down + sizes.cost.settled, sizes.total))
    assert state.between == tuple(expected.ravel().tolist())


def test_a_lost_server_is_its_clients_absent() -> None:
    """The run in which a sampler leaves out just the clients below lost servers has the same bits, rows too."""
    tree = edges(4, above=[2], lost=0.2)

    def draw(seed: int, round: int, cohort: int, sizes: np.ndarray, losses: Any) -> Drawn:
        ids = np.arange(CLIENTS)
        ids = ids[~tree.losses(seed, round, ids)[0]]
        one = np.ones(len(ids))
        return Drawn(ids, one, one, one)

    for name in ("fedavg", "scaffold", "afedpd"):
        lossy = after(job_of(make(name), tree, cohort=CLIENTS), 12)
        absent = after(job_of(make(name), None, cohort=CLIENTS, sampler=Sampler(draw, from_all=True)), 12)
        assert absent.bytes_up == lossy.bytes_up
        assert lossy.bytes_down > absent.bytes_down  # the lost got the model
        ids = np.arange(CLIENTS)
        heard = [tree.above(3, ids[~tree.losses(3, t, ids)[0]])[:, 0] for t in range(12)]
        totals = sum(len(set(servers.tolist())) for servers in heard)
        if name == "fedavg":  # a message down to all servers, a total up from those that were not lost
            assert lossy.between[:2] == (12 * 4 * 8 * DIM, totals * 8 * DIM)
        for leaf, value in numbers(absent).items():
            torch.testing.assert_close(numbers(lossy)[leaf], value, rtol=1e-12, atol=1e-12)


def test_servers_are_lost_as_often_as_said_and_together() -> None:
    tree, ids = edges(4, above=[2], lost=0.1), np.arange(30)
    homes = tree.above(5, ids)
    assert set(homes[:, 0].tolist()) == {0, 1, 2, 3}
    assert (homes[:, 1] == homes[:, 0] // 2).all()
    rounds = 2000
    lost = np.stack([tree.losses(5, t, ids)[0] for t in range(rounds)])
    chance = tree.losses(5, 0, ids)[1]
    assert chance == pytest.approx(1 - 0.9**2)
    for server in range(4):
        below = lost[:, homes[:, 0] == server]
        assert (below.all(1) == below.any(1)).all()
        assert abs(below[:, 0].mean() - chance) < 5 * (chance * (1 - chance) / rounds) ** 0.5
    half = lost[:, homes[:, 1] == 0].any(1) & lost[:, homes[:, 1] == 1].any(1)
    assert half.mean() < 3 * chance**2  # the two halves have coins of their own


def test_chances_of_taking_part_have_the_servers_losses_in_them() -> None:
    job = job_of(replace(make("fedavg"), weights="unbiased"), edges(4, lost=0.25))
    plan = plan_of(job, start(job))
    assert plan.inclusion == pytest.approx(0.75 * 9 / 12)
    assert plan.w == pytest.approx(plan.p / (0.75 * 9 / 12))


def test_a_run_goes_on_from_its_checkpoint_with_its_bytes(tmp_path: Path) -> None:
    job = job_of(make("scaffold"), edges(4, lost=0.2))
    state = after(job, 2)
    checkpoint.save(job, state, tmp_path / "c")
    again = checkpoint.load(job, tmp_path / "c")
    assert again.between == state.between != ()
    assert advance(job, again).between == after(job, 3).between
    other = job_of(make("scaffold"), edges(5, lost=0.2))
    with pytest.raises(UserError, match=r"schedule\.tree\.servers is 4 where this one's is 5"):
        checkpoint.load(other, tmp_path / "c")


def test_what_does_not_nest_is_refused() -> None:
    robust = with_aggregate(METHODS["fedavg"](), median())
    with pytest.raises(UserError, match="contributions that are not summed have to lie at one server"):
        refusals.check(job_of(robust, edges(4)))
    refusals.check(job_of(robust, None))
    with pytest.raises(UserError, match="needs all 12 clients in every round, and the loss of edge servers may leave"):
        refusals.check(job_of(make("vrlsgd"), edges(4, lost=0.1)))
    with pytest.raises(UserError, match="a tier of servers has fewer than the one below it"):
        edges(4, above=[4])


def test_a_file_says_who_is_where(tmp_path: Path) -> None:
    path = tmp_path / "edges.csv"
    path.write_text("client,server\n" + "".join(f"{i},{i % 3}\n" for i in range(CLIENTS - 1)))
    tree = from_file(str(path), above=[2])
    assert tree.counts == (3, 2)
    assert tree.above(0, np.array([0, 1, 2, 5])).tolist() == [[0, 0], [1, 0], [2, 1], [2, 1]]
    with pytest.raises(UserError, match=f"has no row for client {CLIENTS - 1}; give one for every client"):
        tree.above(0, np.arange(CLIENTS))


def test_the_command_says_what_passed(tmp_path: Path) -> None:
    words = ["run", "--data", "quadratics", "--clients", "12", "--cohort", "8", "--rounds", "3", "--method", "scaffold"]
    out = tmp_path / "out"
    command = [sys.executable, "-m", "fedconcord", *words, "--set", "tree=edges(4,lost=0.2)", "--out", str(out)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    assert "down to edge servers of tier 1" in done.stdout
    [tier] = json.loads((out / "run.json").read_text())["tree"]
    assert 0 < tier["bytes_up"] <= tier["bytes_down"]
    page = fedconcord.write_report([out], out=tmp_path / "report.html").read_text()
    down, up = (re.escape(size(tier[f"bytes_{way}"])) for way in ("down", "up"))
    assert re.search(f"Between edge servers and what is above them, from below: .*{down} down and {up} up", page)


@pytest.mark.parametrize("name", ["scaffold", "afedpd"])
def test_over_a_wire_the_sums_nest_and_count_alike(name: str) -> None:
    for tree in DEPTHS.values():
        serial, wire = (after(job_of(make(name), tree, engine)) for engine in (Serial(), Wire()))
        assert wire.between == serial.between
        torch.testing.assert_close(wire.server.x, serial.server.x, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("tree=edges(0)", "servers"),
        ("tree=edgy(3)", "unknown tree of servers 'edgy'"),
        ("tree=edges(4,lost=1)", "lost"),
        ("tree=from_file(nowhere.csv)", "cannot read the list of edge servers"),
        ("tree=edges(4) clock=asynchronous(4) devices=equal", "leave tree out, or clock"),
        ("tree=edges(4) sampling=power_of_choice(6)", "edge servers (tree) send sums; use another sampling"),
    ],
)
def test_a_mistake_is_a_sentence(words: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [word for pair in words.split() for word in ("--set", pair)]
    given = ["--data", "quadratics", "--clients", "12", "--cohort", "4", "--rounds", "2", "--out", str(tmp_path / "o")]
    assert call(["run", *given, *settings]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


# -- edges that run rounds of their own: the page's loop -----------------------------------------------------------


def cloud_round() -> Any:
    """The function that docs/trees.md shows."""
    page = (Path(__file__).parents[2] / "docs" / "trees.md").read_text()
    names: dict[str, Any] = {}
    exec(page.partition("```python\n")[2].partition("```")[0], names)
    return names["cloud_round"]


def limit(job: Job, tree: Edges, edge_rounds: int, steps: int, lr: float) -> np.ndarray:
    """Where HierFAVG ends on quadratics, in closed form."""
    assert isinstance(job.problem, Quadratic)
    H, b = job.problem.H_mean.numpy(), job.problem.b_mean.numpy()
    p, eye = population_of(job).p.double().numpy(), np.eye(DIM)
    M = np.stack([eye - np.linalg.matrix_power(eye - lr * A, steps) for A in H])
    minima = np.linalg.solve(H, b[..., None])[..., 0]
    homes = tree.above(job.schedule.seed, np.arange(CLIENTS))[:, 0]
    left, right = np.zeros((DIM, DIM)), np.zeros(DIM)
    for edge in np.unique(homes):
        here = homes == edge
        P = p[here].sum()
        Me = np.einsum("i,ijk->jk", p[here] / P, M[here])
        be = np.linalg.solve(Me, np.einsum("i,ijk,ik->j", p[here] / P, M[here], minima[here]))
        Ne = eye - np.linalg.matrix_power(eye - Me, edge_rounds)
        left, right = left + P * Ne, right + P * Ne @ be
    return np.asarray(np.linalg.solve(left, right))


@pytest.mark.parametrize("edge_rounds", [1, 2, 5])
def test_hierfavg_ends_at_its_closed_form(edge_rounds: int) -> None:
    one, tree, steps, lr = cloud_round(), edges(3), 4, 0.3
    problem = quadratics(1, CLIENTS, torch.float64, torch.device("cpu"), dim=DIM, condition=4.0)
    job = Job(problem, METHODS["fedavg"](), Schedule(3, CLIENTS, lr, fixed(steps), "steps"), engine=Serial())
    state = start(job)
    rounds = 120 // edge_rounds
    for _ in range(rounds):
        state = one(job, state, tree, edge_rounds)
    want = limit(job, tree, edge_rounds, steps, lr)
    np.testing.assert_allclose(state.server.x.numpy(), want, rtol=1e-12, atol=1e-12)
    assert state.round == 120
    assert state.bytes_up == 120 * CLIENTS * 8 * DIM
    if edge_rounds == 1:
        flat = after(job, 120)
        np.testing.assert_allclose(state.server.x.numpy(), flat.server.x.numpy(), rtol=1e-12, atol=1e-12)
    else:
        assert np.linalg.norm(want - limit(job, tree, 1, steps, lr)) > 1e-3  # it is another point
