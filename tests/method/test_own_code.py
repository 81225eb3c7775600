"""Local training by code of the user's: where it says what the library's steps do, it is them, in every method."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from test_deploy_core import BASE, SITES, Federation, same, simulated, write
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
from fedconcord.method.wrappers.code import codes, with_code
from fedconcord.method.wrappers.optimisers import adamw, with_optimiser
from fedconcord.support import imports
from fedconcord.support.errors import UserError
from pages import ROOT, does, says, steps
from plain_step import falling

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


def one_step(model: nn.Module, batch: Batch, state: dict, scale: float = 1.0) -> torch.Tensor:
    inputs, targets = batch
    return scale * F.cross_entropy(model(inputs), targets)


def counting(model: nn.Module, batch: Batch, state: dict) -> torch.Tensor:
    """Draws from torch's generator, and goes by what it kept in the state and what it is told there."""
    state["kept"] = state.get("kept", 0) + 1
    assert state["kept"] == state["step"] + 1
    assert state["lr"] == 0.1
    inputs, targets = batch
    return (1 + state["kept"] / (1 + state["client"])) * F.cross_entropy(model(F.dropout(inputs, 0.5)), targets)


def by_path(function: Callable[..., object], **options: object) -> Code:
    """As `local.code` makes it."""
    path = f"{__name__}:{function.__name__}"
    imports.trust(path)
    return codes()[path](**options)


def job(method: str, code=None, engine=Stacked(None), solver=Solver(), **options: object) -> Job:  # noqa: B008
    algorithm = METHODS[method](**options)
    return Job(
        problem(),
        algorithm if code is None else with_code(algorithm, code if isinstance(code, Code) else Code(code)),
        SCHEDULE,
        solver,
        engine,
    )


def end(one: Job, rounds: int = 4) -> torch.Tensor:
    return next(iter(one.algorithm.models(run(one, rounds).server).values()))


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "feddyn", "fedadmm", "afedpd", "fedadam"])
def test_plain_steps_in_torch_are_ours(method: str) -> None:
    torch.testing.assert_close(end(job(method, sgd)), end(job(method)), **EXACT)


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "scaffold", "feddyn", "afedpd"])
def test_a_step_of_ones_own_is_ours(method: str) -> None:
    """Plain cross-entropy, to 1e-12 of the library's own local training; an option of the function reaches it."""
    ours = end(job(method))
    torch.testing.assert_close(end(job(method, by_path(one_step))), ours, rtol=1e-12, atol=1e-12)
    assert float((end(job(method, by_path(one_step, scale=2.0))) - ours).norm()) > 1e-3
    assert str(by_path(one_step).identity) != str(by_path(one_step, scale=2.0).identity)


def test_a_step_and_a_whole_training_are_one_mechanism() -> None:
    torch.testing.assert_close(end(job("scaffold", by_path(one_step))), end(job("scaffold", sgd)), rtol=0, atol=0)
    for name in ("fednova", "auto"):
        assert refuse(Solver(), with_code(METHODS[name](), by_path(one_step))) or name == "fednova"
    with pytest.raises(UserError, match="which steps of test_own_code:one_step do not have"):
        end(job("fednova", by_path(one_step)))


def test_a_steps_state_is_the_clients_and_begins_anew_in_every_round() -> None:
    """Its draws are keyed as those of a whole training, on every engine."""
    ends = [end(job("scaffold", by_path(counting), engine)) for engine in (Stacked(None), Serial(), Wire(), Stacked(1))]
    for other in ends[1:]:
        torch.testing.assert_close(other, ends[0], **EXACT)


def test_a_step_is_keyed_at_real_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server and sites that share nothing but bytes, as Flower carries them, and the simulation of the same job."""
    monkeypatch.setattr("os.fsync", lambda file: None)
    draw, every = np.random.default_rng(2), []
    for k, name in enumerate(SITES):
        x, y = draw.standard_normal((20 + 5 * k, 4)), draw.integers(0, 3, 20 + 5 * k)
        rows = [[*(f"{value:.4f}" for value in row), "abc"[label]] for row, label in zip(x, y, strict=True)]
        every += [[name, *row] for row in rows]
        write(tmp_path / f"{name}.csv", ["t", "u", "v", "w", "label"], rows)
    write(tmp_path / "all.csv", ["site", "t", "u", "v", "w", "label"], every)
    path = by_path(counting).identity.name
    job = {**BASE, "method": "scaffold", "local": {"lr": 0.1, "batch_size": 5, "steps": 3, "code": path}}
    here = Federation(job, tmp_path, tmp_path / "deployed")
    assert here.serve().status == "complete"
    same(here, *simulated(job, tmp_path / "all.csv"))


def test_a_private_part_is_moved_by_a_step_too() -> None:
    ends = []
    for code in (by_path(one_step), None):
        one = replace(job("scaffold", code), problem=with_private(problem(), "2.*", SCHEDULE.seed))
        state = run(one, 3)
        ends.append(torch.cat([state.server.x, *(state.store.gather(np.array([i])).private[0] for i in range(5))]))
    torch.testing.assert_close(ends[0], ends[1], **EXACT)


def number_step(model: nn.Module, batch: Batch, state: dict) -> float:
    return F.cross_entropy(model(batch[0]), batch[1]).item()


def wide_step(model: nn.Module, batch: Batch, state: dict) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def cut_step(model: nn.Module, batch: Batch, state: dict) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1]).detach()


def _inner(inputs: torch.Tensor) -> torch.Tensor:
    return inputs @ torch.ones(3, 2)  # the line that the sentence names


def broken_step(model: nn.Module, batch: Batch, state: dict) -> torch.Tensor:
    return _inner(batch[0]).sum()


@pytest.mark.parametrize(
    ("step", "what"), [(number_step, "float"), (wide_step, r"a tensor \[4\]"), (cut_step, "a tensor")]
)
def test_a_step_returns_its_loss(step: Callable[..., object], what: str) -> None:
    with pytest.raises(UserError, match=rf"{step.__name__} returned {what}.*; return one number as a tensor"):
        end(job("fedavg", by_path(step)))


def test_an_error_in_a_step_names_file_and_line() -> None:
    line = next(k for k, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "# the line that" in text)
    with pytest.raises(UserError, match=rf"broken_step failed at client \d in round 0: RuntimeError: .*"
                       rf" \(test_own_code\.py, line {line}\)$"):  # fmt: skip
        end(job("fedavg", by_path(broken_step)))


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

    with pytest.raises(
        UserError, match=r"failed at client \d in round 0: ValueError: no such thing \(test_own_code\.py, line \d+\)$"
    ):
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
        Solver(step_schedule=falling(0.9)),
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
    run_it = page[-1]
    for step in page:
        if step.file in ("mystep.py", "mytraining.py"):
            does(step, tmp_path)
    by_step = run_it.text.replace("mytraining:train(alpha=0.2)", "mystep:step(growth=0.2)").replace("mine", "steps")
    assert "complete, 20 rounds" in says(tmp_path, by_step.replace("--lr 0.003", "--lr 0.1"))
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
