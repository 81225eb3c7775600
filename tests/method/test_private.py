"""Private parts of a model: closed forms on quadratics, and the same on every engine and after a resume."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_engines import assert_same, run, small
from torch import Tensor, nn

import fedconcord
from fedconcord.execution.engines import Engine, Serial, Stacked, Wire
from fedconcord.execution.job import Job, advance, start
from fedconcord.execution.job.checkpoint import load, save
from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.objectives import Quadratic, Supervised, quadratics
from fedconcord.federation.objectives.parts import PrivateParts, with_private
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import fixed, uniform
from fedconcord.insight.report import load_runs
from fedconcord.method.algorithms import METHODS
from fedconcord.method.algorithms.fedavg import fedavg
from fedconcord.method.contract import Algorithm, Oracle
from fedconcord.method.contract.flat import Layout
from fedconcord.method.step.solver import Solver
from fedconcord.method.wrappers.optimisers import OPTIMISERS, with_optimiser
from fedconcord.method.wrappers.perturbed import with_estimated_ascent
from fedconcord.study.statistics.summary import summarise
from fedconcord.support.errors import UserError
from table import TABLE, make
from tiers import tiers

N, D, E = 8, 6, 4  # clients, shared and private entries


def bowls() -> Quadratic:
    made = quadratics(0, N, torch.float64, torch.device("cpu"), dim=D + E, condition=5.0)
    made.x0 = torch.linspace(-1.0, 1.0, D + E, dtype=torch.float64)
    return made


def schur() -> tuple[Tensor, Tensor]:
    """x [D] = (sum S_i)^{-1} sum S_i b^x_i, S_i = H_xx - H_xy H_yy^{-1} H_yx, and y_i [N, E] of it."""
    problem = bowls()
    h, slope = problem.H_mean, problem.b_mean
    centre = torch.linalg.solve(h, slope)
    x, y = slice(None, D), slice(D, None)
    schurs = h[:, x, x] - h[:, x, y] @ torch.linalg.solve(h[:, y, y], h[:, y, x])
    best = torch.linalg.solve(schurs.sum(0), torch.einsum("nij,nj->i", schurs, centre[:, x]))
    moved = torch.einsum("nij,nj->ni", h[:, y, x], best - centre[:, x])
    return best, centre[:, y] - torch.linalg.solve(h[:, y, y], moved)


def job(
    method: Algorithm, engine: Engine, steps: int, before: int | None = None, frozen: bool = False, **solver: Any
) -> Job:
    problem = PrivateParts(bowls(), D, 0, before, frozen)
    schedule = Schedule(seed=1, cohort=N, lr=1.0, work=fixed(steps), unit="steps", batch_size=None)
    return Job(problem, method, schedule, Solver(oracle=Oracle("full"), **solver), engine)


ENGINES = pytest.mark.parametrize(
    "engine", [pytest.param(Serial(), marks=pytest.mark.slow), Stacked(3)], ids=["serial", "stacked"]
)


@ENGINES
@pytest.mark.parametrize(
    ("method", "steps", "before"),
    [
        pytest.param(fedavg(), 1, None, id="fedper"),
        pytest.param(make("scaffold"), 3, None, id="scaffold"),
        pytest.param(make("feddyn"), 3, None, id="feddyn", marks=pytest.mark.slow),
        pytest.param(make("afedpd"), 3, None, id="afedpd", marks=pytest.mark.slow),
    ],
)
def test_they_end_in_the_schur_form(method: Algorithm, steps: int, before: int | None, engine: Engine) -> None:
    """FedPer at one step, and methods that are exact at any number."""
    state = run(job(method, engine, steps, before), 400)
    x, y = schur()
    torch.testing.assert_close(state.server.x, x, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(state.store.gather(np.arange(N)).private, y, rtol=1e-10, atol=1e-10)


@ENGINES
def test_fedrep_ends_there_too(engine: Engine) -> None:
    """Some steps on the heads, then one on the body."""
    this = job(fedavg(), engine, 1, before=4)
    x, y = schur()
    state = run(this, 300)
    torch.testing.assert_close(state.server.x, x, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(state.store.gather(np.arange(N)).private, y, rtol=1e-9, atol=1e-9)
    assert state.gradient_steps == 300 * N * 5


@ENGINES
def test_fedbabu_minimises_at_the_first_heads(engine: Engine) -> None:
    problem = bowls()
    y = problem.x0[D:]
    h, b = problem.H_mean, problem.b_mean
    slope = (b[:, :D] - h[:, :D, D:] @ y).sum(0)
    state = run(job(make("scaffold"), engine, 3, frozen=True), 400)
    torch.testing.assert_close(state.server.x, torch.linalg.solve(h[:, :D, :D].sum(0), slope), rtol=1e-10, atol=1e-10)
    assert torch.equal(state.store.gather(np.arange(N)).private, y.expand(N, -1))


# -- a network by hand -----------------------------------------------------------------------------------------------


def network() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, 3))


def supervised() -> Supervised:
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((120, 1, 6, 6)).astype(np.float32), draw.integers(0, 3, 120)
    data = Dataset("noise", x[:100], y[:100], x[100:], y[100:], classes=3)
    cuts = np.cumsum([3, 4, 7, 12, 20, 9, 28])
    parts = np.split(np.arange(100), cuts)
    made = Supervised(network, data, parts, dtype=torch.float64)
    made.in_turn = False
    return made


@pytest.mark.parametrize(
    ("private", "before", "options"),
    [
        ("3.*", None, {}),
        ("1.*", None, {"momentum": 0.5, "weight_decay": 0.01}),
        ("3.*", 3, {"momentum": 0.5}),
        ("1.weight|3.bias", 2, {}),
        ("3.*", None, {"clip": 0.1}),
    ],
)
def test_half_a_network_is_trained_as_by_hand(private: str, before: int | None, options: dict[str, float]) -> None:
    """FedAvg of what is shared, by torch's own modules and SGD; private weights stay with their client."""
    whole = supervised()
    problem = with_private(whole, private, 1, before)
    schedule = Schedule(seed=1, cohort=8, lr=0.1, work=fixed(2), unit="steps", batch_size=None)
    this = Job(problem, fedavg(), schedule, Solver(**options), Stacked(3))  # type: ignore[arg-type]
    state = run(this, 3)

    first = whole._built(1).double()
    mine = {name for name, _ in first.named_parameters() if any(_hits(name, one) for one in private.split("|"))}
    models = []
    for _ in range(8):
        models.append(network().double())
        models[-1].load_state_dict(first.state_dict())
    for _ in range(3):
        for i, model in enumerate(models):
            samples = whole.objective.samples(i)
            named = dict(model.named_parameters())
            windows = [([*named], 2)] if before is None else [([*mine], before), ([*({*named} - mine)], 2)]
            for names, steps in windows:
                _train(model, [named[name] for name in names], whole.x[samples], whole.y[samples], steps, mine, options)
        for name in {*dict(first.named_parameters())} - mine:
            mean = torch.stack([dict(model.named_parameters())[name].detach() for model in models]).mean(0)
            for model in models:
                dict(model.named_parameters())[name].data.copy_(mean)
    stored = state.store.gather(np.arange(8)).private
    for i, model in enumerate(models):
        u = problem.whole.layout.flatten(model)  # type: ignore[attr-defined]
        torch.testing.assert_close(problem.joined(state.server.x, stored[i]), u, rtol=1e-11, atol=1e-11)


def _hits(name: str, pattern: str) -> bool:
    return name == pattern or (pattern.endswith("*") and name.startswith(pattern[:-1]))


def _train(
    model: nn.Module, moving: list[Any], x: Tensor, y: Tensor, steps: int, mine: set[str], options: dict[str, float]
) -> None:
    usual = {name: value for name, value in options.items() if name != "clip"}
    sgd = torch.optim.SGD(moving, lr=0.1, **usual)
    for _ in range(steps):
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        if "clip" in options:
            for is_mine in (True, False):
                block = [p for name, p in model.named_parameters() if (name in mine) == is_mine]
                norm = torch.cat([p.grad.flatten() for p in block if p.grad is not None]).norm()
                for p in block:
                    p.grad = p.grad if p.grad is None else p.grad * min(1.0, options["clip"] / float(norm))
        sgd.step()


# -- every method ----------------------------------------------------------------------------------------------------

WINDOWS: dict[str, dict[str, Any]] = {"together": {}, "heads first": {"before": 2}, "frozen": {"frozen": True}}
CASES = [
    (name, window)
    for name in METHODS
    for window in WINDOWS
    if window == "together" or name in ("scaffold", "losac", "fednova")
]


def parted(name: str, window: str, engine: Engine) -> Job:
    problem: Any = quadratics(0, 8, torch.float64, torch.device("cpu"), dim=10)
    whole = problem if name == "fedhybrid" else small()
    d = 6 if name == "fedhybrid" else whole.dim - 27
    schedule = Schedule(seed=5, cohort=8 if TABLE[name].everyone else 5, lr=0.1, work=uniform(1, 3), batch_size=4)
    return Job(PrivateParts(whole, d, 5, **WINDOWS[window]), make(name), schedule, engine=engine)


@pytest.mark.parametrize(("name", "window"), tiers(CASES, quick=CASES[::5]))
def test_engines_agree_on_every_method(name: str, window: str, tmp_path: Path) -> None:
    """Serial and stacked; and a run that is resumed."""
    reference = run(parted(name, window, Serial()))
    assert_same(run(parted(name, window, Stacked(2))), reference)
    halfway = run(parted(name, window, Stacked(2)), 2)
    save(parted(name, window, Stacked(2)), halfway, tmp_path / "checkpoint")
    state = load(parted(name, window, Stacked(2)), tmp_path / "checkpoint")
    for _ in range(2):
        state = advance(parted(name, window, Stacked(2)), state)
    assert_same(state, reference)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "mimesvrg", "losac", "fedhybrid"])
def test_clients_that_stand_alone(name: str, window: str) -> None:
    """On the wire: no message holds an entry of y, and x is the serial engine's."""
    problem = quadratics(0, 8, torch.float64, torch.device("cpu"), dim=10)
    schedule = Schedule(seed=5, cohort=8, lr=0.1, work=uniform(1, 3), batch_size=2)
    this = Job(PrivateParts(problem, 6, 5, **WINDOWS[window]), make(name), schedule, engine=Serial())
    reference, wire = run(this), run(replace(this, engine=Wire()))
    torch.testing.assert_close(wire.server.x, reference.server.x, rtol=1e-12, atol=1e-12)
    of_x = run(Job(quadratics(0, 8, torch.float64, torch.device("cpu"), dim=6), make(name), schedule, engine=Serial()))
    assert (reference.bytes_up, reference.bytes_down) == (of_x.bytes_up, of_x.bytes_down)
    assert (wire.bytes_up, wire.bytes_down) == (of_x.bytes_up, of_x.bytes_down)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_local_optimisers_move_both_parts(name: str) -> None:
    """With all of the moves as one client's on u, where it is the only client."""
    whole = Quadratic(bowls().H.view(N, -1, D + E, D + E)[:1], bowls().b.view(N, -1, D + E)[:1], x0=bowls().x0)
    matrices = ((0, 2, 3),)
    method = with_optimiser(fedavg(), OPTIMISERS[name](), matrices)
    schedule = Schedule(seed=1, cohort=1, lr=0.05, work=fixed(4), unit="steps", batch_size=1)
    both = run(Job(whole, method, schedule, engine=Serial()), 3)
    for engine in (Serial(), Stacked()):
        state = run(Job(PrivateParts(whole, D, 1), method, schedule, engine=engine), 3)
        u = torch.cat([state.server.x, state.store.gather(np.array([0])).private[0]])
        torch.testing.assert_close(u, both.server.x, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("oracle", ["svrg", "sam", "full"])
@pytest.mark.parametrize("engine", [Serial(), Stacked()], ids=["serial", "stacked"])
def test_one_client_is_trained_as_if_all_were_shared(oracle: Any, engine: Engine) -> None:
    whole = Quadratic(bowls().H.view(N, -1, D + E, D + E)[:1], bowls().b.view(N, -1, D + E)[:1], x0=bowls().x0)
    schedule = Schedule(seed=1, cohort=1, lr=0.05, work=fixed(4), unit="steps", batch_size=1)
    solver = Solver(oracle=Oracle(oracle, radius=0.1), momentum=0.5 if oracle == "sam" else 0.0)
    both = run(Job(whole, fedavg(), schedule, solver, Serial()), 3)
    state = run(Job(PrivateParts(whole, D, 1), fedavg(), schedule, solver, engine), 3)
    u = torch.cat([state.server.x, state.store.gather(np.array([0])).private[0]])
    torch.testing.assert_close(u, both.server.x, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("engine", [Serial(), Stacked()], ids=["serial", "stacked"])
def test_the_ascent_of_models_that_were_received_leaves_private_parts(engine: Engine) -> None:
    """FedLESAM's point is [x + e | y], of which both parts have their gradients; the first round has none."""
    this = replace(job(with_estimated_ascent(fedavg(), 0.3), engine, 1), solver=Solver(weight_decay=0.1))
    problem, lr = bowls(), this.schedule.lr
    h, slope = problem.H_mean, problem.b_mean
    x, y, last = problem.x0[:D], problem.x0[D:].expand(N, -1), problem.x0[:D]
    for _ in range(4):
        back, here = last - x, torch.cat([x.expand(N, -1), y], 1)
        e = torch.nn.functional.pad(0.3 * back / (back.norm() + 1e-7), (0, E))
        u = here - lr * (torch.einsum("nij,nj->ni", h, here + e) - slope + 0.1 * here)
        x, y, last = u[:, :D].mean(0), u[:, D:], x
    state = run(this, 4)
    torch.testing.assert_close(state.server.x, x, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state.store.gather(np.arange(N)).private, y, rtol=1e-12, atol=1e-12)


def test_lbfgs_takes_both_parts() -> None:
    problem = PrivateParts(bowls(), D, 1)
    schedule = Schedule(seed=1, cohort=N, lr=1.0, work=fixed(60), unit="steps", batch_size=None)
    state = run(Job(problem, make("feddyn"), schedule, Solver(kind="lbfgs"), Stacked(3)), 100)
    torch.testing.assert_close(state.server.x, schur()[0], rtol=1e-4, atol=1e-4)  # L-BFGS's own tolerance


# -- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("private", "said"),
    [
        (
            "head.*",
            r"local.private 'head\.\*' matches no trainable parameter of the model; its names are '1\.weight', ",
        ),
        ("4.*", r"did you mean '3\.\*'\?"),
    ],
)
def test_patterns_that_are_none(private: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Layout(network(), private=private)


def test_what_is_private_stands_last() -> None:
    module = network()
    layout, usual = Layout(module, private="1.*"), Layout(module)
    assert [*layout.shapes] == ["3.weight", "3.bias", "1.weight", "1.bias"]
    assert (layout.shared, layout.dim) == (27, usual.dim)
    assert not layout.in_order
    assert Layout(module, private="3.*").in_order
    assert usual.shared == usual.dim
    views = layout.views(layout.flatten(module))
    assert all(torch.equal(views[name], parameter) for name, parameter in module.named_parameters())


@pytest.mark.parametrize("change", [{"before": 3}, {"frozen": True}, {"before": None}])
def test_a_checkpoint_refuses_another_window(change: dict[str, Any], tmp_path: Path) -> None:
    def this(**window: Any) -> Job:
        schedule = Schedule(seed=5, cohort=5, lr=0.1, work=fixed(2), batch_size=4)
        return Job(PrivateParts(small(), 100, 5, **window), fedavg(), schedule)

    save(this(before=2), run(this(before=2), 1), tmp_path / "checkpoint")
    with pytest.raises(UserError, match=r"whose problem\.private_steps is"):
        load(this(**change), tmp_path / "checkpoint")


def test_lbfgs_has_no_windows() -> None:
    problem = PrivateParts(bowls(), D, 1, before=2)
    schedule = Schedule(seed=1, cohort=N, lr=1.0, work=fixed(5), unit="steps", batch_size=None)
    with pytest.raises(UserError, match="L-BFGS moves all of a model at once"):
        start(Job(problem, fedavg(), schedule, Solver(kind="lbfgs")))


# -- from settings to files ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_methods_with_private_parts_are_ranked_and_predict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One linear layer behind another; two of four clients have the labels the other way round, which heads learn."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((400, 3)).astype(np.float32)
    owner = np.arange(400) % 4
    y = ((x[:, 0] > 0) ^ (owner >= 2)).astype(np.int64)
    clients = {str(i): (x[owner == i], y[owner == i]) for i in range(4)}
    monkeypatch.chdir(tmp_path)
    done = fedconcord.compare(
        ["fedavg", "fedavg(local.private='5.*', label=FedPer)"], data=clients, model="2nn", cohort=4, rounds=8, lr=0.3,
        baselines=["local"], out=tmp_path / "both",
    )  # fmt: skip
    s = summarise(load_runs([done.folder]))
    assert s.primary.column == "validation_accuracy"
    assert [row.name for row in s.rows] == ["FedPer", "fedavg"]
    assert s.rows[0].final.mean > 0.85 > 0.7 > s.rows[1].final.mean
    folder = done.folder / "FedPer" / "seed-0"
    np.save("x.npy", np.array([[2.0, 0.0, 0.0], [-2.0, 0.0, 0.0]], np.float32))
    answers = []
    for client in ("0", "3"):
        path = fedconcord.predict(folder, "x.npy", f"{client}.csv", client=client)
        answers.append([line.split(",")[1] for line in path.read_text().splitlines()[1:]])
    assert answers == [["1", "0"], ["0", "1"]]
    with pytest.raises(UserError, match="ranked on clients' held-out samples, and there are none"):
        fedconcord.compare(
            ["fedavg", "fedavg(local.private='5.*')"], data=clients, cohort=4, settings={"validation": "none"}, out="no"
        )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"local.private_steps": 3}, "local.private_steps 3 is of private parameters, and there are none"),
        ({"local.private": "5.*", "local.optimiser": "adamw(state=kept)"}, "use state=reset"),
        ({"local.private": "5.*", "regulariser": "l1(0.1)"}, "nor to private parts of a model"),
        ({"local.private": "5.*", "engine.name": "wire"}, "clients' own models are judged in one process"),
        ({"local.private": "5.*", "data": "quadratics"}, "is for models of labelled samples in memory"),
    ],
)
def test_what_does_not_go_with_private_parts(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        fedconcord.run("fedavg", clients=4, cohort=4, rounds=1, settings=settings, out=tmp_path / "run")
