"""Baselines: every client alone and all samples in one place, against trainings written out by hand; what the report
says of them against numbers worked out from the folders; and whether clients set samples apart where that is left open.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import fedconcord
from fedconcord.execution.job import Job, State, advance, evaluate, model_of, own_models, start
from fedconcord.federation.objectives import Supervised, judging
from fedconcord.federation.objectives.judging import evaluate_own, own_figures, supervised
from fedconcord.federation.participation.work import batches
from fedconcord.insight.report.baselines import section
from fedconcord.insight.report.worth import DRAWS, bootstrap, sentences, worth
from fedconcord.study.runs import plan
from fedconcord.study.runs.events import Entry
from fedconcord.study.settings.job import build
from fedconcord.study.settings.judging import held
from fedconcord.study.settings.resolve import resolve_compare, resolve_run
from fedconcord.study.settings.sources import Source, from_nested
from fedconcord.study.statistics.load import load_runs
from fedconcord.study.statistics.summary import summarise
from fedconcord.support import files, sums
from fedconcord.support.errors import UserError
from training import execute_all

JOB: dict[str, Any] = {
    "data": "digits", "model": "logreg", "clients": 7, "cohort": 3, "rounds": 4, "validation": 0.2, "seed": 3,
    "local.lr": 0.2, "local.lr_decay": 0.9, "local.momentum": 0.5, "local.epochs": "uniform(1,3)",
    "local.batch_size": 16, "local.weight_decay": 0.01, "engine.dtype": "float64",
}  # fmt: skip


def job(**changes: Any) -> Job:
    return build(resolve_run(from_nested({**JOB, **changes}, "test")))


def trained(of: Job, rounds: int) -> State:
    state = start(of)
    for _ in range(rounds):
        state = advance(of, state)
    return state


def by_hand(problem: Supervised, x: torch.Tensor, first: int, steps: np.ndarray, lr: float) -> torch.Tensor:
    """Plain SGD of softmax regression with a fresh momentum buffer, by torch's own optimiser and autograd."""
    x = x.clone().requires_grad_()
    optimiser = torch.optim.SGD([x], lr=lr, momentum=0.5, weight_decay=0.01)
    for step in steps:
        take = torch.as_tensor(first + step[step >= 0])
        optimiser.zero_grad()
        weight, bias = x[: 10 * 64].view(10, 64), x[10 * 64 :]
        loss = F.cross_entropy(problem.x[take].flatten(1) @ weight.T + bias, problem.y[take])
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return x.detach()


@pytest.mark.parametrize("engine", ["serial", "stacked"])
def test_local_is_as_many_trainings_by_hand(engine: str) -> None:
    federated, alone = job(method="fedavg"), job(method="local", **{"engine.name": engine})
    problem = supervised(alone.problem)
    assert problem is not None
    state, rounds = trained(alone, 4), range(4)
    found = own_models(alone, state)
    wanted: dict[int, torch.Tensor] = {}
    for t in rounds:
        of = federated.schedule.plan(t, federated.algorithm, federated.problem.roster)  # the federation's own
        for i, k in zip(of.ids.tolist(), of.steps.tolist(), strict=True):
            n, first = int(problem.roster.samples[i]), int(problem.offsets[i])
            taken = batches(3, t, i, n, 16, k)
            wanted[i] = by_hand(problem, wanted.get(i, problem.init(3)), first, taken, 0.2 * 0.9**t)
    assert 3 < len(wanted) < 7
    for i in range(7):
        x = found(i)
        assert (x is None) == (i not in wanted)  # who never took part has no model
        if x is not None:
            torch.testing.assert_close(x, wanted[i], rtol=0, atol=1e-12)
    assert state.bytes_up == state.bytes_down == 0


def test_pooled_is_plain_sgd_on_all_samples() -> None:
    federated, pooled = job(method="fedavg"), job(method="pooled")
    problem = supervised(pooled.problem)
    assert problem is not None
    n = len(problem.y)
    assert n == federated.problem.roster.samples.sum()
    x = problem.init(3)
    for t in range(4):
        steps = int(federated.schedule.plan(t, federated.algorithm, federated.problem.roster).steps.sum())
        x = by_hand(problem, x, 0, batches(3, t, 0, n, 16, steps), 0.2 * 0.9**t)
    torch.testing.assert_close(model_of(pooled, trained(pooled, 4)), x, rtol=0, atol=1e-12)


def test_all_three_take_the_same_gradient_steps() -> None:
    states = [trained(job(method=method), 4) for method in ("fedavg", "local", "pooled")]
    assert len({state.gradient_steps for state in states}) == 1
    assert states[0].gradient_steps > 0


def test_own_models_are_judged_as_models_are() -> None:
    """Each client by the figures of its own model, and all of them as one where they have the same."""
    alone = job(method="local", metrics=["accuracy", "auroc"])
    problem, state = supervised(alone.problem), trained(alone, 2)
    assert problem is not None
    models = own_models(alone, state)
    found, evaluated = own_figures(problem, models), evaluate(alone, state)
    known = [i for i in range(7) if models(i) is not None]
    assert 0 < len(known) < 7
    apart = found.samples[known]
    for i in known:
        x = models(i)
        assert x is not None
        wanted = problem.client_scores(x)
        for name in ("loss", "accuracy"):
            assert found.values[name][i] == pytest.approx(wanted.values[name][i], rel=1e-12)
    assert np.isnan(found.values["loss"][[i for i in range(7) if i not in known]]).all()
    tests = [problem.evaluate(x)["test_auroc"] for i in known if (x := models(i)) is not None]
    assert evaluated["test_auroc"] == pytest.approx(np.mean(tests), rel=1e-12)
    assert evaluated["validation_accuracy"] == pytest.approx(
        float(found.values["accuracy"][known] @ apart / apart.sum()), rel=1e-12
    )
    x = problem.init(0)
    assert evaluate_own(problem, lambda i: x) == pytest.approx(problem.evaluate(x), rel=1e-12)


def test_a_large_test_set_is_sampled_for_own_models(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = supervised(job(method="local").problem)
    assert problem is not None
    assert len(judging.tested(problem)) == len(problem.test_y) == 360
    monkeypatch.setattr("fedconcord.federation.objectives.judging.TESTING", 0)
    few = judging.tested(problem)
    assert len(few) == 200
    assert few.equal(judging.tested(problem))


# -- a comparison --------------------------------------------------------------------------------------------------

COMPARED: dict[str, Any] = {
    "data": "digits",
    "model": "logreg",
    "clients": 8,
    "cohort": 4,
    "rounds": 3,
    "lr": 0.3,
    "seeds": [0, 1],
    "baselines": ["local", "pooled", "local(local.lr=0.03)"],
}


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared") / "out"
    done = fedconcord.compare(["fedavg", "scaffold"], out=folder, **COMPARED)
    assert [run.status for run in done.runs] == ["complete"] * 10
    return folder


def table(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def accuracies(folder: Path) -> np.ndarray:
    return np.array([float(row["accuracy"] or "nan") for row in table(folder / "clients.csv")])


def described(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return found


def test_baselines_stand_beside_the_methods(comparison: Path) -> None:
    names = {"fedavg": None, "scaffold": None, "local": "local", "local-local.lr=0.03": "local", "pooled": "pooled"}
    steps = set()
    for name, kind in names.items():
        said = described(comparison / name / "seed-0")
        assert said["baseline"] == kind
        assert said["config"]["validation"] == said["evaluation"]["validation"] == 0.2
        assert said["evaluation"]["validation_why"].startswith("each client sets apart 0.2 of its samples")
        assert said["clients_judged"]["split"] == "validation"
        steps.add(table(comparison / name / "seed-0" / "metrics.csv")[-1]["gradient_steps"])
        assert (comparison / name / "seed-0" / "model.safetensors").exists() == (kind != "local")
    assert len(steps) == 1
    assert [row["round"] for row in table(comparison / "local" / "seed-1" / "metrics.csv")] == ["0", "3"]
    summary = summarise(load_runs([comparison]))
    assert {row.name for row in summary.rows} == {"fedavg", "scaffold"}
    assert {run.name for run in summary.baselines} == {"local", "local(local.lr=0.03)", "pooled"}
    starts = {table(comparison / name / "seed-0" / "metrics.csv")[0]["validation_loss"] for name in names}
    assert len(starts) == 1  # one x^0


def test_the_section_says_what_the_folders_hold(comparison: Path) -> None:
    w = worth(summarise(load_runs([comparison])))
    assert w is not None
    assert w.alone is not None
    assert w.pooled is not None
    means = {
        name: np.mean([np.nanmean(accuracies(comparison / name / f"seed-{s}")) for s in (0, 1)])
        for name in ("local", "local-local.lr=0.03", "pooled", "fedavg", "scaffold")
    }
    best = max(("local", "local-local.lr=0.03"), key=lambda name: means[name])
    assert w.alone.name == {"local": "local", "local-local.lr=0.03": "local(local.lr=0.03)"}[best]
    took_part = {s: ~np.isnan(accuracies(comparison / best / f"seed-{s}")) for s in (0, 1)}  # who is known alone
    pooled = [accuracies(comparison / "pooled" / f"seed-{s}")[there].mean() for s, there in took_part.items()]
    assert (w.alone.mean, w.pooled.mean) == pytest.approx((means[best], np.mean(pooled)))
    top = summarise(load_runs([comparison])).rows[0].name
    assert w.methods[0].name == top
    gains = [accuracies(comparison / top / f"seed-{s}") - accuracies(comparison / best / f"seed-{s}") for s in (0, 1)]
    flat = np.concatenate(gains)
    flat = flat[~np.isnan(flat)]
    g = w.gains[0]
    assert (g.more, g.same, g.less) == ((flat > 0).sum(), (flat == 0).sum(), (flat < 0).sum())
    assert g.mean.mean == pytest.approx(np.mean([np.nanmean(one) for one in gains]))
    assert g.mean.low < g.mean.mean < g.mean.high
    assert f"{g.more} of {g.units} clients of 2 seeds" in sentences(w)[1]
    weights = np.array([float(row["samples"]) for row in table(comparison / "pooled" / "seed-0" / "clients.csv")])
    own = [accuracies(comparison / "pooled" / f"seed-{s}") @ weights / weights.sum() for s in (0,)]
    assert np.average(w.pooled.by_seed[0], weights=w.samples[0]) == pytest.approx(own[0])

    page = (comparison / "report.html").read_text()
    assert "<h2>Is federation worth it?</h2>" in page
    assert (comparison / "figures" / "baselines.svg").exists()
    rows = table(comparison / "tables" / "baselines.csv")
    assert [int(row["client"]) for row in rows] == [*range(8), *range(8)]
    for row in rows:
        line = table(comparison / "fedavg" / f"seed-{row['seed']}" / "clients.csv")[int(row["client"])]
        assert (row["fedavg"], row["samples"]) == (line["accuracy"], line["samples"])
    one, two = (section(summarise(load_runs([comparison]))) for _ in range(2))
    assert one is not None
    assert two is not None
    assert one._replace(drawings=()) == two._replace(drawings=())
    assert one.files["tables/baselines.csv"] == (comparison / "tables" / "baselines.csv").read_text()


def executed(planned: list[Entry]) -> None:
    """The runs of a comparison, without its report."""
    assert {run.status for run in execute_all(planned)} == {"complete"}


def test_baselines_go_on_to_the_same_bits(comparison: Path, tmp_path: Path) -> None:
    given = {"methods": ["fedavg"], **COMPARED, "seeds": [0], "baselines": ["local", "pooled"]}
    given["local"] = {"lr": given.pop("lr")}

    def source(**more: Any) -> Source:
        return from_nested({**given, **more}, "test")

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    executed(plan.plan_comparison(None, source(rounds=5, out=str(whole)))[1])
    executed(plan.plan_comparison(None, source(out=str(parts)))[1])
    for name in ("local", "pooled"):
        one, other = (folder / name / "seed-0" / "clients.csv" for folder in (parts, comparison))
        assert one.read_bytes() == other.read_bytes()
    executed(plan.plan_resumed_comparison(parts, None, from_nested({"rounds": 5}, "test"))[1])
    for name in ("local", "pooled"):
        for file in ("metrics.csv", "clients.csv", "checkpoint.safetensors", "run.json"):
            assert (parts / name / "seed-0" / file).read_bytes() == (whole / name / "seed-0" / file).read_bytes(), file


def test_baselines_alone_are_ranked_for_want_of_methods(comparison: Path) -> None:
    summary = summarise(load_runs([comparison / "local", comparison / "pooled"]))
    assert {row.name for row in summary.rows} == {"local", "pooled"}
    assert worth(summary) is None


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"baselines": ["locl"]}, "unknown baseline 'locl' (did you mean 'local'?); known: local, pooled"),
    ({"baselines": ["local(mu=1)"]}, "method local has no parameter 'mu'; it has none"),
    ({"baselines": ["local", "local"]}, "the baseline local is given twice"),
    ({"methods": ["fedavg", "local"]}, "write --baselines local"),
    ({"eval.clients": False}, "baselines are judged client by client, given eval.clients false; leave it out"),
    ({"engine.name": "distributed"}, "baselines take one process, given engine distributed"),
    ({"data": "quadratics", "model": "none"}, "judged on labelled samples, and data quadratics has none of its own"),
    ({"task": "semi", "labels": "labelled(0.5)"}, "judged on labelled samples, and task semi"),
    ({"sampling": "power_of_choice(5)"}, "local has no federated model whose losses the sampling goes by"),
    ({"local.oracle": "svrg"}, "write local(local.oracle=minibatch)"),
    (
        {"local.solver": "lbfgs", "local.batch_size": "full", "baselines": ["pooled"]},
        "pooled takes as many steps as the clients together",
    ),
]


@pytest.mark.parametrize(("changes", "said"), REFUSED)
def test_refusals(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    given = {"methods": ["fedavg"], "baselines": ["local"], "data": "digits", "model": "logreg", "rounds": 1, **changes}
    with pytest.raises(UserError) as refused:
        plan.plan_comparison(None, from_nested({**given, "out": str(tmp_path / "out")}, "test"))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()


# -- intervals -----------------------------------------------------------------------------------------------------


def test_the_bootstrap_against_closed_forms() -> None:
    values = np.random.default_rng(1).normal(size=400)
    one = bootstrap([values])
    assert one.mean == pytest.approx(values.mean())
    half = 1.96 * values.std() / 20
    assert (one.low, one.high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.1 * half)
    assert bootstrap([values]) == one  # keyed
    many = bootstrap([np.tile(values, 10)])  # beyond MANY, as a normal number
    assert many.half == pytest.approx(half / np.sqrt(10), rel=0.1)
    two = bootstrap([np.full(30, 1.0), np.full(10, 3.0)])  # seeds alone vary: each of four draws as likely
    assert (two.mean, two.low, two.high) == (2.0, 1.0, 3.0)
    assert bootstrap([np.full(9, 0.5)])[:3] == (0.5, 0.5, 0.5)
    assert np.isnan(bootstrap([np.arange(4.0)]).low)  # too few units
    assert DRAWS >= 1000


# -- samples that are set apart ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "share", "said"),
    [
        ({"clients": 10}, 0.1, "each client sets apart 0.1 of its samples to be judged on"),
        ({"clients": 60}, None, "clients are judged on the samples they train on: the median client has "),
        ({"clients": 60, "baselines": ["local"]}, 0.2, "few to tell clients apart; validation=none trains on all"),
        ({"clients": 60, "eval.personalise": "finetune"}, 0.2, "each client sets apart 0.2"),
        ({"clients": 10, "validation": "none"}, None, None),
        ({"clients": 60, "validation": 0.3}, 0.3, None),
        ({"clients": 10, "eval.clients": False}, None, None),
        ({"data": "quadratics", "model": "none"}, None, None),
        ({"labels": "labelled(0.5)", "clients": 10}, None, None),
    ],
)
def test_whether_clients_set_samples_apart(changes: dict[str, Any], share: float | None, said: str | None) -> None:
    given = {"data": "digits", "model": "logreg", "partition": "iid", "methods": ["fedavg"], **changes}
    if given["data"] == "quadratics":
        del given["partition"]
    config, why = held(resolve_compare(from_nested(given, "test")))
    assert config.validation == share
    assert (why is None) == (said is None)
    assert said is None or (why is not None and said in why)
    assert config.as_dict()["validation"] == ("none" if share is None else share)
    again, _ = held(resolve_compare(from_nested(config.as_dict(), "test")))
    assert again == config


def test_a_folder_of_before_trains_on_all(tmp_path: Path) -> None:
    common: dict[str, Any] = {"data": "digits", "model": "logreg", "clients": 10}
    fedconcord.run("fedavg", **common, rounds=1, settings={"validation": "none"}, out=tmp_path / "a")
    said = described(tmp_path / "a")
    assert said["config"].pop("validation") == "none"
    sums.write(tmp_path / "a", {"run.json": files.as_json(said)})
    fedconcord.run(resume=tmp_path / "a", rounds=2)
    assert described(tmp_path / "a")["clients_judged"]["split"] == "train"
    fedconcord.run("fedavg", **common, rounds=2, out=tmp_path / "b")
    assert described(tmp_path / "b")["clients_judged"]["split"] == "validation"
    assert "validation=none" in described(tmp_path / "b")["evaluation"]["validation_why"]
