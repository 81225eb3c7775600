"""Figures client by client: the grouped pass against one client at a time, samples set apart, early stopping, and
personalisation."""

from __future__ import annotations

import csv
import itertools
import json
import math
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import fedconcord
from fedconcord.execution.engines import Serial
from fedconcord.execution.job import Job, Row
from fedconcord.execution.job.personalisation import Finetune, personalised
from fedconcord.execution.run.final_model import RunOptions
from fedconcord.execution.run.folder import read_description
from fedconcord.execution.run.stopping import Patience
from fedconcord.federation.data import DATASETS
from fedconcord.federation.data.inputs import hold_out
from fedconcord.federation.models import MODELS
from fedconcord.federation.objectives import Supervised
from fedconcord.federation.objectives.fairness import spread
from fedconcord.federation.objectives.metrics import metrics_of
from fedconcord.study.runs.plan import plan_run
from fedconcord.study.settings.job import build
from fedconcord.study.settings.problem import forget_problem
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.sources import from_nested
from fedconcord.support.errors import UserError
from table import batches_of
from training import execute
from watching import Rows

JOB = {
    "data": "digits",
    "clients": 12,
    "cohort": 4,
    "model": "logreg",
    "validation": 0.2,
    "partition": "dirichlet(0.3)",
}


def job(**more: object) -> Job:
    return build(resolve_run(from_nested({**JOB, "engine.dtype": "float64", **more}, "test")))


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# -- samples set apart ---------------------------------------------------------------------------------------------


def test_a_share_of_every_client_is_set_apart() -> None:
    parts = [np.arange(10), np.arange(10, 12), np.array([12]), np.arange(13, 113)]
    kept, held = hold_out(parts, 0.25, seed=3)
    assert [len(h) for h in held] == [2, 1, 0, 25]
    for part, a, b in zip(parts, kept, held, strict=True):
        assert sorted([*a, *b]) == part.tolist()
    again = hold_out([parts[0], parts[1][:1], *parts[2:]], 0.25, seed=3)[1]
    assert np.array_equal(again[3], held[3])  # keyed by client: another client's samples do not move it
    assert not np.array_equal(hold_out(parts, 0.25, seed=4)[1][3], held[3])
    assert len(hold_out([np.arange(4)], 0.99, seed=0)[0][0]) == 1


def test_no_batch_holds_a_sample_set_apart() -> None:
    """The features of all samples that any round can draw, against those set apart."""
    this = job(data="synthetic", partition="natural")
    problem = this.problem
    assert isinstance(problem, Supervised)
    apart = {row.tobytes() for row in problem.judged.x[:].numpy()}
    assert len(apart) == len(problem.judged.y) > 0
    drawn: set[int] = set()
    for round in range(30):
        plan = this.schedule.plan(round, this.algorithm, problem.roster)
        for i, batch in zip(plan.ids, batches_of(this, plan), strict=True):
            assert batch is not None
            drawn |= set((problem.offsets[i] + batch[batch >= 0]).tolist())
    assert len(drawn) > 1000
    assert not apart & {problem.x[k].numpy().tobytes() for k in drawn}
    whole = build(resolve_run(from_nested({**JOB, "validation": "none"}, "test"))).problem
    assert whole.roster.sizes.sum() == 1437


# -- the grouped pass ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["train", "validation"])
def test_grouped_figures_equal_one_client_at_a_time(split: str) -> None:
    problem = job(**({} if split == "validation" else {"validation": "none"})).problem
    assert isinstance(problem, Supervised)
    x = problem.init(7) + 0.3 * torch.randn(problem.dim, dtype=torch.float64, generator=torch.manual_seed(0))
    scores = problem.client_scores(x)
    assert scores.split == split
    _, inputs, labels, offsets = problem.judged
    for i, (a, b) in enumerate(itertools.pairwise(offsets)):
        out = problem.logits(x, inputs[a:b])
        assert scores.values["loss"][i] == pytest.approx(float(F.cross_entropy(out, labels[a:b])), rel=1e-12)
        assert scores.values["accuracy"][i] == float((out.argmax(1) == labels[a:b]).double().mean())
    found = problem.evaluate(x)
    if split == "validation":
        out = problem.logits(x, inputs[:])
        assert found["validation_loss"] == pytest.approx(float(F.cross_entropy(out, labels)), rel=1e-12)
        assert found["validation_accuracy"] == pytest.approx(float((out.argmax(1) == labels).double().mean()))
        assert found["validation_client_accuracy"] == pytest.approx(scores.values["accuracy"].mean())
    else:
        assert not [name for name in found if name.startswith("validation")]


def test_a_client_with_one_sample_is_left_out() -> None:
    data = DATASETS["digits"](Path(), 0)
    kept, held = hold_out([np.arange(40), np.array([40]), np.arange(41, 60)], 0.5, 0)
    problem = Supervised(lambda: MODELS["logreg"](data.shape, 10), data, kept, held=held)
    scores = problem.client_scores(problem.init(0))
    assert math.isnan(scores.values["accuracy"][1])
    assert scores.samples.tolist() == [20, 0, 10]
    assert math.isfinite(problem.evaluate(problem.init(0))["validation_client_accuracy"])


def test_a_diverged_model_has_no_validation_loss() -> None:
    problem = job().problem
    found = problem.evaluate(torch.full_like(problem.init(0), math.nan))
    assert math.isnan(found["validation_loss"])  # 0 would look like the best model of all


def test_the_spread_by_its_definition() -> None:
    values = np.array([*np.linspace(0.1, 0.9, 20), np.nan])
    s = spread(values, higher=True)
    known = sorted(values[:20])
    assert s.worst_decile == pytest.approx(sum(known[:2]) / 2)
    assert s.best_decile == pytest.approx(sum(known[-2:]) / 2)
    assert s.gap == pytest.approx(s.best_decile - s.worst_decile)
    assert s.std == pytest.approx(math.sqrt(sum((v - s.mean) ** 2 for v in known) / 20))
    assert (s.worst, spread(values, higher=False).worst) == (0.1, 0.9)
    assert spread(values, higher=False).worst_decile == pytest.approx(s.best_decile)


# -- a run's folder ------------------------------------------------------------------------------------------------


def interrupt_at(round: int):
    def on_row(row: Row) -> None:
        if row.round == round:
            os.kill(os.getpid(), signal.SIGINT)

    return on_row


STOP = {"rounds": 60, "local.lr": 2.0, "eval.patience": 4, "eval.clients_every": 2, "checkpoint.every": 0}
STOP |= {"eval.personalise": "finetune(steps=3, lr=0.1)"}


def run(folder: Path, on_row: Callable[[Row], None] = lambda row: None, **more: object) -> dict[str, object]:
    fedconcord.run("fedavg", out=folder, settings={**JOB, **STOP, **more}, callbacks=[Rows(on_row)])
    return json.loads((folder / "run.json").read_text())


def test_early_stopping_keeps_the_best_model_and_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    rows = table(tmp_path / "whole" / "metrics.csv")
    losses = [float(row["validation_loss"]) for row in rows[1:]]
    best = int(np.argmin(losses)) + 1
    assert whole["status"] == "complete"
    assert len(losses) == best + 4 < 60
    assert whole["model_round"] == best
    assert str(whole["stopped"]).startswith(f"stopped early at round {best + 4}: validation_loss has not improved in 4")
    short = run(tmp_path / "short", rounds=best, **{"eval.patience": "none"})
    model = (tmp_path / "whole" / "model.safetensors").read_bytes()
    assert model == (tmp_path / "short" / "model.safetensors").read_bytes()
    assert short["clients_judged"]["mean"] == whole["clients_judged"]["mean"]  # type: ignore[index]
    for cut in (1, best, best + 1, best + 3):
        parts = tmp_path / f"cut-{cut}"
        assert run(parts, interrupt_at(cut))["status"] == "interrupted"
        assert fedconcord.run(resume=parts).status == "complete"
        for file in ("metrics.csv", "model.safetensors", "checkpoint.safetensors", "clients.csv", "fairness.csv"):
            assert (tmp_path / "whole" / file).read_bytes() == (parts / file).read_bytes(), (cut, file)
        again = json.loads((parts / "run.json").read_text())
        assert {k: again[k] for k in ("stopped", "model_round", "clients_judged")} == {
            k: whole[k] for k in ("stopped", "model_round", "clients_judged")
        }
    longer = fedconcord.run(resume=tmp_path / "whole", rounds=80)  # patience is spent
    assert longer.rounds == best + 4


def test_a_run_ends_at_its_target_and_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    """It is the longer run up to there; a resumed one finds in its rows that it is over, or goes on to a new target."""
    ends = {"eval.patience": "none", "rounds": 12, "eval.target": 0.6}
    full = run(tmp_path / "full", **ends)
    accuracies = [float(row["test_accuracy"]) for row in table(tmp_path / "full" / "metrics.csv")]
    reached = next(k for k, value in enumerate(accuracies) if k > 0 and value >= 0.6)
    assert 1 < reached < 12
    assert "stopped" not in full
    whole = run(tmp_path / "whole", **ends, **{"eval.stop_at_target": True})
    assert whole["status"] == "complete"
    assert (
        whole["stopped"] == f"stopped at round {reached}: test_accuracy {accuracies[reached]:.4g} is at its target 0.6"
    )
    assert table(tmp_path / "whole" / "metrics.csv") == table(tmp_path / "full" / "metrics.csv")[: reached + 1]
    parts = tmp_path / "parts"
    assert run(parts, interrupt_at(reached - 1), **ends, **{"eval.stop_at_target": True})["status"] == "interrupted"
    assert fedconcord.run(resume=parts).rounds == reached
    for file in ("metrics.csv", "model.safetensors", "checkpoint.safetensors", "clients.csv"):
        assert (tmp_path / "whole" / file).read_bytes() == (parts / file).read_bytes(), file
    assert fedconcord.run(resume=parts).rounds == reached
    assert fedconcord.run(resume=tmp_path / "whole", settings={"eval.stop_at_target": False}).rounds == 12
    assert fedconcord.run(resume=parts, target=1.0).rounds == 12
    assert (parts / "metrics.csv").read_bytes() == (tmp_path / "full" / "metrics.csv").read_bytes()


@pytest.mark.slow
def test_a_comparison_whose_runs_stop_early(tmp_path: Path) -> None:
    settings = {**JOB, **STOP, "rounds": 30}
    done = fedconcord.compare(["fedavg", "fedprox(mu=1)"], seeds=[0, 1], out=tmp_path, settings=settings)
    assert {finished.status for finished in done.runs} == {"complete"}
    assert min(finished.rounds for finished in done.runs) < 30
    before = {finished.folder: (finished.folder / "run.json").stat().st_mtime_ns for finished in done.runs}
    again = fedconcord.compare(resume=tmp_path)
    assert [r.rounds for r in again.runs] == [r.rounds for r in done.runs]
    assert before == {f: (f / "run.json").stat().st_mtime_ns for f in before}  # nothing was run again


def test_clients_csv_says_what_run_json_says(tmp_path: Path) -> None:
    about = run(tmp_path / "a", rounds=3)["clients_judged"]
    rows = table(tmp_path / "a" / "clients.csv")
    assert len(rows) == 12
    assert {row["split"] for row in rows} == {"validation"}
    values = np.array([float(row["accuracy"]) for row in rows])
    assert about["mean"] == pytest.approx(values.mean())  # type: ignore[index]
    assert about["worst_decile"] == pytest.approx(np.sort(values)[:2].mean())  # type: ignore[index]
    assert [row["round"] for row in table(tmp_path / "a" / "fairness.csv")] == ["2"]
    fedconcord.run("fedavg", out=tmp_path / "b", settings={**JOB, "validation": "none", "rounds": 1})
    assert {row["split"] for row in table(tmp_path / "b" / "clients.csv")} == {"train"}
    fedconcord.run("fedavg", out=tmp_path / "c", settings={**JOB, "eval.clients": False, "rounds": 1})
    assert not (tmp_path / "c" / "clients.csv").exists()


def test_clients_own_models_are_the_last_ones_with_patience_and_it_is_said(tmp_path: Path) -> None:
    settings = {**JOB, **STOP, "eval.personalise": "none", "local.lr": 5.0, "eval.patience": 2}
    fedconcord.run("ditto", out=tmp_path / "early", settings=settings)
    early = json.loads((tmp_path / "early" / "run.json").read_text())
    last = early["rounds_done"]
    assert last < 60
    assert "model_round" not in early
    assert early["clients_judged"]["round"] == last
    assert f"clients' models are the last ones, and the best was round {last - 2}, validation_loss" in early["stopped"]
    fedconcord.run("ditto", out=tmp_path / "whole", settings={**settings, "eval.patience": "none", "rounds": last})
    ends = [sorted((tmp_path / name / "models").iterdir()) for name in ("early", "whole")]
    assert [file.read_bytes() for file in ends[0]] == [file.read_bytes() for file in ends[1]]


def test_patience_knows_which_way_a_metric_goes(tmp_path: Path) -> None:
    """F1 is better when higher, as the metric says for itself: the best round is its largest."""
    this = job(rounds=1)
    assert isinstance(this.problem, Supervised)
    this.problem.metrics = metrics_of(("macro_f1",), "class")
    forget_problem()
    options = RunOptions(Patience(4, metric="test_macro_f1"))
    execute(replace(this, engine=Serial()), tmp_path, rounds=12, info={}, options=options)
    values = [float(row["test_macro_f1"]) for row in table(tmp_path / "metrics.csv")[1:]]
    assert json.loads((tmp_path / "run.json").read_text())["model_round"] == int(np.argmax(values)) + 1


# -- personalisation -----------------------------------------------------------------------------------------------


def test_fine_tuning_is_plain_sgd_on_the_clients_own_samples() -> None:
    this = job()
    problem = this.problem
    assert isinstance(problem, Supervised)
    x = problem.init(1)
    scores = personalised(this, x, Finetune(steps=7, lr=0.3), round=5)
    serial = personalised(replace(this, engine=Serial()), x, Finetune(steps=7, lr=0.3), round=5)
    for name, values in scores.values.items():
        assert values == pytest.approx(serial.values[name], rel=1e-10)
    plan_of = replace(this.schedule, cohort=12, work=lambda seed, round, client: 7, unit="steps")  # type: ignore[type-var]
    plan = plan_of.plan(5, this.algorithm, problem.roster)
    for i, batches in enumerate(batches_of(this, plan)):
        assert batches is not None
        model = x.clone()
        for batch in batches:
            kept = torch.as_tensor(problem.offsets[i] + batch[batch >= 0])
            model = model - 0.3 * problem.gradient(model, kept)
        a, b = problem.judged.offsets[i : i + 2]
        loss = F.cross_entropy(problem.logits(model, problem.judged.x[a:b]), problem.judged.y[a:b])
        assert scores.values["loss"][i] == pytest.approx(float(loss), rel=1e-10)


# -- sentences -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"validation": "none", "eval.personalise": "finetune"}, "set validation, as in 0.1"),
        ({"eval.personalise": "finetune(steps=0)"}, "steps must be an integer >= 1, given 0"),
        ({"validation": 1.0}, "validation must be"),
        ({"eval.watch": "test_loss"}, "has no effect without eval.patience"),
        ({"eval.stop_at_target": True}, "has no effect without eval.target"),
        ({"eval.watch": "tset_loss", "eval.patience": 2}, "did you mean 'test_loss'"),
        ({"labels": "labelled(0.5)"}, "does not know"),
        ({"data": "quadratics", "model": "none", "partition": "none"}, "takes no validation"),
    ],
)
def test_mistakes_are_sentences(settings: dict[str, object], says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=says):
        fedconcord.run("fedavg", out=tmp_path / "x", settings={**JOB, "rounds": 1, **settings})


def test_stopping_on_test_data_is_warned_of(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="makes its test figures too good"):
        plan_run(from_nested({**JOB, "validation": "none", "eval.patience": 3, "out": str(tmp_path / "x")}, "test"))


def test_a_problem_without_clients_data_has_no_clients_csv(tmp_path: Path) -> None:
    fedconcord.run(
        "fedavg", data="quadratics", rounds=6, out=tmp_path, settings={"eval.patience": 1, "eval.watch": "loss"}
    )
    assert not (tmp_path / "clients.csv").exists()
    assert read_description(tmp_path)["model_round"] >= 1
