"""Models that HuggingFace's peft made are models as they are: their base is frozen, their factors are trained."""

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from test_engines import SCHEDULE, assert_same, assert_same_server, run
from torch import Tensor, nn

from fedconcord.execution.engines import Serial, Stacked, Wire
from fedconcord.execution.job import Job
from fedconcord.federation.adapters import lora
from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.objectives import Supervised
from table import make

IN, HIDDEN, CLASSES = 12, 8, 3


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.value, self.head = nn.Linear(IN, HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.value(torch.tanh(self.query(x)))))
        return out


def by_peft(**options: object) -> nn.Module:
    return get_peft_model(Net(), LoraConfig(r=2, lora_alpha=4, target_modules=["query", "value"], **options))


def problem(build) -> Supervised:
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((100, IN)).astype(np.float32), draw.integers(0, CLASSES, 100)
    data = Dataset("noise", x[:80], y[:80], x[80:], y[80:], CLASSES)
    parts = np.split(np.arange(80), np.cumsum([3, 4, 7, 12, 20, 9]))
    return Supervised(build, data, parts, dtype=torch.float64)


def test_its_factors_are_ours() -> None:
    """The same base and factors: outputs and gradients are those of `lora(rank=2,alpha=4)`."""
    theirs = problem(by_peft)
    ours = problem(lambda: lora("query|value", 2, 4).attach(Net()))
    for name, leaf in ours.layout.constants.items():
        leaf.copy_(theirs.layout.constants[_in_peft(name)])
    assert [_in_peft(name) for name in ours.layout.shapes] == [*theirs.layout.shapes]
    x = torch.as_tensor(np.random.default_rng(1).standard_normal(ours.dim))
    samples = torch.arange(30)
    torch.testing.assert_close(theirs.gradient(x, samples), ours.gradient(x, samples), rtol=1e-12, atol=1e-12)
    assert float(ours.gradient(x, samples).norm()) > 0.1


def _in_peft(name: str) -> str:
    layer, _, rest = name.partition(".")
    rest = {"lora_A": "lora_A.default.weight", "lora_B": "lora_B.default.weight"}.get(rest, rest)
    return f"base_model.model.{layer}.{rest.replace('base.', 'base_layer.')}"


def test_engines_agree_and_only_factors_and_what_is_saved_travel() -> None:
    of = problem(lambda: by_peft(modules_to_save=["head"]))
    assert of.dim == 2 * (IN + HIDDEN) + 2 * (HIDDEN + HIDDEN) + (HIDDEN + 1) * CLASSES
    expected = run(Job(of, make("scaffold"), SCHEDULE, engine=Serial()), 3)
    assert_same(run(Job(of, make("scaffold"), SCHEDULE, engine=Stacked(3)), 3), expected)
    assert_same_server(run(Job(of, make("scaffold"), SCHEDULE, engine=Wire()), 3), expected)
    net = by_peft(modules_to_save=["head"]).double()
    net.load_state_dict(of.export(expected.server.x))
    inputs = of.test_x[torch.arange(20)]
    torch.testing.assert_close(net(inputs), of.logits(expected.server.x, inputs))
