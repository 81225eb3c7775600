"""Recorded results: the same seeds give the same clients, batches and counts, and iterates to 1e-12, release after
release. `python tests/test_golden.py` records anew, which is a decision and not a repair.
"""

import csv
import hashlib
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import fedconcord

RECORD = Path(__file__).parent / "golden.json"
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


def test_the_record_holds_what_is_run() -> None:
    recorded = json.loads(RECORD.read_text())
    assert recorded.keys() == CASES.keys()
    assert all(math.isfinite(v) for case in recorded.values() for values in case["metrics"].values() for v in values)


if __name__ == "__main__":
    named = sys.argv[1:] or list(CASES)
    found = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    for name in named:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = result(name, Path(folder) / "run", "stacked")
        print(name, {k: v[-1] for k, v in found[name]["metrics"].items()})
    RECORD.write_text(json.dumps({name: found[name] for name in CASES if name in found}, indent=1) + "\n")
