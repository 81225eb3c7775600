"""trace.csv of simulations without rounds: from it the same model comes once more, whichever engine computed it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_asynchronous import job
from test_distributed import COMMAND, ends, launch

import fedconcord
from fedconcord.execution.job import Row, Step, advance, start
from fedconcord.execution.run.trace import Trace, traces
from fedconcord.federation.participation.dropout import fixed as losing
from fedconcord.federation.participation.events import Clock, poly
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.method.algorithms.scaffold import scaffold
from fedconcord.method.contract import tree_leaves
from fedconcord.study.settings.job import build
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.sources import from_nested
from replaying import End, replayed, rows_of
from tiers import tiers

ROUNDS = 20
JOB: dict[str, Any] = {
    "data": "synthetic(0.5,0.5)",
    "model": "logreg",
    "clients": 12,
    "cohort": 3,
    "rounds": ROUNDS,
    "validation": "none",
    "devices": "lognormal(1.0,jitter=0.3)",
    "dropout": 0.15,
    "clock": "asynchronous(7,max_staleness=3)",
    "local": {"lr": 0.05, "lr_decay": 0.95, "batch_size": 5, "steps": "uniform(2,5)"},
    "engine": {"dtype": "float64"},
    "eval": {"every": ROUNDS},
    "checkpoint": {"every": 0},
}
METHODS: dict[str, dict[str, Any]] = {
    "scaffold": {},
    "afedpd_share": {"clock": "asynchronous(7,staleness=none,max_staleness=3)"},
    "fedasync": {"cohort": 1},
    "losac": {"algorithm": {"blocks": 3, "init": "gradient"}},
}
BAD = {"loss": 0.3, "duplicate": 0.1, "corrupt": 0.1, "restart": 0.1, "server_restart": 0.05, "tries": 1}


def settings(method: str, **more: Any) -> dict[str, Any]:
    return {**JOB, "method": method, **METHODS[method], **more}


def fields(rows: list[dict[str, str]]) -> list[End]:
    return [End(*(int(row[name]) for name in ("client", "wave", "version")), row["fate"] in COUNT) for row in rows]


COUNT = ("counted", "stale")  # of which a reply came


def far_from_its_trace(folder: Path, one: dict[str, Any]) -> float:
    """Between the server of a run and that of its trace, played again by the serial engine; at most, by tensor."""
    again = build(resolve_run(from_nested({**one, "engine": {"dtype": "float64", "name": "serial"}}, "here")))
    server, plans = replayed(again, fields(rows_of(folder / "trace.csv")), ROUNDS)
    assert len(plans) == ROUNDS
    there = load_file(folder / "checkpoint.safetensors")
    return max(float((there[f"server.{k}"] - leaf).abs().max()) for k, leaf in tree_leaves(server).items())


def options(table: dict[str, Any], prefix: str = "") -> list[str]:
    """For the command."""
    parts: list[str] = []
    for key, value in table.items():
        parts += options(value, f"{key}.") if isinstance(value, dict) else ["--set", f"{prefix}{key}={value}"]
    return parts


@pytest.mark.parametrize("method", tiers(METHODS, quick=["scaffold", "fedasync"]))
def test_the_model_follows_from_the_trace_on_every_engine(method: str, tmp_path: Path) -> None:
    texts, names = [], ("stacked", "serial", "wire", "distributed")
    for name in names:
        one = settings(method, engine={"dtype": "float64", "name": name})
        if name == "distributed":
            for ended in ends(launch(2, *COMMAND, "run", *options(one), "--out", tmp_path / name)):
                assert ended.code == 0, ended
        else:
            fedconcord.run(settings=one, out=tmp_path / name)
        assert far_from_its_trace(tmp_path / name, one) < 1e-12, name
        texts.append((tmp_path / name / "trace.csv").read_bytes())
    assert len(set(texts)) == 1
    rows = rows_of(tmp_path / "serial" / "trace.csv")
    assert {row["fate"] for row in rows} == {"counted", "stale", "lost"}
    assert sum(row["fate"] == "counted" for row in rows) == ROUNDS * int(one["cohort"])
    times = [round(1e9 * float(row["start"])) + round(1e9 * float(row["seconds"])) for row in rows]
    assert times == sorted(times)
    assert any(row["wave"] != row["version"] for row in rows)
    metrics = rows_of(tmp_path / "serial" / "metrics.csv")
    last = max(time for time, row in zip(times, rows, strict=True) if row["fate"] == "counted")
    assert float(metrics[-1]["simulated_seconds"]) == pytest.approx(last / 1e9, abs=1e-7)


def test_replies_that_a_bad_wire_loses_are_lost_in_the_trace(tmp_path: Path) -> None:
    one = settings("scaffold", engine={"dtype": "float64", "name": "wire"}, wire=BAD)
    fedconcord.run(settings=one, out=tmp_path / "run")
    rows = rows_of(tmp_path / "run" / "trace.csv")
    assert sum(row["fate"] == "counted" for row in rows) < ROUNDS * 3
    by_round = {str(k): [row for row in rows if row["round"] == str(k)] for k in range(1, ROUNDS + 1)}
    assert all(sum(row["fate"] == "counted" for row in some) <= 3 for some in by_round.values())
    lost = {(row["client"], row["wave"]) for row in rows if row["fate"] == "lost"}
    fedconcord.run(settings=settings("scaffold"), out=tmp_path / "good")
    good = rows_of(tmp_path / "good" / "trace.csv")
    assert [[row[k] for k in ("round", "client", "wave", "start")] for row in rows] == [
        [row[k] for k in ("round", "client", "wave", "start")] for row in good
    ]
    assert lost > {(row["client"], row["wave"]) for row in good if row["fate"] == "lost"}


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_run_that_goes_on_has_the_trace_of_one_that_never_stopped(is_gone: bool, tmp_path: Path) -> None:
    """Also where another version left no trace: what the clock did is said once more."""
    fedconcord.run(settings=settings("scaffold"), out=tmp_path / "whole")
    fedconcord.run(settings=settings("scaffold", rounds=9), out=tmp_path / "parts")
    trace = tmp_path / "parts" / "trace.csv"
    assert (tmp_path / "whole" / "trace.csv").read_bytes().startswith(trace.read_bytes())
    if is_gone:
        trace.unlink()
    fedconcord.run(resume=tmp_path / "parts", rounds=ROUNDS)
    assert trace.read_bytes() == (tmp_path / "whole" / "trace.csv").read_bytes()


def test_a_reply_that_is_not_finite_is_refused_and_what_came_later_is_forgotten(tmp_path: Path) -> None:
    """A trace that is ahead of its checkpoint is cut to it; the file has what came up to the last round seen."""
    one = replace(job(Clock(6, staleness=poly(0.5)), "stacked", 3, dropout=losing(0.2)), algorithm=scaffold())
    one.problem.b_mean[5] = torch.nan  # type: ignore[attr-defined]
    one.problem.b[10:12] = torch.nan  # type: ignore[attr-defined]  # its two blocks
    state, (trace,) = start(one), traces(one, tmp_path, 0)
    for _ in range(12):
        state = advance(one, state)
        trace.see(Step(state, Row(state.round, None, 0, 0, 0, 0.0)))
    trace.save(state)
    whole = (tmp_path / "trace.csv").read_bytes()
    rows = rows_of(tmp_path / "trace.csv")
    assert {row["client"] for row in rows if row["fate"] == "refused"} == {"5"}
    assert sum(row["fate"] == "refused" for row in rows) == state.refused[5] > 0
    half = Trace(tmp_path, 7)
    half.save(state)
    assert [row["round"] for row in rows_of(tmp_path / "trace.csv")] == [
        r["round"] for r in rows if int(r["round"]) < 8
    ]
    assert whole.startswith((tmp_path / "trace.csv").read_bytes())


def test_rounds_that_wait_have_none(tmp_path: Path) -> None:
    waits = job(None)
    assert isinstance(waits.schedule, Schedule)
    assert traces(waits, tmp_path, 0) == ()
