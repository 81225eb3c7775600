"""Terms of the local loss: the formulas of papers and released code, where methods with them stop, every engine."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from test_engines import SCHEDULE, assert_same, assert_same_server, run, small
from torch import Tensor, nn
from torch.nn import functional as F

import fedconcord
from fedconcord.execution.engines import Serial, Stacked, Wire
from fedconcord.execution.job import Job, advance, start
from fedconcord.execution.job.checkpoint import load, save
from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.objectives import Supervised, quadratics
from fedconcord.federation.objectives.regularisers import Regularised, l1
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import fixed
from fedconcord.interface.cli.listing import make_listing
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Algorithm, Conditions, Objective, Oracle, Term, View
from fedconcord.method.step.assignment import block_gradients, with_conditions, with_term_of
from fedconcord.method.step.solver import Solver
from fedconcord.method.wrappers.optimisers import adamw, with_optimiser
from fedconcord.method.wrappers.tables import with_table
from fedconcord.method.wrappers.terms import (
    TERMS,
    decorr,
    distil,
    feature_form,
    logit_calibration,
    moon,
    ntd,
    proto,
    with_term,
)
from fedconcord.support.errors import UserError
from table import make
from tiers import tiers

B, C, WIDTH = 6, 4, 5


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.as_tensor(np.random.default_rng(seed).standard_normal(shape))


# -- the formulas, written plainly, one sample after the other -----------------------------------------------------

OUTPUTS, SERVER, LAST = (numbers(B, C, seed=k) for k in range(3))
FEATURES, SERVER_FEATURES, LAST_FEATURES = (numbers(B, WIDTH, seed=k) for k in (3, 4, 5))
TARGETS, COUNTS = torch.tensor([0, 3, 1, 1, 2, 0]), torch.tensor([7.0, 2.0, 0.0, 40.0]).double()
VIEW = View(
    OUTPUTS,
    TARGETS,
    F.cross_entropy(OUTPUTS, TARGETS, reduction="none"),
    torch.full((B,), 1 / B).double(),
    FEATURES,
    SERVER,
    SERVER_FEATURES,
    LAST,
    LAST_FEATURES,
    COUNTS,
    numbers(C, WIDTH, seed=6),
    torch.tensor([1.0, 1.0, 0.0, 1.0]).double(),
)
PROTOTYPES = torch.cat([VIEW.prototypes, VIEW.has_prototype[:, None]], 1)  # type: ignore[list-item,index]


def divergence(p: Tensor, q: Tensor) -> Tensor:
    return sum((a * (a / b).log() for a, b in zip(p, q, strict=True)), torch.zeros(()).double())


def test_distillation_is_its_formula() -> None:
    expected = [9 * divergence((s / 3).softmax(0), (o / 3).softmax(0)) for s, o in zip(SERVER, OUTPUTS, strict=True)]
    torch.testing.assert_close(distil().value(VIEW), torch.stack(expected), rtol=1e-12, atol=1e-14)


def test_not_true_distillation_is_fedntds() -> None:
    """Softmaxes over the classes but the true one, and T^2, as in Lee-Gihun/FedNTD criterion.py."""
    expected = []
    for o, s, y in zip(OUTPUTS, SERVER, TARGETS.tolist(), strict=True):
        rest = [c for c in range(C) if c != y]
        expected.append(2.5**2 * divergence((s[rest] / 2.5).softmax(0), (o[rest] / 2.5).softmax(0)))
    torch.testing.assert_close(ntd(1.0, 2.5).value(VIEW), torch.stack(expected), rtol=1e-12, atol=1e-14)


def test_moons_contrast_is_a_cross_entropy_of_cosines() -> None:
    """As in QinbinLi/MOON main.py: logits (positive, negative) / T, and the label 0."""
    near, far = (F.cosine_similarity(FEATURES, other, dim=-1) for other in (SERVER_FEATURES, LAST_FEATURES))
    logits = torch.stack([near, far], 1) / 0.5
    expected = F.cross_entropy(logits, torch.zeros(B, dtype=torch.int64), reduction="none")
    torch.testing.assert_close(moon().value(VIEW), expected, rtol=1e-12, atol=1e-14)


def test_calibration_is_in_place_of_the_loss_and_leaves_absent_classes_out() -> None:
    """As in bytedance/FedDecorr fedlogitcal.py: outputs - tau n^(-1/4), where n = 0 is minus infinity."""
    targets = torch.tensor([0, 3, 1, 1, 3, 0])  # of classes that the client has
    losses = F.cross_entropy(OUTPUTS, targets, reduction="none")
    expected = F.cross_entropy(OUTPUTS - 0.3 * COUNTS**-0.25, targets, reduction="none")
    total = losses + logit_calibration(0.3).value(VIEW._replace(targets=targets, losses=losses))
    torch.testing.assert_close(total, expected, rtol=1e-12, atol=1e-14)


def released_decorr(x: Tensor) -> Tensor:
    """The formula of bytedance/FedDecorr loss.py."""
    z = x - x.mean(0)
    z = z / (x.var(0) + 1e-8).sqrt()
    products = z.T @ z
    off = [products[i, j] ** 2 for i in range(x.shape[1]) for j in range(x.shape[1]) if i != j]
    return torch.stack(off).mean() / len(x)


def test_decorrelation_is_feddecorrs_on_the_samples_that_are_there() -> None:
    torch.testing.assert_close(decorr().value(VIEW), released_decorr(FEATURES), rtol=1e-12, atol=1e-14)
    padded = VIEW._replace(weights=torch.tensor([0.25, 0.25, 0.0, 0.25, 0.0, 0.25]).double())
    there = FEATURES[[0, 1, 3, 5]]
    torch.testing.assert_close(decorr().value(padded), released_decorr(there), rtol=1e-12, atol=1e-14)
    alone = View(OUTPUTS[:1], TARGETS[:1], OUTPUTS[:1, 0], torch.ones(1).double(), FEATURES[:1])
    assert float(decorr().value(alone)) == 0  # as there


def distances(f: Tensor, y: Tensor, table: Tensor) -> Tensor:
    """FedProto's distances [B] to prototypes and 1, or 0 where there are none, [C, WIDTH + 1]: sample by sample."""
    mean = [table[c, -1] * sum((f[k, j] - table[c, j]) ** 2 for j in range(WIDTH)) for k, c in enumerate(y.tolist())]
    return torch.stack(mean) / WIDTH


def test_prototypes_are_fedprotos_and_classes_without_one_give_nothing() -> None:
    value = proto().value(VIEW)
    torch.testing.assert_close(value, distances(FEATURES, TARGETS, PROTOTYPES), rtol=1e-12, atol=1e-14)
    assert float(value[4]) == 0 < float(value[[0, 1, 2, 3, 5]].min())


# -- the gradients of clients --------------------------------------------------------------------------------------

SIZES = (7, 4, 9)


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(3, WIDTH), nn.Tanh(), nn.Linear(WIDTH, C))


class LogReg(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(3, C))


def problem(model: type[nn.Module] = Net, sizes: tuple[int, ...] = SIZES, target: str = "class") -> Supervised:
    draw, n = np.random.default_rng(1), sum(sizes)
    x, y = draw.standard_normal((n, 3)).astype(np.float32), draw.integers(0, C, n)
    parts = np.split(np.arange(n), np.cumsum(sizes)[:-1])
    for i, part in enumerate(parts):  # every client leaves another class out
        y[part] = np.where(y[part] == i, (i + 1) % C, y[part])
    if target == "number":
        y = np.eye(C, dtype=np.float32)[y]
    data = Dataset("noise", x, y, x[:2], y[:2], classes=C, target=target)
    return Supervised(model, data, parts, dtype=torch.float64)


def under(objective: Objective, term: Term, server: Tensor, previous: Tensor | None) -> Objective:
    """The objective of clients 0, 1, 2, each with a last model of its own if there is one."""
    rows = None
    algorithm = with_term(METHODS["fedavg"](), term, (C, WIDTH + 1))
    if term.looks_at("previous") and previous is not None:
        rows = algorithm.init_client(server)
        rows = rows._replace(model=previous, rounds=torch.ones(len(previous), 1).double())
    there = with_term_of(objective, algorithm, server, rows, np.arange(len(SIZES)))
    if "prototypes" not in term.needs:
        return there
    assert there.conditions is not None
    assert there.under is not None
    return there.under(there.conditions._replace(prototypes=PROTOTYPES.flatten()))


def net(at: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and features of `Net`."""
    w1, b1, w2, b2 = at.split([3 * WIDTH, WIDTH, WIDTH * C, C])
    f = torch.tanh(inputs @ w1.view(WIDTH, 3).T + b1)
    return f @ w2.view(C, WIDTH).T + b2, f


def plain_loss(problem: Supervised, term: Term, client: int, x: Tensor, server: Tensor, previous: Tensor) -> Tensor:
    """The mean loss of a client with the term, by three models of torch's own."""
    mine = slice(*problem.offsets[client : client + 2].tolist())
    inputs, y = problem.x[torch.arange(mine.start, mine.stop)], problem.y[mine]
    (out, f), (s_out, s_f), (_, p_f) = (net(at, inputs) for at in (x, server, previous))
    loss, n = F.cross_entropy(out, y), len(y)
    if term.name == "moon":
        logits = torch.stack([F.cosine_similarity(f, s_f), F.cosine_similarity(f, p_f)], 1) / 0.5
        return loss + term.weight * F.cross_entropy(logits, torch.zeros(n, dtype=torch.int64))
    if term.name == "distil":
        return loss + term.weight * 9 * F.kl_div(
            (out / 3).log_softmax(1), (s_out / 3).softmax(1), reduction="batchmean"
        )
    if term.name == "ntd":
        rest = torch.stack([torch.tensor([c for c in range(C) if c != k]) for k in y.tolist()])
        q, p = (o.gather(1, rest) / 3 for o in (out, s_out))
        return loss + term.weight * 9 * F.kl_div(q.log_softmax(1), p.softmax(1), reduction="batchmean")
    if term.name == "logit_calibration":
        return F.cross_entropy(out - 0.1 * torch.bincount(y, minlength=C).double() ** -0.25, y)
    if term.name == "proto":
        return loss + term.weight * distances(f, y, PROTOTYPES).mean()
    return loss + term.weight * released_decorr(f)


@pytest.mark.parametrize("name", TERMS)
def test_gradients_are_those_of_the_loss_with_the_term(name: str) -> None:
    """One client, all side by side with short batches filled up, and one after the other."""
    of, term = problem(), TERMS[name]() if name == "logit_calibration" else TERMS[name](0.7)
    x, previous, server = (0.5 * numbers(*shape, of.dim, seed=k) for k, shape in ((7, (3,)), (8, (3,)), (9, ())))
    objective = under(of.objective, term, server, previous)
    longest = max(SIZES)
    samples = torch.stack([torch.arange(longest).clamp(max=n - 1) + of.offsets[i] for i, n in enumerate(SIZES)])
    weight = torch.stack([(torch.arange(longest) < n).double() / n for n in SIZES])
    together = objective.gradients(x, samples, weight)
    of.in_turn = True
    in_turn = under(of.objective, term, server, previous).gradients(x, samples, weight)
    for i in range(len(SIZES)):
        at = x[i].clone().requires_grad_()
        (expected,) = torch.autograd.grad(plain_loss(of, term, i, at, server, previous[i]), at)
        alone = objective.taking(torch.tensor([i]), 0)
        value = alone.loss(x[i], objective.samples(i))
        torch.testing.assert_close(value, plain_loss(of, term, i, x[i], server, previous[i]), rtol=1e-12, atol=1e-14)
        for gradient in (together[i], in_turn[i], alone.gradient(x[i], objective.samples(i))):
            torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", TERMS)
def test_a_centred_term_has_no_gradient_at_consensus(name: str) -> None:
    of, term = problem(), TERMS[name]()
    x = 0.5 * numbers(of.dim)
    there = under(of.objective, term, x, x.expand(3, -1)).taking(torch.tensor([1]), 0)
    off = float((there.gradient(x, there.samples(1)) - of.objective.gradient(x, there.samples(1))).abs().max())
    assert (off < 1e-14) == term.centred
    assert term.centred == (name in ("ntd", "distil", "moon"))


def test_features_are_a_layers_outputs_where_it_is_named() -> None:
    """Of the layer before the last one they are the same features."""
    of = problem()
    x, server = numbers(of.dim), numbers(of.dim, seed=1)
    by_default, by_name, other = (
        under(of.objective, decorr(1.0, layer), server, None).taking(slice(0, 1), 0).gradient(x, torch.arange(7))
        for layer in ("", "1", "0")
    )
    assert torch.equal(by_default, by_name)
    assert not torch.allclose(by_default, other)


# -- where methods stop --------------------------------------------------------------------------------------------

DECAY = 0.2  # which makes all f_i strongly convex
ALL = Schedule(seed=0, cohort=3, lr=1.0, work=fixed(2), unit="steps", batch_size=None)


def slopes(of: Supervised, x: Tensor, term: Term | None = None) -> float:
    """Norm of the mean gradient over clients and of the decay, with the term or without."""
    objective = of.objective if term is None else under(of.objective, term, x, x.expand(3, -1))
    each = [objective.taking(torch.tensor([i]), 0).gradient(x, objective.samples(i)) for i in range(3)]
    return float((torch.stack(each).mean(0) + DECAY * x).norm())


def end(of: Supervised, algorithm: Algorithm, rounds: int, schedule: Schedule = ALL) -> Tensor:
    job = Job(of, algorithm, schedule, solver=Solver(weight_decay=DECAY), engine=Stacked(None))
    return next(iter(algorithm.models(run(job, rounds).server).values()))


LOGISTIC = (40, 25, 60)


def in_turn(of: Supervised) -> Supervised:
    """Client after client, which is faster for models of this size."""
    of.in_turn = True
    return of


@pytest.mark.parametrize("term", [ntd(), distil(2.0)], ids=["ntd", "distil"])
def test_a_centred_term_keeps_an_exact_method_exact(term: Term) -> None:
    of = in_turn(problem(LogReg, LOGISTIC))
    assert slopes(of, end(of, with_term(METHODS["scaffold"](), term), 60)) < 1e-9
    assert slopes(of, end(of, with_term(METHODS["fedavg"](), term), 60)) > 1e-3


EXACT = ("scaffold", "feddyn", "mimesvrg", "fedhybrid", "fedadmm", "fedpd")


@pytest.mark.parametrize("method", tiers(EXACT, quick=["scaffold", "feddyn"]))
def test_control_variates_and_duals_are_of_the_loss_with_the_term(method: str) -> None:
    """With a term that is not centred, exact methods reach the optimum of the changed f_i."""
    of, term = in_turn(problem(LogReg, LOGISTIC)), logit_calibration(1.0)
    x = end(of, with_term(make(method), term), 80)
    assert slopes(of, x, term) < 1e-7
    assert slopes(of, x) > 1e-2


def test_the_gradients_before_round_0_are_of_the_loss_with_the_term() -> None:
    """LoSAC's, of the blocks of a client; the server's model stands in for the client's last one."""
    of = problem()
    x = numbers(of.dim)
    for term, is_other in ((logit_calibration(1.0), True), (ntd(), False), (moon(), False)):
        job = Job(of, with_term(make("losac"), term), replace(ALL, batch_size=2, work=fixed(1), unit="epochs"))
        blocks = block_gradients(of.objective, job.assignment, 1, 1, x)
        plain = block_gradients(of.objective, replace(job, algorithm=make("losac")).assignment, 1, 1, x)
        assert torch.allclose(blocks, plain, atol=1e-12) != is_other
        members = job.assignment.draws.members(job.algorithm, 1, SIZES[1])
        mine = under(of.objective, term, x, None).taking(torch.tensor([1]), 0)
        expected = [mine.gradient(x, torch.as_tensor(part[part >= 0] + of.offsets[1])) for part in members]
        torch.testing.assert_close(blocks, torch.stack(expected), rtol=1e-10, atol=1e-12)


def test_a_term_of_batches_is_an_objective_of_its_own() -> None:
    of = in_turn(problem(Net, (12, 12, 12)))
    ends = [
        end(of, a, 80, replace(ALL, batch_size=12)) for a in (make("scaffold"), with_term(make("scaffold"), decorr()))
    ]
    assert slopes(of, ends[0]) < 1e-3
    assert slopes(of, ends[1]) > 1e-2


def test_lbfgs_minimises_the_loss_with_the_term() -> None:
    """A client's minimiser of f + ntd from the server's model, for FedAvg with one client a round."""
    of, term = problem(LogReg, LOGISTIC), ntd(2.0)
    job = Job(
        of, with_term(METHODS["fedavg"](), term), replace(ALL, cohort=1, work=fixed(60)), solver=Solver(kind="lbfgs")
    )
    before = start(job)
    x = before.server.x.clone()
    after = advance(job, before).server.x
    there = under(of.objective, term, x, None)
    each = [float(there.taking(torch.tensor([i]), 0).gradient(after, there.samples(i)).norm()) for i in range(3)]
    assert min(each) < 1e-4
    assert min(float(of.objective.gradient(after, there.samples(i)).norm()) for i in range(3)) > 1e-3


# -- the client's last model ---------------------------------------------------------------------------------------


def spring(strength: float = 0.7) -> Term:
    """Half the squared distance of outputs to those of the client's last model."""

    def value(view: View) -> Tensor:
        assert view.previous_outputs is not None
        return (view.outputs - view.previous_outputs).square().sum(-1) / 2

    return Term("spring", value, strength, ("previous_outputs",), centred=True)


@pytest.mark.parametrize("engine", [Serial(), Stacked(2, 1), Wire()], ids=["serial", "stacked", "wire"])
def test_the_last_model_is_the_clients_own(engine: object) -> None:
    """A federation by hand: clients come in turns, and before their first round the server's model stands in."""
    of = problem(LogReg, LOGISTIC)
    schedule = replace(ALL, cohort=2, work=fixed(3), lr=0.2)
    job = Job(of, with_term(METHODS["fedavg"](), spring()), schedule, engine=engine)
    plain = replace(job, algorithm=METHODS["fedavg"]())
    state, x, last = start(job), start(job).server.x.clone(), dict[int, Tensor]()
    came = list[list[int]]()
    for _ in range(6):
        ids = job.schedule.plan(state.round, job.algorithm, of.roster, None).ids.tolist()  # type: ignore[arg-type]
        came.append(ids)
        ends = []
        for i in ids:
            mine = slice(*of.offsets[i : i + 2].tolist())
            inputs, y = of.x[torch.arange(mine.start, mine.stop)], of.y[mine]

            def outputs(at: Tensor, inputs: Tensor = inputs) -> Tensor:
                return inputs @ at[: 3 * C].view(C, 3).T + at[3 * C :]

            w = x.clone()
            before = last.get(i, x)
            for _ in range(3):
                at = w.clone().requires_grad_()
                away = (outputs(at) - outputs(before)).square().sum(-1).mean() / 2
                (g,) = torch.autograd.grad(F.cross_entropy(outputs(at), y) + 0.7 * away, at)
                w = w - 0.2 * g
            ends.append(w)
        last |= dict(zip(ids, ends, strict=True))
        x = torch.stack(ends).mean(0)
        state = advance(job, state)
        torch.testing.assert_close(state.server.x, x, rtol=1e-11, atol=1e-13)
    assert any(i not in came[0] for ids in came for i in ids)
    assert not torch.allclose(run(plain, 6).server.x, x, atol=1e-3)


def test_the_last_model_survives_a_resume_and_is_a_vector_of_its_own(tmp_path) -> None:
    job = Job(small(), with_term(METHODS["scaffold"](), moon()), SCHEDULE)
    whole, half = run(job, 4), run(job, 2)
    save(job, half, tmp_path / "state")
    state = load(job, tmp_path / "state")
    for _ in range(2):
        state = advance(job, state)
    assert_same(state, whole, 0.0)
    client = job.algorithm.init_client(whole.server.x)
    assert not torch.equal(whole.store.gather(whole.store.ids()[:1]).model[0], whole.server.x)
    assert float(client.rounds) == 0


def test_a_row_holds_no_alias_of_the_model_that_moves() -> None:
    algorithm = with_term(METHODS["fedavg"](), moon())
    x = numbers(4)
    done = fedconcord.Done(x, torch.tensor(2.0), torch.tensor(torch.nan))
    _, row = algorithm.finish(numbers(4), algorithm.init_client(x), done, None)  # type: ignore[arg-type]
    kept = row.model.clone()
    x.add_(1.0)
    assert torch.equal(row.model, kept)


# -- every engine --------------------------------------------------------------------------------------------------


EACH = [*product(("fedavg", "scaffold", "losac", "mimesvrg", "fedadmm_inexact"), TERMS)]


@pytest.mark.parametrize(("method", "name"), tiers(EACH, quick=EACH[::4]))
def test_engines_agree(method: str, name: str) -> None:
    term = TERMS[name]()
    algorithm = with_term(make(method), term, feature_form(small().objective, term))
    job = Job(small(), algorithm, SCHEDULE, engine=Serial())
    if term.per == "batch" and method in ("losac", "mimesvrg"):
        with pytest.raises(UserError, match="f_i is no mean over samples"):
            start(job)
        return
    expected = run(job, 3)
    assert_same(run(replace(job, engine=Stacked(3, 2)), 3), expected)
    assert_same_server(run(replace(job, engine=Wire()), 3), expected)
    assert not torch.allclose(run(replace(job, algorithm=make(method)), 3).server.x, expected.server.x, atol=1e-6)


def test_wrappers_go_around_it() -> None:
    """Kept moments and a table beside the last model, in either order, and a regulariser."""
    around = with_optimiser(with_term(METHODS["scaffold"](), moon()), adamw(state="kept"))
    inside = with_term(with_optimiser(METHODS["scaffold"](), adamw(state="kept")), moon())
    table = with_term(with_table(METHODS["fedavg"](), 3), moon())
    job = Job(small(), around, replace(SCHEDULE, lr=0.01), engine=Serial())
    expected = run(job, 3)
    assert_same(run(replace(job, engine=Stacked(3, 2)), 3), expected)
    torch.testing.assert_close(run(replace(job, algorithm=inside), 3).server.x, expected.server.x, rtol=0, atol=0)
    for other in (
        replace(job, algorithm=table),
        replace(job, problem=Regularised(small(), l1(0.01)), algorithm=with_term(METHODS["scaffold"](), ntd())),
        replace(job, algorithm=with_term(METHODS["fedavg"](), ntd()), solver=Solver(oracle=Oracle("svrg"))),
        replace(job, algorithm=with_term(METHODS["fedavg"](), ntd()), solver=Solver(tolerance=1e-3)),
    ):
        assert_same(run(replace(other, engine=Stacked(3, 2)), 3), run(other, 3))


def test_a_job_without_a_term_keeps_its_kernel_and_one_with_a_term_has_none() -> None:
    job = Job(small("dense"), METHODS["fedavg"](), SCHEDULE)
    assert job.problem.objective.accumulate is not None
    termed = replace(job, algorithm=with_term(METHODS["fedavg"](), ntd()))
    assert_same(run(replace(termed, engine=Serial()), 2), run(replace(termed, engine=Stacked("auto", "auto")), 2))
    with pytest.raises(UserError, match=r"engine\.kernel is compiled, which is for steps of SGD"):
        run(replace(termed, engine=Stacked(kernel="compiled")), 1)


def test_dropout_masks_are_of_the_model_that_is_trained_alone() -> None:
    """With the same masks on every engine; the server's model drops nothing."""

    class Drops(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Linear(3, WIDTH), nn.Tanh(), nn.Dropout(0.5), nn.Linear(WIDTH, C))

    def value(view: View) -> Tensor:
        zeros.append(tuple((one == 0).float().mean() for one in (view.features, view.server_features)))  # type: ignore[union-attr]
        return distil().value(view)

    zeros = list[tuple[Tensor, ...]]()
    term = Term("look", value, 1.0, ("features", "server_outputs", "server_features"))
    schedule = replace(ALL, batch_size=4, work=fixed(3), lr=0.1)
    job = Job(problem(Drops), with_term(METHODS["scaffold"](), term), schedule, engine=Serial())
    expected = run(job, 3)
    mine, servers = (torch.stack(column) for column in zip(*zeros[1:], strict=True))
    assert 0.3 < float(mine.mean()) < 0.7
    assert float(servers.max()) == 0
    quiet = replace(job, algorithm=with_term(METHODS["scaffold"](), term._replace(value=distil().value)))
    assert_same(run(replace(quiet, engine=Stacked(3, 1)), 3), expected)


# -- what is refused -----------------------------------------------------------------------------------------------


def refusal(of: object, term: Term, **solver: object) -> str:
    job = Job(of, with_term(METHODS["fedavg"](), term), ALL, solver=Solver(**solver))  # type: ignore[arg-type]
    with pytest.raises(UserError) as error:
        start(job)
    return str(error.value)


def broken(value: Callable[[View], Tensor]) -> Term:
    return Term("mine", value)


@pytest.mark.parametrize(
    ("of", "term", "words"),
    [
        (
            lambda: problem(LogReg),
            moon(),
            "needs features that training changes, and nothing is trained before layer '0'",
        ),
        (problem, moon(features="pool"), "the model has no layer 'pool'; name one of '0', '1', '2'"),
        (
            lambda: problem(target="number"),
            ntd(),
            "term ntd is for targets of kind class, and these are of kind number",
        ),
        (problem, decorr(), "f_i is no mean over samples, and local.batch_size full takes them in parts"),
        (lambda: quadratics(3, 5, torch.float64, torch.device("cpu")), ntd(), "and this problem has no model"),
        (
            problem,
            broken(lambda view: view.losses.mean()),
            "gives shape () for 2 samples; one number a sample is needed",
        ),
        (problem, broken(lambda view: torch.full_like(view.losses, view.losses.sum().item())), "has no gradient"),
        (problem, broken(lambda view: view.outputs @ view.outputs), "term mine failed on 2 samples: RuntimeError"),
    ],
)
def test_what_does_not_fit_is_one_sentence(of: Callable[[], object], term: Term, words: str) -> None:
    assert words in refusal(of(), term)


@pytest.mark.parametrize(
    ("solver", "what"),
    [
        ({"oracle": Oracle("svrg")}, "svrg takes gradients of one"),
        ({"oracle": Oracle("full")}, "full takes gradients of one"),
        ({"kind": "lbfgs"}, "L-BFGS minimises one"),
        ({"tolerance": 0.1}, r"local\.tolerance looks at"),
    ],
)
def test_a_term_of_batches_needs_mini_batches(solver: dict[str, object], what: str) -> None:
    job = Job(problem(), with_term(METHODS["fedavg"](), decorr()), replace(ALL, batch_size=3), solver=Solver(**solver))  # type: ignore[arg-type]
    with pytest.raises(UserError, match=f"term decorr is of a batch, so f_i is no mean over samples, and {what}"):
        start(job)


def test_terms_of_features_go_with_any_target_and_those_of_classes_do_not() -> None:
    of = problem(target="number")
    assert end(of, with_term(METHODS["fedavg"](), moon()), 2).isfinite().all()
    for term in (distil(), logit_calibration()):
        assert "is for targets of kind class" in refusal(of, term)


def test_two_classes_leave_nothing_to_compare() -> None:
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((9, 3)).astype(np.float32), draw.integers(0, 2, 9)
    two = Supervised(lambda: nn.Linear(3, 2), Dataset("two", x, y, x, y, classes=2), np.split(np.arange(9), 3))
    assert "term ntd compares the classes beside the true one, and of 2 classes that is one" in refusal(two, ntd())


def test_a_method_has_one_term() -> None:
    with pytest.raises(UserError, match=r"the method has the term ntd in its loss; leave local\.term out"):
        with_term(with_term(METHODS["fedavg"](), ntd()), moon())


def test_a_term_says_what_it_asks_for_in_its_conditions() -> None:
    """Nothing that a term does not ask for is made."""
    objective = problem().objective
    x = numbers(objective.dim)
    alone = under(objective, logit_calibration(), x, None).conditions
    assert isinstance(alone, Conditions)
    assert (alone.server, alone.previous) == (None, None)
    assert alone.class_counts is not None
    assert alone.class_counts.sum(1).tolist() == list(SIZES)
    assert under(objective, ntd(), x, None).conditions.mapped() == {}  # type: ignore[union-attr]
    assert with_conditions(objective, METHODS["scaffold"](), x, (), np.arange(3)) is objective


# -- from Python and the command line -------------------------------------------------------------------------------

QUICK = {"data": "digits", "clients": 5, "cohort": 2, "rounds": 2, "steps": 1, "threads": 1}


def pull(view: View) -> Tensor:
    assert view.server_outputs is not None
    return (view.outputs - view.server_outputs).square().sum(-1)


def pulled(strength: float = 1.0) -> Term:
    """A factory by import path."""
    return Term("pull", pull, strength, ("server_outputs",))


def test_a_term_of_ones_own_is_given_as_an_object_or_by_its_path(tmp_path: Path) -> None:
    term = Term("pull", pull, 2.0, ("server_outputs",))
    options = {**QUICK, "settings": {"local.steps": 3}}
    del options["steps"]
    by_object = fedconcord.run("scaffold", term=term, out=tmp_path / "object", **options)
    by_path = fedconcord.run("scaffold", term=f"{__name__}:pulled(strength=2)", out=tmp_path / "path", **options)
    plain = fedconcord.run("scaffold", out=tmp_path / "plain", **options)
    ends = [run.metrics["train_loss"] for run in (by_object, by_path, plain)]
    assert ends[0] == ends[1] != ends[2]
    info = json.loads((tmp_path / "object" / "run.json").read_text())
    assert info["config"]["local"]["term"].startswith("object:pull_")
    assert "Term pull; sha256" in json.dumps(info)
    with pytest.raises(
        UserError, match=r"local\.term is object:pull_\w+ \(Term pull; sha256 \w+\), and .* was begun with"
    ):
        fedconcord.run(resume=tmp_path / "object", rounds=3, term=term._replace(weight=3.0))
    longer = fedconcord.run(resume=tmp_path / "object", rounds=3, term=term)
    assert longer.rounds == 3


@pytest.mark.slow
def test_a_term_in_a_comparison_is_a_methods_own_and_no_baselines(tmp_path: Path) -> None:
    methods = ["fedavg(local.term=ntd(weight=2))", "fedavg"]
    compared = fedconcord.compare(methods, out=tmp_path / "c", baselines=["pooled"], term="moon", **QUICK)
    terms = {
        r.label: json.loads((r.folder / "run.json").read_text())["config"]["local"].get("term") for r in compared.runs
    }
    assert terms["fedavg(local.term=ntd(weight=2))"] == "ntd(weight=2)"
    assert terms["fedavg"] == "moon"
    assert terms["pooled"] is None


def test_what_papers_call_a_method_is_named_where_it_is_looked_for() -> None:
    for name in ("fedntd", "MOON", "FedLC", "feddecorr", "fedproto"):
        words = r"in the clients' loss, .*; use method fedavg and --term (ntd|moon|logit|decorr|proto --local-private)"
        with pytest.raises(UserError, match=words):
            fedconcord.run(name, **QUICK)
    assert "FedNTD --term ntd" in make_listing()["legend"]
