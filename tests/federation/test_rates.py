"""Local step sizes by round: closed forms, the same in settings, from Python and by hand, resumed, on engines."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedconcord
from fedconcord.execution.engines import Engine, Serial, Stacked, Wire
from fedconcord.execution.job import Job, advance, plan_of, start
from fedconcord.federation.objectives import quadratics
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import constant, cosine, linear, rate_at, step
from fedconcord.interface import cli
from fedconcord.method.algorithms import METHODS
from fedconcord.support.errors import UserError

JOB: dict[str, Any] = {"data": "digits", "model": "logreg", "clients": 6, "cohort": 3, "rounds": 6, "eval_every": 1}


def read_metrics(folder: Path) -> list[dict[str, str]]:
    with open(folder / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_closed_forms() -> None:
    falling = cosine(rounds=10, floor=0.2, warmup=2)
    assert [falling(0), falling(1), falling(2)] == [0.5, 1.0, 1.0]
    assert falling(6) == pytest.approx(0.2 + 0.8 / 2)
    assert falling(4) == pytest.approx(0.2 + 0.8 * (1 + math.cos(math.pi / 4)) / 2)
    assert falling(10) == falling(500) == pytest.approx(0.2)
    line = linear(rounds=10, floor=0.5)
    assert [line(t) for t in (0, 5, 10, 11)] == pytest.approx([1, 0.75, 0.5, 0.5])
    assert [step(every=3, factor=0.1)(t) for t in (0, 2, 3, 6)] == pytest.approx([1, 1, 0.1, 0.01])
    assert [constant(warmup=4)(t) for t in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    with pytest.raises(UserError, match="has no round after a warmup of 10"):
        cosine(rounds=10, warmup=10)


@pytest.mark.parametrize("engine", [Serial(), Stacked(None), Wire()])
def test_a_schedule_takes_a_function_of_the_round(engine: Engine) -> None:
    """One full gradient step a round with all clients: x moves by the round's step size times the mean gradient."""
    problem = quadratics(0, 4, torch.float64, torch.device("cpu"), dim=3, blocks=1)
    job = Job(problem, METHODS["fedavg"](), Schedule(0, 4, lambda round: 0.1 / (round + 1)), engine=engine)
    state = start(job)
    for t in range(4):
        x = state.server.x
        mean = torch.stack([problem.gradient(x, torch.tensor([i])) for i in range(4)]).mean(0)
        assert plan_of(job, state).lr == 0.1 / (t + 1)
        state = advance(job, state)
        assert torch.allclose(state.server.x, x - 0.1 / (t + 1) * mean, rtol=1e-13)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, "fast", None])
def test_what_is_no_step_size_is_a_sentence(value: Any) -> None:
    with pytest.raises(UserError, match=r"^the step size of round 3 is .*must give a number > 0$"):
        rate_at(lambda round: value, 3)


def test_settings_functions_and_paths_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ownrates.py").write_text("def half(round, after=2):\n    return 1.0 if round < after else 0.5\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import ownrates  # type: ignore[import-not-found]

    ways = {"name": "step(2, 0.5)", "path": "ownrates:half", "function": ownrates.half}
    for name, way in ways.items():
        settings = {"lr_schedule": way, "rounds": 4}
        fedconcord.run("scaffold", **JOB | settings, lr=0.2, out=tmp_path / name)
    first = read_metrics(tmp_path / "name")
    assert [read_metrics(tmp_path / name) for name in ways] == [first] * 3
    fedconcord.run("scaffold", **JOB | {"rounds": 4}, lr=0.2, out=tmp_path / "plain")
    assert read_metrics(tmp_path / "plain")[:3] == first[:3]
    assert read_metrics(tmp_path / "plain")[3] != first[3]


def test_a_resumed_run_meets_the_same_step_sizes(tmp_path: Path) -> None:
    chosen = JOB | {"lr_schedule": "cosine(6, warmup=2)", "lr": 0.3}
    fedconcord.run("feddyn", **chosen, out=tmp_path / "whole")
    fedconcord.run("feddyn", **chosen | {"rounds": 3}, out=tmp_path / "parts")
    fedconcord.run(resume=tmp_path / "parts", rounds=6)
    assert (tmp_path / "parts" / "metrics.csv").read_bytes() == (tmp_path / "whole" / "metrics.csv").read_bytes()


@pytest.mark.slow
def test_the_command_and_a_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["--data", "quadratics(dim=3)", "--clients", "4", "--cohort", "2", "--rounds", "3"]
    methods = ["compare", "--methods", "fedavg,scaffold", "--seeds", "0"]
    assert cli.call([*methods, *base, "--set", "lr_schedule=linear(3)", "--out", str(tmp_path / "c")]) == 0
    assert cli.call(["run", *base, "--set", "lr_schedule=cosin(3)", "--out", str(tmp_path / "r")]) == 2
    assert "did you mean 'cosine'" in capsys.readouterr().err
    done = fedconcord.compare(["fedavg"], **JOB, seeds=[0], lr_schedule=lambda round: 0.9**round, out=tmp_path / "d")
    assert [run.status for run in done.runs] == ["complete"]
    assert np.isfinite(float(read_metrics(tmp_path / "d" / "fedavg" / "seed-0")[-1]["test_loss"]))
