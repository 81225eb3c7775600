"""A model trained by code of the user's (`contract.code`): from a vector to a module, and back."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from fedconcord.method.contract.code import Batch, Code, Correct, Visit
from fedconcord.method.contract.flat import Layout
from fedconcord.support.errors import UserError, foreign


def train(
    model: nn.Module, layout: Layout, code: Code, x: Tensor, batches: list[Batch], visit: Visit, correct: Correct
) -> Tensor:
    """The model [d] that the code makes of x [d]; torch's generators are seeded for it, and nothing else notices.

    Args:
        model: of which it gets a copy, with the parameters x.

    Raises:
        UserError: the code failed, or asked for a correction of gradients that are not there.
    """
    name = code.identity.name or "of your own"
    mine = copy.deepcopy(model)
    parameters = {key: value for key, value in mine.named_parameters() if value.requires_grad}

    def vector() -> Tensor:
        return layout.vector(parameters).detach().clone()

    def correct_gradients() -> None:
        if all(value.grad is None for value in parameters.values()):
            raise UserError(
                f"client code {name} calls visit.correct() where the model has no gradients; call it after backward()"
            )
        g = {key: torch.zeros_like(value) if value.grad is None else value.grad for key, value in parameters.items()}
        for key, value in layout.views(correct(vector(), layout.vector(g))).items():
            parameters[key].grad = value.clone()

    with torch.no_grad():
        every = dict(mine.named_parameters())
        for key, value in (layout.views(x) | {key: layout.constants[key] for key in layout.weights}).items():
            every[key].copy_(value)
    devices = [x.device] if x.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.enable_grad():
        torch.manual_seed(visit.seed)
        with foreign(f"client code {name} failed at client {visit.client} in round {visit.round}"):
            code.train(mine, batches, visit._replace(correct=correct_gradients))
    return vector()
