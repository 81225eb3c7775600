"""FedProto: prototypes beside any method's messages, and alone where every client keeps its whole model."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from test_engines import assert_same, run
from test_terms import ALL, WIDTH, C, distances, net, problem
from torch import Tensor
from torch.nn import functional as F

from fedconcord.execution.engines import Serial, Stacked, Wire
from fedconcord.execution.job import Job, advance, start
from fedconcord.execution.job.checkpoint import load, save
from fedconcord.federation.objectives import quadratics
from fedconcord.federation.objectives.parts import with_private
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Phases
from fedconcord.method.wrappers.forms import unsummable
from fedconcord.method.wrappers.privacy import uncovered
from fedconcord.method.wrappers.robust import median, with_aggregate
from fedconcord.method.wrappers.terms import feature_form, moon, proto, with_term
from fedconcord.support.errors import UserError

FORM = C, WIDTH + 1
ENGINES = pytest.mark.parametrize("engine", [Serial(), Stacked(2, 1), Wire()], ids=["serial", "stacked", "wire"])


def client(at: Tensor, i: int, table: Tensor) -> tuple[Tensor, Tensor]:
    """Two steps of a client by torch; and by class the sums of its features at their end, with counts."""
    of = problem()
    first, last = of.offsets[i : i + 2].tolist()
    inputs, y, sums = of.x[torch.arange(first, last)], of.y[first:last], torch.zeros(FORM).double()
    for _ in range(2):
        at = at.detach().requires_grad_()
        outputs, f = net(at, inputs)
        loss = F.cross_entropy(outputs, y) + 0.7 * distances(f, y, table).mean()
        at = at - 0.3 * torch.autograd.grad(loss, at)[0]
    for feature, label in zip(net(at, inputs)[1], y.tolist(), strict=True):
        sums[label] += torch.cat([feature.detach(), torch.ones(1).double()])
    return at.detach(), sums


def after(table: Tensor, sums: Tensor) -> Tensor:
    """The server's prototypes: the mean of all samples of a class, and the last one where there is none."""
    rows = [new / new[-1] if new[-1] else old for old, new in zip(table, sums, strict=True)]
    return torch.stack(rows)


@ENGINES
@pytest.mark.parametrize("cohort", [1, 2])
def test_prototypes_are_means_over_all_samples_of_the_cohort(engine: object, cohort: int) -> None:
    """Rounds by hand; client i has no class i: a class may have no prototype yet, or keep the one that it had."""
    term, rounds = proto(0.7), 5
    algorithm = with_term(METHODS["fedavg"](), term, feature_form(problem().objective, term))
    job = Job(problem(), algorithm, replace(ALL, cohort=cohort, lr=0.3), engine=engine)
    x, table, absent = start(job).server.x.clone(), torch.zeros(FORM).double(), list[float]()
    for t in range(rounds):
        ids = job.schedule.plan(t, algorithm, job.problem.roster).ids.tolist()
        ends, sums = zip(*(client(x, i, table) for i in ids), strict=True)
        total = torch.stack(sums).sum(0)
        absent += [float(table[label, -1]) for label in range(C) if not total[label, -1]]
        x, table = torch.stack(ends).mean(0), after(table, total)
    server = run(job, rounds).server
    torch.testing.assert_close(server.x, x, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(server.classes, table, rtol=1e-12, atol=1e-12)
    assert {*absent} == ({0.0, 1.0} if cohort == 1 else {0.0})


@pytest.mark.parametrize("engine", [Serial(), Stacked(2, 1)], ids=["serial", "stacked"])
def test_fedproto_keeps_models_and_sends_prototypes_alone(engine: object) -> None:
    """Algorithm 1: every parameter private; bytes are those of C means of features and a number each."""
    term = proto(0.7)
    of = with_private(problem(), "*", 0)
    algorithm = with_term(METHODS["fedavg"](), term, feature_form(of.objective, term))
    job = Job(of, algorithm, replace(ALL, cohort=2, lr=0.3), engine=engine)
    models, table = [problem().init(0) for _ in range(3)], torch.zeros(FORM).double()
    for t in range(4):
        ids = job.schedule.plan(t, algorithm, of.roster).ids.tolist()
        total = torch.zeros(FORM).double()
        for i in ids:
            models[i], sums = client(models[i], i, table)
            total += sums
        table = after(table, total)
    state = run(job, 4)
    torch.testing.assert_close(state.server.classes, table, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state.store.gather(np.arange(3)).private, torch.stack(models), rtol=1e-12, atol=1e-12)
    assert state.bytes_up == state.bytes_down == 4 * 2 * C * (WIDTH + 1) * 8


def test_prototypes_pass_checkpoints_and_are_counted(tmp_path: Path) -> None:
    algorithm = with_term(METHODS["scaffold"](), proto(), FORM)
    job = Job(problem(), algorithm, replace(ALL, cohort=2), engine=Stacked())
    save(job, half := run(job, 2), tmp_path / "half")
    assert_same(advance(job, load(job, tmp_path / "half")), advance(job, half))
    plain = run(replace(job, algorithm=METHODS["scaffold"]()), 2)
    more = 2 * 2 * C * (WIDTH + 1) * 8
    assert (half.bytes_down - plain.bytes_down, half.bytes_up - plain.bytes_up) == (more, more)


def test_what_has_no_prototypes_is_one_sentence() -> None:
    with pytest.raises(UserError, match="told no form; give it feature_form"):
        with_term(METHODS["fedavg"](), proto())
    with pytest.raises(UserError, match="server looks at messages one by one"):
        with_term(replace(METHODS["fedavg"](), phases=Phases(combine=lambda *every: every)), proto(), FORM)
    with pytest.raises(UserError, match="this problem has no model"):
        feature_form(quadratics(3, 5, torch.float64, torch.device("cpu")).objective, proto())


def test_what_is_sent_beside_the_model_is_summed_alone() -> None:
    """Secure sums take it; privacy, which bounds moves, and rules that are no sum do not."""
    algorithm = with_term(METHODS["fedavg"](), proto(), FORM)
    assert unsummable(algorithm) is None
    assert "does not cover" in str(uncovered(algorithm))
    with pytest.raises(UserError, match="prototypes that are sums over counts, which only the sum"):
        start(Job(problem(), with_aggregate(algorithm, median()), replace(ALL, cohort=3)))


def test_a_model_without_a_shared_part_needs_prototypes() -> None:
    of = with_private(problem(), "*", 0)
    with pytest.raises(UserError, match="matches every trainable parameter of the model, so that nothing is left"):
        start(Job(of, METHODS["fedavg"](), ALL))
    with pytest.raises(UserError, match="term moon is of a model that all share"):
        start(Job(with_private(problem(), "2.*", 0), with_term(METHODS["fedavg"](), moon()), ALL))
