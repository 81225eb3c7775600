"""Gradients of fully connected networks for many clients at once, written out as batched matrix products.

Small networks are bound by weight traffic and by dispatch: torch.func's generic vmap takes three to four times as long.
A gradient is never made where it is only to be added: the products add it to what it is for.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedconcord.core.flat import Layout

Delta = Callable[[Tensor, Tensor], Tensor]
"""(outputs [S, B, C], targets [S, B, ...]) -> gradient of each sample's loss with respect to its outputs [S, B, C].

It may overwrite the outputs.
"""

Kernel = Callable[[Tensor, float, float, Tensor, Tensor, Tensor, Tensor | None], None]
"""(into [S, d], beta, alpha, x [S, d], inputs [S, B, *shape], targets [S, B, ...], weight [S, B] or None for 1/B):

into <- beta * into + alpha * gradients at x. `into` may be x; with beta 0 it may hold anything.
"""


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """softmax(outputs) minus the label's unit vector."""
    delta = torch.softmax(outputs, -1)
    return delta.scatter_add_(-1, labels[..., None], delta.new_full((1, 1, 1), -1.0).expand(*labels.shape, 1))


def add(slot: Tensor, g: Tensor, beta: float, alpha: float) -> None:
    """slot <- beta slot + alpha g; with beta 0 the slot may hold anything."""
    if beta == 0.0:
        torch.mul(g, alpha, out=slot)
    else:
        slot.mul_(beta).add_(g, alpha=alpha)


def widths(model: nn.Module) -> tuple[int, ...] | None:
    """Inputs, hidden layers and outputs of a Sequential of Flatten, then Linear layers with ReLU between; else None."""
    if not isinstance(model, nn.Sequential):
        return None
    layers = [layer for layer in model if not isinstance(layer, nn.Flatten)]
    linear, between = layers[::2], layers[1::2]
    flattened = all(not isinstance(layer, nn.Flatten) for layer in list(model)[1:])
    if not (
        flattened
        and len(layers) % 2 == 1
        and all(type(layer) is nn.Linear and layer.bias is not None for layer in linear)
        and all(type(layer) is nn.ReLU for layer in between)
    ):
        return None
    shapes = [(layer.in_features, layer.out_features) for layer in linear if isinstance(layer, nn.Linear)]
    return (shapes[0][0], *(out for _, out in shapes))


def kernel(model: nn.Module, layout: Layout, delta: Delta = cross_entropy) -> Kernel | None:
    """The gradient of a network that has `widths` and nothing frozen; None for other models."""
    if widths(model) is None or layout.constants:
        return None

    def accumulate(
        into: Tensor, beta: float, alpha: float, x: Tensor, inputs: Tensor, targets: Tensor, weight: Tensor | None
    ) -> None:
        parameters = list(layout.views(x).values())
        weights, biases = parameters[::2], parameters[1::2]
        slots = parameters if into is x else list(layout.views(into).values())
        activations = [inputs.reshape(*inputs.shape[:2], -1)]
        for k, (W, b) in enumerate(zip(weights, biases, strict=True)):
            z = torch.baddbmm(b[:, None], activations[-1], W.mT)
            activations.append(z if k == len(weights) - 1 else z.relu_())
        slope = delta(activations.pop(), targets)
        slope *= 1.0 / slope.shape[1] if weight is None else weight[..., None]
        for k in reversed(range(len(weights))):
            a = activations.pop()
            before = torch.bmm(slope, weights[k]).mul_(a > 0) if k else slope  # first: the next line may change W
            slots[2 * k].baddbmm_(slope.mT, a, beta=beta, alpha=alpha)
            add(slots[2 * k + 1], slope.sum(1), beta, alpha)
            slope = before

    return accumulate
