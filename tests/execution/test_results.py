"""Run folders: interrupted at any round and resumed, they hold the same bytes as if nothing had happened."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fedconcord
from fedconcord.execution.engines import Stacked
from fedconcord.execution.job import Job, Row, advance, checkpoint, refusals, start, state_bytes, steps
from fedconcord.execution.rows import MemoryStore
from fedconcord.execution.run.folder import read_description
from fedconcord.federation.objectives import quadratics
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import uniform
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import tree_leaves
from fedconcord.study.runs import training
from fedconcord.support import files
from fedconcord.support.errors import UserError
from table import TABLE, make
from training import execute


def job(name: str, **options: object) -> Job:
    problem = quadratics(0, 12, torch.float32, torch.device("cpu"), dim=5)
    schedule = Schedule(4, 12 if TABLE[name].everyone else 3, 0.1, uniform(1, 4), batch_size=1)
    return Job(problem, make(name, **options), schedule, engine=Stacked(None))


def interrupt_at(round: int):
    def on_row(row: Row) -> None:
        if row.round == round:
            os.kill(os.getpid(), signal.SIGINT)

    return on_row


@pytest.mark.parametrize("name", METHODS)
def test_resume_is_bit_for_bit(name: str, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    cut = int(np.random.default_rng(len(name)).integers(1, 9))
    assert execute(job(name), whole, rounds=10, info={"method": name}) == "complete"
    assert execute(job(name), parts, rounds=10, info={"method": name}, on_row=interrupt_at(cut)) == "interrupted"
    assert json.loads((parts / "run.json").read_text())["rounds_done"] == cut
    assert (parts / "model.safetensors").exists()
    assert execute(job(name), parts, rounds=10, info={"method": name}, resume=True) == "complete"
    for file in ("metrics.csv", "model.safetensors", "checkpoint.safetensors"):
        assert (whole / file).read_bytes() == (parts / file).read_bytes(), file


def test_ctrl_c_while_the_first_files_are_written_waits_for_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """run.json says `running` from its first line on: who stops the run then must find `interrupted` in it."""
    monkeypatch.setattr(training, "write_partition", lambda folder, job: os.kill(os.getpid(), signal.SIGINT))
    assert execute(job("scaffold"), tmp_path, rounds=3, info={}) == "interrupted"
    said = read_description(tmp_path)
    assert (said["status"], said["rounds_done"]) == ("interrupted", 0)
    monkeypatch.undo()
    assert execute(job("scaffold"), tmp_path, rounds=3, info={}, resume=True) == "complete"


def test_killed_between_checkpoints(tmp_path: Path) -> None:
    """The tables may be ahead of the checkpoint; resume goes back to it and writes the same rows again."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    execute(job("scaffold"), whole, rounds=10, info={})
    execute(job("scaffold"), parts, rounds=4, info={})
    four = (parts / "checkpoint.safetensors").read_bytes()
    execute(job("scaffold"), parts, rounds=7, info={}, resume=True)
    (parts / "checkpoint.safetensors").write_bytes(four)
    execute(job("scaffold"), parts, rounds=10, info={}, resume=True)
    assert (whole / "metrics.csv").read_bytes() == (parts / "metrics.csv").read_bytes()


def test_a_state_that_forgets_the_rows_is_noticed(tmp_path: Path) -> None:
    """The comparison above can fail: without the clients' rows a resumed run is another algorithm."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    execute(job("scaffold"), whole, rounds=10, info={})
    execute(job("scaffold"), parts, rounds=5, info={})
    this = job("scaffold")
    state = checkpoint.load(this, parts / "checkpoint.safetensors")
    checkpoint.save(this, state._replace(store=MemoryStore(state.store.template)), parts / "checkpoint.safetensors")
    execute(this, parts, rounds=10, info={}, resume=True)
    assert (whole / "metrics.csv").read_bytes() != (parts / "metrics.csv").read_bytes()


def test_divergence_is_a_status(tmp_path: Path) -> None:
    this = job("fedavg")
    problem = quadratics(0, 12, torch.float32, torch.device("cpu"), dim=5)
    wild = Job(problem, this.algorithm, Schedule(4, 3, 1e6, batch_size=None), engine=Stacked(None))
    assert execute(wild, tmp_path, rounds=50, info={}) == "diverged"
    assert json.loads((tmp_path / "run.json").read_text())["rounds_done"] < 50


def test_a_checkpoint_of_another_job_is_refused(tmp_path: Path) -> None:
    execute(job("fedavg"), tmp_path, rounds=2, info={})
    with pytest.raises(
        UserError, match=r"whose method is \"fedavg \(version 1\)\" where this one's is \"scaffold \(version 1\)\""
    ):
        execute(job("scaffold"), tmp_path, rounds=4, info={}, resume=True)
    (tmp_path / "checkpoint.safetensors").write_bytes(b"\x10garbage")
    with pytest.raises(UserError, match="cannot read the checkpoint"):
        execute(job("fedavg"), tmp_path, rounds=4, info={}, resume=True)


def test_the_final_model_is_the_methods_answer(tmp_path: Path) -> None:
    execute(job("afedpd"), tmp_path, rounds=3, info={})
    this = job("afedpd")
    state = start(this)
    for _ in range(3):
        state = advance(this, state)
    assert torch.equal(load_file(tmp_path / "model.safetensors")["x"], state.server.mean)


def test_an_atomic_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.txt"
    files.write_text(target, "old")

    def fail(*args: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(files.os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        files.write_text(target, "new")
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_store_round_trip_and_growth() -> None:
    template = METHODS["fedadmm"](form="paper").init_client(torch.arange(3.0))
    store = MemoryStore(template)
    ids = np.array([5, 2, 900_000])
    assert torch.equal(store.gather(ids).w, torch.arange(3.0).expand(3, 3))
    rows = type(template)(torch.randn(3, 3), torch.randn(3, 3))
    store.scatter(ids, rows)
    store.scatter(np.array([7]), type(template)(torch.ones(1, 3), torch.ones(1, 3)))
    again = MemoryStore(template)
    again.restore(store.export())
    for held in (store, again):
        assert held.ids().tolist() == [2, 5, 7, 900_000]
        for name, leaf in tree_leaves(held.gather(ids)).items():
            assert torch.equal(leaf, getattr(rows, name))
        assert torch.equal(held.gather(np.array([8])).w[0], torch.arange(3.0))


def test_state_that_cannot_fit_is_refused_before_round_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    this = job("fedadmm", form="paper")
    assert state_bytes(this, 2) == 6 * 2 * 5 * 4  # 2 rounds of 3 of 12 clients, 2 vectors of 5 float32
    assert state_bytes(this, 100) == 12 * 2 * 5 * 4
    monkeypatch.setattr(os, "sysconf", lambda name: 10)
    with pytest.raises(UserError, match="may grow to"):
        execute(this, tmp_path, rounds=100, info={})
    assert not (tmp_path / "metrics.csv").exists()


def test_versions_are_recorded(tmp_path: Path) -> None:
    execute(job("fedavg"), tmp_path, rounds=1, info={"seed": 4})
    described = read_description(tmp_path)
    assert described["versions"]["torch"] == torch.__version__
    assert described["seed"] == 4
    with pytest.raises(UserError, match="holds no run"):
        read_description(tmp_path / "nowhere")


def test_chunk_and_workers_are_recorded_and_kept(tmp_path: Path) -> None:
    """Measured or counted anew on resume they might differ, and so might the last bits."""
    execute(replace(job("fedavg"), engine=Stacked(2, 3)), tmp_path, rounds=2, info={})
    execute(replace(job("fedavg"), engine=Stacked()), tmp_path, rounds=4, info={}, resume=True)
    found = json.loads((tmp_path / "run.json").read_text())
    assert (found["chunk"], found["workers"], found["rounds_done"]) == (2, 3, 4)


def test_no_run_says_that_it_has_ended_before_all_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed or without room while it writes its last checkpoint, it is a run to be resumed, not one to be skipped."""

    def fail(*args: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as full:
        full.setattr(checkpoint, "save", fail)
        with pytest.raises(OSError, match="no space"):
            execute(job("fedavg"), tmp_path, rounds=3, info={})
    assert read_description(tmp_path)["status"] == "failed"
    assert execute(job("fedavg"), tmp_path, rounds=3, info={}, resume=True) == "complete"
    assert read_description(tmp_path)["status"] == "complete"


def test_a_job_is_built_once_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its refusals are asked, its server begun and its store opened once, also where a run is resumed."""
    asked: list[Job] = []
    check = refusals.check
    monkeypatch.setattr(refusals, "check", lambda this: (asked.append(this), check(this))[1])
    settings = {"data": "quadratics(dim=3)", "clients": 4, "cohort": 2}
    fedconcord.run("scaffold", rounds=1, out=tmp_path / "run", settings=settings)
    assert len(asked) == 1
    fedconcord.run(resume=tmp_path / "run", rounds=2)
    assert len(asked) == 2


def test_a_state_that_is_not_measured_yet_comes_first() -> None:
    this = job("fedavg")
    state = start(this)
    fresh = list(steps(this, state, 2, eval_every=2, took=0.0))
    assert [(now.state.round, now.row.round, now.row.metrics is not None) for now in fresh] == [
        (0, 0, True),
        (1, 1, False),
        (2, 2, True),
    ]
    (last,) = steps(this, fresh[2].state, 2, took=0.5)
    assert (last.row.metrics, last.row.seconds) == (fresh[2].row.metrics, 0.5)
    assert list(steps(this, fresh[2].state, 2)) == []
