"""Recorded results: the same seeds give the same clients, batches and counts, and iterates to 1e-12, release after
release; and a search, an arena and a paper's experiment come to the same choices. `PYTHONPATH=tests:tests/papers python
tests/whole/test_golden.py NAME...` records the named cases anew, which is a decision and not a repair.
"""

import csv
import hashlib
import json
import math
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_reproduce import SMALL, done
from torch import nn

import fedconcord
from fedconcord.federation.participation.dropout import fixed
from fedconcord.federation.participation.work import uniform
from tiers import tiers

RECORD = Path(__file__).parents[1] / "golden.json"
COMMON = {
    "data": "digits",
    "model": "logreg",
    "clients": 20,
    "cohort": 6,
    "rounds": 5,
    "engine": "stacked",
    "dtype": "float64",
    "lr": 0.1,
    "batch_size": 10,
    "epochs": "uniform(1,3)",
    "partition": "dirichlet(0.3)",
}
SLOW = {"devices": "lognormal(0.7)", "deadline": 0.5}
CASES: dict[str, dict[str, Any]] = {
    "fedavg": {"method": "fedavg(weights=size)", "model": "2nn", "rounds": 3},
    "scaffold on disk": {"method": "scaffold", "settings": {"engine.store": "disk"}, "dropout": 0.2},
    "scaffold, option 1, half rows": {"method": "scaffold(option=1)", "settings": {"engine.rows": "bfloat16"}},
    "feddyn, bernoulli": {"method": "feddyn", "sampling": "bernoulli(0.3)", "dropout": "by_client(0,0.4)"},
    "fedvra, with replacement": {"method": "fedvra(d=inverse_p)", "sampling": "with_replacement"},
    "fednova, momentum, weight decay": {"method": "fednova", "momentum": 0.9, "settings": {"local.weight_decay": 1e-3}},
    "losac, all clients once": {"method": "losac(init=gradient)", "sampling": "cyclic"},
    "fedsaga table on feddyn": {"method": "feddyn", "oracle": "saga(4)"},
    "mimesvrg, chosen by loss": {"method": "mimesvrg", "sampling": "power_of_choice(12)"},
    "afedpd, quantised with feedback": {"method": "afedpd", "upload": "quantise(7, feedback=true)"},
    "fedavg, adam, top entries": {"method": "fedavg", "server": "adam", "upload": "topk(0.1)"},
    "scaffold, late kept": {"method": "scaffold", "late": "keep", "dropout": 0.1, **SLOW},
    "afedpd, late kept": {"method": "afedpd", "late": "keep", **SLOW},
    "fedprox, late lost, markov": {"method": "fedprox(mu=0.2)", "availability": "markov(0.3,0.5)", **SLOW},
    "fedpd, rounds without messages": {"method": "fedpd(p_skip=0.5)", "cohort": 20},
    "vrlsgd": {"method": "vrlsgd", "cohort": 20},
    "mfl, own shards": {"method": "mfl", "partition": "shards(2)"},
    "feddyn, L-BFGS": {"method": "feddyn", "settings": {"local.solver": "lbfgs", "local.tolerance": 1e-3}},
    "fedspeed": {"method": "fedspeed", "rounds": 3},
    "losac, sparse": {"method": "losac(block_scale=mean)", "regulariser": "l1(0.001)"},
    "inexact admm, lasso": {"method": "fedadmm_inexact", "data": "lasso_diabetes", "lr": 0.02},
    "low rank": {"method": "losac", "data": "low_rank(dim=8, rank=2, samples=10)", "steps": 4, "lr": 0.01},
    "semi-supervised": {"method": "fedvra", "task": "semi", "labels": "labelled(0.2)", "rounds": 3},
    "clustering": {"method": "fedavg", "task": "clustering(k=4)", "rounds": 3, "lr": 0.01},
    "scaffold, prototypes": {"method": "scaffold", "term": "proto", "model": "2nn", "rounds": 3},
    "fedproto": {"method": "fedavg", "term": "proto", "model": "2nn", "rounds": 3, "settings": {"local.private": "*"}},
}
COUNTS = ("round", "bytes_up", "bytes_down", "gradient_steps")
TOP = ("dropout", "late", "devices", "deadline", "availability", "task", "labels", "regulariser")


def result(case: str, folder: Path, engine: str) -> dict[str, Any]:
    """What a run leaves: its metrics, and digests of what is whole numbers."""
    given = COMMON | CASES[case]
    own = CASES[case]
    absent = {"epochs": "steps" in own, "partition": "data" in own, "model": "data" in own or case == "clustering"}
    given = {key: value for key, value in given.items() if not absent.get(key)}
    settings = dict(given.pop("settings", {})) | {key: given.pop(key) for key in TOP if key in given}
    done = fedconcord.run(out=folder, settings=settings, **given | {"engine": engine})
    with open(done.folder / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    partition = done.folder / "partition.csv"
    text = partition.read_text() if partition.exists() else ""
    return {
        "partition": hashlib.sha256(text.encode()).hexdigest()[:16],
        "counts": {name: [int(row[name]) for row in rows] for name in COUNTS},
        "metrics": {name: [float(row[name]) for row in rows] for name in rows[0] if name not in COUNTS},
    }


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore:outside FedVRA")
def test_results_are_those_that_were_recorded(case: str, tmp_path: Path) -> None:
    recorded = json.loads(RECORD.read_text())[case]
    engines = ("serial", "stacked") if case in list(CASES)[::5] else ("stacked",)
    for engine in engines:
        found = result(case, tmp_path / engine, engine)
        assert found["partition"] == recorded["partition"]
        assert found["counts"] == recorded["counts"], engine
        assert found["metrics"].keys() == recorded["metrics"].keys()
        # processors without AVX2 round a model's start, which torch draws in float32, in another last bit
        same = all(
            found["metrics"][name][0] == pytest.approx(v[0], rel=1e-11) for name, v in recorded["metrics"].items()
        )
        for name, values in recorded["metrics"].items():
            assert found["metrics"][name] == pytest.approx(values, rel=1e-11 if same else 1e-8, abs=1e-12), (
                engine,
                name,
            )


# -- every method on three engines ---------------------------------------------------------------------------------

ENGINES: dict[str, Callable[[], fedconcord.Engine]] = {
    "serial": fedconcord.Serial,
    "stacked": fedconcord.Stacked,
    "wire": fedconcord.Wire,
}
METHOD_ROUNDS = 6
EVERY = [f"every method: {method}" for method in fedconcord.METHODS]


def quadratic() -> fedconcord.Problem:
    return fedconcord.PROBLEMS["quadratics"](1, 7, torch.float64, torch.device("cpu"), blocks=5)


def logistic() -> fedconcord.Problem:
    """Seven clients with 5 to 17 samples, of three classes."""
    draw = np.random.default_rng(5)
    sizes = 5 + 2 * np.arange(7)
    x = draw.standard_normal((int(sizes.sum()) + 6, 3)).astype(np.float32)
    y = draw.integers(0, 3, len(x))
    data = fedconcord.Dataset("normal", x[:-6], y[:-6], x[-6:], y[-6:], classes=3)
    parts = np.split(np.arange(len(x) - 6), np.cumsum(sizes)[:-1])
    return fedconcord.Supervised(lambda: nn.Linear(3, 3), data, parts, dtype=torch.float64)


def method_result(method: str, problem: fedconcord.Problem, engine: fedconcord.Engine) -> dict[str, Any]:
    """The server's models after each round, all in one row, and what the rounds cost."""
    algorithm = replace(fedconcord.METHODS[method](), client_model=None)  # the server's model is judged
    everyone = algorithm.needs.everyone or method == "vrlsgd"
    schedule = fedconcord.Schedule(
        seed=3, cohort=7 if everyone else 4, lr=0.05, work=uniform(1, 4), unit="steps", batch_size=2
    )
    if not everyone:
        schedule = replace(schedule, dropout=fixed(0.2))
    job = fedconcord.Job(problem, algorithm, schedule, engine=engine)
    state = fedconcord.start(job)
    counts: dict[str, list[int]] = {name: [] for name in ("bytes_up", "bytes_down", "gradient_steps")}
    models = []
    for _ in range(METHOD_ROUNDS):
        state = fedconcord.advance(job, state)
        for name, values in counts.items():
            values.append(int(getattr(state, name)))
        parts = algorithm.models(state.server)
        models.append([float(v) for name in sorted(parts) for v in parts[name].flatten()])
    metrics = fedconcord.evaluate(job, state)
    return {"counts": counts, "models": models, "metrics": dict(metrics)}


def every_result(case: str, engine: str) -> dict[str, Any]:
    """Of both problems; the longer models of the second are kept of the last round alone."""
    method = case.removeprefix("every method: ")
    found = {"quadratic": method_result(method, quadratic(), ENGINES[engine]())}
    found["logistic"] = method_result(method, logistic(), ENGINES[engine]())
    found["logistic"]["models"] = found["logistic"]["models"][-1:]
    return found


EACH = list(product(EVERY, ENGINES))


# each method is quick on one engine, in turn: four steps along the pairs are the next method and the next engine
@pytest.mark.parametrize(("case", "engine"), tiers(EACH, EACH[::4]))
@pytest.mark.filterwarnings("ignore:outside FedVRA")
def test_every_method_comes_to_the_recorded_iterates_on_three_engines(case: str, engine: str) -> None:
    assert_same(every_result(case, engine), json.loads(RECORD.read_text())[case], case)


# -- one search, one arena, one paper's experiment -----------------------------------------------------------------

DIGITS = {"data": "digits", "model": "logreg", "clients": 8, "cohort": 4, "rounds": 8, "dtype": "float64"}
FEDERATION = """
[[federation]]
name = "sorted"
role = "choose"
data = "ridge_diabetes(skew=0.4)"
clients = 6
cohort = 3
rounds = 8
local.steps = 3
engine.dtype = "float64"
"""


def rounds_of(folder: Path) -> dict[str, int]:
    """How many rounds each run below a folder has come to."""
    found = {}
    for path in sorted(folder.rglob("metrics.csv")):
        with open(path, newline="") as file:
            found[path.parent.relative_to(folder).as_posix()] = int(list(csv.DictReader(file))[-1]["round"])
    return found


def tune_result(folder: Path) -> dict[str, Any]:
    tuned = fedconcord.tune(["fedavg", "fedprox"], budget=5, seeds=[0], final_seeds=[5], out=folder / "tune", **DIGITS)
    return {
        "metric": tuned.metric,
        "methods": {
            one.method: {
                "best": one.best,
                "values": dict(one.values),
                "score": one.score,
                "untuned": one.untuned,
                "edges": len(one.edges),
            }
            for one in tuned.methods
        },
        "trials": rounds_of(tuned.folder / "trials"),
        "final": {f"{run.label} {run.seed}": dict(run.metrics) for run in tuned.runs},
    }


def arena_result(folder: Path) -> dict[str, Any]:
    file, out = folder / "small.toml", folder / "arena"
    file.write_text(FEDERATION)
    methods = ["scaffold", "fedprox(mu=1)", "fedpd", "fedavg(server_lr=1e6,label=wild)"]
    fedconcord.arena(methods, federations=[str(file)], budget=2, seeds=[0], out=out)
    found = json.loads((out / "arena.json").read_text())
    (one,) = found["federations"]
    kept = ("metric", "targets", "trial_target", "reference")
    return {
        **{name: one[name] for name in kept},
        "tuning_seeds": found["tuning_seeds"],
        "refused": list(one["refused"]),
        "methods": [
            {name: value for name, value in method.items() if name != "slower"}  # which is measured seconds
            for method in one["methods"]
        ],
    }


def recipe_result(folder: Path) -> dict[str, Any]:
    """A grid searched in one cell of two, then compared; and the cheapest of the package."""
    given = {**SMALL.experiment.settings, "engine.dtype": "float64"}
    done(folder / "own", recipe=SMALL._replace(experiment=SMALL.experiment._replace(settings=given)))
    judged = fedconcord.reproduce("local_tolerance", size="quick", out=folder / "papers")
    kept = ("values", "chosen", "searched")
    found = {path.parent.name: json.loads(path.read_text()) for path in sorted(folder.rglob("done.json"))}
    rows = judged.sizes["quick"].values
    return {
        "findings": [claim.judge(rows).outcome for claim in judged.recipe.claims],
        **{name: {key: one[key] for key in kept} for name, one in found.items()},
    }


STUDIES = {"tune": tune_result, "arena": arena_result, "recipe": recipe_result}


def assert_same(found: Any, recorded: Any, where: str) -> None:
    """Equal names, words and whole numbers; numbers with a point to 1e-11."""
    if isinstance(recorded, dict):
        assert list(found) == list(recorded), where
        for name, value in recorded.items():
            assert_same(found[name], value, f"{where}, {name}")
    elif isinstance(recorded, list):
        assert len(found) == len(recorded), where
        for k, value in enumerate(recorded):
            assert_same(found[k], value, f"{where}, {k}")
    elif isinstance(recorded, float):
        assert found == pytest.approx(recorded, rel=1e-11, abs=1e-12, nan_ok=True), where
    else:
        assert found == recorded, where


@pytest.mark.parametrize("study", tiers(STUDIES, []))
def test_a_study_comes_to_the_recorded_choices(study: str, tmp_path: Path) -> None:
    found = json.loads(json.dumps(STUDIES[study](tmp_path)))
    assert_same(found, json.loads(RECORD.read_text())[study], study)


# -- the record ----------------------------------------------------------------------------------------------------


def numbers(record: Any) -> list[float]:
    """Every number of the record."""
    if isinstance(record, dict):
        return [v for value in record.values() for v in numbers(value)]
    if isinstance(record, list):
        return [v for value in record for v in numbers(value)]
    return [record] if isinstance(record, int | float) else []


def test_the_record_holds_what_is_run() -> None:
    recorded = json.loads(RECORD.read_text())
    assert list(recorded) == [*CASES, *EVERY, *STUDIES]
    assert all(math.isfinite(v) for name in [*CASES, *EVERY] for v in numbers(recorded[name]))


def measured(case: str, folder: Path) -> dict[str, Any]:
    if case in STUDIES:
        return STUDIES[case](folder)
    return result(case, folder / "run", "stacked") if case in CASES else every_result(case, "serial")


def write(recorded: dict[str, Any]) -> None:
    """The first cases with a number a line, as they always were, and the others with a line a case."""
    first = json.dumps({name: recorded[name] for name in CASES}, indent=1).removesuffix("\n}")
    rest = [f" {json.dumps(name)}: {json.dumps(recorded[name])}" for name in [*EVERY, *STUDIES]]
    RECORD.write_text(",\n".join([first, *rest]) + "\n}\n")


if __name__ == "__main__":
    every = [*CASES, *EVERY, *STUDIES]
    recorded = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    for name in sys.argv[1:] or every:
        with tempfile.TemporaryDirectory() as folder:
            recorded[name] = measured(name, Path(folder))
        print(name)
    write(recorded)
