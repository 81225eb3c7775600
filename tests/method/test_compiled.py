"""Whole local rounds in one compiled call: the same as the serial engine's, and chosen by counted work."""

import itertools
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_engines import SCHEDULE, assert_same, run, small
from torch import nn

import fedconcord
from fedconcord.execution.engines import Serial, Stacked, chunk
from fedconcord.execution.job import Job, plan_of, resolved, start
from fedconcord.execution.run.folder import read_description
from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.objectives import Supervised
from fedconcord.federation.objectives.losses import LOSSES
from fedconcord.federation.objectives.regularisers import l1
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import uniform
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Algorithm, Oracle, Regulariser, tree_leaves
from fedconcord.method.contract.nested import Beside, Look, Moreau
from fedconcord.method.contract.pieces import Piece
from fedconcord.method.step import compiled, sizes, step
from fedconcord.method.step.compiled import formulas, loading
from fedconcord.method.step.solver import Solver, refuse
from fedconcord.method.wrappers.ditto import with_ditto
from fedconcord.method.wrappers.optimisers import OPTIMISERS, with_optimiser
from fedconcord.method.wrappers.perturbed import with_estimated_ascent
from fedconcord.support.errors import UserError
from table import TABLE, make
from tiers import tiers
from training import execute

COMPILED = Stacked(None, 1, kernel="compiled")


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"fedhybrid"}))
def test_every_method_is_as_serial_has_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short batches and unequal steps, one worker and two; what is around the steps noted or not."""
    schedule = replace(SCHEDULE, cohort=8) if TABLE[name].everyone else SCHEDULE
    job = Job(small("dense"), make(name), schedule, engine=Serial())
    reference = run(job)
    for engine in (COMPILED, Stacked(2, 2, kernel="compiled")):
        for fewest in (0, formulas.FEWEST):
            monkeypatch.setattr(formulas, "FEWEST", fewest)
            assert_same(run(replace(job, engine=engine)), reference)


@pytest.mark.parametrize("name", ["fedprox", "feddyn", "fedspeed", "fedadmm", "fedvra", "afedpd", "fedavg", "scaffold"])
@pytest.mark.parametrize("optimiser", ["sign", "lion", "adamw", "muon"])
def test_weights_without_a_gradient_stay_under_every_optimiser(name: str, optimiser: str) -> None:
    """Of inputs that are always blank: what a pull leaves of rho (x - anchor) by rounding would be a whole step."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(40, 6)).astype(np.float32), draw.integers(0, 3, 40)
    x[:, :2] = 0

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3))

    problem = Supervised(build, Dataset("blank", x, y, x, y, 3), np.array_split(np.arange(40), 8))
    method = with_optimiser(make(name), OPTIMISERS[optimiser](), problem.objective.matrices[1:])
    engines = (Serial(), Stacked(3, 2), *([COMPILED] if optimiser != "muon" else []))
    for engine in engines:
        job = Job(problem, method, replace(SCHEDULE, lr=0.01), engine=engine)
        first, last = start(job).server.x[:42].view(7, 6), run(job, 6).server.x[:42].view(7, 6)
        assert float((first - last)[:, :2].abs().max()) < 1e-6, engine
        assert torch.isclose(first, last)[:, 2:].double().mean() < 0.5


def beginning(name: str, piece: Piece) -> Algorithm:
    """A method with one more piece in its steps."""
    method = make(name)
    return replace(method, start=lambda down, row, client: method.start(down, row, client).having(piece))


def test_products_of_every_width_are_those_of_numpy() -> None:
    """Vectors that fill no register, fill some, or leave a rest; blocks of rows and samples that are not whole."""
    from fedconcord.method.step.compiled import products

    draw, one, none = np.random.default_rng(0), 1.0, np.empty(0)
    for n, m, B in ((1, 3, 2), (7, 9, 11), (8, 1, 1), (33, 4, 5), (200, 10, 6), (784, 6, 0)):
        x, u, a, f = (draw.standard_normal(shape) for shape in ((m, n), (m, n), (B, n), (B, m)))
        # a number behind the last one, which must stay
        z, c = np.full(B * m + 1, 7.0), np.full(B * n + 1, 7.0)
        products.outputs(x.ravel(), 0, m, n, a.ravel(), 0, B, z, 0)
        np.testing.assert_allclose(z, [*(a @ x.T).ravel(), 7.0], atol=1e-12)
        products.slopes(c, n, x.ravel(), 0, m, f.ravel(), B)
        np.testing.assert_allclose(c, [*(f @ x).ravel(), 7.0], atol=1e-12)
        for keep, e, other in ((one, 0.0, none), (0.9, 0.0, none), (one, 0.3, u.ravel()), (0.9, 0.3, u.ravel())):
            rows = np.array([7.0, *x.ravel(), 7.0])
            products.updates(rows, 1, m, n, a.ravel(), 0, B, f.ravel(), 0, m, keep, np.pad(other, 1) if e else none, e)
            np.testing.assert_allclose(rows, [7.0, *(keep * x + e * u + f.T @ a).ravel(), 7.0], atol=1e-12)


SOLVERS = {
    "momentum": Solver(momentum=0.5, weight_decay=0.01),
    "nesterov": Solver(momentum=0.5, nesterov=True),
    "clip": Solver(clip=0.5, weight_decay=0.1, step_schedule=sizes.ByStep("up", lambda k: 0.9**k * (k + 1) / 9)),
    "momentum and clip": Solver(momentum=0.5, clip=0.5),
    "full": Solver(oracle=Oracle("full"), weight_decay=0.1),
    "sam": Solver(oracle=Oracle("sam", 0.1), momentum=0.5),
    "sam and clip": Solver(oracle=Oracle("sam", 0.1), clip=0.5),
    "svrg": Solver(oracle=Oracle("svrg"), momentum=0.5, clip=0.5),
}


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "feddyn", "fedvra"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_every_local_step_is_as_serial_has_it(solver: str, name: str) -> None:
    job = Job(small("dense"), make(name), SCHEDULE, SOLVERS[solver], Serial())
    assert_same(run(replace(job, engine=COMPILED), 3), run(job, 3))


DENSE = torch.zeros(8 * 37 + 3 * 9).double()  # a model of the small dense network
NESTED = {
    "ditto": make("ditto"),
    "pfedme": make("pfedme"),
    "perfedavg": make("perfedavg"),
    "ditto on SCAFFOLD": with_ditto(make("scaffold"), 0.5, 0.03),
    "ditto on pFedMe": with_ditto(make("pfedme"), 0.5),
    "ditto on FedSMOO": with_ditto(make("fedsmoo"), 0.5),
    "ditto on a table": with_ditto(make("losac"), 0.5),
    "ditto on a dual that moves": with_ditto(make("fedadmm_inexact"), 0.5),
    "apfl": make("apfl"),
    "mixtures that are pulled": beginning(
        "scaffold", Beside(0.5, 0.05, DENSE, 0.1 + DENSE, torch.full((1,), 0.5).double(), 3.0)
    ),
    "mixtures as they are": beginning("feddyn", Beside(0.0, 0.05, DENSE, 0.1 + DENSE, torch.full((1,), 0.5).double())),
    "ahead of control variates": beginning("scaffold", Look(0.05)),
    "ahead, with a dual that moves": beginning("fedadmm_inexact", Look(0.05)),
    "estimated ascent": with_estimated_ascent(make("scaffold"), 0.3),
    "ditto on an estimated ascent": with_ditto(with_estimated_ascent(make("feddyn"), 0.3), 0.5),
    "nested in a pull and a dual": beginning("feddyn", Moreau(1.0, 1, 0.3, DENSE)),
    "nested without a pull": beginning("fedavg", Moreau(0.0, 2, 0.3, DENSE)),
}
WITH_RULES = {
    **SOLVERS,
    "delta": Solver(pace=sizes.delta()),
    "dog": Solver(pace=sizes.dog()),
    "normed": Solver(pace=sizes.normed()),
}
AHEAD = ("pfedme", "perfedavg", "ditto on pFedMe", "ahead", "nested")  # whose gradients are at points of their own
ALLOWED = [
    (name, key)
    for name in NESTED
    for key in WITH_RULES
    if refuse(WITH_RULES[key], NESTED[name]) is None and not (key.startswith("sam") and name.startswith(AHEAD))
]


@pytest.mark.parametrize(
    ("name", "solver"),
    tiers(ALLOWED, quick=[(name, key) for name, key in ALLOWED if key in ("momentum", "svrg") or name in METHODS]),
)
def test_further_gradients_are_as_serial_has_them(name: str, solver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model beside, ahead of the model, and of steps inside a step; none of these goes back to torch's steps."""
    chosen = WITH_RULES[solver]
    schedule = replace(SCHEDULE, lr=0.1 if chosen.pace is None else 1.0)
    job = Job(small("dense"), NESTED[name], schedule, chosen, Serial())
    reference = run(job, 3)
    monkeypatch.delattr(step, "walk")
    for engine in (COMPILED, Stacked(2, 2, kernel="compiled")):
        assert_same(run(replace(job, engine=engine), 3), reference)


OPTIMISED = {
    "adamw": OPTIMISERS["adamw"](decay=0.1, eps=1e-3),
    "of the oracle": OPTIMISERS["adamw"](second="oracle", eps=0.1),
    "of the direction": OPTIMISERS["adamw"](second="direction", eps=1e-3, state="kept"),
    "shared": OPTIMISERS["adamw"](second="oracle", eps=0.1, state="shared"),
    "lion": OPTIMISERS["lion"](decay=0.1),
    "sign": OPTIMISERS["sign"](),
}


@pytest.mark.parametrize("optimiser", OPTIMISED)
@pytest.mark.parametrize("name", ["fedavg", "fedprox", "feddyn", "scaffold", "afedpd", "fedvra", "lesam"])
def test_local_optimisers_are_as_serial_has_them(name: str, optimiser: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind pulls, constants and coupled decay; with means of gradients; moments reset and kept."""
    inner = with_estimated_ascent(make("scaffold"), 0.3) if name == "lesam" else make(name)
    method = with_optimiser(inner, OPTIMISED[optimiser])
    job = Job(small("dense"), method, replace(SCHEDULE, lr=0.01), Solver(weight_decay=0.01), Serial())
    reference = run(job, 4)
    monkeypatch.delattr(step, "walk")
    for engine in (COMPILED, Stacked(2, 2, kernel="compiled")):
        assert_same(run(replace(job, engine=engine), 4), reference)


def test_muon_and_a_rule_with_an_optimiser_go_to_torchs_steps() -> None:
    muon = with_optimiser(make("fedavg"), OPTIMISERS["muon"](), ((0, 8, 36),))
    for method, solver in ((muon, Solver()), (with_optimiser(make("fedavg"), OPTIMISERS["adamw"]()), Solver(clip=0.5))):
        job = Job(small("dense"), method, SCHEDULE, solver, Serial())
        assert_same(run(replace(job, engine=COMPILED), 3), run(job, 3))


def test_two_places_for_a_gradient_go_to_torchs_steps() -> None:
    """FedSMOO's ascent before a look ahead: what compiled steps do not know is computed as ever."""
    job = Job(small("dense"), beginning("fedsmoo", Look(0.05)), SCHEDULE, engine=Serial())
    assert_same(run(replace(job, engine=COMPILED), 3), run(job, 3))


def network(sizes: tuple[int, ...]) -> nn.Sequential:
    layers = [part for n, m in itertools.pairwise(sizes) for part in (nn.Linear(n, m), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


@pytest.mark.parametrize("loss", ["cross_entropy", "squared", "logistic"])
@pytest.mark.parametrize("sizes", [(7, 3), (7, 13, 3), (9, 4, 6, 5), (1100, 9, 3)])
@pytest.mark.parametrize("batch", [1, 5, 6, 14, None])
def test_every_shape_and_loss_is_as_serial_has_it(loss: str, sizes: tuple[int, ...], batch: int | None) -> None:
    """Rows and samples that do not fill the blocks of 4 and 5, and layers wider than a tile."""
    draw = np.random.default_rng(1)
    x, C = draw.standard_normal((60, sizes[0])).astype(np.float32), sizes[-1]
    y: Any = draw.integers(0, C, 60)
    target: Any = {"cross_entropy": "class", "squared": "number", "logistic": "labels"}[loss]
    if loss != "cross_entropy":
        y = draw.standard_normal((60, C)).astype(np.float32)
        y = y if loss == "squared" else (y > 0).astype(np.float32)
    data = Dataset("noise", x[:50], y[:50], x[50:], y[50:], C, target=target)
    parts = np.split(np.arange(50), [14, 20, 33])
    problem = Supervised(lambda: network(sizes), data, parts, dtype=torch.float64, loss=LOSSES[loss]())
    job = Job(problem, make("scaffold"), Schedule(seed=2, cohort=3, lr=0.01, work=uniform(1, 2), batch_size=batch))
    assert_same(run(replace(job, engine=COMPILED), 2), run(replace(job, engine=Serial()), 2))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", [np.uint8, np.float32, np.float64])
def test_samples_are_read_as_they_lie(kind: Any, channels: int) -> None:
    """Bytes by their table, float32 widened, and clients' samples wherever they are."""
    draw = np.random.default_rng(2)
    x = draw.integers(0, 256, (60, channels, 3, 3)).astype(kind)
    said = {"kind": "scale", "divide": 255.0, "mean": [0.1, 0.5, 0.9][:channels], "std": [0.5, 0.3, 0.7][:channels]}
    scale = None if kind is not np.uint8 else said
    x = x if scale is not None else x / kind(100)
    y = draw.integers(0, 3, 60)
    data = Dataset("noise", x[:50], y[:50], x[50:], y[50:], 3, preprocessing=scale)
    parts = np.split(draw.permutation(50), [14, 20, 33])
    build = lambda: nn.Sequential(nn.Flatten(), *network((9 * channels, 5, 3)))  # noqa: E731
    problem = Supervised(build, data, parts, dtype=torch.float64)
    job = Job(problem, make("scaffold"), Schedule(seed=2, cohort=3, lr=0.01, work=uniform(1, 2), batch_size=6))
    assert_same(run(replace(job, engine=COMPILED), 2), run(replace(job, engine=Serial()), 2))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(METHODS) - {"fedhybrid"}))
def test_every_method_in_float32(name: str) -> None:
    schedule = replace(SCHEDULE, cohort=8) if TABLE[name].everyone else SCHEDULE
    job = Job(small("dense", torch.float32), make(name), schedule, engine=Serial())
    assert_same(run(replace(job, engine=COMPILED)), run(job), 1e-5)


@pytest.mark.parametrize("fewest", [0, formulas.FEWEST])
@pytest.mark.parametrize("name", ["scaffold", "perfedavg", "pfedme"])
def test_a_client_that_diverges_is_seen_and_alone(name: str, fewest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN and infinity pass through sums in any order, and not from one client's scratch to the next one's steps."""
    monkeypatch.setattr(formulas, "FEWEST", fewest)
    job = Job(small("dense"), make(name), replace(SCHEDULE, lr=1e200, cohort=8), engine=COMPILED)
    assert not torch.isfinite(run(job, 3).server.x).all()
    problem = small("dense")
    problem.x.raw[: problem.offsets[1]] = torch.inf  # after its check: of client 0
    solver = Solver(momentum=0.5, nesterov=True)
    state = run(Job(problem, make(name), replace(SCHEDULE, cohort=8), solver, COMPILED), 1)
    assert state.refused == {0: 1}
    assert torch.isfinite(state.server.x).all()
    rows = tree_leaves(state.store.gather(np.arange(1, 8))).values()
    assert all(bool(torch.isfinite(leaf).all()) for leaf in rows)


# -- which code runs -----------------------------------------------------------------------------------------------


def test_the_rule_counts_work() -> None:
    job = Job(small("dense"), make("fedavg"), SCHEDULE)
    plan = plan_of(job, start(job))
    each = int(plan.steps.sum()) * 4 * job.problem.objective.dim
    enough = -(-chunk.COMPILING // each)
    assert chunk.kernel(job.problem.objective, job.assignment, plan, enough) == "compiled"
    assert chunk.kernel(job.problem.objective, job.assignment, plan, enough - 1) == "torch"
    generic = Job(small("generic"), make("fedavg"), SCHEDULE)
    assert chunk.kernel(generic.problem.objective, generic.assignment, plan, enough) == "torch"


@pytest.mark.slow
def test_a_longer_run_is_that_of_so_many_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resumed beyond the bound it starts anew; within it, and where numba came later, it goes on with its code."""
    job = Job(small("dense", torch.float32), make("scaffold"), SCHEDULE)
    first = resolved(job)
    each = int(plan_of(first, start(first)).steps.sum()) * 4 * job.problem.objective.dim
    monkeypatch.setattr(chunk, "COMPILING", 5 * each)

    def kernel(folder: str, rounds: int, resume: bool = False) -> str:
        execute(job, tmp_path / folder, rounds=rounds, info={}, resume=resume)
        return str(read_description(tmp_path / folder)["kernel"])

    assert (kernel("short", 3), kernel("short", 4, resume=True)) == ("torch", "torch")
    assert (kernel("short", 8, resume=True), kernel("whole", 8)) == ("compiled", "compiled")
    assert (kernel("parts", 6), kernel("parts", 8, resume=True)) == ("compiled", "compiled")
    for folder in ("short", "parts"):
        for file in ("metrics.csv", "model.safetensors"):
            assert (tmp_path / folder / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    with monkeypatch.context() as without:
        without.setattr(compiled, "installed", lambda: False)
        assert kernel("late", 6) == "torch"
    assert kernel("late", 8, resume=True) == "torch"
    assert (tmp_path / "late" / "metrics.csv").read_bytes() != (tmp_path / "whole" / "metrics.csv").read_bytes()


def test_without_numba_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setattr(compiled, "installed", vars(compiled.installed)["__wrapped__"])  # looks again
    monkeypatch.setattr(chunk, "COMPILING", 0)
    job = Job(small("dense"), make("fedavg"), SCHEDULE)
    assert resolved(job).engine.kernel == "torch"
    with pytest.raises(UserError, match="needs numba"):
        run(replace(job, engine=COMPILED), 1)


@pytest.mark.parametrize(
    ("network", "solver", "regulariser"),
    [
        ("generic", Solver(), None),
        ("dense", Solver(kind="lbfgs"), None),
        ("dense", Solver(tolerance=0.1), None),
        ("dense", Solver(clip_direction=1.0), None),
        ("dense", Solver(), l1(0.1)),
    ],
)
def test_what_is_not_known_is_refused(network: str, solver: Solver, regulariser: Regulariser | None) -> None:
    job = Job(small(network, regulariser=regulariser), make("fedavg"), SCHEDULE, solver, COMPILED)
    with pytest.raises(UserError, match=r"engine\.kernel is compiled, which is for"):
        resolved(job)


def test_who_runs_compiled_steps_loads_no_compiler() -> None:
    code = "import sys, torch; from fedconcord.method.step.compiled import load; load(torch.float64)"
    done = subprocess.run([sys.executable, "-c", f"{code}; sys.exit('numba' in sys.modules)"], check=False)
    assert done.returncode == 0


def test_arguments_of_another_kind_are_refused() -> None:
    """Numbers of another type, and rows that do not lie side by side, would be read as what they are not."""
    like = loading._nobody(torch.float64)
    code = compiled.load(torch.float64)
    code(*like)
    turned = like[0]._replace(targets=np.empty((3, 2)).T)
    for wrong in (loading._nobody(torch.float32), (turned, *like[1:])):
        with pytest.raises(AssertionError):
            code(*wrong)


@pytest.mark.slow
def test_the_first_run_on_a_machine_is_any_other_run(tmp_path: Path) -> None:
    """All read what a process of its own compiled; what is damaged is compiled anew, where it would end the process."""
    here = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    asked = ["--data", "digits", "--model", "2nn", "--rounds", "4", "--set", "engine.kernel=compiled"]
    for name in ("first", "second", "third"):
        if name == "third":
            (code,) = (tmp_path / "cache").glob("fedconcord/compiled/*/float32.o")
            code.write_bytes(code.read_bytes()[:100_000])
        done = subprocess.run(
            [sys.executable, "-m", "fedconcord", "run", *asked, "--out", str(tmp_path / name)],
            env=here,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert ("compiling" in done.stderr) == (name != "second")
    first, *others = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("first", "second", "third"))
    assert others == [first, first]


@pytest.mark.slow
def test_a_second_installation_computes_the_same_bytes(tmp_path: Path) -> None:
    """It reads what the first one compiled, as its source is the same."""
    other = tmp_path / "other"
    shutil.copytree(Path(fedconcord.__file__).parent, other / "fedconcord")
    job = ["run", "--data", "digits", "--model", "2nn", "--clients", "20", "--cohort", "5", "--rounds", "3"]
    written = []
    for number, place in enumerate([Path(fedconcord.__file__).parents[1], other, other]):
        words = [sys.executable, "-P", "-m", "fedconcord", *job, "--set", "engine.kernel=compiled"]
        env = {
            **os.environ,
            "PYTHONPATH": str(place),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "OMP_NUM_THREADS": "1",
        }
        subprocess.run([*words, "--out", str(number)], cwd=tmp_path, env=env, check=True, capture_output=True)
        written.append((tmp_path / str(number) / "metrics.csv").read_bytes())
    assert written[0] == written[1] == written[2]
    assert len(list((tmp_path / "cache").glob("fedconcord/compiled/*"))) == 1
