"""Aggregations of low-rank factors: the server's weights are W + s P to rounding for each that claims it, on linear
layers and on GPT-2's, square and not; engines and resumed runs agree, and the final model is the plain one."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from test_engines import SCHEDULE, assert_same, assert_same_server, run
from torch import Tensor, nn

from fedconcord.execution.engines import Serial, Stacked, Wire
from fedconcord.execution.job import Job, advance, checkpoint, refusals
from fedconcord.execution.job.personalisation import Finetune, personalised
from fedconcord.federation.adapters import Adapted, lora
from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.objectives import Supervised
from fedconcord.federation.participation.sampling import samplers
from fedconcord.federation.participation.work import fixed
from fedconcord.method.algorithms.fedavg import fedavg
from fedconcord.method.algorithms.scaffold import scaffold
from fedconcord.method.contract import Algorithm, Cohort, Conditions, Population, Sender, model_of, tree_leaves
from fedconcord.method.contract.code import Batch, Code, Visit
from fedconcord.method.contract.pairs import Pair
from fedconcord.method.wrappers.code import with_code
from fedconcord.method.wrappers.factors import FACTORS, fedex, flora, hlora, rolora, with_factors
from fedconcord.method.wrappers.forms import unsummable
from fedconcord.method.wrappers.hostile import ipm, with_hostile
from fedconcord.method.wrappers.late import with_late_replies
from fedconcord.method.wrappers.privacy import with_privacy
from fedconcord.method.wrappers.server import nesterov, with_server
from fedconcord.method.wrappers.uploads import quantise, with_uploads
from fedconcord.study.settings.job import build
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.sources import from_nested
from fedconcord.support.errors import UserError
from table import make

IN, HIDDEN, CLASSES = 12, 8, 3
LAYERS = ("wide", "square", "turned", "turned_square")


class Conv1D(nn.Module):
    """GPT-2's linear layer, as transformers has it: the weight is [in, out]."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf = nf
        self.weight, self.bias = nn.Parameter(torch.randn(nx, nf) / nx**0.5), nn.Parameter(torch.zeros(nf))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.square = nn.Linear(IN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.turned, self.turned_square = Conv1D(IN, HIDDEN), Conv1D(IN, IN)
        self.head = nn.Linear(IN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for layer in LAYERS:
            x = torch.tanh(getattr(self, layer)(x))
        out: Tensor = self.head(x)
        return out


def problem(held: bool = False, **options: Any) -> Supervised:
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((120, IN)).astype(np.float32), draw.integers(0, CLASSES, 120)
    data = Dataset("noise", x[:100], y[:100], x[100:], y[100:], CLASSES)
    parts = np.split(np.arange(80), np.cumsum([3, 4, 7, 12, 20, 9]))
    apart = np.array_split(np.arange(80, 100), 7) if held else None
    adapters = lora(**{"where": "wide|square|turned", "rank": 2, "also": "head", "alpha": 6.0, **options})
    return Supervised(lambda: adapters.attach(Net()), data, parts, dtype=torch.float64, held=apart)


PROBLEM = problem()


def ruled(rule: str, algorithm: Algorithm | None = None, of: Supervised = PROBLEM) -> Algorithm:
    return with_factors(algorithm or fedavg(), of.objective.pairs, of.dim, FACTORS[rule]())


# -- one step of the server, on factors that are far apart -------------------------------------------------------------


class Effective(NamedTuple):
    """A layer's weight as written here: products turned where the weight is [in, out]."""

    base: Tensor
    turned: bool
    scale: float

    def with_product(self, product: Tensor) -> Tensor:
        return self.base + self.scale * (product.T if self.turned else product)


def layer_of(name: str, of: Supervised = PROBLEM) -> Effective:
    return Effective(of.layout.constants[f"{name}.base.weight"], name.startswith("turned"), 6.0 / 2)


def product(x: Tensor, name: str, of: Supervised = PROBLEM) -> Tensor:
    values = of.layout.views(x)
    return values[f"{name}.lora_B"] @ values[f"{name}.lora_A"]


def far_apart(n: int) -> tuple[Tensor, Tensor]:
    """The server's model [d] and those of n clients [n, d]."""
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(n + 1, PROBLEM.dim, dtype=torch.float64, generator=generator)
    return draws[0], draws[1:]


def stepped(algorithm: Algorithm, x: Tensor, clients: Tensor, weights: Tensor, round: int = 0) -> Any:
    """The server after one round of clients that end at these models, through the functions that engines call."""
    n = len(clients)
    server = algorithm.init(x, Population(n, torch.full((n,), 1 / n)))
    ones, ids = torch.ones(n, 1, dtype=torch.float64), torch.arange(n)[:, None]
    senders = Sender(ids, weights[:, None], ones / n, ones, ones, 0.1)
    normal = torch.Generator().manual_seed(round)
    cohort = Cohort(
        *(round, n, n, 1.0, 1.0, len(x), 0.0, 0.1),
        normal=lambda count: torch.randn(count, dtype=torch.float64, generator=normal),
    )
    shares = algorithm.contribute(clients - x, senders, cohort)
    if algorithm.phases.combine is None:
        return algorithm.update(server, shares.sum(0), cohort)
    return algorithm.update(server, algorithm.phases.combine(server, shares, senders, cohort), cohort)


WEIGHTS = {
    "all": torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64),
    "too little": torch.tensor([0.05, 0.1, 0.3, 0.25], dtype=torch.float64),
    "too much": torch.tensor([0.9, 0.4], dtype=torch.float64),
    "one": torch.tensor([1.0], dtype=torch.float64),
}


def errors(rule: str | None, weights: Tensor) -> dict[str, float]:
    """How far each layer's weight is from W + s P, relative to s P."""
    x, clients = far_apart(len(weights))
    algorithm = fedavg() if rule is None else ruled(rule)
    server = stepped(algorithm, x, clients, weights)
    state = PROBLEM.export(algorithm.models(server)["server"])
    off = {}
    for name in LAYERS:
        parts = [w * product(x_i, name) for w, x_i in zip(weights, clients, strict=True)]
        mean = (1 - weights.sum()) * product(x, name) + torch.stack(parts).sum(0)
        target = layer_of(name).with_product(mean)
        off[name] = float((state[f"{name}.weight"] - target).norm() / (target - layer_of(name).base).norm())
    return off


@pytest.mark.parametrize("cohort", WEIGHTS)
@pytest.mark.parametrize("rule", ["fedex", "flora"])
def test_the_mean_of_products_is_in_the_weights(rule: str, cohort: str) -> None:
    assert max(errors(rule, WEIGHTS[cohort]).values()) < 1e-12


def test_means_of_factors_are_far_from_it_and_the_nearest_factors_are_off_by_the_tail() -> None:
    weights = WEIGHTS["all"]
    assert min(errors(None, weights).values()) > 0.1
    _, clients = far_apart(4)
    for name, off in errors("hlora", weights).items():
        mean = torch.stack([w * product(x_i, name) for w, x_i in zip(weights, clients, strict=True)]).sum(0)
        spectrum = torch.linalg.svdvals(mean)
        tail = float(spectrum[2:].norm() / spectrum.norm())
        assert tail > 0.1
        assert off == pytest.approx(tail, rel=1e-12)


def test_nearest_factors_share_the_scale_and_have_one_sign() -> None:
    """B = U sqrt(S), A = sqrt(S) V: both have the same column and row lengths; and the largest entries of B are > 0."""
    x, clients = far_apart(4)
    after = stepped(ruled("hlora"), x, clients, WEIGHTS["all"]).x
    for name in LAYERS:
        values = PROBLEM.layout.views(after)
        a, b = values[f"{name}.lora_A"], values[f"{name}.lora_B"]
        torch.testing.assert_close(a.norm(dim=1), b.norm(dim=0), rtol=1e-12, atol=0)
        assert bool((b.gather(0, b.abs().argmax(0, keepdim=True)) > 0).all())


def test_products_that_overflow_are_a_run_that_diverges() -> None:
    """And no error in the midst of it."""
    x, clients = far_apart(2)
    after = stepped(ruled("hlora"), x, clients * 1e200, WEIGHTS["too much"]).x
    assert bool(after.isnan().any())


def test_a_residue_that_is_turned_the_wrong_way_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As released: right for GPT-2's layers and wrong for linear ones; of a square one no shape tells."""

    def turned(pair: Pair, product: Tensor) -> Tensor:
        return pair.scale * product.T.reshape(-1)

    with monkeypatch.context() as patch:
        patch.setattr(Pair, "flat", turned)
        off = errors("fedex", WEIGHTS["all"])
    assert off["turned_square"] < 1e-12
    assert off["square"] > 0.5


def test_all_else_is_averaged_as_ever() -> None:
    x, clients = far_apart(4)
    expected = PROBLEM.layout.views(x + WEIGHTS["too little"] @ (clients - x))["head.weight"]
    for rule in FACTORS:
        after = stepped(ruled(rule), x, clients, WEIGHTS["too little"]).x
        torch.testing.assert_close(PROBLEM.layout.views(after)["head.weight"], expected, rtol=1e-12, atol=1e-12)


def test_flora_starts_afresh_in_every_round() -> None:
    """B at 0; A within the bounds of a fresh layer and another one each round, the same each time it is asked."""
    x, clients = far_apart(2)
    one, same, two = (stepped(ruled("flora"), x, clients, WEIGHTS["too much"], k).x for k in (0, 0, 1))
    assert torch.equal(one, same)
    for name in LAYERS:
        a, b = (PROBLEM.layout.views(one)[f"{name}.lora_{factor}"] for factor in "AB")
        assert not bool(b.any())
        fresh = PROBLEM.layout.views(PROBLEM.init(0))[f"{name}.lora_A"]
        assert 0.5 * float(fresh.std()) < float(a.std()) < 2 * float(fresh.std())
        assert float(a.abs().max()) <= a.shape[1] ** -0.5
        assert not torch.equal(a, PROBLEM.layout.views(two)[f"{name}.lora_A"])


def test_gpt2s_layers_are_known() -> None:
    """transformers' own class; B is as long as the outputs."""
    real = pytest.importorskip("transformers.pytorch_utils").Conv1D
    (layer,) = lora(".*", 2).attach(nn.Sequential(real(6, 4)))
    assert isinstance(layer, Adapted)
    assert layer.fan_in_fan_out
    assert layer.lora_A.shape == (2, 4)
    assert layer.lora_B.shape == (6, 2)


# -- whole rounds --------------------------------------------------------------------------------------------------


class Held(NamedTuple):
    x: Tensor


def telling() -> Algorithm:
    """FedAvg with unbiased weights whose clients keep the model that they sent."""
    return replace(
        fedavg(weights="unbiased"),
        init_client=lambda x: Held(torch.zeros_like(x)),
        finish=lambda down, row, done, client: (done.x - model_of(down), Held(done.x)),
    )


def test_every_round_moves_the_weights_by_the_mean_move_of_products() -> None:
    """With absent clients and weights that do not sum to 1: from each client's own model after its local steps."""
    job = Job(PROBLEM, ruled("fedex", telling()), SCHEDULE, engine=Serial())
    before, totals = run(job, 0), []
    for rounds in range(1, 4):
        after = run(job, rounds)
        plan = SCHEDULE.plan(rounds - 1, job.algorithm, PROBLEM.roster)
        totals.append(plan.w.sum())
        starts, ends = (PROBLEM.export(job.algorithm.models(state.server)["server"]) for state in (before, after))
        models = after.store.gather(plan.ids).x
        for name in LAYERS:
            now = product(before.server.x, name)
            step = sum(w * (product(x, name) - now) for w, x in zip(plan.w, models, strict=True))
            expected = layer_of(name)._replace(base=starts[f"{name}.weight"]).with_product(step)
            torch.testing.assert_close(ends[f"{name}.weight"], expected, rtol=1e-12, atol=1e-13)
        before = after
    assert max(abs(total - 1) for total in totals) > 0.05
    assert float(before.server.addition.norm()) > 1e-4


def test_clients_train_on_the_weights_that_they_were_sent() -> None:
    """The gradient is that of a model whose frozen weights are the sums; losses and Hessians too."""
    of = PROBLEM.objective
    x = torch.randn(PROBLEM.dim, dtype=torch.float64)
    addition = torch.randn(sum(pair.size for pair in of.pairs), dtype=torch.float64)
    assert of.under is not None
    under, samples = of.under(Conditions(addition=addition)), torch.tensor([0, 3, 9])
    other = problem()
    begin = 0
    for name in LAYERS:
        weight = other.layout.constants[f"{name}.base.weight"]
        weight += addition[begin : begin + weight.numel()].view(weight.shape)
        begin += weight.numel()
    assert begin == len(addition)
    torch.testing.assert_close(under.gradient(x, samples), other.gradient(x, samples), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(under.loss(x, samples), other.loss(x, samples), rtol=1e-12, atol=0)
    assert float((of.gradient(x, samples) - other.gradient(x, samples)).norm()) > 1e-3
    for step in (0, 1):  # what a local step asks is not added once more
        again = under.taking(torch.tensor([0]), step).gradient(x, samples)
        assert torch.equal(again, under.gradient(x, samples))


@pytest.mark.parametrize("rule", ["fedex", "flora"])
def test_a_round_goes_on_from_the_weights_of_the_last(rule: str) -> None:
    """The head moves by the mean gradient of the plain model that the rounds before came to; while B is 0, as at the
    start, A does not move, so that the means of factors lack nothing of the product in the first round."""
    schedule = replace(SCHEDULE, cohort=7, work=fixed(1), unit="steps", batch_size=None, lr=2.0)
    job = Job(PROBLEM, ruled(rule), schedule)
    first, second = (run(job, rounds) for rounds in (3, 4))
    plain = Net().double()
    plain.load_state_dict(PROBLEM.export(job.algorithm.models(first.server)["server"]))
    losses = []
    for i in range(7):
        samples = PROBLEM.objective.samples(i)
        losses.append(nn.functional.cross_entropy(plain(PROBLEM.x[samples]), PROBLEM.y[samples]))
    (gradient,) = torch.autograd.grad(torch.stack(losses).mean(), plain.head.weight)
    before, after = (PROBLEM.layout.views(state.server.x)["head.weight"] for state in (first, second))
    torch.testing.assert_close(after, before - 2.0 * gradient, rtol=1e-11, atol=1e-13)
    assert float(first.server.addition.norm()) > 1e-4


@pytest.mark.parametrize(
    ("rule", "method"),
    [*((rule, "fedavg") for rule in FACTORS), ("fedex", "scaffold"), ("rolora", "scaffold"), ("rolora", "feddyn"),
     ("fedex", "mimesvrg")],
)  # fmt: skip
def test_engines_agree(rule: str, method: str) -> None:
    algorithm = ruled(rule, make(method))
    job = Job(PROBLEM, algorithm, SCHEDULE, engine=Serial())
    expected = run(job, 4)
    assert_same(run(replace(job, engine=Stacked(3)), 4), expected)
    wire = run(replace(job, engine=Wire()), 4)
    assert_same_server(wire, expected)
    assert wire.bytes_up >= expected.bytes_up
    assert float((expected.server.x - PROBLEM.init(SCHEDULE.seed)).norm()) > 1e-3


def train(model: nn.Module, batches: list[Batch], visit: Visit) -> None:
    """Plain SGD by hand, as code of the user's."""
    for inputs, targets in batches:
        model.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= visit.lr * parameter.grad


def test_code_of_the_users_trains_on_the_weights_that_it_was_sent() -> None:
    """Plain SGD by hand is the local step, to rounding."""
    job = Job(PROBLEM, ruled("flora", with_code(fedavg(), Code(train))), SCHEDULE)
    assert_same_server(run(job, 3), run(Job(PROBLEM, ruled("flora"), SCHEDULE), 3))
    with pytest.raises(UserError, match="holds one factor of each pair still"):
        ruled("rolora", job.algorithm)


@pytest.mark.parametrize("rule", ["fedex", "flora"])
def test_the_final_model_is_the_plain_one(rule: str) -> None:
    job = Job(problem(held=True), ruled(rule), SCHEDULE, engine=Stacked())
    state = run(job, 4)
    of = job.problem
    x = job.algorithm.models(state.server)["server"]
    plain = Net().double()
    plain.load_state_dict(of.export(x))
    inputs = torch.randn(7, IN, dtype=torch.float64)
    torch.testing.assert_close(plain(inputs), of.logits(x, inputs), rtol=1e-12, atol=1e-12)
    right = (plain(of.test_x[torch.arange(len(of.test_y))]).argmax(1) == of.test_y).double().mean()
    assert of.evaluate(x)["test_accuracy"] == float(right)
    assert float((of.logits(state.server.x, inputs) - of.logits(x, inputs)).abs().max()) > 1e-6
    same = of.read(of.export(x))
    torch.testing.assert_close(of.logits(same, inputs), of.logits(x, inputs), rtol=1e-12, atol=1e-12)
    nothing = personalised(job, x, Finetune(1, 1e-12), state.round)
    scores = of.client_scores(x)
    np.testing.assert_allclose(nothing.values["loss"], scores.values["loss"], rtol=1e-9)


@pytest.mark.parametrize("rule", FACTORS)
def test_a_run_that_is_resumed_is_the_same(tmp_path: Path, rule: str) -> None:
    job = Job(PROBLEM, ruled(rule), SCHEDULE)
    checkpoint.save(job, run(job, 2), tmp_path / "state")
    state = checkpoint.load(job, tmp_path / "state")
    for _ in range(2):
        state = advance(job, state)
    assert_same(state, run(job, 4), tolerance=0.0)


def test_what_goes_either_way() -> None:
    """Up: the factors and the head, of rolora the larger factors alone; down: what is added to the weights too."""
    sizes = [(HIDDEN, IN), (HIDDEN, HIDDEN), (IN, HIDDEN), (IN, IN)]
    head = IN * CLASSES + CLASSES
    a, b = 2 * sum(n for _, n in sizes), 2 * sum(m for m, _ in sizes)
    factors, weights = a + b, sum(m * n for m, n in sizes)
    assert PROBLEM.dim == head + factors
    costs = {rule: Job(PROBLEM, ruled(rule), SCHEDULE).cost for rule in FACTORS}
    assert {rule: cost.up for rule, cost in costs.items()} == {
        **dict.fromkeys(("fedex", "flora", "hlora"), 8 * PROBLEM.dim),
        "rolora": 8 * (head + max(a, b)),
    }
    assert {rule: cost.down for rule, cost in costs.items()} == {
        **dict.fromkeys(("fedex", "flora"), 8 * (PROBLEM.dim + weights)),
        "hlora": 8 * PROBLEM.dim,
        "rolora": 8 * (PROBLEM.dim + 1),
    }


# -- in turn -------------------------------------------------------------------------------------------------------


def in_factor(of: Supervised, factor: str) -> Tensor:
    """[d] bool."""
    named = {k: torch.full(s, k.endswith(f"lora_{factor}")) for k, s in of.layout.shapes.items()}
    return of.layout.vector(named)


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_b_moves_in_even_rounds_and_a_in_odd_ones(method: str) -> None:
    job = Job(PROBLEM, ruled("rolora", make(method)), SCHEDULE, engine=Stacked())
    states = [run(job, k) for k in range(5)]
    for t in range(4):
        moves, rests = (in_factor(PROBLEM, factor) for factor in ("BA" if t % 2 == 0 else "AB"))
        for before, after in zip(*(tree_leaves(states[k].server.inner).values() for k in (t, t + 1)), strict=True):
            assert torch.equal(before[rests], after[rests])
            assert float((after - before)[moves].norm()) > 1e-9
        plan = SCHEDULE.plan(t, job.algorithm, PROBLEM.roster)
        if method == "scaffold" and t:
            rows = [states[k].store.gather(states[t].store.ids()).c for k in (t, t + 1)]
            assert torch.equal(rows[0][:, rests], rows[1][:, rests])
            assert len(plan.ids) == 5


def test_the_sum_of_control_variates_holds_in_turn() -> None:
    """c = sum_i p_i c_i, whichever factor moved in the rounds that a client was in."""
    job = Job(PROBLEM, ruled("rolora", scaffold()), SCHEDULE, engine=Stacked())
    state = run(job, 5)
    ids = state.store.ids()
    mean = state.store.gather(ids).c.sum(0) / PROBLEM.roster.n
    torch.testing.assert_close(state.server.inner.c, mean, rtol=1e-10, atol=1e-13)


def test_the_product_of_means_is_the_mean_of_products_in_turn() -> None:
    """Each client's own model after its local steps."""
    algorithm = ruled("rolora", telling())
    job = Job(PROBLEM, algorithm, SCHEDULE, engine=Serial())
    for rounds in (1, 2, 3):
        before, after = run(job, rounds - 1).server.x, run(job, rounds)
        plan = SCHEDULE.plan(rounds - 1, algorithm, PROBLEM.roster)
        rests = in_factor(PROBLEM, "BA"[rounds % 2])
        models = torch.where(rests, before, after.store.gather(plan.ids).x)  # of the rest rows hold what they held
        for name in LAYERS:
            now = product(before, name)
            moves = [w * (product(x, name) - now) for w, x in zip(plan.w, models, strict=True)]
            torch.testing.assert_close(product(after.server.x, name), now + sum(moves), rtol=1e-12, atol=1e-14)


# -- refusals ------------------------------------------------------------------------------------------------------

METHOD = "the server steps to the weighted mean of its clients' models, and this method's does not"
REFUSALS: dict[str, tuple[str, Callable[[], Algorithm], str]] = {
    "a step of its own": ("fedex", lambda: fedavg(0.5), METHOD),
    "duals": ("hlora", lambda: make("feddyn"), METHOD),
    "normalised": ("flora", lambda: make("fednova"), METHOD),
    "an answer of its own": ("fedex", lambda: make("auto"), METHOD),
    "control variates": ("flora", scaffold, "flora restarts the factors every round, and this method keeps a vector"),
    "and cut ones": ("hlora", scaffold, "hlora restarts the factors every round, and this method keeps a vector"),
    "compressed": ("fedex", lambda: with_uploads(fedavg(), quantise()), "compressed uploads are neither"),
    "an outer optimiser": ("fedex", lambda: with_server(fedavg(), nesterov()), "a server optimiser steps in factors"),
    "late": ("fedex", lambda: with_late_replies(fedavg()), "from factors of an earlier round; use late discard"),
    "late, in turn": ("rolora", lambda: with_late_replies(fedavg()), "this method's rounds are not one message"),
    "an attack": ("fedex", lambda: with_hostile(fedavg(), ipm(), 0, 7), "looks at other clients takes them apart"),
    "private": ("hlora", lambda: with_privacy(fedavg(), 1.0, 1.0, "central", 5), "privacy covers their sum alone"),
    "silent rounds": ("rolora", lambda: make("fedpd"), "this method's rounds are not one message"),
    "own models": ("fedex", lambda: replace(fedavg(), client_model=lambda row, x: row), "the method has one for each"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_would_not_be_exact_is_refused(case: str) -> None:
    rule, algorithm, words = REFUSALS[case]
    with pytest.raises(UserError, match=words):
        ruled(rule, algorithm())


@pytest.mark.parametrize("rule", [fedex(), flora(), hlora(), rolora()])
def test_a_model_without_factors_is_refused(rule: Any) -> None:
    of = problem(train="B")
    assert of.objective.pairs == ()
    with pytest.raises(UserError, match="of which A and B are trained, and this model has none"):
        with_factors(fedavg(), of.objective.pairs, of.dim, rule)


def test_secure_sums_are_for_one_factor_at_a_time() -> None:
    assert unsummable(ruled("rolora", scaffold())) is None
    for rule in ("fedex", "flora", "hlora"):
        assert unsummable(ruled(rule)) == "its server looks at contributions one by one"


def test_sampling_by_loss_would_ask_of_other_weights() -> None:
    sampler = samplers()["power_of_choice"](5)
    job = Job(PROBLEM, ruled("fedex"), replace(SCHEDULE, sampler=sampler))
    assert any("clients' losses are asked at the server's factors" in why for why in refusals.reasons(job))


# -- settings ------------------------------------------------------------------------------------------------------

SETTINGS = {
    "data": "digits",
    "model": "2nn",
    "adapters": "lora(where='1|3',rank=4,also='5')",
    "clients": 6,
    "partition": "dirichlet(0.3)",
    "cohort": 3,
    "rounds": 2,
    "local": {"lr": 0.1},
}


def test_privacy_covers_sums_and_one_factor_at_a_time() -> None:
    privacy = {"noise": 5.0, "clip": 1.0, "delta": 0.01}
    with pytest.raises(UserError, match="privacy covers their sum alone; use lora\\(train=B\\), whose mean is exact"):
        build(resolve_run(from_nested({**SETTINGS, "privacy": privacy, "aggregate": "fedex"}, "test")))
    job = build(resolve_run(from_nested({**SETTINGS, "privacy": privacy, "aggregate": "rolora"}, "test")))
    assert job.algorithm.facts.factors == "rolora"


@pytest.mark.slow
def test_the_command_compares_rules_and_looks_at_a_run(tmp_path: Path) -> None:
    """Rules are parts of a method; a run that is resumed goes on from what was added to its weights."""
    methods = "fedavg(aggregate=fedex),scaffold(aggregate=rolora)"
    options = [f"--{key}={SETTINGS[key]}" for key in ("data", "model", "adapters", "clients", "partition", "cohort")]
    command = [sys.executable, "-m", "fedconcord"]
    for line in (
        ["compare", *options, "--methods", methods, "--rounds", "2", "--out", "all"],
        ["diagnose", "all/fedavg-aggregate=fedex/seed-0", "--at", "2", "--out", "look"],
    ):
        done = subprocess.run([*command, *line], capture_output=True, text=True, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "all").rglob("run.json"))) == 2
