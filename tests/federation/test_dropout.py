"""Dropout by keys: the same masks on every engine, in every order and after every resume, and no others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_transformers import CLASSES, LENGTH, saved, texts
from torch import Tensor, nn
from torch.nn import functional as F

from fedconcord.execution.engines import Engine, Serial, Stacked, Wire
from fedconcord.execution.job import Job, State, advance, checkpoint, refusals, start
from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.layers import KeyedDropout, Pass, mixed, sample_keys
from fedconcord.federation.models import MODELS
from fedconcord.federation.objectives import Supervised
from fedconcord.federation.objectives.semi import SemiSupervised
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import fixed, uniform
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Conditions, Orders, model_of, rng
from fedconcord.method.step.solver import ORACLES, Solver
from fedconcord.support.errors import UserError

SIZES = (5, 12, 8, 7, 6, 9)


def data(shape: tuple[int, ...] = (4,), seed: int = 0) -> Dataset:
    draw, n = np.random.default_rng(seed), sum(SIZES)
    x, y = draw.standard_normal((n, *shape)).astype(np.float32), draw.integers(0, 3, n)
    return Dataset("normal", x, y, x[:7], y[:7], classes=3)


def parts() -> list[np.ndarray]:
    return np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])


def dense() -> nn.Module:
    twice = nn.Dropout(0.2)  # one layer at two places
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), twice, nn.Linear(8, 8), nn.Tanh(), twice, nn.Linear(8, 3))


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 5, 3), nn.ReLU(), nn.Dropout2d(0.4), nn.Flatten(), nn.Dropout(0.3), nn.Linear(45, 3)
    )


def problem(build: Callable[[], nn.Module] = dense, shape: tuple[int, ...] = (4,)) -> Supervised:
    return Supervised(build, data(shape), parts(), dtype=torch.float64)


def job(name: str = "fedavg", of: Supervised | None = None, **more: Any) -> Job:
    schedule = Schedule(3, 4, 0.1, uniform(2, 5), "steps", batch_size=4)
    return Job(of or problem(), METHODS[name](), schedule, **{"engine": Serial(), **more})


def after(job: Job, rounds: int = 3) -> State:
    state = start(job)
    for _ in range(rounds):
        state = advance(job, state)
    return state


# -- the masks -----------------------------------------------------------------------------------------------------


def test_the_hash_is_splitmix64() -> None:
    """The first numbers of its generator from 1234567, as its authors' code prints them."""
    gold = 0x9E3779B97F4A7C15
    states = [(1234567 + k * gold + 2**63) % 2**64 - 2**63 for k in range(1, 6)]
    assert [n % 2**64 for n in mixed(torch.tensor(states)).tolist()] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.9])
def test_the_rate_and_the_mean(rate: float) -> None:
    """As many entries stay as the rate says, in every sample, row by row and by place; the mean is the input's."""
    keys, n, each = Pass(), 400, 1001
    layer = KeyedDropout("d", rate, False, keys)
    with keys.of_step(sample_keys(torch.tensor([[-5]]), 3, n)[0], None):
        out = layer(torch.ones(n, each, dtype=torch.float64))
    stays = out > 0
    assert torch.equal(out[stays], torch.full((int(stays.sum()),), 1 / (1 - rate), dtype=torch.float64))
    sigma = np.sqrt(rate * (1 - rate))
    assert abs(float(stays.double().mean()) - (1 - rate)) < 4 * sigma / np.sqrt(n * each)
    for axis, count in ((0, n), (1, each)):
        far = (stays.double().mean(axis) - (1 - rate)).abs() / (sigma / np.sqrt(count))
        assert float(far.max()) < 5.5
        assert abs(float(far.square().mean()) - 1) < 4.5 * np.sqrt(2 / len(far))  # as independent draws vary
    neighbours = (stays[:, 1:] ^ stays[:, :-1]).double().mean()
    assert abs(float(neighbours) - 2 * rate * (1 - rate)) < 0.005


def test_channels_go_as_a_whole_and_a_rate_of_one_leaves_nothing() -> None:
    keys, x = Pass(), torch.ones(50, 20, 3, 2)
    with keys.of_step(sample_keys(torch.tensor([[9]]), 0, 50)[0], None):
        out = KeyedDropout("d", 0.5, True, keys)(x)
        nothing = KeyedDropout("d", 1.0, False, keys)(x)
    assert torch.equal(out, out[:, :, :1, :1].expand_as(out))
    assert 0.4 < float((out > 0).double().mean()) < 0.6
    assert not nothing.any()
    assert torch.equal(KeyedDropout("d", 0.5, True, keys)(x), x)


def test_every_sample_layer_and_step_has_masks_of_its_own_and_every_client_and_round() -> None:
    keys = Pass()
    layer, x = KeyedDropout("d", 0.5, False, keys), torch.ones(2, 64)
    streams = [int(rng.generator(0, rng.Purpose.MASK, t, i).integers(2**63)) for t in (0, 1) for i in (0, 1)]
    masks = []
    for stream in streams:
        for step in (0, 1):
            with keys.of_step(sample_keys(torch.tensor([[stream]]), step, 2)[0], None):
                masks += [*layer(x), *layer(x)]
    rows = torch.stack(masks) > 0
    assert len(torch.unique(rows, dim=0)) == len(rows) == 4 * 2 * 4
    alike = (rows[:, None] == rows).double().mean(-1)[~torch.eye(len(rows), dtype=torch.bool)]
    assert float(alike.min()) > 0.2
    assert float(alike.max()) < 0.8


# -- a run ---------------------------------------------------------------------------------------------------------

GOLD, MASK64 = 0x9E3779B97F4A7C15, 2**64 - 1


def plain_hash(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
    return z ^ (z >> 31)


def plain_mask(stream: int, step: int, position: int, layer: int, each: int, rate: float) -> list[float]:
    """By the words of `layers`, one number after the other."""
    sample = plain_hash((stream + (step * 2**32 + position + 1) * GOLD) & MASK64)
    words = [plain_hash((sample + (layer * 2**32 + k + 1) * GOLD) & MASK64) for k in range(-(-each // 2))]
    halves = [half for word in words for half in (word & (2**32 - 1), word >> 32)][:each]
    signed = [half - 2**32 if half >= 2**31 else half for half in halves]
    return [float(half >= round(rate * 2**32) - 2**31) / (1 - rate) for half in signed]


def test_fedavg_with_dropout_is_what_its_words_say() -> None:
    """A round of FedAvg by hand: masks one number after the other, gradients by autograd of a plain formula."""
    net = nn.Sequential(nn.Dropout(0.4), nn.Linear(4, 7), nn.Tanh(), nn.Dropout(0.3), nn.Linear(7, 3))
    this = job(of=problem(lambda: net))
    of, state = this.problem, start(this)
    for t in range(2):
        x0, plan = model_of(state.server), this.schedule.plan(t, this.algorithm, of.roster)
        mean = torch.zeros_like(x0)
        for client, steps, w in zip(plan.ids.tolist(), plan.steps.tolist(), plan.w, strict=True):
            stream = int(rng.generator(3, rng.Purpose.MASK, t, client).integers(-(2**63), 2**63))
            orders = Orders(t, client, steps, 0.1, 3)
            drawn = this.schedule.draws.draw(this.algorithm, orders, int(of.roster.samples[client])).batches
            assert drawn is not None
            x = x0.clone()
            for k, batch in enumerate(drawn):
                mine = of.objective.samples(client)[torch.as_tensor(batch[batch >= 0])]
                inputs, targets = of.samples(mine)
                first, second = (
                    torch.tensor([plain_mask(stream, k, b, *of_layer) for b in range(len(mine))], dtype=torch.float64)
                    for of_layer in ((1, 4, 0.4), (2, 7, 0.3))
                )
                x.requires_grad_()
                v = of.layout.views(x)
                hidden = torch.tanh(F.linear(inputs * first, v["1.weight"], v["1.bias"])) * second
                loss = F.cross_entropy(F.linear(hidden, v["4.weight"], v["4.bias"]), targets)
                x = (x - plan.lr * torch.autograd.grad(loss, x)[0]).detach()
            mean += float(w) * (x - x0)
        state = advance(this, state)
        assert float((model_of(state.server) - x0 - mean).abs().max()) < 1e-13


ENGINES: dict[str, Engine] = {"one by one": Stacked(1), "stacked": Stacked(None), "two": Stacked(2), "wire": Wire()}


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "feddyn", "fedprox", "afedpd"])
@pytest.mark.parametrize("engine", ENGINES)
def test_engines_agree(engine: str, name: str) -> None:
    want, got = after(job(name)), after(job(name, engine=ENGINES[engine]))
    assert float((model_of(got.server) - model_of(want.server)).abs().max()) < 1e-12


@pytest.mark.parametrize("engine", ["stacked", "wire"])
@pytest.mark.parametrize("oracle", ["minibatch", "sam"])
def test_engines_agree_on_images(engine: str, oracle: str) -> None:
    of, solver = problem(images, (2, 5, 5)), Solver(oracle=ORACLES[oracle](), momentum=0.5)
    want, got = (after(job(of=of, solver=solver, engine=e)) for e in (Serial(), ENGINES[engine]))
    assert float((model_of(got.server) - model_of(want.server)).abs().max()) < 1e-12
    plain = after(
        job(of=problem(lambda: nn.Sequential(*list(images())[:2], nn.Flatten(), nn.Linear(45, 3)), (2, 5, 5)))
    )
    assert float((model_of(plain.server) - model_of(want.server)).abs().max()) > 1e-3  # they are dropped


def test_all_gradients_of_a_step_have_the_same_masks_and_other_steps_others() -> None:
    of = problem().objective
    assert of.under is not None
    under = of.under(Conditions(masks=torch.tensor([[3], [4]])))
    x, samples = problem().init(0).expand(2, -1), torch.tensor([[0, 1, 2], [6, 7, 8]])
    first, again, later = (under.taking(slice(0, 2), k).gradients(x, samples, None) for k in (1, 1, 2))
    assert torch.equal(first, again)
    assert float((first - later).abs().max()) > 1e-3
    padded = torch.cat([samples, samples[:, :1]], 1)
    weight = torch.tensor([[1 / 3, 1 / 3, 1 / 3, 0.0]], dtype=torch.float64).expand(2, -1)
    torch.testing.assert_close(under.taking(slice(0, 2), 1).gradients(x, padded, weight), first, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_a_resumed_run_has_the_same_bits(name: str, tmp_path: Path) -> None:
    this = job(name, engine=Stacked(2))
    state = after(this, 2)
    checkpoint.save(this, state, tmp_path / "c.safetensors")
    want = advance(this, advance(this, state))
    torch.rand(10)  # another global state
    again = job(name, engine=Stacked(2))
    got = advance(again, advance(again, checkpoint.load(again, tmp_path / "c.safetensors")))
    assert torch.equal(model_of(got.server), model_of(want.server))


def test_judging_and_the_final_model_drop_nothing() -> None:
    of, bare = problem(), problem(lambda: nn.Sequential(*(m for m in dense() if not isinstance(m, nn.Dropout))))
    x = of.init(0)
    assert torch.equal(x, bare.init(0))
    before = torch.get_rng_state()
    assert of.evaluate(x) == of.evaluate(x)
    assert of.evaluate(x)["test_loss"] == pytest.approx(bare.evaluate(x)["test_loss"], rel=1e-12)
    assert torch.equal(of.objective.gradient(x, torch.arange(5)), bare.objective.gradient(x, torch.arange(5)))
    assert torch.equal(before, torch.get_rng_state())
    plain = dense()
    plain.load_state_dict(of.export(x))


def test_the_users_model_stays_as_it_is() -> None:
    net = dense()
    problem(lambda: net)
    assert [type(layer) for layer in net].count(nn.Dropout) == 2


def test_a_rate_of_zero_is_no_dropout() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.0), nn.Linear(8, 3))
    assert problem(lambda: net).objective.draws is None


def test_transformers_drop_by_keys(tmp_path: Path) -> None:
    folder, rows = saved(tmp_path), texts()
    halves = np.array_split(np.arange(len(rows.train_y)), 2)

    def of(dropout: str) -> Supervised:
        def build() -> nn.Module:
            return MODELS["hf"]((LENGTH,), CLASSES, path=str(folder), dropout=dropout)

        return Supervised(build, rows, halves, dtype=torch.float64)

    schedule, models = Schedule(0, 2, 0.1, fixed(2), "steps", batch_size=3), {}
    assert of("off").objective.draws is None
    for dropout in ("off", "config"):
        for engine in (Serial(), Stacked(None)):
            this = Job(of(dropout), METHODS["fedavg"](), schedule, engine=engine)
            models[dropout, type(engine)] = model_of(after(this, 2).server)
    torch.testing.assert_close(models["config", Serial], models["config", Stacked], rtol=1e-12, atol=1e-13)
    assert float((models["config", Serial] - models["off", Serial]).abs().max()) > 1e-4


# -- what is refused -----------------------------------------------------------------------------------------------


class Functional(nn.Module):
    """It draws by itself, one layer below."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.Linear(4, 3)
        self.attn.register_forward_hook(lambda module, inputs, out: F.dropout(out, 0.5))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.attn(x)
        return out


class Turned(nn.Module):
    """Samples are on the second axis where it drops."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.drop = nn.Linear(4, 3), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(self.drop(x.T).T)
        return out


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (
            Functional,
            "the model draws random numbers outside of nn.Dropout (in 'attn'), which no seed governs; set its dropout "
            "to 0",
        ),
        (Turned, "layer 'drop' drops entries of an input whose first axis has 4 entries for 3 samples"),
        (
            lambda: nn.Sequential(nn.AlphaDropout(0.1), nn.Linear(4, 3)),
            "layer '0' is AlphaDropout, whose masks have no",
        ),
        (
            lambda: nn.Sequential(nn.Dropout(0.1), nn.Linear(4, 3)).eval(),
            "layer '0' is Dropout in evaluation mode, in which it drops nothing; call train() on it",
        ),
    ],
)
def test_other_draws_are_refused(build: Callable[[], nn.Module], said: str) -> None:
    with pytest.raises(UserError) as error:
        problem(build)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("name", "solver", "said"),
    [
        ("fedavg", Solver(oracle=ORACLES["svrg"]()), "svrg takes gradients of one and the same f_i; set local.oracle"),
        ("fedavg", Solver(oracle=ORACLES["full"]()), "full takes gradients of one and the same f_i; set local.oracle"),
        ("fedavg", Solver(kind="lbfgs"), "L-BFGS minimises one and the same f_i; use local SGD"),
        ("fedavg", Solver(tolerance=0.1), "local.tolerance looks at the gradient of one and the same f_i; leave"),
        ("losac", Solver(), "the method keeps a table of gradients of one and the same f_i; use another method"),
        ("mimesvrg", Solver(), "the method takes full gradients of one and the same f_i; use another method"),
        ("fedhybrid", Solver(), "the method takes Hessians of one and the same f_i; use another method"),
    ],
)  # fmt: skip
def test_what_asks_one_f_i_twice_is_refused(name: str, solver: Solver, said: str) -> None:
    every = list(refusals.reasons(job(name, solver=solver)))
    mine = [reason for reason in every if reason.startswith("layer '2' drops other entries in every step")]
    assert any(said in reason for reason in mine), every


def test_whole_clients_in_one_step_are_limited() -> None:
    """Up to as many samples as go in one pass engines agree, and more are refused."""
    whole = replace(job().schedule, batch_size=None)
    want, got = (after(replace(job(engine=e), schedule=whole)) for e in (Serial(), Stacked(None)))
    assert float((model_of(got.server) - model_of(want.server)).abs().max()) < 1e-12
    x = np.zeros((600, 4), np.float32)
    many = Dataset("zeros", x, np.zeros(600, np.int64), x[:2], np.zeros(2, np.int64), 3)
    large = Supervised(dense, many, [np.arange(600)])
    schedule = Schedule(0, 1, 0.1, fixed(1), "steps", batch_size=None)
    [reason] = refusals.reasons(Job(large, METHODS["fedavg"](), schedule))
    assert "where they are up to 600; give local.batch_size a smaller number" in reason
    assert not list(refusals.reasons(Job(large, METHODS["fedavg"](), replace(schedule, batch_size=10))))


def test_semi_supervised_clients_have_none() -> None:
    masks = [np.arange(n) % 2 == 0 for n in SIZES]
    with pytest.raises(UserError, match=r"layer '2' does otherwise in training than where the model answers"):
        SemiSupervised(dense, data(), parts(), masks)
