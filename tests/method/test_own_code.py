"""Local training by code of the user's: where it says what the library's steps do, it is them, in every method."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from test_engines import run
from test_optimisers import curved
from torch import nn
from torch.nn import functional as F

from fedconcord.execution.engines import Serial, Stacked, Wire
from fedconcord.execution.job import Job, advance
from fedconcord.execution.job.checkpoint import load, save
from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.objectives import Supervised
from fedconcord.federation.objectives.parts import with_private
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import uniform
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Step
from fedconcord.method.contract.code import Batch, Code, Visit
from fedconcord.method.step.solver import ORACLES, Solver, refuse
from fedconcord.method.wrappers.code import with_code
from fedconcord.method.wrappers.optimisers import adamw, with_optimiser
from fedconcord.support.errors import UserError
from pages import ROOT, does, says, steps

EXACT = {"rtol": 1e-10, "atol": 1e-10}


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))


def problem(build: Callable[[], nn.Module] = net) -> Supervised:
    draw = np.random.default_rng(0)
    x = draw.standard_normal((64, 5)).astype(np.float32)
    data = Dataset("normal", x[:60], draw.integers(0, 3, 60), x[60:], draw.integers(0, 3, 4), classes=3)
    parts = np.split(np.arange(60), [7, 20, 31, 52])
    return Supervised(build, data, parts, dtype=torch.float64)


SCHEDULE = Schedule(seed=3, cohort=3, lr=0.1, work=uniform(1, 3), batch_size=4)


def sgd(model: nn.Module, batches: list[Batch], visit: Visit) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=visit.lr)
    for inputs, targets in batches:
        optimiser.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        visit.correct()
        optimiser.step()


def torchs_adamw(model: nn.Module, batches: list[Batch], visit: Visit) -> None:
    optimiser = torch.optim.AdamW(model.parameters(), lr=visit.lr, weight_decay=0.01)
    for inputs, targets in batches:
        optimiser.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        visit.correct()
        optimiser.step()


def noisy(model: nn.Module, batches: list[Batch], visit: Visit) -> None:
    """Draws from torch's global generator, as dropout does."""
    optimiser = torch.optim.SGD(model.parameters(), lr=visit.lr)
    for inputs, targets in batches:
        optimiser.zero_grad()
        F.cross_entropy(model(F.dropout(inputs, 0.5)), targets).backward()
        visit.correct()
        optimiser.step()


def job(method: str, code=None, engine=Stacked(None), solver=Solver(), **options: object) -> Job:  # noqa: B008
    algorithm = METHODS[method](**options)
    return Job(problem(), algorithm if code is None else with_code(algorithm, Code(code)), SCHEDULE, solver, engine)


def end(one: Job, rounds: int = 4) -> torch.Tensor:
    return next(iter(one.algorithm.models(run(one, rounds).server).values()))


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "feddyn", "fedadmm", "afedpd", "fedadam"])
def test_plain_steps_in_torch_are_ours(method: str) -> None:
    torch.testing.assert_close(end(job(method, sgd)), end(job(method)), **EXACT)


def test_a_piece_that_follows_the_model_is_told_where_it_went() -> None:
    """The dual of inexact ADMM, which moves after every step."""
    ours = job("fedadmm_inexact")
    code = with_code(replace(ours.algorithm, step=Step(regularise="server")), Code(sgd))
    torch.testing.assert_close(end(replace(ours, algorithm=code)), end(ours), **EXACT)


def test_scaffold_takes_the_mean_gradient_as_under_an_optimiser() -> None:
    """Which for plain steps is the control variate of option II."""
    torch.testing.assert_close(end(job("scaffold", sgd)), end(job("scaffold")), **EXACT)


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "feddyn"])
def test_torchs_adamw_is_ours(method: str) -> None:
    ours = job(method)
    ours = replace(ours, algorithm=with_optimiser(ours.algorithm, adamw(decay=0.01, second="direction")))
    torch.testing.assert_close(end(job(method, torchs_adamw)), end(ours), **EXACT)


def test_what_a_user_sets_of_a_gradient_is_corrected_too() -> None:
    solver = Solver(clip=0.3, weight_decay=0.1)
    torch.testing.assert_close(end(job("fedprox", sgd, solver=solver)), end(job("fedprox", solver=solver)), **EXACT)


def test_dropout_is_torchs_in_training_and_none_in_evaluation() -> None:
    """Keyed by the visit, at the model's rate, another one in each pass."""
    rates: list[float] = []

    def look(model: nn.Module, batches: list[Batch], visit: Visit) -> None:
        wide = torch.ones(400, 5, dtype=torch.float64)
        first, second = model(wide), model(wide)
        assert not torch.equal(first, second)
        rates.append(float((first == 0).double().mean()))
        model.eval()
        assert torch.equal(model(wide), model(wide))
        model.train()
        sgd(model, batches, visit)

    def dropping() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 3), nn.Dropout(0.3))

    ends = []
    for engine in (Stacked(None), Serial(), Wire()):
        ends.append(end(replace(job("scaffold", look, engine), problem=problem(dropping))))
    assert np.mean(rates) == pytest.approx(0.3, abs=0.02)
    torch.testing.assert_close(ends[1], ends[0], **EXACT)
    torch.testing.assert_close(ends[2], ends[0], **EXACT)


@pytest.mark.parametrize("engine", [Serial(), Wire(), Stacked(1)])
def test_draws_are_keyed_on_every_engine(engine: object) -> None:
    torch.manual_seed(1)
    expected = end(job("scaffold", noisy))
    torch.manual_seed(2)
    before = torch.random.get_rng_state()
    torch.testing.assert_close(end(job("scaffold", noisy, engine)), expected, **EXACT)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert float((end(job("scaffold", sgd)) - expected).norm()) > 1e-3


def test_a_run_goes_on_with_its_bits(tmp_path) -> None:
    one = job("scaffold", noisy)
    save(one, run(one, 2), tmp_path / "state")
    state = load(one, tmp_path / "state")
    for _ in range(2):
        state = advance(one, state)
    assert torch.equal(state.server.x, run(one, 4).server.x)


def test_every_client_and_round_has_draws_of_its_own() -> None:
    seeds: dict[tuple[int, int], int] = {}

    def look(model: nn.Module, batches: list[Batch], visit: Visit) -> None:
        seeds[visit.round, visit.client] = visit.seed

    end(job("fedavg", look), 3)
    assert len(set(seeds.values())) == len(seeds) == 9


def test_corrections_cannot_be_forgotten() -> None:
    def forgetful(model: nn.Module, batches: list[Batch], visit: Visit) -> None:
        optimiser = torch.optim.SGD(model.parameters(), lr=visit.lr)
        for inputs, targets in batches:
            F.cross_entropy(model(inputs), targets).backward()
            optimiser.step()

    end(job("fedavg", forgetful))
    with pytest.raises(UserError, match=r"never lets it; call visit\.correct\(\)"):
        end(job("fedprox", forgetful))


def test_what_fails_in_the_code_is_one_sentence() -> None:
    def broken(model: nn.Module, batches: list[Batch], visit: Visit) -> None:
        raise ValueError("no such\nthing")

    with pytest.raises(UserError, match=r"failed at client \d in round 0: ValueError: no such thing"):
        end(job("fedavg", broken))

    def early(model: nn.Module, batches: list[Batch], visit: Visit) -> None:
        visit.correct()

    with pytest.raises(UserError, match=r"call it after backward\(\)"):
        end(job("fedavg", early))


def test_what_does_not_go_with_it_is_refused() -> None:
    code = Code(sgd)
    for solver in (
        Solver(oracle=ORACLES["sam"](), kind="sgd"),
        Solver(oracle=ORACLES["full"]()),
        Solver(oracle=ORACLES["svrg"]()),
        Solver(kind="lbfgs"),
        Solver(tolerance=0.1),
        Solver(momentum=0.5),
        Solver(step_decay=0.9),
    ):
        assert refuse(solver, with_code(METHODS["fedavg"](), code)), solver
    for name in ("losac", "mimesvrg", "auto"):
        assert refuse(Solver(), with_code(METHODS[name](), code)), name
    quadratic = replace(
        job("fedavg", sgd),
        problem=curved(),
        schedule=replace(SCHEDULE, cohort=5, batch_size=None),
    )
    with pytest.raises(UserError, match="trains a torch model"):
        end(quadratic)


def test_unfinite_models_are_left_out() -> None:
    def explosive(model: nn.Module, batches: list[Batch], visit: Visit) -> None:
        if visit.client == 1:
            with torch.no_grad():
                next(model.parameters()).fill_(float("inf"))

    state = run(job("fedavg", explosive), 4)
    assert set(state.refused) == {1}
    assert bool(state.server.x.isfinite().all())


@pytest.mark.slow
def test_the_page_trains_by_a_users_file(tmp_path: Path) -> None:
    """docs/local-step.md: its file and its command."""
    page = [*steps(ROOT / "docs" / "local-step.md")]
    file, run_it = next(step for step in page if step.file == "mytraining.py"), page[-1]
    does(file, tmp_path)
    assert "mytraining:train" in run_it.text
    assert "complete, 20 rounds" in says(tmp_path, run_it.text)
    wrong = run_it.text.replace("alpha=0.2", "beta=0.2").replace("--out mine", "--out wrong")
    assert "beta" in says(tmp_path, wrong, refused=True)
    for line, sentence in (
        ("--method fednova", "which steps of mytraining:train do not have"),
        ("--set local.optimiser=adamw", "moves the model itself"),
    ):
        assert sentence in says(tmp_path, run_it.text.replace("--out mine", f"{line} --out wrong"), refused=True)


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "feddyn"])
def test_private_parts_are_trained_as_by_local_steps(method: str) -> None:
    ends = []
    for code, engine in ((sgd, Stacked(None)), (sgd, Serial()), (None, Serial())):
        one = replace(job(method, code, engine), problem=with_private(problem(), "2.*", SCHEDULE.seed))
        state = run(one, 4)
        ends.append(torch.cat([state.server.x, *(state.store.gather(np.array([i])).private[0] for i in range(5))]))
    torch.testing.assert_close(ends[0], ends[1], **EXACT)
    torch.testing.assert_close(ends[1], ends[2], **EXACT)
    with pytest.raises(UserError, match=r"leave local\.private_steps out"):
        run(replace(job(method, sgd), problem=with_private(problem(), "2.*", SCHEDULE.seed, 1)), 1)
