"""The wire: server and clients that share nothing but bytes compute what `serial` computes, and survive what breaks."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedconcord.execution.engines import Serial, Wire, traffic_of
from fedconcord.execution.job import Job, State, advance, checkpoint, start
from fedconcord.execution.messages import codec
from fedconcord.execution.messages.client import RemoteClient
from fedconcord.execution.messages.codec import Frame, FrameError
from fedconcord.execution.messages.link import Faults
from fedconcord.execution.rows import Storage
from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.objectives import Regularised, quadratics
from fedconcord.federation.objectives.regularisers import l1
from fedconcord.federation.objectives.semi import SemiSupervised
from fedconcord.federation.participation.clock import lognormal
from fedconcord.federation.participation.dropout import fixed
from fedconcord.federation.participation.sampling import power_of_choice
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import uniform
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import tree_leaves
from fedconcord.method.wrappers.forms import forms
from fedconcord.method.wrappers.late import with_late_replies
from fedconcord.method.wrappers.perturbed import with_estimated_ascent
from fedconcord.method.wrappers.server import adam, with_server
from fedconcord.method.wrappers.tables import with_table
from fedconcord.method.wrappers.uploads import quantise, with_uploads
from fedconcord.support.errors import UserError
from fedconcord.testing.bench import run

CPU = torch.device("cpu")
SCHEDULE = Schedule(seed=3, cohort=3, lr=0.05, work=uniform(1, 4), unit="steps", batch_size=2)


def job(name: str, **changes: Any) -> Job:
    algorithm = replace(METHODS[name](), client_model=None)  # own models are judged on samples, and here are none
    schedule = replace(SCHEDULE, **changes)
    if algorithm.needs.everyone:
        schedule = replace(schedule, cohort=7)
    problem = quadratics(1, 7, torch.float64, CPU, dim=6, blocks=5)
    problem.x0 = torch.linspace(-1, 1, 6, dtype=torch.float64)
    return Job(problem, algorithm, schedule, engine=Serial())


def far(a: Any, b: Any) -> float:
    pairs = zip(tree_leaves(a).values(), tree_leaves(b).values(), strict=True)
    return max((float((x - y).abs().max() / (1 + y.abs().max())) for x, y in pairs if x.numel()), default=0.0)


@pytest.mark.parametrize("name", METHODS)
def test_without_faults_it_is_the_serial_engine_to_the_byte(name: str) -> None:
    here = job(name)
    there = replace(here, engine=Wire())
    want, got = run(here, 6), run(there, 6)
    assert far(got.server, want.server) < 1e-12
    everyone = np.arange(7)
    assert far(got.store.gather(everyone), want.store.gather(everyone)) < 1e-12
    assert got._replace(server=(), store=()) == want._replace(server=(), store=())  # type: ignore[arg-type]
    seen = traffic_of(got.store)
    assert (seen["payload_down"], seen["payload_up"]) == (want.bytes_down, want.bytes_up)
    assert min(seen["framing_down"], seen["framing_up"]) > 0
    assert not any(seen[name] for name in ("refused", "lost", "resent_down", "resent_up", "clients_lost"))


ROUGH = Faults(loss=0.15, duplicate=0.1, delay=0.1, corrupt=0.1, restart=0.1, server_restart=0.03)


def rough(name: str, tries: int = 3, faults: Faults = ROUGH, **options: Any) -> Job:
    """Full gradients and few tries, so that clients are left out of rounds."""
    problem = quadratics(1, 7, torch.float64, CPU, dim=6, blocks=5)
    problem.sizes[:] = 1.0
    problem._optimum = problem.optimum(np.full(7, 1 / 7))
    schedule = replace(SCHEDULE, batch_size=None, lr=0.2)
    return Job(problem, METHODS[name](**options), schedule, engine=Wire(faults, tries, seed=5))


def gap(job: Job, state: State) -> float:
    """Distance of the answer to the minimiser."""
    x = next(iter(job.algorithm.models(state.server).values()))
    return float((x - job.problem.optimum(np.full(7, 1 / 7))).norm())  # type: ignore[attr-defined]


def running_sum(job: Job, state: State) -> tuple[torch.Tensor, torch.Tensor]:
    """What the server keeps of all clients as a running sum, and that sum over the clients' rows."""
    rows, server = state.store.gather(np.arange(7)), state.server
    match job.algorithm.identity.name:
        case "scaffold":
            return server.c, rows.c.mean(0)
        case "feddyn":
            return server.h, rows.h.mean(0)
        case "fedvra":
            return server.dual, server.beta * rows.dual.mean(0)
        case _:
            return server.phi, rows.table.mean(1).mean(0)


@pytest.mark.parametrize(
    ("name", "options", "rounds"),
    [
        ("scaffold", {}, 400),
        pytest.param("feddyn", {"alpha": 0.5}, 500, marks=pytest.mark.slow),
        pytest.param("fedvra", {"gamma": 0.3, "a": 1.0, "d": 4.0}, 500, marks=pytest.mark.slow),
        pytest.param("losac", {"block_scale": "mean"}, 900, marks=pytest.mark.slow),
        pytest.param("afedpd", {"rho": 1.0}, 500, marks=pytest.mark.slow),
    ],
)
def test_with_faults_running_sums_are_exact_and_the_optimum_is_reached(
    name: str, options: dict[str, Any], rounds: int
) -> None:
    this = rough(name, **options)
    if name == "losac":
        this = replace(this, schedule=replace(this.schedule, batch_size=1))
    state = start(this)
    for t in range(rounds):
        state = advance(this, state)
        if name != "afedpd" and (t < 20 or t % 50 == 0):
            held, summed = running_sum(this, state)
            assert far(held, summed) < 1e-13, t
    assert gap(this, state) < 1e-9
    seen = traffic_of(state.store)
    assert min(value for key, value in seen.items()) > 0, seen


def semi() -> SemiSupervised:
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((40, 3)).astype(np.float32), draw.integers(0, 3, 40)
    parts = np.split(np.arange(40), [5, 12, 20, 26, 33])
    masks = [np.arange(len(part)) % 3 == 0 for part in parts]
    data = Dataset("normal", x, y, x[:5], y[:5], classes=3)
    return SemiSupervised(lambda: nn.Linear(3, 3), data, parts, masks, dtype=torch.float64)


VARIANTS: dict[str, Callable[[Job], Job]] = {
    "dropout": lambda job: replace(job, schedule=replace(job.schedule, dropout=fixed(0.4))),
    "chosen by loss": lambda job: replace(job, schedule=replace(job.schedule, sampler=power_of_choice(5))),
    "compressed with feedback": lambda job: replace(
        job, algorithm=with_uploads(job.algorithm, quantise(7, feedback=True))
    ),
    "a server optimiser": lambda job: replace(job, algorithm=with_server(job.algorithm, adam())),
    "a table": lambda job: replace(job, algorithm=with_table(METHODS["feddyn"](), 3)),
    "an estimated ascent": lambda job: replace(job, algorithm=with_estimated_ascent(METHODS["feddyn"](), 0.3)),
    "late replies": lambda job: replace(
        job,
        algorithm=with_late_replies(job.algorithm),
        schedule=replace(job.schedule, devices=lognormal(0.9), deadline=0.12, late="keep"),
    ),
    "late replies of A-FedPD": lambda job: replace(
        job,
        algorithm=with_late_replies(METHODS["afedpd"]()),
        schedule=replace(job.schedule, devices=lognormal(0.9), deadline=0.12, late="keep"),
    ),
    "a regulariser": lambda job: replace(job, problem=Regularised(job.problem, l1(0.01))),
    "two blocks": lambda job: replace(job, problem=semi(), algorithm=METHODS["fedvra"]()),
    "two blocks, settled": lambda job: replace(job, problem=semi(), algorithm=METHODS["afedpd"]()),
    "rows in two bytes": lambda job: replace(job, storage=Storage(rows="bfloat16")),
    "all asked before round 0": lambda job: replace(job, algorithm=METHODS["losac"](init="gradient")),
    "rounds without messages": lambda job: replace(
        job, algorithm=METHODS["fedpd"](p_skip=0.6), schedule=replace(job.schedule, cohort=7)
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_whatever_a_job_is_made_of_the_wire_computes_the_same(variant: str) -> None:
    here = VARIANTS[variant](job("scaffold"))
    there = replace(here, engine=Wire())
    want, got = start(here), start(there)
    everyone = np.arange(here.problem.roster.n)
    for _ in range(8):
        before = got.bytes_up
        want, got = advance(here, want), advance(there, got)
        assert far(got.server, want.server) < 1e-12
        if variant == "rounds without messages" and got.bytes_up == before:
            assert got.gradient_steps < want.gradient_steps
            continue  # clients do them when they are next asked
        assert far(got.store.gather(everyone), want.store.gather(everyone)) < 1e-12
        assert (got.bytes_up, got.bytes_down) == (want.bytes_up, want.bytes_down)
        assert got.gradient_steps == want.gradient_steps
    seen = traffic_of(got.store)
    assert (seen["payload_up"], seen["payload_down"]) == (got.bytes_up, got.bytes_down)


@pytest.mark.parametrize("name", ["scaffold", "afedpd", "fedpaq"])
def test_a_run_over_a_bad_wire_goes_on_from_a_checkpoint_bit_for_bit(name: str, tmp_path: Path) -> None:
    this = rough(name)
    whole, first = run(this, 12), run(this, 7)
    checkpoint.save(this, first, tmp_path / "c")
    second = checkpoint.load(this, tmp_path / "c")
    for _ in range(5):
        second = advance(this, second)
    assert all(map(torch.equal, tree_leaves(second.server).values(), tree_leaves(whole.server).values()))
    assert second[3:] == whole[3:]
    assert traffic_of(second.store) == traffic_of(whole.store)


def test_a_method_that_needs_everyone_stops_when_one_is_silent() -> None:
    this = replace(job("vrlsgd"), engine=Wire(Faults(loss=0.6), 1))
    with pytest.raises(UserError, match=r"did not answer in round 0 within 1 tries, and vrlsgd needs all clients"):
        run(this, 1)


def test_a_checkpoint_of_another_engine_is_one_sentence(tmp_path: Path) -> None:
    this = job("scaffold")
    checkpoint.save(this, run(this, 2), tmp_path / "c")
    with pytest.raises(UserError, match="another engine than wire"):
        checkpoint.load(replace(this, engine=Wire()), tmp_path / "c")


FRAME = Frame("orders", "m", 3, 4, {"a": [1]}, {"down/x": torch.arange(6.0).reshape(2, 3), "none/": torch.empty(0)})


def test_frames_come_back_as_they_were() -> None:
    back = codec.read(codec.write(FRAME))
    assert back[:5] == FRAME[:5]
    assert all(torch.equal(back.tensors[name], tensor) for name, tensor in FRAME.tensors.items())
    assert len(codec.write(FRAME)) > FRAME.payload == 24


def test_a_damaged_frame_is_refused_wherever_the_damage_is() -> None:
    data = codec.write(FRAME)
    for at in range(len(data)):
        for bit in range(8):
            broken = bytearray(data)
            broken[at] ^= 1 << bit
            with pytest.raises(FrameError):
                codec.read(bytes(broken))
    for end in range(len(data)):
        with pytest.raises(FrameError):
            codec.read(data[:end])
    with pytest.raises(FrameError, match="oversized"):
        codec.read(data, limit=10)


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        ({}, "missing"),
        ({"up/": torch.zeros(3)}, "shape"),
        ({"up/": torch.zeros(2, dtype=torch.float64)}, "number type"),
    ],
)
def test_a_tree_of_another_form_is_refused(tensors: dict[str, torch.Tensor], why: str) -> None:
    with pytest.raises(FrameError, match=why):
        codec.unpack("up", Frame("reply", "m", 0, 0, {}, tensors), torch.zeros(2), CPU)


def test_a_client_of_another_method_refuses_orders() -> None:
    this = job("scaffold")
    shelf = type("Shelf", (), {"read": lambda self: None, "write": lambda self, kept: None})()
    found = forms(this.algorithm, this.problem.init(0))
    client = RemoteClient(0, this.assignment, this.problem.objective.alone(0), shelf, found)
    (answer,) = client.receive(codec.write(Frame("orders", codec.digest(METHODS["fedavg"]().identity), 0, 0)))
    assert codec.read(answer).kind == "refused"
    assert client.receive(b"nonsense") == []
