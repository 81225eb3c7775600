"""Flipped bytes and other jobs' checkpoints: refused with a sentence, whatever the place."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import fedconcord
import fedconcord.interface.trained.program
import fedconcord.method.contract.identity
from fedconcord.execution.engines import Stacked
from fedconcord.execution.job import Job, advance, checkpoint, start
from fedconcord.execution.rows import Storage, tensors
from fedconcord.execution.run.folder import read_description
from fedconcord.federation.objectives import quadratics
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.method.contract import Algorithm, Oracle
from fedconcord.method.step.solver import Solver
from fedconcord.support.errors import UserError
from table import make
from training import execute

MEMORY = Storage()


def job(algorithm: Algorithm, storage: Storage = MEMORY, clients: int = 6) -> Job:
    problem = quadratics(0, clients, torch.float32, torch.device("cpu"), dim=5)
    return Job(problem, algorithm, Schedule(4, 3, 0.1, batch_size=1), engine=Stacked(2), storage=storage)


def flips(path: Path, count: int, used: Callable[[int], bool] = lambda place: True):
    """The file with one byte flipped, at random places and in random bits; in the end as it was."""
    whole, draw = path.read_bytes(), np.random.default_rng(len(path.name))
    places = [place for place in range(len(whole)) if used(place)]
    for place in draw.choice(places, min(count, len(places)), replace=False):
        flipped = bytearray(whole)
        flipped[place] ^= int(draw.integers(1, 256))
        path.write_bytes(flipped)
        yield int(place)
    path.write_bytes(whole)


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_every_flipped_byte_of_a_checkpoint(kind: str, tmp_path: Path) -> None:
    storage = Storage(kind, path=tmp_path / "rows.bin")  # type: ignore[arg-type]
    this = job(make("scaffold"), storage)
    path = tmp_path / "c"
    state = start(this)
    for _ in range(3):
        state = advance(this, state)
    checkpoint.save(this, state, path)
    for _ in flips(path, 600):
        with pytest.raises(UserError, match=r"cannot read the checkpoint .* delete it to start this run again"):
            checkpoint.load(this, path)
    for length in (0, 7, 60, path.stat().st_size - 1):
        whole = path.read_bytes()
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match="cannot read the checkpoint"):
            checkpoint.load(this, path)
        path.write_bytes(whole)
    again = advance(this, checkpoint.load(this, path))
    assert torch.equal(again.server.x, advance(this, state).server.x)


def test_every_flipped_byte_of_rows_on_disk(tmp_path: Path) -> None:
    storage = Storage("disk", path=tmp_path / "rows.bin")
    this = job(make("scaffold"), storage)
    state = start(this)
    for _ in range(5):
        state = advance(this, state)
    checkpoint.save(this, state, tmp_path / "c")
    table = load_file(tmp_path / "c")
    taken, row = set(table["rows.slots"].tolist()), this.storage.row_bytes(state.store.template)
    size = (tmp_path / "rows.bin").stat().st_size

    def used(place: int) -> bool:
        return place < 24 or (place >= 4096 and (place - 4096) // row in taken)

    count = 0
    for _ in flips(tmp_path / "rows.bin", size, used):
        with pytest.raises(UserError, match=r"damaged|another or a later checkpoint"):
            checkpoint.load(this, tmp_path / "c").store.gather(np.arange(6))
        count += 1
    assert count == 24 + row * len(taken)
    checkpoint.load(this, tmp_path / "c").store.gather(np.arange(6))


def test_a_damaged_row_ends_a_resumed_run_with_a_sentence(tmp_path: Path) -> None:
    this = job(make("scaffold"), Storage("disk"))
    execute(this, tmp_path, rounds=4, info={})
    for _ in flips(tmp_path / "rows.bin", 1, lambda place: place == 4096):
        with pytest.raises(UserError, match=r"the row of client \d in .*rows.bin is damaged"):
            execute(this, tmp_path, rounds=30, info={}, resume=True)
    assert execute(this, tmp_path, rounds=8, info={}, resume=True) == "complete"


def test_a_checkpoint_of_an_older_version(tmp_path: Path) -> None:
    this = job(make("fedavg"))
    checkpoint.save(this, start(this), tmp_path / "c")
    found, about = tensors.read(tmp_path / "c")
    counters = json.loads(about["state"])
    save_file(found, tmp_path / "c", {"state": json.dumps(counters | {"format": 1})})
    with pytest.raises(UserError, match="no checksum, so it is damaged or of an older version"):
        checkpoint.load(this, tmp_path / "c")
    tensors.write(tmp_path / "c", found, about | {"state": json.dumps(counters | {"format": 1})})
    with pytest.raises(UserError, match=r"not a checkpoint of this version \(format 1, not 2\)"):
        checkpoint.load(this, tmp_path / "c")


BASE = job(make("fedadmm"))
OTHERS = {
    'method is "fedadmm \\(version 2\\)" where this one\'s is "scaffold': job(make("scaffold")),
    "method.rho is 0.1 where": job(make("fedadmm", rho=0.1)),
    "solver.momentum is 0.5": replace(BASE, solver=Solver(momentum=0.5)),
    'solver.oracle.kind is "full"': replace(BASE, solver=Solver(oracle=Oracle("full"))),
    "schedule.seed is 5": replace(BASE, schedule=Schedule(5, 3, 0.1, batch_size=1)),
    "schedule.lr is 0.2": replace(BASE, schedule=Schedule(4, 3, 0.2, batch_size=1)),
    "schedule.cohort is 2": replace(BASE, schedule=Schedule(4, 2, 0.1, batch_size=1)),
    'schedule.unit is "steps"': replace(BASE, schedule=Schedule(4, 3, 0.1, batch_size=1, unit="steps")),
    "schedule.lr_drops.length is 1": replace(BASE, schedule=Schedule(4, 3, 0.1, batch_size=1, lr_drops=((3, 0.5),))),
    "problem.clients is 7": job(make("fedadmm"), clients=7),
    'engine.rows is "float16"': job(make("fedadmm"), Storage(rows="float16")),
    'method is "made by hand"': job(replace(make("fedadmm"), identity=fedconcord.method.contract.identity.UNNAMED)),
}


@pytest.mark.parametrize("said", OTHERS)
def test_another_job_is_named(said: str, tmp_path: Path) -> None:
    """Both ways round: what one wrote, the other refuses."""
    other = OTHERS[said]
    checkpoint.save(BASE, start(BASE), tmp_path / "a")
    checkpoint.save(other, start(other), tmp_path / "b")
    name = said.split()[0]
    with pytest.raises(UserError, match=f"belongs to another job, whose {name}.*where this one's is"):
        checkpoint.load(other, tmp_path / "a")
    wanted = said if "where" in said else f"{said} where this one's is"
    source, reader = ("a", other) if said.startswith('method is "fedadmm') else ("b", BASE)
    with pytest.raises(UserError, match=wanted):
        checkpoint.load(reader, tmp_path / source)
    assert checkpoint.load(BASE, tmp_path / "a").round == 0


def test_the_same_numbers_in_other_types_are_the_same_job(tmp_path: Path) -> None:
    one, two = (replace(BASE, schedule=Schedule(4, 3, lr, batch_size=1)) for lr in (1, 1.0))
    checkpoint.save(one, start(one), tmp_path / "c")
    assert checkpoint.load(two, tmp_path / "c").round == 0


def test_every_flipped_byte_of_a_model(tmp_path: Path) -> None:
    run = tmp_path / "run"
    fedconcord.run("fedavg", data="synthetic(clients=3)", model="logreg", cohort=3, rounds=1, out=run)
    np.save(tmp_path / "in.npy", np.zeros((1, 60), np.float32))
    for _ in flips(run / "model.safetensors", 300):
        with pytest.raises(UserError, match="cannot read the model of"):
            fedconcord.interface.trained.program.load(run)
    for _ in flips(run / "model.safetensors", 1):
        with pytest.raises(UserError, match="cannot read the model"):
            fedconcord.predict(run, tmp_path / "in.npy", tmp_path / "o.csv")
        with pytest.raises(UserError, match="cannot read the model"):
            fedconcord.export(run)
    assert not (tmp_path / "o.csv").exists()
    fedconcord.predict(run, tmp_path / "in.npy", tmp_path / "o.csv")
    assert read_description(run)["status"] == "complete"
