"""How often models are judged where the settings leave it to counted work, and where the seconds of a run go."""

import csv
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedconcord
from fedconcord.execution.run.clock import PARTS, Clock
from fedconcord.study.runs import plan
from fedconcord.study.runs.records import why_evaluated
from fedconcord.study.settings import judging
from fedconcord.study.settings.judging import Judged, looks, rule, samples_a_round
from fedconcord.study.settings.problem import problem_of
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.settings import EvalSettings
from fedconcord.study.settings.sources import from_nested

JOB = {"data": "digits", "model": "logreg", "clients": 12, "cohort": 4, "rounds": 3, "validation": "none"}
MNIST = Judged(tested=10_000, trained=60_000, multiplications=199_210, everyone=60_000)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """No job is too small for the rule."""
    monkeypatch.setattr(judging, "FREE", 0)


@pytest.mark.parametrize(
    ("of", "per_round", "given", "wanted"),
    [
        (MNIST, 6_000, {}, (5, 2_000)),  # jobs A and B: 12,000 forward for every 30,000 trained on
        (MNIST, 5_000, {}, (5, 2_000)),  # CIFAR-10, 10 of 100 clients
        (MNIST, 600, {}, (50, 2_000)),
        (MNIST, 30_000, {}, (1, 5_000)),  # the sample of the train loss shrinks before evaluations become fewer
        (MNIST, 60_000, {}, (1, 10_000)),
        (MNIST, 6_000, {"every": 1}, (1, 2_000)),
        (MNIST, 6_000, {"target": 0.9}, (1, 2_000)),
        (MNIST, 6_000, {"target": 0.9, "every": 10}, (10, 10_000)),
        (MNIST, 6_000, {"patience": 3}, (1, 2_000)),
        (MNIST, 6_000, {"every": 10}, (10, 10_000)),
        (MNIST, 6_000, {"train_samples": 10_000}, (10, 10_000)),
        (MNIST, 6_000, {"every": 3, "train_samples": 7}, (3, 7)),
        (MNIST._replace(multiplications=7_850), 3_000, {}, (1, 10_000)),  # nobody waits for that
        (MNIST._replace(tested=360, trained=1_437), 290, {}, (1, 10_000)),
        (MNIST._replace(trained=500), 6_000, {}, (5, 2_000)),
        (None, 100, {}, (1, 10_000)),
    ],
)
def test_the_rule(of: Judged | None, per_round: float, given: dict[str, Any], wanted: tuple[int, int]) -> None:
    found = rule(of, per_round, EvalSettings(**given))
    assert (found.every, found.train_samples) == wanted


@pytest.mark.parametrize(
    ("local", "wanted"),
    [
        ({}, 4 * 1437 / 12),
        ({"epochs": 4}, 4 * 4 * 1437 / 12),
        ({"epochs": "per_client([1,2,3,1,2,3,1,2,3,1,2,3])"}, 2 * 4 * 1437 / 12),
        ({"steps": 12, "batch_size": 10}, 4 * 1437 / 12),  # 120 samples a client are 12 batches
        ({"steps": 7, "batch_size": "full"}, 7 * 4 * 1437 / 12),
    ],
)
def test_samples_of_a_round_are_counted(local: dict[str, object], wanted: float) -> None:
    config = resolve_run(from_nested({**JOB, "local": local}, "test"))
    assert samples_a_round(config, problem_of(config)) == pytest.approx(wanted)


def rounds_of(folder: Path) -> list[int]:
    with open(folder / "metrics.csv", newline="") as file:
        return [int(row["round"]) for row in csv.DictReader(file)]


@pytest.mark.usefixtures("counted")
def test_methods_of_a_comparison_share_what_the_rule_says(tmp_path: Path) -> None:
    given = {**JOB, "methods": ["fedavg", "fedprox(mu=0.1, local.epochs=50)"], "out": str(tmp_path / "c")}
    folder, planned, _ = plan.plan_comparison(None, from_nested(given, "test"))
    alike = {(one.config.eval.every, one.config.eval.train_samples) for one in planned}
    assert alike == {(10, 2_000)}  # 1,797 forward, 479 trained on by fedavg
    one, two = (problem_of(entry.config) for entry in planned)
    assert one is two
    why = why_evaluated(folder)
    assert why is not None
    assert why.startswith("evaluates every 10 rounds, the train loss on 2,000 samples: an evaluation puts 1,797")
    _, again, _ = plan.plan_resumed_comparison(folder, None)
    assert [one.config for one in again] == [one.config for one in planned]


@pytest.mark.usefixtures("counted")
def test_a_run_says_how_it_was_evaluated_and_goes_on_like_that(tmp_path: Path) -> None:
    fedconcord.run(settings=JOB, out=tmp_path / "parts")
    assert rounds_of(tmp_path / "parts") == [0, 3]  # the last round always
    said = json.loads((tmp_path / "parts" / "run.json").read_text())["evaluation"]
    assert (said["every"], said["train_samples"], said["clients"]) == (10, 2_000, False)
    assert not (tmp_path / "parts" / "clients.csv").exists()
    assert "a round trains on about 479; eval.every" in said["why"]
    assert "leaves out the look at all clients" in said["why"]
    fedconcord.run(resume=tmp_path / "parts", rounds=12)
    assert rounds_of(tmp_path / "parts") == [0, 10, 12]
    fedconcord.run(settings={**JOB, "rounds": 12}, out=tmp_path / "whole")
    for name in ("metrics.csv", "clients.csv", "run.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()


def test_the_last_look_at_all_clients_costs_at_most_half_of_the_evaluations() -> None:
    def looked(rounds: int, **chosen: object) -> bool:
        config = resolve_run(from_nested({**JOB, "rounds": rounds, "eval": chosen}, "test"))
        of = MNIST._replace(everyone=60_000)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(judging, "judges", lambda problem: of)
            return looks(config, problem_of(config))

    assert [looked(r, every=5, train_samples=2_000) for r in (20, 44, 45, 100)] == [False, False, True, True]
    assert looked(20, every=1, train_samples=2_000)
    assert looked(1, every=5, train_samples=2_000, clients=True)
    assert not looked(100, every=5, train_samples=2_000, clients=False)


# -- seconds -------------------------------------------------------------------------------------------------------


def test_a_clocks_parts_add_up() -> None:
    times: Iterator[float] = iter([10.0, 11.5, 14.0])
    clock = Clock(began=8.0, now=lambda: next(times))
    clock.lap("start")
    clock.lap("load")
    clock.lap("evaluate")
    clock.move(2.0, "evaluate", "train")
    assert clock.seconds == {"start": 4.0 - 2.0, "load": 1.5, "compile": 0, "train": 2.0, "evaluate": 0.5, "write": 0}
    assert clock.sentence() == "time: 6.0 s (start 2.0, load 1.5, train 2.0, evaluate 0.5)"


def test_seconds_of_a_run_and_of_the_run_that_goes_on(tmp_path: Path) -> None:
    def seconds() -> dict[str, float]:
        found: dict[str, float] = json.loads((tmp_path / "seconds.json").read_text())
        return found

    def trained() -> float:
        with open(tmp_path / "timing.csv", newline="") as file:
            return sum(float(row["seconds"]) for row in csv.DictReader(file))

    began = time.perf_counter()
    fedconcord.run(settings=JOB, out=tmp_path)
    first = seconds()
    assert tuple(first) == PARTS
    assert 0 < trained() <= first["train"] + 1e-5
    assert min(first["load"], first["evaluate"], first["write"]) > 0
    assert sum(first.values()) <= time.perf_counter() - began
    fedconcord.run(resume=tmp_path, rounds=5)
    both = seconds()
    assert trained() <= both["train"] + 1e-5
    assert all(both[part] >= first[part] for part in PARTS)
    assert first["train"] < both["train"]
    assert sum(both.values()) <= time.perf_counter() - began
