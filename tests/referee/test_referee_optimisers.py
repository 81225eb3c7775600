"""Local optimisers of torch.optim's shape before the referee."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedconcord.support.errors import UserError
from fedconcord_referee import adapters, spec, verdict
from tiers import tiers

MINE = '''
import torch


class AdamW(torch.optim.AdamW):
    """torch's, with other defaults."""

    def __init__(self, params, lr):
        super().__init__(params, lr, eps=1e-3, weight_decay=0.3)


class Adam(torch.optim.Adam):
    def __init__(self, params, lr):
        super().__init__(params, lr, eps=1e-3, weight_decay=0.3)


class Momentum(torch.optim.SGD):
    def __init__(self, params, lr):
        super().__init__(params, lr, momentum=0.9)


class Own:
    """An AdamW with a mistake."""

    bias, root = (True, True), False

    def __init__(self, params, lr):
        (self.x,), self.lr, self.t, self.m, self.v = params, lr, 0, 0, 0

    @torch.no_grad()
    def step(self):
        self.t += 1
        g = self.x.grad
        self.m, self.v = 0.9 * self.m + 0.1 * g, 0.999 * self.v + 0.001 * g * g
        m = self.m / (1 - 0.9**self.t) if self.bias[0] else self.m
        v = self.v / (1 - 0.999**self.t) if self.bias[1] else self.v
        down = (v + 1e-3).sqrt() if self.root else v.sqrt() + 1e-3
        self.x -= self.lr * (m / down + 0.3 * self.x)


class NoBias(Own):
    bias = (False, False)


class First(Own):
    bias = (False, True)


class Root(Own):
    root = True


class Short(Own):
    """eps beside the root of the raw moment."""

    @torch.no_grad()
    def step(self):
        self.t += 1
        g = self.x.grad
        self.m, self.v = 0.9 * self.m + 0.1 * g, 0.999 * self.v + 0.001 * g * g
        lr = self.lr * (1 - 0.999**self.t) ** 0.5 / (1 - 0.9**self.t)
        self.x -= lr * self.m / (self.v.sqrt() + 1e-3) + self.lr * 0.3 * self.x


class Lion:
    late = True

    def __init__(self, params, lr):
        (self.x,), self.lr = params, lr
        self.m = torch.zeros_like(self.x)

    @torch.no_grad()
    def step(self):
        if self.late:
            step = (0.9 * self.m + 0.1 * self.x.grad).sign()
        self.m = 0.99 * self.m + 0.01 * self.x.grad
        self.x -= self.lr * (step if self.late else self.m.sign())


class Early(Lion):
    late = False


class Broken(Own):
    def step(self):
        if self.t == 2:
            1 / 0
        super().step()


class Shapeless(Own):
    def step(self):
        self.x.data = torch.zeros(2)


class Lost(Own):
    def step(self):
        self.x.data *= float("nan")
'''
ADAMW = "adamw(decay=0.3,eps=0.001)"
CASES = [
    ("AdamW", ADAMW, "equal", ""),
    ("Own", ADAMW, "equal", ""),
    ("Adam", ADAMW, "variant", "decay in the gradient"),
    ("NoBias", ADAMW, "mistake", "no bias correction"),
    ("First", ADAMW, "mistake", "first moment's bias left"),
    ("Short", ADAMW, "variant", "eps before the correction"),
    ("Root", ADAMW, "variant", "eps in the root"),
    ("Lion", "lion", "equal", ""),
    ("Early", "lion", "mistake", "momentum before the sign"),
    ("Momentum", "fedavg", "equal", ""),
]


@pytest.mark.parametrize(("name", "method", "kind", "says"), tiers(CASES, quick=CASES[2:3]))
def test_an_optimiser_is_judged(name: str, method: str, kind: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    one = spec.make(method, momentum=0.9 if name == "Momentum" else 0.0)
    judged = verdict.judge(one, adapters.optimiser(f"{file}:{name}")(one))
    assert (judged.kind, judged.name) == (kind, says), judged.also


BAD = [
    ("Broken", r"failed with exit code 1 .*: ZeroDivisionError"),
    ("Shapeless", "failed with exit code 1 before it answered a round"),
    ("Lost", "x after round 1 has NaN"),
]


@pytest.mark.parametrize(("name", "sentence"), tiers(BAD, quick=()))
def test_a_broken_optimiser_is_one_sentence(name: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    with pytest.raises(UserError, match=sentence):
        adapters.optimiser(f"{file}:{name}")(spec.make(ADAMW))


def test_what_is_no_optimiser_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--optimiser must be FILE:CLASS, as in mine"):
        adapters.optimiser("mine.py")
