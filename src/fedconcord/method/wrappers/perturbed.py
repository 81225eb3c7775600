"""Any method whose clients estimate the ascent of sharpness-aware steps from two models that they received.

FedLESAM: Fan et al., ICML 2024 (arXiv 2405.18890). Client i keeps the model x^s that it received when it last took
part, and takes the gradients of round t at
    y_i + radius (x^s - x^t) / ||x^s - x^t||,
the only one of a step. x^s is x^0 before it first takes part, so that round 0 has no ascent. With SCAFFOLD it is
FedLESAM-S, with FedDyn FedLESAM-D. The authors' code takes the server's last move for all clients, and of that vector
one number a tensor (docs/published.md).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedconcord.method.contract import Algorithm, Client, Done, Local, Oracle, Perturbed, Tree, model_of
from fedconcord.method.contract.identity import definition
from fedconcord.method.contract.pieces import ascent
from fedconcord.method.wrappers.lift import lift
from fedconcord.support.errors import UserError


class Received(NamedTuple):
    """A client's state."""

    inner: Any  # the method's own row
    last: Tensor  # [d] x^s


@definition()
def with_estimated_ascent(algorithm: Algorithm, radius: float) -> Algorithm:
    """The same method with gradients at models that are perturbed along what the server has left behind.

    Raises:
        UserError: the method brings its own gradient.
    """
    if (theirs := algorithm.step.oracle) is not None:
        raise UserError(f"the method brings its own gradient, {theirs.kind}; leave local.oracle at minibatch")

    def start(down: Tree, row: Received, client: Client) -> Local:
        local = algorithm.start(down, row.inner, client)
        back = row.last - model_of(down)
        return local.having(Perturbed(ascent(torch.zeros_like(back), back, radius)))

    def finish(down: Tree, row: Received, done: Done, client: Client) -> tuple[Tree, Received]:
        up, inner = algorithm.finish(down, row.inner, done, client)
        return up, Received(inner, model_of(down).expand_as(row.last))

    lifted = lift(algorithm, row=Received)
    return replace(
        lifted,
        start=start,
        finish=finish,
        step=lifted.step._replace(oracle=Oracle("lesam", radius)),
        needs=lifted.needs._replace(x0=True),
    )
