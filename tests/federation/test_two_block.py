"""Two-block problems: the objective, the steps on y, engines, resume, and one stated by a user."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedconcord.execution.engines import Serial, Stacked
from fedconcord.execution.job import Job, State, advance, checkpoint, evaluate, start
from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.objectives.semi import SemiSupervised
from fedconcord.federation.objectives.two_block import PrivateBlocks, Stated, clustering, matched
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import uniform
from fedconcord.federation.partitions.skew import labelled
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Problem, tree_leaves
from fedconcord.method.contract.weights import to_simplex
from fedconcord.support.errors import UserError
from table import make
from tiers import tiers

SIZES = [6, 9, 14, 8, 23]
PARTS = np.split(np.arange(60), np.cumsum(SIZES)[:-1])
CPU = torch.device("cpu")


def dataset() -> Dataset:
    draw = np.random.default_rng(0)
    y = draw.integers(0, 3, 80)
    x = (draw.standard_normal((80, 1, 3, 2)) + y[:, None, None, None]).astype(np.float32)
    return Dataset("noise", x[:60], y[:60], x[60:], y[60:], classes=3)


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def small(fraction: float = 0.3, **options: object) -> SemiSupervised:
    masks = labelled(PARTS, 4, fraction=fraction)
    return SemiSupervised(network, dataset(), PARTS, masks, dtype=torch.float64, **options)  # type: ignore[arg-type]


def clusters() -> Stated:
    return clustering(dataset(), PARTS, torch.float64, CPU, k=3, rho=1.0)


SCHEDULE = Schedule(seed=3, cohort=3, lr=0.1, work=uniform(1, 3), batch_size=4)


def run(job: Job, rounds: int = 5, state: State | None = None) -> State:
    state = state or start(job)
    while state.round < rounds:
        state = advance(job, state)
    return state


# -- the objective -------------------------------------------------------------------------------------------------


def written_out(problem: SemiSupervised, x: Tensor, nu: Tensor, client: int) -> Tensor:
    """f_i as section 7.5 of the notes writes it, sum by sum."""
    mask = labelled(PARTS, 4, fraction=0.3)[client]
    data, part, classes = dataset(), PARTS[client], 3
    log_h = problem.base.logits(x, torch.as_tensor(data.train_x[part], dtype=torch.float64)).log_softmax(-1)
    known = [-log_h[j, data.train_y[part[j]]] for j in np.flatnonzero(mask)]
    value = torch.stack(known).mean()
    hidden = []
    for place, j in enumerate(np.flatnonzero(~mask)):
        h, v = log_h[j].exp(), nu[place]
        hidden.append(
            -problem.alpha_p * v @ log_h[j]
            + problem.alpha_r * ((v * (v * classes).log()).sum() + (h * (h * classes).log()).sum())
        )
    return value + torch.stack(hidden).mean()


@pytest.mark.parametrize("client", range(len(PARTS)))
def test_the_mean_over_all_samples_is_the_objective(client: int) -> None:
    problem, draw = small(alpha_p=0.7, alpha_r=0.2), torch.Generator().manual_seed(client)
    nu = torch.rand(problem.private.shape, generator=draw, dtype=torch.float64).softmax(-1)
    x = problem.init(0).requires_grad_()
    samples = torch.arange(problem.offsets[client], problem.offsets[client + 1])
    held = PrivateBlocks(problem, nu[None], np.array([client]))
    wanted = written_out(problem, x, nu, client)
    assert float((held.loss(x, samples) - wanted).detach()) == pytest.approx(0, abs=1e-13)
    gradient = torch.autograd.grad(wanted, x)[0]
    weight = torch.full((1, len(samples)), 1 / len(samples), dtype=torch.float64)
    for got in (
        held.gradient(x.detach(), samples),
        held.gradients(x.detach()[None], samples[None], weight)[0],
    ):
        assert torch.allclose(got, gradient, rtol=0, atol=1e-13)


def test_a_batch_is_unbiased() -> None:
    problem = small()
    x, client = problem.init(0), 2
    held = PrivateBlocks(problem, problem.private[None], np.array([client]))
    samples = torch.arange(problem.offsets[client], problem.offsets[client + 1])
    each = torch.stack([held.gradient(x, samples[[j]]) for j in range(len(samples))])
    assert torch.allclose(each.mean(0), held.gradient(x, samples), atol=1e-13)


@pytest.mark.parametrize(("scale", "factor"), [("sample", 1.0), ("mean", None)])
def test_a_step_on_the_pseudo_labels_is_the_gradient_of_the_objective(scale: str, factor: float | None) -> None:
    """Small enough a step from the inside stays in the simplex's plane: compare along it."""
    problem = small(alpha_p=0.7, alpha_r=0.2, y_steps=1, y_lr=1e-4, y_scale=scale)
    x, client = problem.init(0), 1
    m = int(problem.unlabelled[client])
    nu = torch.rand(problem.private.shape, dtype=torch.float64).softmax(-1).requires_grad_()
    gradient = torch.autograd.grad(written_out(problem, x, nu, client), nu)[0] * (m if factor else 1)
    step = problem.private_step(x, nu.detach()[None], np.array([client]))[0] - nu.detach()
    wanted = -1e-4 * (gradient - gradient.mean(-1, keepdim=True))
    assert torch.allclose(step[:m], wanted[:m], rtol=1e-7, atol=1e-15)
    assert torch.equal(step[m:], torch.zeros_like(step[m:]))


def test_the_hessian_is_that_of_the_objective() -> None:
    problem = small()
    x, client = problem.init(0), 0
    samples = torch.arange(problem.offsets[client], problem.offsets[client + 1])
    held = PrivateBlocks(problem, problem.private[None], np.array([client]))
    wanted = torch.autograd.functional.hessian(lambda at: written_out(problem, at, problem.private, client), x)
    assert torch.allclose(held.hessian(x, samples), wanted, atol=1e-12)


# -- the steps on y ------------------------------------------------------------------------------------------------


def test_the_projection_is_the_closest_point() -> None:
    draw = np.random.default_rng(1)
    for c in (2, 3, 7):
        y = draw.standard_normal(c) * 2
        got = to_simplex(torch.as_tensor(y)).numpy()
        assert got.min() >= 0
        assert got.sum() == pytest.approx(1, abs=1e-14)
        assert ((y - got) - (y - got) @ got).max() <= 1e-12  # <y - p, v - p> <= 0 for every corner v: so p is closest
    stacked = torch.randn(4, 5, 3, dtype=torch.float64)
    assert torch.equal(to_simplex(stacked)[2, 3], to_simplex(stacked[2, 3]))
    inside = torch.tensor([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]], dtype=torch.float64)
    assert torch.allclose(to_simplex(inside), inside, atol=1e-15)


def test_the_closed_form_is_the_limit_of_the_steps() -> None:
    problem = small(alpha_p=0.8, alpha_r=0.4, y_steps=4000, y_lr=0.02)
    x, ids = 2 * problem.init(0), np.array([4, 0])
    found = problem.private_step(x, problem.private.expand(2, -1, -1), ids)
    for s, client in enumerate(ids):
        m = int(problem.unlabelled[client])
        own = torch.arange(problem.offsets[client + 1] - m, problem.offsets[client + 1])
        log_h = problem.base.logits(x, problem.base.x[own]).log_softmax(-1)
        assert torch.allclose(found[s, :m], (0.8 / 0.4 * log_h).softmax(-1), atol=1e-9)
        assert torch.allclose(found[s, :m], problem.best(log_h), atol=1e-9)


def test_without_entropies_the_labels_are_hard() -> None:
    problem = small(alpha_r=0.0, y_steps=5000)
    x, ids = 3 * problem.init(1), np.array([2])
    found = problem.private_step(x, problem.private[None], ids)[0]
    m = int(problem.unlabelled[2])
    own = torch.arange(problem.offsets[3] - m, problem.offsets[3])
    likely = problem.base.logits(x, problem.base.x[own]).argmax(-1)
    assert torch.equal(found[:m], nn.functional.one_hot(likely, 3).double())
    assert torch.equal(problem.best(problem.base.logits(x, problem.base.x[own]).log_softmax(-1)), found[:m])


# -- engines, resume -----------------------------------------------------------------------------------------------


def assert_same(a: State, b: State, tolerance: float) -> None:
    assert a.store.ids().tolist() == b.store.ids().tolist()
    rows = [tree_leaves(s.store.gather(s.store.ids())) for s in (a, b)]
    left, right = ({**tree_leaves(s.server, "server"), **r} for s, r in zip((a, b), rows, strict=True))
    assert left.keys() == right.keys()
    assert "private" in left
    for name, value in left.items():
        assert value.shape == right[name].shape
        assert float((value - right[name]).abs().max()) <= tolerance * max(1.0, float(value.abs().max())), name


@pytest.mark.parametrize("batch", [4, None])
@pytest.mark.parametrize("build", [small, clusters])
@pytest.mark.parametrize(
    "name", tiers(["fedvra", "fedavg", "scaffold", "fedprox", "feddyn", "fedadmm"], quick=("scaffold", "fedadmm"))
)
def test_stacked_equals_serial(name: str, build: Callable[[], Problem], batch: int | None) -> None:
    job = Job(build(), make(name), replace(SCHEDULE, batch_size=batch), engine=Serial())
    assert job.problem.objective.private is not None
    reference = run(job)
    for width in (None, 1, 2, "auto"):
        assert_same(run(replace(job, engine=Stacked(width))), reference, 1e-12)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["fedvra", "fedavg", "scaffold"])
def test_a_run_resumes_bit_for_bit(name: str, tmp_path: Path) -> None:
    job = Job(small(), make(name), SCHEDULE, engine=Stacked(2))
    whole = run(job, 6)
    checkpoint.save(job, run(job, 3), tmp_path / "state")
    resumed = run(job, 6, checkpoint.load(job, tmp_path / "state"))
    assert_same(resumed, whole, 0.0)
    assert evaluate(job, resumed) == evaluate(job, whole)


def test_only_the_cohort_takes_steps() -> None:
    job = Job(small(), make("fedvra"), SCHEDULE)
    state = start(job)
    everyone = np.arange(len(PARTS))
    seen: set[int] = set()
    for _ in range(4):
        before = state.store.gather(everyone).private
        ids = SCHEDULE.plan(state.round, job.algorithm, job.problem.roster).ids
        state = advance(job, state)
        after = state.store.gather(everyone).private
        changed = (before != after).any(-1).any(-1).numpy()
        assert changed.tolist() == np.isin(everyone, ids).tolist()
        seen |= set(ids.tolist())
        assert set(state.store.ids().tolist()) == seen
        assert torch.allclose(after.sum(-1), torch.ones(()).double())


def test_pseudo_labels_help_to_learn() -> None:
    problem = small()
    job = Job(problem, METHODS["fedavg"](), replace(SCHEDULE, cohort=5, batch_size=None, lr=0.3))
    state = start(job)
    first = evaluate(job, state)
    last = evaluate(job, run(job, 40, state))
    assert set(first) == {"test_accuracy", "test_loss", "train_loss", "pseudo_accuracy"}
    assert last["train_loss"] < first["train_loss"]
    assert last["test_accuracy"] > 0.5
    assert last["pseudo_accuracy"] > 0.5


def test_the_train_loss_is_the_objective_at_the_best_pseudo_labels() -> None:
    problem = small(alpha_p=0.8, alpha_r=0.4, y_steps=4000, y_lr=0.02)
    x, ids = problem.init(0), np.arange(len(PARTS))
    nu = problem.private_step(x, problem.private.expand(len(ids), -1, -1), ids)
    held = PrivateBlocks(problem, nu, ids)
    values = [held.loss(x, torch.arange(a, b)) for a, b in zip(problem.offsets[:-1], problem.offsets[1:], strict=True)]
    wanted = np.average([float(v) for v in values], weights=problem.sizes)
    assert problem.evaluate(x)["train_loss"] == pytest.approx(wanted, abs=1e-9)


# -- labels and mistakes -------------------------------------------------------------------------------------------


def test_labels_are_removed_by_fraction_and_seed() -> None:
    masks = labelled(PARTS, 4, fraction=0.3)
    assert [int(mask.sum()) for mask in masks] == [round(0.3 * n) for n in SIZES]
    again, other = labelled(PARTS, 4, fraction=0.3), labelled(PARTS, 5, fraction=0.3)
    assert all(np.array_equal(a, b) for a, b in zip(masks, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(masks, other, strict=True))
    more = labelled([*PARTS, np.arange(7)], 4, fraction=0.3)  # keyed by client, not by how many there are
    assert all(np.array_equal(a, b) for a, b in zip(masks, more, strict=False))


def test_with_every_label_it_is_supervised_learning() -> None:
    problem = small(1.0)
    job = Job(problem, METHODS["fedavg"](), replace(SCHEDULE, batch_size=None))
    supervised = run(replace(job, problem=problem.base)).server.x
    assert torch.allclose(run(job).server.x, supervised, rtol=0, atol=1e-13)
    assert "pseudo_accuracy" not in problem.evaluate(supervised)


def test_mistakes_are_one_sentence_that_names_the_client() -> None:
    with pytest.raises(UserError, match=r"leaves client 0 without a label, as it has 6 samples"):
        labelled(PARTS, 0, fraction=0.05)
    masks = labelled(PARTS, 0, fraction=0.3)
    masks[3] = np.zeros(8, bool)
    with pytest.raises(UserError, match="client 3 has no labelled sample among its 8"):
        SemiSupervised(network, dataset(), PARTS, masks)
    masks = labelled(PARTS, 0, fraction=0.3)
    data = dataset()
    data.train_y[PARTS[1][2]] = 7
    with pytest.raises(UserError, match="client 1 has the label 7, outside 0 to 2"):
        SemiSupervised(network, data, PARTS, masks)
    data = dataset()
    data.train_x[PARTS[4][0]] = np.nan
    with pytest.raises(UserError, match="client 4 has 1 samples with NaN or infinite features"):
        SemiSupervised(network, data, PARTS, masks)
    with pytest.raises(UserError, match="client 4 has NaN"):
        clustering(data, PARTS, torch.float64, CPU)


# -- clustering ----------------------------------------------------------------------------------------------------


def test_clustering_finds_clusters_that_no_client_sees_whole() -> None:
    """Three separate groups; each client holds two of them."""
    draw = np.random.default_rng(3)
    y = np.tile(np.arange(3), 40)
    x = (np.array([[0, 4], [4, 0], [-4, -4]])[y] + 0.3 * draw.standard_normal((120, 2))).astype(np.float32)
    data = Dataset("groups", x[:90], y[:90], x[90:], y[90:], classes=3)
    by_class = [np.flatnonzero(data.train_y == c) for c in range(3)]
    parts = [np.sort(np.concatenate([by_class[c][:15], by_class[(c + 1) % 3][15:]])) for c in range(3)]
    problem = clustering(data, parts, torch.float64, CPU, k=3, rho=20.0)
    tried = []  # as k-means, it stops in local optima: the best of some starts
    for seed in range(4):
        this = Job(problem, METHODS["fedavg"](), Schedule(seed, 3, 0.5, uniform(3, 3), "steps", None))
        tried.append(evaluate(this, run(this, 30)))
    best = min(tried, key=lambda found: found["loss"])
    assert best["cluster_accuracy"] == best["test_cluster_accuracy"] == 1.0
    assert best["loss"] == pytest.approx(0.3**2, rel=0.3)


def test_the_penalty_makes_indicators_pure() -> None:
    pure, mixed = (clustering(dataset(), PARTS, torch.float64, CPU, k=3, rho=rho, y_steps=500) for rho in (50.0, 0.0))
    x, ids = torch.randn(pure.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), np.array([1])
    h, loose = (p.private_step(x, torch.rand(1, 23, 3).softmax(-1).double(), ids)[0, :9] for p in (pure, mixed))
    assert torch.allclose(h.max(-1).values, torch.ones(9).double())
    assert float(loose.max(-1).values.min()) < 0.99


def test_clusters_are_matched_one_to_one() -> None:
    assert matched(np.array([2, 2, 0, 0, 1]), np.array([0, 0, 1, 1, 1]), 3, 2) == 0.8
    assert matched(np.array([0, 0, 0, 0]), np.array([0, 0, 1, 1]), 2, 2) == 0.5


# -- a user's own --------------------------------------------------------------------------------------------------


def own_problem() -> Stated:
    """Linear regression in which every client's sensor has an offset y_i of its own in [-1, 1]."""
    draw = np.random.default_rng(7)
    slope, offset = np.array([2.0, -1.0]), [0.9, -0.5, 0.2, 5.0]
    clients = []
    for i in range(4):
        u = draw.standard_normal((10 + i, 2))
        clients.append((torch.as_tensor(u), torch.as_tensor(u @ slope + offset[i])))

    def loss(x: Tensor, y: Tensor, u: Tensor, target: Tensor, position: Tensor) -> Tensor:
        return 0.5 * (u @ x + y - target).square()

    return Stated(
        loss,
        clients,
        x0=torch.zeros(2, dtype=torch.float64),
        y0=torch.zeros(1, dtype=torch.float64),
        project=lambda y: y.clamp(-1, 1),
        y_steps=5,
        y_lr=0.5,
    )


@pytest.mark.parametrize("name", ["fedvra", "scaffold", "feddyn"])
def test_a_problem_stated_in_python(name: str) -> None:
    job = Job(own_problem(), make(name), Schedule(0, 4, 0.1, uniform(3, 3), "steps", None), engine=Serial())
    state = run(job, 80)
    assert_same(run(replace(job, engine=Stacked(2)), 5), run(job, 5), 1e-12)
    offsets = state.store.gather(np.arange(4)).private[:, 0]
    assert torch.allclose(offsets[:3], torch.tensor([0.9, -0.5, 0.2]).double(), atol=0.7)
    assert float(offsets[3]) == 1.0  # at the edge of Y_i
    # stationary: y is best for x, and x for y, with p as the method has it (uniform)
    held = PrivateBlocks(job.problem, state.store.gather(np.arange(4)).private, np.arange(4))  # type: ignore[arg-type]
    o = job.problem.objective.offsets
    total = sum(held.gradient(state.server.x, torch.arange(o[i], o[i + 1])) for i in range(4))
    assert float(total.abs().max()) < 1e-4


def test_a_stated_problem_refuses_bad_clients() -> None:
    zero = torch.zeros(1, dtype=torch.float64)
    for client, sentence in (
        ((torch.zeros(0, 2), torch.zeros(0)), r"client 1 of 2 has tensors of \[0\] samples"),
        ((torch.zeros(3, 2), torch.zeros(2)), r"client 1 of 2 has tensors of \[2, 3\] samples"),
        ((torch.full((3, 2), torch.nan), torch.zeros(3)), "client 1 has NaN or infinite values in tensor 0"),
    ):
        with pytest.raises(UserError, match=sentence):
            Stated(lambda x, y, u, t, k: t, [(torch.zeros(1, 2), torch.zeros(1)), client], zero, zero)
    with pytest.raises(UserError, match="y_scale must be 'mean' or 'sample', given 'sum'"):
        Stated(lambda x, y, u, k: u[:, 0], [(torch.zeros(1, 2),)], zero, zero, y_scale="sum")


def test_the_example_of_the_docs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "semi-supervised.md").read_text()
    names: dict[str, object] = {}
    for block in text.split("```python\n")[1:]:
        exec(block.split("```")[0], names)
    assert isinstance(names["problem"], Stated)
    state, found = names["state"], names["found"]
    assert isinstance(state, State)
    assert isinstance(found, Tensor)
    assert torch.allclose(state.server.x, torch.tensor([2.0, -1.0]), atol=1e-3)
    assert torch.allclose(found[:, 0], torch.tensor([0.9, -0.5, 0.2]), atol=1e-3)
