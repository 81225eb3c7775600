"""What is minimised: the mean over samples or over clients, said once for all methods whose papers leave it open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedconcord
from fedconcord.execution.job import advance, start
from fedconcord.interface import cli
from fedconcord.method.algorithms import METHODS
from fedconcord.study.settings.job import build
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.sources import from_nested
from fedconcord.support import factories
from fedconcord.support.errors import UserError

SIZES = (12, 27, 161)


def write_table(folder: Path) -> Path:
    """Three sites of unlike sizes, whose rows differ."""
    draw = np.random.Generator(np.random.Philox(3))
    lines = ["site,x,z,y"]
    for site, n in enumerate(SIZES):
        x = draw.normal(site, 1, size=(n, 2))
        y = (x.sum(1) + draw.normal(size=n) > 2 * site).astype(int)
        lines += [f"s{site},{a:.4f},{b:.4f},{label}" for (a, b), label in zip(x, y, strict=True)]
    path = folder / "sites.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def job_of(path: Path, method: str = "fedavg", **more: Any) -> Any:
    nested = {
        "data": str(path),
        "method": method,
        "model": "logreg",
        "validation": None,
        "input": {"client": "site", "label": ["y"], "test_share": 0.2},
        "engine": {"dtype": "float64"},
        "local": {"steps": 1, "batch_size": "full"} | ({} if method == "auto" else {"lr": 0.5}),
        **more,
    }
    return build(resolve_run(from_nested(nested, "test")))


def after_a_round(job: Any) -> torch.Tensor:
    x: torch.Tensor = advance(job, start(job)).server.x
    return x


def test_one_full_step_goes_down_the_mean_over_samples_or_over_clients(tmp_path: Path) -> None:
    path = write_table(tmp_path)
    pooled = after_a_round(job_of(path, "pooled", cohort=1))  # one gradient of all samples in one place
    assert torch.allclose(after_a_round(job_of(path, objective="samples")), pooled, rtol=1e-12, atol=1e-14)
    assert torch.equal(after_a_round(job_of(path)), after_a_round(job_of(path, objective="samples")))
    alike = after_a_round(job_of(path, objective="clients"))
    assert not torch.allclose(alike, pooled, rtol=1e-2)


def test_every_method_that_leaves_it_open_follows(tmp_path: Path) -> None:
    path = write_table(tmp_path)
    open_ = {name for name, make in METHODS.items() if "weights" in {o.name for o in factories.options(make)}}
    assert {"fedavg", "scaffold", "fednova", "feddyn", "afedpd", "auto"} <= open_
    assert not {"losac", "fedadmm", "fedpd", "vrlsgd"} & open_
    for name in sorted(METHODS):
        alike = [
            job_of(path, name, objective=kind).algorithm.weights for kind in ("samples", "clients", "auto", "paper")
        ]
        usual = METHODS[name]().weights
        assert alike == (["size", "uniform", "size", usual] if name in open_ else [usual] * 4), name


def test_auto_is_by_samples_only_where_data_of_ones_own_come_in_clients(tmp_path: Path) -> None:
    path = write_table(tmp_path)
    assert job_of(path, "fedavg(weights=uniform)").algorithm.weights == "uniform"
    assert job_of(path, "fedavg(weights=uniform)", objective="samples").algorithm.weights == "uniform"
    assert job_of(path, partition="iid", clients=4).algorithm.weights == "uniform"
    assert job_of(path, aggregate="median").algorithm.weights == "uniform"
    assert job_of(path, sampling="by_size", cohort=2).algorithm.weights == "uniform"
    with pytest.raises(UserError, match=r"objective samples weighs .* sampling by_size draws them by size"):
        job_of(path, objective="samples", sampling="by_size", cohort=2)
    named = {"data": "digits", "model": "logreg", "clients": 5}
    run = resolve_run(from_nested({**named, "method": "fedavg"}, "test"))
    assert run.algorithm["weights"] == "uniform"
    run = resolve_run(from_nested({**named, "method": "fednova"}, "test"))
    assert run.algorithm["weights"] == "size"


def test_auto_leaves_sizes_unsaid_where_privacy_is_wanted(tmp_path: Path) -> None:
    statistics = tmp_path / "statistics.json"
    path = write_table(tmp_path)
    public = {"columns": [{"name": name, "kind": "number", "mean": 1.0, "scale": 1.0} for name in ("x", "z")]}
    statistics.write_text(json.dumps(public))
    private = {"privacy": {"clip": 1.0, "noise": 1.0}}
    nested = {
        "data": str(path),
        "method": "fedavg",
        "input": {"client": "site", "label": ["y"], "statistics": str(statistics)},
        **private,
    }
    assert resolve_run(from_nested(nested, "test")).algorithm["weights"] == "uniform"


def compared(path: Path, out: Path, *more: str) -> Path:
    words = ["compare", "--data", str(path), "--client-column", "site", "--label-column", "y", "--rounds", "2"]
    words += ["--methods", "fedavg,losac", "--model", "logreg", "--out", str(out), *more]
    assert cli.call(words) == 0
    return out


def test_command_report_and_advice_say_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_table(tmp_path)
    out = compared(path, tmp_path / "out")
    said = " ".join(capsys.readouterr().out.split())
    assert "every sample counts alike in what is minimised, but every client alike with losac, as published" in said
    page = (out / "report.html").read_text()
    assert "fedavg minimises the mean over samples, so that clients count by what they hold" in page
    assert "losac minimises the mean over clients, which count alike" in page
    head = json.loads((out / "fedavg" / "seed-0" / "run.json").read_text())
    assert head["objective"] == "samples"
    assert head["config"]["algorithm"]["weights"] == "size"
    assert cli.call(["advise", "--data", str(path), "--client-column", "site", "--label-column", "y"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "every sample counts alike in what is minimised, so that the largest client counts" in said
    words = ["advise", "--data", str(path), "--client-column", "site", "--label-column", "y", "--objective", "clients"]
    assert cli.call(words) == 0
    assert "every client counts alike in what is minimised, the smallest as much as one" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.slow
def test_a_comparison_from_before_goes_on_with_the_weights_that_it_had(tmp_path: Path) -> None:
    path = write_table(tmp_path)
    out = compared(path, tmp_path / "out", "--objective", "paper")
    for file in out.rglob("*.json"):
        if file.name in ("compare.json", "run.json"):
            saved = json.loads(file.read_text())
            del saved["config"]["objective"]
            saved.pop("objective", None)
            file.write_text(json.dumps(saved))
    for sums in out.rglob("checksums*"):
        sums.unlink()
    fedconcord.compare(resume=out, settings={"seeds": [1]})
    head = json.loads((out / "fedavg" / "seed-1" / "run.json").read_text())
    assert head["config"]["algorithm"]["weights"] == "uniform"
