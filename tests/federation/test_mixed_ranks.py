"""Low-rank factors whose ranks differ between clients: each computes what a model of its own rank would, the server's
weights are W + s P of clients' own products, and messages have the rows and columns that a client holds."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from test_engines import SCHEDULE, assert_same, assert_same_server, run
from test_factors import LAYERS, SETTINGS, WEIGHTS, Net, problem, ruled, stepped, train
from torch import Tensor, nn

from fedconcord.execution.engines import Engine, Serial, Stacked, Wire
from fedconcord.execution.job import Job, advance, checkpoint, start
from fedconcord.execution.job.loop import plan_of
from fedconcord.federation.adapters import lora
from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.objectives import Supervised
from fedconcord.federation.participation.clock import equal
from fedconcord.insight.advice import advise, federation_of
from fedconcord.method.algorithms.fedavg import fedavg
from fedconcord.method.contract import Algorithm, Oracle, Tree, orders_of
from fedconcord.method.contract.code import Code
from fedconcord.method.step.assignment import Assignment
from fedconcord.method.step.solver import Solver
from fedconcord.method.step.step import client_step
from fedconcord.method.wrappers.code import with_code
from fedconcord.method.wrappers.hostile import gaussian, with_hostile
from fedconcord.study.settings.job import build
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.sources import from_nested
from fedconcord.support.errors import UserError
from table import make

RANKS, SCALE = [1, 3, 2], 2.0
MIXED = problem(rank=RANKS, alpha=SCALE * max(RANKS))
RULES = ("flora", "hlora")


def rank_of(client: int) -> int:
    return RANKS[client % 3]


def held(x: Tensor, client: int, of: Supervised = MIXED) -> Tensor:
    """The model [d] with zeros for the rows of A and columns of B that this client has not."""
    values = {name: value.clone() for name, value in of.layout.views(x).items()}
    for name, value in values.items():
        if name.endswith("lora_A"):
            value[rank_of(client) :] = 0
        elif name.endswith("lora_B"):
            value[:, rank_of(client) :] = 0
    return of.layout.vector(values)


def product(x: Tensor, name: str) -> Tensor:
    """s B A as the layer's weight lies."""
    values = MIXED.layout.views(x)
    whole = SCALE * values[f"{name}.lora_B"] @ values[f"{name}.lora_A"]
    return whole.T if name.startswith("turned") else whole


def off(before: dict[str, Tensor], after: dict[str, Tensor], moves: dict[str, Tensor], name: str) -> float:
    """How far a layer's weight moved from where it was to have moved, relative to that."""
    move = after[f"{name}.weight"] - before[f"{name}.weight"]
    return float((move - moves[name]).norm() / moves[name].norm())


def mean_move(x: Tensor, clients: list[Tensor], weights: Tensor) -> dict[str, Tensor]:
    """Of each layer's weight: s (P - B A)."""
    each = {name: [w * product(x_i, name) for w, x_i in zip(weights, clients, strict=True)] for name in LAYERS}
    return {name: sum(parts) - weights.sum() * product(x, name) for name, parts in each.items()}  # type: ignore[misc]


def far_apart(n: int) -> Tensor:
    """Models [n, d]."""
    return torch.randn(n, MIXED.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


# -- one step of the server ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cohort", WEIGHTS)
@pytest.mark.parametrize("rule", RULES)
def test_the_mean_of_products_of_clients_own_ranks(rule: str, cohort: str) -> None:
    """From factors that are far apart; the server's have all components. flora has the mean, and hlora the nearest of
    the largest rank."""
    weights = WEIGHTS[cohort]
    draws = far_apart(5)
    x, clients = draws[0], [held(draws[k + 1], k) for k in range(len(weights))]
    algorithm = ruled(rule, of=MIXED)
    starts = torch.stack([held(x, k) for k in range(len(clients))])
    # `stepped` hands over moves from x: of these clients they are from where each began
    after = stepped(algorithm, x, torch.stack(clients) - starts + x, weights)
    base, new = MIXED.export(x), MIXED.export(algorithm.models(after)["server"])
    for name, move in mean_move(x, clients, weights).items():
        target = product(x, name) + move
        left = new[f"{name}.weight"] - base[f"{name}.weight"] + product(x, name) - target
        tail = torch.linalg.svdvals(target)[max(RANKS) :].norm() if rule == "hlora" else torch.zeros(())
        assert float(left.norm()) == pytest.approx(float(tail), rel=1e-12, abs=1e-12 * float(target.norm()))


def test_components_that_clients_lack_shrink_by_their_weight() -> None:
    """Of hlora, where no client moves: clients 0, 1 and 2 have ranks 1, 3 and 2."""
    algorithm, draws = ruled("hlora", of=MIXED), far_apart(2)
    x = stepped(algorithm, draws[0], draws[1:], WEIGHTS["one"]).x  # components in the order of singular values
    after = stepped(algorithm, x, x.expand(3, -1), torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)).x
    for name in LAYERS:
        before, now = (torch.linalg.svdvals(product(model, name))[:3] for model in (x, after))
        torch.testing.assert_close(now, before * torch.tensor([1.0, 0.8, 0.3], dtype=torch.float64), rtol=1e-12, atol=0)


# -- whole rounds ----------------------------------------------------------------------------------------------------


class Told(NamedTuple):
    """Models by client, of the last round."""

    begins: dict[int, Tensor]
    ends: dict[int, Tensor]


def telling(**options: Any) -> tuple[Algorithm, Told]:
    """FedAvg, and where each client of a serial engine began and ended."""
    plain, told = fedavg(**options), Told({}, {})

    def finish(down: Tree, row: Tree, done: Any, client: Any) -> tuple[Tree, Tree]:
        if done.x.device.type != "meta" and done.x.shape == (MIXED.dim,):
            told.begins[int(client.id)], told.ends[int(client.id)] = down.clone(), done.x.clone()
        return plain.finish(down, row, done, client)

    return replace(plain, finish=finish), told


@pytest.mark.parametrize("weights", ["size", "unbiased"])
def test_every_round_moves_the_weights_by_the_mean_of_clients_own_products(weights: str) -> None:
    """With absent clients and weights that sum to less and more than 1: of each client's own model after its steps."""
    algorithm, told = telling(weights=weights)
    job, totals = Job(MIXED, ruled("flora", algorithm, MIXED), SCHEDULE, engine=Serial()), []
    state = start(job)
    for _ in range(4):
        before, plan = MIXED.export(job.algorithm.models(state.server)["server"]), plan_of(job, state)
        x, state = state.server.x, advance(job, state)
        assert len({rank_of(i) for i in plan.ids.tolist()}) > 1
        for i in plan.ids.tolist():
            assert torch.equal(told.begins[i], held(x, i))
            assert torch.equal(told.ends[i], held(told.ends[i], i))
        moves = mean_move(x, [told.ends[i] for i in plan.ids.tolist()], torch.as_tensor(plan.w))
        after = MIXED.export(job.algorithm.models(state.server)["server"])
        assert max(off(before, after, moves, name) for name in LAYERS) < 1e-11
        totals.append(float(plan.w.sum()))
    assert (max(abs(total - 1) for total in totals) > 0.05) == (weights == "unbiased")


SOLVERS = {
    "sgd": Solver(),
    "momentum and a clip": Solver(momentum=0.9, clip=0.05, weight_decay=0.01),
    "sam": Solver(oracle=Oracle("sam", radius=0.1)),
    "svrg": Solver(oracle=Oracle("svrg")),
    "lbfgs": Solver(kind="lbfgs"),
}


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("client", [0, 2, 3])
def test_a_client_computes_what_a_model_of_its_own_rank_does(solver: str, client: int) -> None:
    """From factors of hlora, whose B is not 0; s is the server's."""
    rank = rank_of(client)
    small, algorithm = problem(rank=rank, alpha=SCALE * rank), ruled("hlora", of=MIXED)
    state = run(Job(MIXED, algorithm, SCHEDULE), 2)
    job = Job(MIXED, algorithm, replace(SCHEDULE, cohort=7), SOLVERS[solver])
    orders = orders_of(plan_of(job, start(job)), client, algorithm)
    portion = algorithm.phases.portion
    assert portion is not None
    message = algorithm.broadcast(state.server)
    down = portion.fill(portion.cut(message, client), client)
    up = client_step(job.assignment, MIXED.objective, client, down, (), orders).up
    values = {
        name: value[:rank] if name.endswith("_A") else value[:, :rank] if name.endswith("_B") else value
        for name, value in MIXED.layout.views(down.inner).items()
    }
    assignment = Assignment(fedavg(), job.solver, job.schedule.draws)
    expected = client_step(assignment, small.objective, client, small.layout.vector(values), (), orders).up
    torch.testing.assert_close(portion.cut(up, client), expected, rtol=1e-9, atol=1e-13)
    assert float(expected.norm()) > 1e-3


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedsam"])
@pytest.mark.parametrize("rule", RULES)
def test_engines_agree(rule: str, method: str) -> None:
    job = Job(MIXED, ruled(rule, make(method), MIXED), SCHEDULE, engine=Serial())
    expected = run(job, 4)
    assert_same(run(replace(job, engine=Stacked(2)), 4), expected)
    wire = run(replace(job, engine=Wire()), 4)
    assert_same_server(wire, expected)
    assert (wire.bytes_up, wire.bytes_down) == (expected.bytes_up, expected.bytes_down)
    assert float((expected.server.x - MIXED.init(SCHEDULE.seed)).norm()) > 1e-3


def test_code_of_the_users_has_the_clients_rank() -> None:
    """Plain SGD by hand is the local step, to rounding."""
    job = Job(MIXED, ruled("hlora", with_code(fedavg(), Code(train)), MIXED), SCHEDULE)
    assert_same_server(run(job, 3), run(Job(MIXED, ruled("hlora", of=MIXED), SCHEDULE), 3))


def test_an_attack_of_noise_has_no_more_of_the_model_than_its_client() -> None:
    job = Job(MIXED, ruled("hlora", with_hostile(fedavg(), gaussian(0.5), 0, 7), MIXED), SCHEDULE)
    serial = run(replace(job, engine=Serial()), 3)
    assert_same_server(run(replace(job, engine=Wire()), 3), serial)
    assert float((serial.server.x - run(Job(MIXED, ruled("hlora", of=MIXED), SCHEDULE), 3).server.x).norm()) > 0.1


@pytest.mark.parametrize("rule", RULES)
def test_a_run_that_is_resumed_is_the_same(tmp_path: Path, rule: str) -> None:
    job = Job(MIXED, ruled(rule, of=MIXED), SCHEDULE)
    checkpoint.save(job, run(job, 2), tmp_path / "state")
    state = checkpoint.load(job, tmp_path / "state")
    for _ in range(2):
        state = advance(job, state)
    assert_same(state, run(job, 4), tolerance=0.0)


@pytest.mark.parametrize("rule", RULES)
def test_equal_ranks_are_one_rank(rule: str) -> None:
    """To the bit."""
    same, one = problem(rank=[2, 2]), problem(rank=2)
    assert same.objective.pairs == one.objective.pairs
    assert_same(run(Job(same, ruled(rule, of=same), SCHEDULE)), run(Job(one, ruled(rule, of=one), SCHEDULE)), 0.0)


# -- what travels ------------------------------------------------------------------------------------------------------


def sent(problem: Supervised, rule: str, rank: int) -> int:
    """Numbers that a client of this rank sends."""
    layers = [layer for layer in problem.layout.shapes if layer.endswith("lora_A")]
    shapes = [(problem.layout.shapes[name], problem.layout.shapes[name[:-1] + "B"]) for name in layers]
    factors = sum(a[1] + b[0] for a, b in shapes)
    whole = sum(a[0] * a[1] + b[0] * b[1] for a, b in shapes)
    return problem.dim - whole + rank * factors


@pytest.mark.parametrize("engine", [Serial(), Stacked(2), Wire()])
@pytest.mark.parametrize("rule", RULES)
def test_each_client_is_counted_for_its_rank(rule: str, engine: Engine) -> None:
    job = Job(MIXED, ruled(rule, of=MIXED), SCHEDULE, engine=engine)
    state, up, down = start(job), 0, 0
    added = sum(pair.size for pair in MIXED.objective.pairs) if rule == "flora" else 0
    for _ in range(3):
        ids = plan_of(job, state).ids.tolist()
        numbers = [sent(MIXED, rule, rank_of(i)) for i in ids]
        up, down = up + 8 * sum(numbers), down + 8 * sum(n + added for n in numbers)
        state = advance(job, state)
        assert (state.bytes_up, state.bytes_down) == (up, down)


@pytest.mark.parametrize("engine", [Serial(), Wire()])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("ranks", [[1, 3, 2], [2, 5]])
def test_the_cost_of_a_job_is_the_mean_of_its_clients(ranks: list[int], rule: str, engine: Engine) -> None:
    """What a round of all clients sends, over their number: 7 of them, so that some ranks come once more."""
    of = problem(rank=ranks, alpha=10.0)
    job = Job(of, ruled(rule, of=of), replace(SCHEDULE, cohort=of.roster.n), engine=engine)
    state = advance(job, start(job))
    assert (job.cost.up, job.cost.down) == (round(state.bytes_up / 7), round(state.bytes_down / 7))
    one = Job(problem(rank=max(ranks)), fedavg(), SCHEDULE)
    assert job.cost.up < one.cost.up == 8 * one.problem.objective.dim


def test_what_is_added_to_the_weights_is_no_vector_of_the_model() -> None:
    """Where both are as long: an 8 x 8 layer with factors of rank 4."""
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((40, 8)).astype(np.float32), draw.integers(0, 8, 40)
    data, adapters = Dataset("noise", x, y, x, y, 8), lora("0", [2, 4])
    parts = np.array_split(np.arange(40), 4)
    of = Supervised(lambda: adapters.attach(nn.Sequential(nn.Linear(8, 8))), data, parts, dtype=torch.float64)
    assert of.dim == sum(pair.size for pair in of.objective.pairs)
    schedule = replace(SCHEDULE, cohort=4)
    job = Job(of, ruled("flora", of=of), schedule, engine=Serial())
    serial = run(job, 3)
    assert_same_server(run(replace(job, engine=Wire()), 3), serial)
    assert serial.bytes_down - serial.bytes_up == 3 * 4 * 8 * 64


# -- refusals ------------------------------------------------------------------------------------------------------


def refused(algorithm: Algorithm, of: Supervised = MIXED, **schedule: Any) -> str:
    with pytest.raises(UserError) as refusal:
        start(Job(of, algorithm, replace(SCHEDULE, **schedule)))
    return str(refusal.value)


REFUSALS: dict[str, tuple[Callable[[], str], str]] = {
    "fedit": (
        lambda: refused(fedavg()),
        r"ranks differ between clients, which FedIT \(the means of A and of B\) cannot",
    ),
    "fedex": (
        lambda: refused(ruled("fedex", of=MIXED)),
        "which aggregate fedex cannot average; use aggregate flora or",
    ),
    "rolora": (lambda: refused(ruled("rolora", of=MIXED)), "which aggregate rolora cannot average"),
    "seconds": (lambda: refused(ruled("flora", of=MIXED), devices=equal()), "leave devices out, or give one rank"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_would_not_be_exact_is_refused(case: str) -> None:
    sentence, words = REFUSALS[case]
    assert re.search(words, sentence())


def test_private_factors_have_one_rank() -> None:
    private = {"lr": 0.1, "private": "1.lora*|3.lora*"}
    adapters = "lora(where='1|3',rank=[2,4],also='5')"
    with pytest.raises(UserError, match="ranks differ between clients"):
        start(build(resolve_run(from_nested({**SETTINGS, "adapters": adapters, "local": private}, "test"))))


def test_other_messages_are_refused() -> None:
    with pytest.raises(UserError, match="is for methods of one message each way a round"):
        ruled("flora", make("mimesvrg"), MIXED)


def test_ranks_are_of_both_factors_and_of_every_layer() -> None:
    for options, words in (
        ({"rank": [2, 4], "train": "B"}, "are of A and B, given train=B"),
        ({"rank": [2, 9]}, "rank 9 is above the 8 that layer"),
    ):
        with pytest.raises(UserError, match=words):
            lora(**options).attach(Net())


def test_the_command_has_them() -> None:
    adapters = "lora(where='1|3',rank=[2,4],also='5')"
    job = build(resolve_run(from_nested({**SETTINGS, "adapters": adapters, "aggregate": "flora"}, "test")))
    assert {pair.ranks for pair in job.problem.objective.pairs} == {(2, 4)}
    assert job.cost.up < 8 * job.problem.objective.dim
    of = federation_of(from_nested({**SETTINGS, "adapters": adapters, "aggregate": "flora"}, "test"))
    [fedavg_of] = [one for one in advise(of).named if one.method.startswith("fedavg")]
    assert (fedavg_of.up, fedavg_of.down) == (job.cost.up, job.cost.down)
    with pytest.raises(UserError, match="rank must be an integer >= 1 or a list of one or more integers >= 1, given"):
        build(resolve_run(from_nested({**SETTINGS, "adapters": adapters.replace("4", "0")}, "test")))
