"""Models that look at values: one sentence from the stacked engine, and the serial engine trains them."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fedconcord
from fedconcord.support.errors import UserError


class Branching(nn.Module):
    def __init__(self, inputs: int, outputs: int, item: bool) -> None:
        super().__init__()
        self.layer, self.item = nn.Linear(inputs, outputs), item

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x.flatten(1))
        if self.item:
            return y * max(y.abs().sum().item(), 1.0)
        return 2 * y if y.sum() > 0 else y


def net(shape: tuple[int, ...], classes: int, item: bool = False) -> nn.Module:
    return Branching(torch.Size(shape).numel(), classes, item)


@pytest.mark.parametrize("item", ["true", "false"])
def test_one_sentence_that_names_the_model_and_the_way_out(tmp_path: Path, item: str) -> None:
    model = f"{__name__}:net(item={item})"
    with pytest.raises(UserError, match=r"model Branching or its loss cannot be .* several clients at once") as error:
        fedconcord.run(model=model, rounds=1, out=tmp_path / "a")
    assert "use --engine serial" in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "a").exists()
    assert fedconcord.run(model=model, rounds=1, engine="serial", out=tmp_path / "a").status == "complete"
