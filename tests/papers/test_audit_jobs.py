"""Audits of jobs with losses, schedules and data of their own: attacked as they are, or rightly refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedconcord.execution.engines import Serial
from fedconcord.execution.job import Job, advance, plan_of, start
from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.models import logreg
from fedconcord.federation.objectives import Regularised, Supervised
from fedconcord.federation.objectives.losses import LOSSES, Loss
from fedconcord.federation.objectives.regularisers import REGULARISERS
from fedconcord.federation.participation.clock import DEVICES
from fedconcord.federation.participation.dropout import DROPOUT
from fedconcord.federation.participation.sampling import SAMPLERS
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import fixed
from fedconcord.interface import cli
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Algorithm, rng
from fedconcord.method.wrappers.late import with_late_replies
from fedconcord.support.errors import UserError
from fedconcord_papers.audit import Attack, audit, capture

CLIENTS, FEATURES, OUTPUTS = 6, 8, 2


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().sum(-1)


def job(algorithm: Algorithm, target: Any = "number", loss: Loss | None = None, **schedule: Any) -> Job:
    """One sample a client, so that its gradient holds it."""
    draw = rng.generator(0, rng.Purpose.DATA)
    x = (draw.standard_normal((CLIENTS + 20, FEATURES)) + 1.0).astype(np.float32)
    y = {
        "number": draw.standard_normal((len(x), OUTPUTS)).astype(np.float32),
        "labels": draw.integers(2, size=(len(x), OUTPUTS)).astype(np.float32),
        "class": draw.integers(OUTPUTS, size=len(x)),
    }[target]
    data = Dataset("drawn", x[:CLIENTS], y[:CLIENTS], x[CLIENTS:], y[CLIENTS:], OUTPUTS, target=target)
    parts = [np.array([i]) for i in range(CLIENTS)]
    problem = Supervised(lambda: logreg((FEATURES,), OUTPUTS), data, parts, dtype=torch.float64, loss=loss)
    settings = {"seed": 3, "cohort": CLIENTS, "lr": 0.1, "work": fixed(1), "unit": "steps"} | schedule
    return Job(problem, algorithm, Schedule(**settings), engine=Serial())


@pytest.mark.parametrize(
    ("target", "loss"),
    [
        ("number", None),
        ("number", LOSSES["huber"](0.5)),
        ("number", Loss("own", ("number",), squared)),
        ("labels", None),
    ],
)
def test_the_attack_uses_the_loss_of_the_job(target: str, loss: Loss | None) -> None:
    (curve,) = audit(job(METHODS["fedsgd"](), target, loss), client=1, round=2, attack=Attack(150, "lbfgs")).curves
    assert curve.matched[-1] < 0.02 * curve.matched[0]


def test_labels_are_inferred_for_cross_entropy_alone() -> None:
    with pytest.raises(
        UserError, match="inferred from gradients of cross-entropy, and this job's loss is squared; aud"
    ):
        audit(job(METHODS["fedsgd"]()), client=1, round=1, attack=Attack(3, labels="inferred"))


def test_the_cohort_is_the_one_of_the_rounds_own_model() -> None:
    """power_of_choice asks for losses, which change the cohort as the model moves."""
    this = job(METHODS["fedavg"](), "class", sampler=SAMPLERS["power_of_choice"](candidates=6), cohort=1, lr=3.0)
    state = start(this)
    first = state.server
    changed = 0
    for round in range(1, 9):
        now = plan_of(this, state).ids
        changed += now.tolist() != plan_of(this, state._replace(server=first)).ids.tolist()
        seen = capture(this, round)
        assert seen.plan.ids.tolist() == now.tolist()
        assert int(seen.client.id) == now[0]
        state = advance(this, state)
        assert torch.equal(seen.server.x, state.server.x)
    assert changed


@pytest.mark.parametrize(
    "schedule",
    [
        {"sampler": SAMPLERS["power_of_choice"](candidates=6), "cohort": 2},
        {"dropout": DROPOUT["fixed"](0.3)},
        {"devices": DEVICES["lognormal"](0.5)},
        {"devices": DEVICES["lognormal"](0.5), "deadline": 1e9},
    ],
)
@pytest.mark.parametrize("name", ["fedavg", "mimesvrg"])
def test_jobs_with_unequal_clients_are_audited(schedule: dict[str, Any], name: str) -> None:
    found = audit(job(METHODS[name](), "class", **schedule), round=3, attack=Attack(5))
    assert found.samples == 1
    assert found.curves[0].error < 0.2


def test_a_round_without_replies_and_late_ones_are_refused() -> None:
    nobody = job(METHODS["fedavg"](), devices=DEVICES["lognormal"](0.5), deadline=1e-9)
    with pytest.raises(UserError, match="nobody answers in round 2; audit another round"):
        audit(nobody, round=2)
    late = job(
        with_late_replies(METHODS["fedavg"]()), devices=DEVICES["lognormal"](0.5), deadline=1.0, late="keep", cohort=2
    )
    with pytest.raises(UserError, match="this job keeps late ones for others; audit it with late discard"):
        audit(late, round=2)


def test_a_regularised_problem_is_audited_where_the_message_is_of_gradients() -> None:
    def regularised(name: str) -> Job:
        this = job(METHODS[name](), "class")
        return replace(this, problem=Regularised(this.problem, REGULARISERS["l1"](0.01)))

    assert audit(regularised("fedadmm_inexact"), client=0, round=2, attack=Attack(5)).samples == 1
    with pytest.raises(UserError, match="this job's clients take proximal steps of l1"):
        audit(regularised("fedavg"), client=0, round=2)


def test_symbols_are_refused() -> None:
    this = job(METHODS["fedavg"](), "class")
    assert isinstance(this.problem, Supervised)
    this.problem.x = replace(this.problem.x, dtype=torch.int64)
    with pytest.raises(UserError, match="this job's samples are symbols; audit a job whose samples are numbers"):
        audit(this, round=1)


@pytest.mark.slow
def test_the_command_reads_protected_messages_beside_plain_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    methods = (
        "fedsgd,fedsgd(privacy.clip=0.5,privacy.noise=1),fedsgd(privacy.clip=2,privacy.noise=3,privacy.kind=local)"
    )
    given = ["--data", "digits", "--model", "logreg", "--clients", "1437", "--cohort", "1437", "--partition", "iid"]
    given += ["--methods", methods, "--lr", "0.5", "--client", "7", "--round", "1", "--iterations", "3"]
    assert cli.call(["audit", *given, "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert said.count("epsilon") == 2
    assert said.count("gradient error") == 3
    assert (tmp_path / "out" / "audit.md").read_text().count("is read as if it were plain") == 2


def test_the_command_takes_data_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw = rng.generator(1, rng.Purpose.DATA)
    for name in ("t.csv", "test.csv"):
        rows = [f"{a:.3f},{b:.3f},{2 * a - b:.3f},{'uvw'[k % 3]}\n" for k, (a, b) in enumerate(draw.random((30, 2)))]
        (tmp_path / name).write_text("a,b,y,site\n" + "".join(rows))
    given = ["--data", str(tmp_path / "t.csv"), "--label-column", "y", "--client-column", "site", "--model", "logreg"]
    given += ["--target-kind", "number", "--test-data", str(tmp_path / "test.csv"), "--methods", "fedsgd"]
    given += ["--round", "2", "--iterations", "3", "--out", str(tmp_path / "out")]
    assert cli.call(["audit", *given]) == 0
    assert "audit.md" in capsys.readouterr().out
    assert "on 10 samples" in (tmp_path / "out" / "audit.md").read_text()
