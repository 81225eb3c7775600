"""LoRA on any model: what is trained, one base for all clients, exact means, and the plain model that comes of it."""

import copy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from test_engines import SCHEDULE, assert_same, assert_same_server, run
from torch import Tensor, nn

from fedconcord.execution.engines import Serial, Stacked, Wire
from fedconcord.execution.job import Job
from fedconcord.federation.adapters import Adapted, lora, merged
from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.objectives import Supervised
from fedconcord.federation.objectives.parts import with_private
from fedconcord.method.algorithms import METHODS
from fedconcord.support.errors import UserError
from table import make

IN, HIDDEN, CLASSES = 12, 8, 3


class Net(nn.Module):
    """Two layers by name and one that adapters leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.value, self.head = nn.Linear(IN, HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.value(torch.tanh(self.query(x)))))
        return out


def problem(**options: object) -> Supervised:
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((100, IN)).astype(np.float32), draw.integers(0, CLASSES, 100)
    data = Dataset("noise", x[:80], y[:80], x[80:], y[80:], CLASSES)
    parts = np.split(np.arange(80), np.cumsum([3, 4, 7, 12, 20, 9]))
    adapters = lora(**{"where": "query|value", "rank": 2, **options})  # type: ignore[arg-type]
    return Supervised(lambda: adapters.attach(Net()), data, parts, dtype=torch.float64)


def test_a_model_with_fresh_adapters_is_the_model() -> None:
    of = problem()
    torch.manual_seed(3)
    plain = Net()
    torch.manual_seed(3)
    adapted = lora("query|value", 2).attach(Net())
    x = torch.randn(5, IN)
    assert torch.equal(adapted(x), plain(x))
    assert of.dim == 2 * (IN + HIDDEN) + 2 * (HIDDEN + HIDDEN)
    assert [name for name, layer in adapted.named_modules() if isinstance(layer, Adapted)] == ["query", "value"]


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_fedsa_shares_a_and_keeps_b(method: str) -> None:
    """FedSA-LoRA (Guo et al., ICLR 2025): the A of all clients is sent and averaged, each client's B is private."""
    whole = problem()
    of = with_private(whole, "*.lora_B", SCHEDULE.seed)
    assert of.dim == 2 * (IN + HIDDEN)  # r n of each layer
    state = run(Job(of, make(method), SCHEDULE, engine=Stacked(3)), 4)
    assert_same(run(Job(of, make(method), SCHEDULE, engine=Serial()), 4), state)
    known = [i for i in range(6) if state.store.known(np.array([i]))[0]]
    ends = [of.joined(state.server.x, state.store.gather(np.array([i])).private[0]) for i in known]
    for layer in ("query", "value"):
        pairs = [factors(of.whole, u, layer) for u in ends]
        assert all(torch.equal(a, pairs[0][0]) for a, _ in pairs)
        assert float((pairs[0][0] - factors(whole, whole.init(SCHEDULE.seed), layer)[0]).norm()) > 1e-5
        assert float((pairs[0][1] - pairs[1][1]).norm()) > 1e-4


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "afedpd", "fedvra"])
def test_engines_agree_and_the_base_never_moves(method: str) -> None:
    of = problem(also="head")
    before = {name: leaf.clone() for name, leaf in of.layout.constants.items()}
    job = Job(of, make(method), SCHEDULE, engine=Serial())
    expected = run(job, 3)
    assert_same(run(Job(of, make(method), SCHEDULE, engine=Stacked(3)), 3), expected)
    assert_same_server(run(Job(of, make(method), SCHEDULE, engine=Wire()), 3), expected)
    assert all(torch.equal(leaf, before[name]) for name, leaf in of.layout.constants.items())
    assert float((expected.server.x - of.init(SCHEDULE.seed)).norm()) > 1e-3


def factors(of: Supervised, x: Tensor, layer: str) -> tuple[Tensor, Tensor]:
    """A and B; B R in place of B where there is an R."""
    values = of.layout.values(x)
    a, b, r = (values.get(f"{layer}.lora_{factor}") for factor in "ABR")
    assert a is not None
    assert b is not None
    return a, b if r is None else b @ r


@pytest.mark.parametrize("layer", [nn.Linear(6, 4), nn.Linear(4, 6)])
def test_the_singular_vectors_between_which_r_stands_are_those_of_the_weight(layer: nn.Linear) -> None:
    """At full rank R = -1 takes the whole weight away, at rank 2 its best part of that rank."""
    x, values = torch.eye(layer.in_features), torch.linalg.svdvals(layer.weight.detach())
    for rank in (4, 2):
        adapted = Adapted(layer, rank, 1.0, train="R")
        assert [name for name, p in adapted.named_parameters() if p.requires_grad and "lora" in name] == ["lora_R"]
        torch.testing.assert_close(adapted(x), layer(x))
        assert adapted.lora_R is not None
        adapted.lora_R.data = -torch.eye(rank)
        rest = torch.linalg.svdvals((adapted(x) - layer.bias).detach())
        torch.testing.assert_close(rest[: 4 - rank], values[rank:], atol=1e-5, rtol=1e-5)
        assert float(rest[4 - rank :].max()) < 1e-5


def test_fed_sb_starts_after_the_first_step_as_far_as_the_rank_goes(tmp_path: Path) -> None:
    """At full rank at the first run's weights; at rank 2 off by the tail of what it changed; R is all that moves."""
    before, after = Net().double(), Net().double()
    after.load_state_dict({k: v + 0.1 * torch.randn_like(v) for k, v in before.state_dict().items()})
    save_file(after.state_dict(), tmp_path / "model.safetensors")
    change = (after.query.weight - before.query.weight).detach()
    values = torch.linalg.svdvals(change)
    for rank in (len(values), 2):
        model = lora("query", rank=rank, alpha=3.0, train="R", first=str(tmp_path)).attach(copy.deepcopy(before))
        assert [name for name, p in model.named_parameters() if p.requires_grad] == ["query.lora_R"]
        weight = merged(model, model.state_dict())["query.weight"]
        rest = torch.linalg.svdvals(after.query.weight.detach() - weight)
        torch.testing.assert_close(rest[: len(values) - rank], values[rank:], rtol=1e-12, atol=1e-12)
        assert float(rest[len(values) - rank :].max()) < 1e-12
        layer = model.get_submodule("query")
        torch.testing.assert_close(layer.lora_A @ layer.lora_A.mT, torch.eye(rank).double(), rtol=1e-12, atol=1e-12)


def test_a_first_run_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="first is for train=R, given train=both"):
        lora(first="here")
    attach = lora("query", rank=2, train="R", first=str(tmp_path)).attach
    with pytest.raises(UserError, match=r"cannot be read or has no query\.weight"):
        attach(Net().double())
    net = Net().double()
    save_file({"query.weight": net.query.weight.detach()}, tmp_path / "model.safetensors")
    for other in (net, Net().double()):  # it changed nothing; it is of another start
        with pytest.raises(UserError, match="changed layer 'query' by less than rank 2, or by more than all"):
            attach(other)


def test_the_mean_of_products_is_exact_where_b_or_r_alone_is_trained_and_else_is_not() -> None:
    """Over four clients with unequal weights, from far-apart factors."""
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    off = {}
    for train in ("both", "B", "R"):
        of = problem(train=train)
        generator = torch.Generator().manual_seed(0)
        clients = torch.randn(4, of.dim, dtype=torch.float64, generator=generator)
        pairs = [factors(of, x, "query") for x in clients]
        products = sum(w * (b @ a) for w, (a, b) in zip(weights, pairs, strict=True))
        a, b = factors(of, weights @ clients, "query")
        off[train] = float((b @ a - products).norm() / products.norm())
    assert max(off["B"], off["R"]) < 1e-12
    assert off["both"] > 0.1


@pytest.mark.parametrize("train", ["both", "R"])
def test_the_final_model_is_the_plain_one_with_the_products_in_its_weights(train: str) -> None:
    of = problem(also="head", alpha=6.0, train=train)
    x = run(Job(of, METHODS["fedavg"](), SCHEDULE, engine=Stacked()), 5).server.x
    plain = Net().double()
    plain.load_state_dict(of.export(x))
    inputs = torch.randn(7, IN, dtype=torch.float64)
    torch.testing.assert_close(plain(inputs), of.logits(x, inputs), rtol=1e-12, atol=1e-12)
    state, layer = of.layout.state(x), of.model.get_submodule("value")
    a, b = state["value.lora_A"], state["value.lora_B"]
    turned = merged(of.model, state | {"value.lora_A": b.mT, "value.lora_B": a.mT})  # the planted error
    assert float((turned["value.weight"] - plain.value.weight).detach().norm()) > 1e-3
    assert isinstance(layer, Adapted)
    assert layer.scale == 3.0


def test_stacked_clients_share_one_base() -> None:
    """Nothing of size clients x weights is made."""
    big = nn.Sequential(nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, CLASSES))
    model = lora("0", 1).attach(big)
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((40, 1000)).astype(np.float32), draw.integers(0, CLASSES, 40)
    of = Supervised(lambda: model, Dataset("noise", x, y, x[:5], y[:5], CLASSES), list(np.arange(40)[:, None]))
    assert of.dim == 2000
    objective = of.objective
    with Sizes() as sizes:
        objective.gradients(of.init(0).expand(40, -1), torch.arange(40)[:, None], None)
    assert 0 < sizes.largest < 2 * 1000 * 1000


class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
    """The largest tensor that is made."""

    largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for one in out if isinstance(out, tuple | list) else (out,):
            if isinstance(one, Tensor):
                self.largest = max(self.largest, one.numel())
        return out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"where": "key"},
            "no linear layer of the model matches where 'key'; its linear layers are query, value, head",
        ),
        ({"where": "("}, "'\\(' is no regular expression"),
        ({"rank": 9}, "rank 9 is above the 8 that layer 'query' can have"),
        ({"also": "tail"}, "no parameter of the model matches also 'tail'"),
    ],
)
def test_what_adapters_cannot_be_is_one_sentence(options: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        problem(**options)


@pytest.mark.slow
def test_the_command_trains_adapters_and_predicts_with_the_plain_model(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedconcord"]
    options = ["--data", "digits", "--model", "2nn", "--adapters", "lora(where='1|3',rank=4,also='5')", "--rounds", "3"]
    for line in (
        ["run", *options, "--out", str(tmp_path / "run")],
        ["export", str(tmp_path / "run"), "--out", "m.pt2"],
    ):
        done = subprocess.run([*command, *line], capture_output=True, text=True, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stderr
    from safetensors.torch import load_file

    names = set(load_file(tmp_path / "run" / "model.safetensors"))
    assert names == {f"{k}.{part}" for k in (1, 3, 5) for part in ("weight", "bias")}
