"""Model <-> flat vector. Algorithms see vectors only; this is the one place that knows both."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from fedconcord.basis.errors import UserError


class Layout:
    """Names, shapes and offsets of a module's parameters inside one vector [d], in `named_parameters` order.

    Raises:
        UserError: the module has no parameter, a layer whose buffers change in training (BatchNorm and kin) or dropout.
    """

    def __init__(self, module: nn.Module) -> None:
        refuse_layers(module)
        self.shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
        if not self.shapes:
            raise UserError("the model has no parameters; give a torch.nn.Module with at least one trainable layer")
        sizes = [math.prod(s) for s in self.shapes.values()]
        self.sizes = dict(zip(self.shapes, sizes, strict=True))
        self.dim = sum(sizes)

    def flatten(self, module: nn.Module) -> Tensor:
        """The parameters as one new vector [d]."""
        return torch.cat([p.detach().reshape(-1) for p in module.parameters()])

    def views(self, x: Tensor) -> dict[str, Tensor]:
        """Named parameters as views of x: [..., d] -> {name: [..., *shape]}; no copy."""
        parts = torch.split(x, list(self.sizes.values()), dim=-1)
        return {
            name: part.view(*x.shape[:-1], *shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def vector(self, named: Mapping[str, Tensor]) -> Tensor:
        """The inverse of `views` for one model: {name: shape} -> [d]."""
        return torch.cat([named[name].reshape(-1) for name in self.shapes])


def refuse_layers(module: nn.Module) -> None:
    """Refuse layers that learn by averaging activations, as no method here says how a server would combine them, and
    layers that draw."""
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) or getattr(layer, "track_running_stats", False):
            channels = getattr(layer, "num_features", "C")
            raise UserError(
                f"layer {name or 'model'!r} is {type(layer).__name__}, whose running statistics are not parameters "
                f"and would be mixed between clients; use torch.nn.GroupNorm(2, {channels}) in its place"
            )
        if isinstance(layer, _DropoutNd) and layer.p > 0:
            raise UserError(
                f"layer {name or 'model'!r} is {type(layer).__name__}, whose draws no seed of a run governs, so that "
                "no run could be repeated; leave it out"
            )
