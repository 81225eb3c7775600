"""Gradients of fully connected networks for many clients at once, written out as batched matrix products.

Small networks are bound by weight traffic and by dispatch: torch.func's generic vmap takes three to four times as long.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedconcord.flat import Layout

Kernel = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""(x [S, d], inputs [S, B, *shape], labels [S, B], weight [S, B] or None for 1/B) -> gradients [S, d]."""


def kernel(model: nn.Module, layout: Layout) -> Kernel | None:
    """The cross-entropy gradient of a Sequential of Flatten, then Linear layers with ReLU between; None for others."""
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

    def gradients(x: Tensor, inputs: Tensor, labels: Tensor, weight: Tensor | None) -> Tensor:
        parameters = list(layout.views(x).values())
        out = torch.empty_like(x)
        slots = list(layout.views(out).values())
        weights, biases = parameters[::2], parameters[1::2]
        activations = [inputs.reshape(*labels.shape, -1)]
        for k, (W, b) in enumerate(zip(weights, biases, strict=True)):
            z = torch.baddbmm(b[:, None], activations[-1], W.mT)
            activations.append(z if k == len(weights) - 1 else z.relu_())
        delta = torch.softmax(activations.pop(), -1)
        delta.scatter_add_(-1, labels[..., None], torch.full_like(delta[..., :1], -1.0))
        delta *= 1.0 / labels.shape[1] if weight is None else weight[..., None]
        for k in reversed(range(len(weights))):
            a = activations.pop()
            torch.bmm(delta.mT, a, out=slots[2 * k])
            torch.sum(delta, 1, out=slots[2 * k + 1])
            if k:
                delta = torch.bmm(delta, weights[k]).mul_(a > 0)
        return out

    return gradients
