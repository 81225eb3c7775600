"""Rows on disk, of every size around a page: after a clean end or Ctrl-C a run goes on to the same bits."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from fedconcord.execution.engines import Stacked
from fedconcord.execution.job import Job
from fedconcord.execution.rows import DiskStore, Storage
from fedconcord.federation.objectives import fednova_quadratics
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.interface import api
from fedconcord.study.runs import plan
from fedconcord.study.settings.sources import from_nested
from fedconcord.support import sums
from fedconcord.support.errors import UserError
from table import make
from training import execute, execute_all

PAGE = 4096


def job(floats: int, kind: str = "disk") -> Job:
    """A method whose row is one vector of so many float32."""
    problem = fednova_quadratics(0, 4, torch.float32, torch.device("cpu"), dim=floats)
    storage = Storage(kind)  # type: ignore[arg-type]
    return Job(problem, make("scaffold"), Schedule(4, 2, 0.1, batch_size=1), engine=Stacked(2), storage=storage)


SIZES = [1, PAGE // 4 - 1, PAGE // 4, PAGE // 4 + 1, 3 * PAGE // 8 + 1]


@pytest.mark.parametrize("number", SIZES)
def test_a_clean_end_an_interrupt_and_an_extension(number: int, tmp_path: Path) -> None:
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    execute(job(number, "memory"), memory, rounds=9, info={})

    def stop(row: object) -> None:
        if row.round == 3:  # type: ignore[attr-defined]
            os.kill(os.getpid(), signal.SIGINT)

    assert execute(job(number), disk, rounds=6, info={}, on_row=stop) == "interrupted"
    for rounds in (6, 6, 9):  # to its end, once more, and beyond
        assert execute(job(number), disk, rounds=rounds, info={}, resume=True) == "complete"
    for file in ("metrics.csv", "model.safetensors"):
        assert (memory / file).read_bytes() == (disk / file).read_bytes(), file


@pytest.mark.parametrize("size", [*range(PAGE - 2, PAGE + 3), 2 * PAGE - 1, 2 * PAGE, 2 * PAGE + 1])
def test_rows_of_any_number_of_bytes_come_back(size: int, tmp_path: Path) -> None:
    template, draw = torch.zeros(size, dtype=torch.uint8), np.random.default_rng(size)
    for clients in (1, 5):
        store = DiskStore(template, tmp_path / f"{clients}.bin")
        rows = torch.as_tensor(draw.integers(256, size=(clients, size)), dtype=torch.uint8)
        store.scatter(np.arange(clients), rows)
        saved = store.export()
        store.commit()
        again = DiskStore(template, tmp_path / f"{clients}.bin")
        again.restore(saved)
        assert torch.equal(again.gather(np.arange(clients)), rows)


def test_a_comparison_with_rows_on_disk_is_extended(tmp_path: Path) -> None:
    settings = {"engine.store": "disk", "local.steps": 1}
    given = {"data": "fednova_quadratics(dim=1025)", "clients": 4, "cohort": 2, "out": str(tmp_path / "c")}
    given |= {"methods": ["scaffold", "fedadmm"], "seeds": [0], "rounds": 2}
    _, planned, _ = plan.plan_comparison(None, from_nested(given | settings, "test"))
    assert [run.status for run in execute_all(planned)] == ["complete"] * 2
    _, planned, _ = plan.plan_resumed_comparison(tmp_path / "c", None, from_nested({"rounds": 4}, "test"))
    assert [(run.status, run.rounds) for run in execute_all(planned)] == [("complete", 4)] * 2


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("round,seconds\n1,0.1\n", "timing.csv does not have rounds 1 to 2 in order"),
        ("round,seconds\n2,0.1\n1,0.1\n", "timing.csv does not have rounds 1 to 2 in order"),
        ("round,seconds\n1,0.1\n2,soon\n", "cannot read .*timing.csv .*soon.*; restore it"),
        ("round,seconds\n1,0.1\n2\n", "cannot read .*timing.csv .*; restore it"),
        ("round,time\n1,0.1\n2,0.1\n", "cannot read .*timing.csv .*seconds.*; restore it"),
    ],
)
def test_seconds_that_are_damaged_are_a_sentence(written: str, says: str, tmp_path: Path) -> None:
    """In a folder without checksums, as one of an older version."""
    given = {"data": "fednova_quadratics(dim=3)", "clients": 4, "cohort": 2, "out": str(tmp_path)}
    api.run("fedavg", **given, rounds=2)  # type: ignore[arg-type]
    (tmp_path / sums.NAME).unlink()
    (tmp_path / "timing.csv").write_text(written)
    with pytest.raises(UserError, match=says):
        api.run(resume=tmp_path, rounds=4)
