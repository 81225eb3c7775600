"""The benchmarks run and say what they measured; time itself is never tested."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedconcord import METHODS, MODELS, Dataset, Plan, Supervised, advance, start
from fedconcord_natural import CARDS
from table import batches_of
from tiers import tiers

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FIELDS = {"seconds_per_round", "accuracy", "peak_rss_bytes", "versions", "threads", "setting", "options", "engine"}


def measured(data_dir: Path, *arguments: str, script: str = "jobs.py") -> dict[str, Any]:
    """The one JSON line that a benchmark prints."""
    command = [sys.executable, str(BENCHMARKS / script), *arguments, "--quick", "--rounds", "3", "--warmup", "1"]
    environment = {**os.environ, "FEDCONCORD_DATA": str(data_dir)}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=300)
    (line,) = done.stdout.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


JOBS = ("A", "B", "C --engine serial", "E --method scaffold --store disk")


@pytest.mark.parametrize("arguments", tiers(JOBS, quick=JOBS[-1:]))
def test_a_job_says_what_it_measured(data_dir: Path, arguments: str) -> None:
    found = measured(data_dir, *arguments.split())
    assert set(found) >= FIELDS
    took = found["seconds_per_round"]
    assert len(took["all"]) == 3
    assert min(took["all"]) <= took["median"] <= max(took["all"])
    assert 0.1 < found["accuracy"] <= 1
    assert found["peak_rss_bytes"] > 50e6
    assert found["gradient_steps_per_round"] == found["setting"]["client_steps"]


BASELINES = (("losac", "fedavg, blocks"), ("vrlsgd", "fedavg, all clients"))


@pytest.mark.parametrize(("name", "baseline"), tiers(BASELINES, quick=[]))
def test_ratios_to_fedavg(data_dir: Path, name: str, baseline: str) -> None:
    found = measured(data_dir, "D", "--method", name)
    assert set(found) >= FIELDS
    assert found["refused"] == {}
    methods = found["methods"]
    assert set(methods) == {name, baseline, "fedavg, job A"}
    assert methods[name]["baseline"] == baseline
    assert methods[name]["gradient_ratio"] == 1
    assert methods["fedavg, job A"]["ratio"] == 1


@pytest.mark.slow  # a process beside the command's own
def test_job_g_says_where_the_commands_time_went(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "command.py"), "--jobs", "digits", "--rounds", "2", "--repeat", "1"]
    command += ["--out", str(tmp_path / "g.json")]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines()[2].startswith("| digits | ")
    ((one,),) = json.loads((tmp_path / "g.json").read_text()).values()
    assert sum(one["seconds"].values()) == pytest.approx(one["wall"])
    assert min(one["seconds"][part] for part in ("start", "train", "evaluate", "end")) > 0


@pytest.mark.slow
@pytest.mark.slow
def test_models_take_turns_with_plain_loops() -> None:
    command = [sys.executable, str(BENCHMARKS / "models.py"), "--only", "normalisation", "--turns", "2"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()[2:]]
    assert [(row[1], row[2]) for row in rows[:2]] == [
        ("plain loop, BatchNorm", ""),
        ("BatchNorm", "plain loop, BatchNorm"),
    ]
    assert len(rows) == 8
    for first, other in zip(rows[::2], rows[1::2], strict=True):
        assert float(first[3].removesuffix(" ms")) > 0
        middle, low, high = (float(number) for number in re.findall(r"[\d.]+", other[3]))
        assert low <= middle <= high


def test_scale_has_a_row_for_every_method() -> None:
    command = [sys.executable, str(BENCHMARKS / "scale.py"), "--clients", "200,2000", "--models", "logreg"]
    command += ["--methods", "scaffold", "--rounds", "2", "--warmup", "1"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    head, _, row = done.stdout.splitlines()[-3:]
    cells = row.strip("| ").split(" | ")
    assert cells[:2] == ["logreg", "scaffold"]
    assert len(cells) == head.count("|") - 1 == 7
    assert all(float(cell) > 0 for cell in cells[2:])


def test_the_plain_loop_trains_the_same_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Same start, cohorts and order of samples: the loop that the tables compare with does the work that ours does."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import jobs
    import plain
    import settings

    rng = np.random.default_rng(0)
    args = jobs.parser().parse_args(["A", "--dtype", "float64"])
    for setting in (
        settings.Setting("noise", "2nn", 6, 3, 25, 10, 2, None, 0.1),  # the last batch of an epoch is short
        settings.Setting("noise", "cnn1", 4, 2, 6, 3, 1, None, 0.1),
        settings.Setting("noise", "logreg", 8, 4, 5, None, None, 3, 0.1),
    ):
        n = setting.clients * setting.samples
        x, y = rng.standard_normal((n, 1, 28, 28)).astype(np.float32), rng.integers(10, size=n)
        parts = np.split(np.arange(n), setting.clients)
        problem = Supervised(
            lambda name=setting.model: MODELS[name]((1, 28, 28), 10), Dataset("", x, y, x, y, 10), parts
        )
        job = jobs.job_of(setting, problem, METHODS["fedavg"](), args)
        state = start(job)
        federation = settings.Federation(x, y, problem.offsets, x, y)
        loop = plain.loop_of(setting, federation)
        model = problem.init(0).clone()
        for round in range(2):
            plan = job.schedule.plan(round, job.algorithm, problem.roster)
            state = advance(job, state)
            total = torch.zeros_like(model)
            work = work_of(setting, plan, batches_of(job, plan))
            plain.train(loop, plain.views(model, loop.model), plain.views(total, loop.model), work)
            model = total
        assert torch.allclose(state.server.x, model, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(problem.init(0), model, atol=1e-3)


def work_of(setting: Any, plan: Plan, batches: list[np.ndarray | None]) -> list[tuple[int, list[torch.Tensor | None]]]:
    """A plan's clients with the order of their samples in every pass."""
    return [
        (
            int(i),
            [None] * int(steps) if own is None else [*map(torch.from_numpy, np.split(own[own >= 0], setting.epochs))],
        )
        for i, steps, own in zip(plan.ids, plan.steps, batches, strict=True)
    ]


def test_contestants_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Round k of each comes before round k + 1 of any, and one that fails says why and stops nobody else."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from turns import Contestant, interleave

    order = tmp_path / "order"
    program = (
        "import sys; from turns import Turns; t = Turns(3); t.begin()\n"
        "for k in range(3):\n"
        "    open(sys.argv[1], 'a').write(sys.argv[2])\n"
        "    if sys.argv[2] == 'c' and k == 1: sys.exit('no more')\n"
        "    t.lap()\n"
        "t.finish(1, accuracy=1.0)\n"
    )
    found = interleave(
        [
            Contestant(
                name,
                [sys.executable, "-c", program, str(order), name],
                {"PYTHONPATH": str(BENCHMARKS)},
                tmp_path / f"{name}.log",
            )
            for name in "abc"
        ],
        3,
        60,
    )
    assert order.read_text() == "abcabcab"
    assert found["c"] == {"error": "ended after 1 rounds: no more"}
    assert len(found["a"]["seconds_per_round"]["all"]) == 2


@pytest.mark.slow
def test_the_gpu_measurements_run_without_a_gpu(data_dir: Path) -> None:
    """Every part of them but CUDA itself: a call on a GPU costs too much to end in a typing error."""
    if not (data_dir / "cifar-10-batches-bin").is_dir():
        pytest.skip(f"no cifar-10-batches-bin/ in {data_dir}")
    command = [str(BENCHMARKS / "gpu.sh"), "--quick", "--device", "cpu", "--rounds", "1", "--models", "pfl"]
    environment = {**os.environ, "FEDCONCORD_DATA": str(data_dir), "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=300)
    assert "failed" not in done.stdout
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    assert [row[0] for row in rows][:5] == ["plain loop", "serial", "chunk 1", "chunk 2", "the rule's chunk"]
    assert all(len(row) == 11 for row in rows)
    assert all(float(row[1]) > 0 and 0 <= float(row[9]) <= 1 for row in rows)
    members = [line for line in done.stdout.splitlines() if line.startswith("* pfl: ")]
    assert len(members) == 1
    assert "s a round, accuracy" in members[0]


@pytest.mark.slow
def test_neighbours_have_a_row_for_every_job() -> None:
    command = [sys.executable, str(BENCHMARKS / "neighbours.py"), "--jobs", "digits", "--turns", "1"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    cells = done.stdout.splitlines()[-1].split(" | ")
    assert cells[0] == "| digits"
    quiet, busy, ratio = (float(cell) for cell in cells[1:4])
    assert ratio == pytest.approx(busy / quiet, rel=0.2)
    assert "busy" in done.stdout.splitlines()[0]


@pytest.mark.parametrize(("script", "rows"), [("robust.py", 6), ("privacy.py", 4)])
@pytest.mark.slow
def test_a_figure_is_drawn_of_what_is_printed(tmp_path: Path, script: str, rows: int) -> None:
    command = [sys.executable, str(BENCHMARKS / script), "--quick", "--figure", str(tmp_path / "drawn.png")]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    table = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    assert len(table) == rows
    assert all(0 <= float(cell.split()[0]) <= 100 for row in table for cell in row[1:])
    assert (tmp_path / "drawn.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_on_worth_has_the_values_that_were_measured() -> None:
    benchmark = runpy.run_path(str(BENCHMARKS / "natural.py"))
    values = json.loads(benchmark["VALUES"].read_text())
    assert set(values) == set(benchmark["COHORTS"]) == set(CARDS)
    assert all(CARDS[name].clients == one["clients"] for name, one in values.items())
    assert benchmark["table"](values) in (BENCHMARKS.parent / "docs" / "worth.md").read_text()


@pytest.mark.parametrize("rule", tiers(("final value", "rounds alone"), quick=[]))
def test_a_search_of_the_page_on_tuning(rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two trials and a few rounds."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import stability  # type: ignore[import-not-found]

    line = stability.search(rule, "torch", (0, 1), tmp_path / "s", rounds=4, budget=2, fresh=1)
    assert set(line["values"]) == {"local.lr", "rho"}
    assert len(line["accuracy"]) == 1
    assert 0 < line["accuracy"][0] <= 100
    asked = json.loads((tmp_path / "s" / "tune.json").read_text())["asked"]
    assert asked["target"] == {"final value": None, "rounds alone": 0.9}[rule]


def test_the_page_of_costs_is_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import cost

    results = json.loads(cost.RESULTS.read_text())
    assert set(results) == {*cost.ROUNDS, "memory"}
    page = (BENCHMARKS.parent / "docs" / "cost.md").read_text()
    rows = page.split("<!-- cost: begin -->\n")[1].split("<!-- cost: end -->")[0].splitlines()
    assert rows == cost.table(results)
    refused = {name for name, one in results["A"].items() if isinstance(one, str)}
    assert {row.split(" | ")[0].removeprefix("| ") for row in rows[2:]} == {*METHODS} - {*refused, "fedavg", "fedsgd"}


@pytest.mark.slow
def test_costs_are_measured_on_every_job(data_dir: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(BENCHMARKS / "cost.py"),
        "--quick",
        "--only",
        "C,A",
        "--out",
        str(tmp_path / "c.json"),
    ]
    environment = {**os.environ, "FEDCONCORD_DATA": str(data_dir)}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=600)
    rows = {line.split(" | ")[0].removeprefix("| "): line.split(" | ") for line in done.stdout.splitlines()[2:]}
    assert rows["scaffold"][5:10] == ["1", "2", "2", "1", "2"]
    assert rows["losac"][2] == rows["losac"][4] == "-"  # jobs that were not measured


@pytest.mark.slow
def test_the_parts_of_a_round_add_up(data_dir: Path) -> None:
    arguments = ["C", "--quick", "--rounds", "2", "--warmup", "1", "--methods", "scaffold"]
    environment = {**os.environ, "FEDCONCORD_DATA": str(data_dir)}
    command = [sys.executable, str(BENCHMARKS / "left.py")]
    done = subprocess.run([*command, *arguments], env=environment, check=True, capture_output=True, text=True)
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[2:]]
    assert [row[0] for row in rows] == ["fedavg", "fedavg, blocks", "scaffold"]
    times = {row[0]: [float(cell) for cell in row[1:]] for row in rows}
    assert times["fedavg"][2] < times["scaffold"][2]  # rows, which FedAvg has none of
    wrong = subprocess.run([*command, "C", "--methods", "fedagv"], env=environment, capture_output=True, text=True)
    assert wrong.returncode == 2
    assert "unknown method 'fedagv'" in wrong.stderr
