"""Terms of the local loss: what is added, sample by sample or batch by batch, to the loss that clients take steps on.

f_i becomes the mean over client i's samples of loss + weight * term. Gradients, control variates, dual variables and
L-BFGS see the sum, whatever the method. A `centred` term has no gradient where the model, the server's and the client's
last one are the same, so that a method that is exact stays so; with any other term the answer is the optimum of the
changed f_i.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from torch import Tensor

from fedconcord.method.contract.identity import UNNAMED, Identity

Need = Literal[
    "features",
    "server_outputs",
    "server_features",
    "previous_outputs",
    "previous_features",
    "class_counts",
    "prototypes",
]
"""What a term looks at beside outputs, targets and losses, and what costs something: a field of `View` each."""


class View(NamedTuple):
    """What a term may look at of one client's batch of B samples. What it does not ask for is None."""

    outputs: Tensor  # [B, C] of the model that is trained
    targets: Tensor  # [B] classes, or [B, C] numbers or labels
    losses: Tensor  # [B] without the term
    weights: Tensor  # [B] of the samples in the batch's mean: 1/B each; 0 for one that only fills the batch up
    features: Tensor | None = None  # [B, F] what the layer that was asked for gives
    server_outputs: Tensor | None = None  # [B, C] of the server's model x^t, a constant
    server_features: Tensor | None = None  # [B, F]
    previous_outputs: Tensor | None = None  # [B, C] of the client's model at the end of its last round, a constant
    previous_features: Tensor | None = None  # [B, F]
    class_counts: Tensor | None = None  # [C] how many samples of each class the client holds
    prototypes: Tensor | None = None  # [C, F] mean features of each class over clients, constants of the round
    has_prototype: Tensor | None = None  # [C] 1 where a class has one, 0 where no client has sent any yet


class Term(NamedTuple):
    """A term of the local loss. `value` is made of torch's operations, as gradients go through it, for many clients at
    once: without .item() and branches on values.
    """

    name: str  # what sentences call it
    value: Callable[[View], Tensor]  # [B] one number a sample, or [] one a batch
    weight: float = 1.0  # times its value in the loss
    needs: tuple[Need, ...] = ()  # what it looks at beside outputs, targets and losses
    features: str = ""  # the layer whose outputs are the features; "": what goes into the last linear layer
    per: Literal["sample", "batch"] = "sample"  # of a batch, f_i is no mean over samples
    centred: bool = False  # no gradient where the model, the server's and the client's last one are the same
    targets: tuple[str, ...] = ("class", "number", "labels")  # kinds of target that it is for
    loss: str | None = None  # the form of the only loss that it is for
    identity: Identity = UNNAMED  # which definition it is, for checkpoints and wires

    def looks_at(self, whose: Literal["server", "previous"]) -> bool:
        """Whether it asks for anything of the server's model, or of the client's last one."""
        return any(need.startswith(f"{whose}_") for need in self.needs)

    @property
    def has_features(self) -> bool:
        """Whether it asks for any model's features."""
        return any(need.endswith("features") for need in self.needs)
