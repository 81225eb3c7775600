"""The audit: what is captured, what a server reads from it, and an attack whose answer is known."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedconcord.execution.engines import Serial
from fedconcord.execution.job import Job, State, advance, start
from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.models import logreg, two_nn
from fedconcord.federation.objectives import Supervised, quadratics
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import fixed
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Algorithm, rng
from fedconcord.method.contract.pieces import ascent
from fedconcord.method.step.solver import Solver
from fedconcord.method.wrappers.privacy import adaptive, with_adaptive_privacy, with_privacy
from fedconcord.method.wrappers.uploads import quantise, topk, with_uploads
from fedconcord.support.errors import UserError
from fedconcord_papers.audit import (
    Attack,
    Seen,
    attacked,
    audit,
    audit_jobs,
    capture,
    infer_labels,
    readings,
    touched,
)
from table import TABLE, make

CLIENTS, FEATURES, CLASSES = 6, 12, 3


def problem(samples: int = 1, build: object = logreg) -> Supervised:
    """Drawn clients of so many samples each; features are not centred, so that the blank guess knows something."""
    draw = rng.generator(0, rng.Purpose.DATA)
    x = (draw.standard_normal((CLIENTS * samples + 20, FEATURES)) + 1.0).astype(np.float32)
    y = draw.integers(CLASSES, size=len(x))
    y[: CLIENTS * samples] = np.arange(CLIENTS * samples) % CLASSES
    cut = CLIENTS * samples
    data = Dataset("drawn", x[:cut], y[:cut], x[cut:], y[cut:], CLASSES)
    parts = [np.arange(i * samples, (i + 1) * samples) for i in range(CLIENTS)]
    return Supervised(lambda: build((FEATURES,), CLASSES), data, parts, dtype=torch.float64)  # type: ignore[operator]


def job(algorithm: Algorithm, samples: int = 1, steps: int = 1, lr: float = 0.5, cohort: int = CLIENTS) -> Job:
    return Job(problem(samples), algorithm, Schedule(3, cohort, lr, work=fixed(steps), unit="steps"), engine=Serial())


def after(this: Job, rounds: int) -> State:
    state = start(this)
    for _ in range(rounds):
        state = advance(this, state)
    return state


# -- the attack ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attack", [Attack(300), Attack(60, "lbfgs"), Attack(60, "lbfgs", labels="inferred")])
def test_one_sample_of_logistic_regression_is_rebuilt(attack: Attack) -> None:
    """Its gradient is (p - e_y) z^T and (p - e_y), so it holds the sample in closed form; the attack finds it too."""
    this = job(METHODS["fedsgd"]())
    seen = capture(this, 2, client=1)
    estimate = readings(this, seen)["move"]
    weight, bias = this.problem.layout.views(estimate).values()  # type: ignore[attr-defined]
    sample = this.problem.x[1].double()  # type: ignore[attr-defined]
    assert torch.allclose(weight[0] / bias[0], sample, atol=1e-9)
    (curve,) = audit(this, client=1, round=2, attack=attack).curves
    assert curve.error < 1e-9
    assert curve.matched[-1] < 0.02 * curve.matched[0]
    assert len(curve.matched) == len(curve.objective) == 1 + attack.iterations


@pytest.mark.parametrize("client", [0, 1, 2])
def test_a_message_that_hides_it_is_not(client: int) -> None:
    """SCAFFOLD's plain move: the directions of five long steps, with c - c_i in them."""
    attack = Attack(60, "lbfgs")
    (exposed,) = audit(job(METHODS["fedsgd"]()), client=client, round=4, attack=attack).curves
    move, protocol = audit(job(METHODS["scaffold"](), steps=5), client=client, round=4, attack=attack).curves
    assert (move.reading, protocol.reading) == ("move", "protocol")
    assert exposed.matched[-1] < 1e-3 * exposed.matched[0]
    assert move.matched[-1] > 0.2 * move.matched[0]
    assert exposed.error < 1e-9 < protocol.error < move.error  # what the server can subtract brings it closer


def test_batches_are_compared_under_permutation() -> None:
    this = job(METHODS["fedsgd"](), samples=4)
    seen = capture(this, 1, client=2)
    found = attacked(this, seen, readings(this, seen), Attack(50, labels="inferred"))
    (curve,) = found.curves
    assert found.samples == 4
    assert all(m <= d + 1e-12 for m, d in zip(curve.matched, curve.distance, strict=True))
    assert curve.objective[-1] < 1e-2 * curve.objective[0]


@pytest.mark.parametrize("samples", [1, 2, 6])
def test_label_counts_are_in_the_bias(samples: int) -> None:
    this = job(METHODS["fedsgd"](), samples=samples)
    seen = capture(this, 1, client=1)
    held = touched(this, seen)
    p = this.problem
    assert isinstance(p, Supervised)
    found = infer_labels(p, seen.x, readings(this, seen)["move"], p.x[held])
    assert found.tolist() == sorted(p.y[held].tolist())


def test_a_relu_network_is_attacked_through_double_backward() -> None:
    this = replace(job(METHODS["fedsgd"]()), problem=problem(build=two_nn))
    (curve,) = audit(this, client=0, round=1).curves
    assert curve.matched[-1] < 0.1 * curve.matched[0]


def test_a_step_that_is_too_long_ends_the_curve() -> None:
    this = replace(job(METHODS["fedsgd"]()), problem=problem(build=two_nn))
    (curve,) = audit(this, client=0, round=1, attack=Attack(lr=1e200)).curves
    assert 1 <= len(curve.objective) <= 100
    assert all(map(math.isfinite, curve.objective))


# -- the message ---------------------------------------------------------------------------------------------------


READ = [name for name, row in TABLE.items() if row.read]


@pytest.mark.parametrize("name", READ)
def test_the_protocol_gives_the_gradient_away(name: str) -> None:
    """After tiny local steps a method's message holds the gradient, when the server subtracts what it knows; but where
    it is rounded, where step sizes follow gradients, and where gradients are of points that a client alone knows."""
    this = job(make(name), samples=5, steps=3, lr=1e-5)
    this = replace(this, solver=Solver(weight_decay=0.1)) if name == "scaffold" else this
    seen = capture(this, 3, client=0)
    # where its gradients are: at the client's own model, which some methods keep; SAM's a radius away
    at = seen.row.x if name in ("fedpd", "fedadmm_inexact") else seen.row.w if name == "fedadmm" else seen.x
    true = this.problem.objective.gradient(at, touched(this, seen))
    if this.algorithm.step.oracle is not None and this.algorithm.step.oracle.kind == "sam":
        true = this.problem.objective.gradient(ascent(at, true, this.algorithm.step.oracle.radius), touched(this, seen))
    last = list(readings(this, seen).values())[-1]
    assert float((last - true).norm() / true.norm()) < 1e-3


def test_a_message_with_the_dual_of_an_ascent_is_refused() -> None:
    this = job(make("fedsmoo"), samples=5, steps=3)
    with pytest.raises(UserError, match="audit fedspeed in place of fedsmoo"):
        readings(this, capture(this, 3, client=0))


@pytest.mark.parametrize("name", ["fedsaga", "losac"])
def test_tables_of_one_block_give_the_gradient_away(name: str) -> None:
    this = job(METHODS[name](blocks=1), samples=5, steps=3, lr=1e-5)
    seen = capture(this, 3, client=0)
    true = this.problem.objective.gradient(seen.x, touched(this, seen))
    last = list(readings(this, seen).values())[-1]
    assert float((last - true).norm() / true.norm()) < 1e-3


@pytest.mark.parametrize("compressor", [quantise(127), topk(0.5, feedback=False)])
def test_compressed_messages_are_read_as_they_arrive(compressor: object) -> None:
    this = job(with_uploads(METHODS["fedavg"](), compressor), samples=5, lr=1e-4)  # type: ignore[arg-type]
    seen = capture(this, 1, client=0)
    (estimate,) = readings(this, seen).values()
    true = this.problem.objective.gradient(seen.x, touched(this, seen))
    kept = estimate != 0
    assert 0 < int(kept.sum()) < len(true) or compressor is not None
    assert torch.allclose(estimate[kept], true[kept], rtol=1e-3, atol=2e-2 * float(true.norm()))


@pytest.mark.parametrize("name", ["fedsgd", "fedavg", "scaffold", "mimesvrg", "fednova"])
def test_the_message_is_what_the_engine_counted(name: str) -> None:
    this = job(METHODS[name](), samples=2, steps=2)
    seen = capture(this, 3, client=4)
    assert CLIENTS * seen.bytes == seen.cohort_bytes
    assert seen.cohort_bytes == after(this, 3).bytes_up - after(this, 2).bytes_up


@pytest.mark.parametrize("name", ["mimesvrg", "scaffold", "losac"])
def test_auditing_does_not_change_the_run(name: str) -> None:
    this = job(METHODS[name](), samples=6, steps=2)
    before = torch.get_rng_state()
    seen = capture(this, 3, client=2)
    kept = [leaf.clone() for leaf in (seen.x, seen.server.x)]
    readings(this, seen)
    audit(this, client=2, round=3, attack=Attack(3))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(kept[0], after(this, 2).server.x)
    assert torch.equal(kept[1], after(this, 3).server.x)
    assert torch.equal(seen.x, kept[0])


def test_the_samples_of_the_round_are_those_of_its_batches() -> None:
    this = job(METHODS["fedavg"](), samples=6)
    this = replace(this, schedule=replace(this.schedule, batch_size=2))
    seen = capture(this, 2, client=3)
    assert seen.drawn.batches is not None
    assert touched(this, seen).tolist() == sorted(18 + seen.drawn.batches.ravel())
    full = replace(this, algorithm=METHODS["mimesvrg"]())
    assert touched(full, capture(full, 2, client=3)).tolist() == list(range(18, 24))


# -- messages with differential privacy ----------------------------------------------------------------------------


def private(kind: str, clip: float, noise: float, name: str = "fedsgd", **more: Any) -> tuple[Job, Job]:
    """A job with privacy, and the same without."""
    plain = job(METHODS[name](), **more)
    return replace(plain, algorithm=with_privacy(plain.algorithm, clip, noise, kind, CLIENTS)), plain  # type: ignore[arg-type]


@pytest.mark.parametrize("noise", [0.0, 5.0])
def test_clipping_alone_hides_the_length_of_the_gradient_and_not_the_sample(noise: float) -> None:
    """With central noise the server sees g C / ||lr g||, the sample times a number beside that number."""
    this, plain = private("central", 0.1, noise)
    seen = capture(this, 1, client=1)
    true = plain.problem.objective.gradient(seen.x, torch.tensor([1]))
    assert float(0.5 * true.norm()) > 0.1
    (estimate,) = readings(plain, seen).values()
    assert torch.allclose(estimate, true * 0.1 / (0.5 * true.norm()), rtol=1e-9, atol=1e-12)
    weight, bias = plain.problem.layout.views(estimate).values()  # type: ignore[attr-defined]
    assert torch.allclose(weight[0] / bias[0], plain.problem.x[1].double(), atol=1e-9)  # type: ignore[attr-defined]


def test_local_noise_stays_in_what_the_server_reads() -> None:
    """It is not subtracted, although the simulator could draw it again: lr (true - read) is what the client added."""
    this, plain = private("local", 30.0, 0.02)
    seen = capture(this, 1, client=2)
    true = plain.problem.objective.gradient(seen.x, torch.tensor([2]))
    assert seen.client.discrete is not None
    (read,) = readings(plain, seen).values()
    assert torch.allclose(
        0.5 * (true - read), 0.6 * seen.client.discrete(len(true)).double() / 2**24, rtol=1e-7, atol=1e-7
    )


def test_what_the_server_knows_is_subtracted_from_a_noisy_message_too() -> None:
    """SCAFFOLD's move and change of c, after tiny steps: without noise the protocol gives the gradient away."""
    errors = []
    for noise in (0.0, 0.01):
        this, plain = private("local", 30.0, noise, "scaffold", samples=5, steps=3, lr=1e-5)
        seen = capture(this, 3, client=0)
        true = plain.problem.objective.gradient(seen.x, touched(plain, seen))
        errors.append(float((list(readings(plain, seen).values())[-1] - true).norm() / true.norm()))
    assert errors[0] < 1e-3
    assert errors[1] > 0.1


@pytest.mark.parametrize(("noise", "rebuilt"), [(1e-4, True), (1.0, False)])
def test_the_attack_on_a_noisy_message_fails_as_the_noise_grows(noise: float, rebuilt: bool) -> None:
    this, plain = private("local", 3.0, noise)
    found = audit(this, client=1, round=1, attack=Attack(60, "lbfgs"), plain=plain)
    (curve,) = found.curves
    assert (curve.matched[-1] < 0.1 * curve.matched[0]) is rebuilt
    assert found.protection == this.algorithm.facts.protection is not None


def test_a_protected_message_needs_the_job_without_privacy(tmp_path: Path) -> None:
    this, plain = private("local", 3.0, 0.5)
    with pytest.raises(UserError, match="give the same job without privacy as well"):
        audit(this, client=1, round=1)
    adapted = replace(plain, algorithm=with_adaptive_privacy(plain.algorithm, adaptive(), 0.5, CLIENTS))
    with pytest.raises(UserError, match=r"in units of its C; give privacy.clip a number"):
        audit(adapted, client=1, round=1, plain=plain)
    jobs = {"bare": plain, "noisy": this, "clipped": private("central", 0.1, 0.5)[0]}
    audit_jobs(jobs, tmp_path, round=1, attack=Attack(3), plain={"noisy": plain, "clipped": plain})
    text = (tmp_path / "audit.md").read_text()
    assert "was clipped to 3, with noise of 0.5 times that, and is read as if it were plain" in text
    assert "was clipped to 0.1, without noise, which the server adds to the sum, and is read as if" in text
    assert text.count("read as if it were plain") == 2


# -- input and output ----------------------------------------------------------------------------------------------


def test_mistakes_are_one_sentence() -> None:
    this = job(METHODS["fedavg"](), cohort=2)
    drawn = capture(this, 2).plan.ids.tolist()
    absent = next(i for i in range(CLIENTS) if i not in drawn)
    cases: list[tuple[dict[str, object], str]] = [
        ({"client": CLIENTS}, "client must be 0 to 5, given 6"),
        ({"client": -1}, "client must be 0 to 5, given -1"),
        ({"round": 0}, "counts from 1, given 0"),
        ({"client": absent, "round": 2}, f"does not take part in round 2; audit one of {drawn[0]}, {drawn[1]}"),
        ({"attack": Attack(0)}, "iterations must be an integer >= 1, given 0"),
        ({"attack": Attack(lr=-1.0)}, "lr must be a number > 0, given -1"),
        ({"attack": Attack(optimiser="sgd")}, "optimiser must be gd or lbfgs, given 'sgd'"),  # type: ignore[arg-type]
        ({"attack": Attack(labels="all")}, "labels must be known or inferred, given 'all'"),  # type: ignore[arg-type]
        ({"attack": Attack(optimiser="lbfgs", lr=1.0)}, "leave one of them out"),
    ]
    for options, text in cases:
        with pytest.raises(UserError, match=text) as error:
            audit(this, **options)  # type: ignore[arg-type]
        assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="Newton or L-BFGS"):
        audit(replace(this, solver=Solver(kind="lbfgs")), round=1)
    skipping = job(METHODS["fedpd"](p_skip=0.999))
    with pytest.raises(UserError, match="sends no message in round 1"):
        audit(skipping, round=1)
    with pytest.raises(UserError, match="samples of a supervised model"):
        audit(replace(this, problem=quadratics(0, CLIENTS, torch.float64, torch.device("cpu"))), round=1)


def test_table_figure_and_text_are_written(tmp_path: Path) -> None:
    jobs = {"DSGD": job(METHODS["fedsgd"]()), "scaffold": job(METHODS["scaffold"](), steps=5)}
    lines: list[str] = []
    found = audit_jobs(jobs, tmp_path / "new", round=3, attack=Attack(5), say=lines.append)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "audit.csv",
        "audit.md",
        "audit.png",
        "audit.svg",
    ]
    assert len(lines) == sum(len(one.curves) for one in found) == 3
    rows = (tmp_path / "new" / "audit.csv").read_text().splitlines()
    assert len(rows) == 1 + 3 * 6
    text = (tmp_path / "new" / "audit.md").read_text()
    assert "A failed attack is no guarantee" in text
    assert "DSGD, client 0, round 3" in text


def test_the_first_of_the_cohort_is_the_default() -> None:
    this = job(METHODS["fedavg"](), cohort=2)
    seen: Seen = capture(this, 2)
    assert int(seen.client.id) == seen.plan.ids[0]
