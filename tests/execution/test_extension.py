"""More rounds, or fewer, than a run was first asked for: its folder holds what one run of so many rounds writes."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import fedconcord
from fedconcord.execution.job import Row
from fedconcord.interface import api
from fedconcord.study.runs import plan
from fedconcord.study.settings.sources import from_nested
from training import execute_all
from watching import Rows

JOB: dict[str, Any] = {
    "data": "digits", "model": "logreg", "clients": 12, "cohort": 3, "eval.every": 4, "validation": 0.2,
    "eval.clients_every": 3, "engine.threads": 1, "local.steps": 2, "local.lr": 0.5,
}  # fmt: skip
FILES = ("metrics.csv", "fairness.csv", "model.safetensors", "checkpoint.safetensors", "clients.csv", "run.json")


def run(folder: Path, rounds: int, stop: int | None = None, **more: object) -> api.Finished:
    def on_row(row: Row) -> None:
        if row.round == stop:
            os.kill(os.getpid(), signal.SIGINT)

    return fedconcord.run("scaffold", out=folder, rounds=rounds, settings={**JOB, **more}, callbacks=[Rows(on_row)])


def assert_same(whole: Path, parts: Path) -> None:
    for name in FILES:
        assert (whole / name).read_bytes() == (parts / name).read_bytes(), name


def evaluated(folder: Path) -> list[int]:
    return [int(line.split(",")[0]) for line in (folder / "metrics.csv").read_text().splitlines()[1:]]


def test_a_longer_run_forgets_the_old_end(tmp_path: Path) -> None:
    run(tmp_path / "whole", 20)
    run(tmp_path / "parts", 10)
    assert evaluated(tmp_path / "parts") == [0, 4, 8, 10]
    fedconcord.run(resume=tmp_path / "parts", rounds=15)
    fedconcord.run(resume=tmp_path / "parts", rounds=20)
    assert evaluated(tmp_path / "parts") == [0, 4, 8, 12, 16, 20]
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_an_interrupted_run_may_end_where_it_was_stopped(tmp_path: Path) -> None:
    run(tmp_path / "whole", 10)
    assert run(tmp_path / "parts", 20, stop=10).status == "interrupted"
    fedconcord.run(resume=tmp_path / "parts", rounds=10)
    assert_same(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("min_delta", [0.0, 100.0])
def test_the_old_end_counts_neither_as_the_best_nor_against_patience(tmp_path: Path, min_delta: float) -> None:
    """Rounds 4, 8 and 10 were evaluated: the last is the best, or the one after which patience ends."""
    patience = {"eval.patience": 2, "eval.min_delta": min_delta}
    run(tmp_path / "whole", 20, **patience)
    run(tmp_path / "parts", 10, **patience)
    before = json.loads((tmp_path / "parts" / "run.json").read_text())
    assert ("stopped" in before) == (min_delta > 0)
    assert before["model_round"] == (4 if min_delta else 10)
    fedconcord.run(resume=tmp_path / "parts", rounds=20)
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_a_comparison_is_extended_past_an_early_stop_at_its_end(tmp_path: Path) -> None:
    def compare(folder: Path, rounds: int) -> list[api.Finished]:
        more = {**JOB, "eval.patience": 2, "eval.min_delta": 100.0, "rounds": rounds, "out": str(folder)}
        _, planned, _ = plan.plan_comparison(None, from_nested({**more, "methods": ["fedavg", "scaffold"]}, "test"))
        return execute_all(planned)

    whole = compare(tmp_path / "whole", 20)
    compare(tmp_path / "parts", 10)
    _, planned, _ = plan.plan_resumed_comparison(tmp_path / "parts", None, from_nested({"rounds": 20}, "test"))
    parts = execute_all(planned)
    assert [result.rounds for result in parts] == [result.rounds for result in whole] == [12, 12]
    for one, other in zip(whole, parts, strict=True):
        assert_same(one.folder, other.folder)


def test_a_run_that_diverged_stays_where_it_did(tmp_path: Path) -> None:
    wild = {"clients": 12, "cohort": 3, "eval.every": 4, "local.lr": 1e30}
    first = fedconcord.run("fedavg", data="quadratics", out=tmp_path, rounds=20, settings=wild)
    assert (first.status, first.rounds) == ("diverged", 4)
    again = fedconcord.run(resume=tmp_path, rounds=40)
    assert (again.status, again.rounds) == ("diverged", 4)
