"""Model <-> flat vector. Algorithms see vectors only; this is the one place that knows both."""

from __future__ import annotations

import copy
import difflib
import fnmatch
import hashlib
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from fedconcord.method.contract.trees import raw
from fedconcord.support.errors import UserError

NONE: Mapping[str, Tensor] = MappingProxyType({})


class Layout:
    """Names, shapes and offsets of a module's trainable parameters inside one vector [d], in `named_parameters` order.

    Frozen parameters (`requires_grad=False`) and buffers are constants of the model, but for statistics. A model may
    have an addition to some of them behind its parameters: it is [d + D] then. Private parameters stand behind all
    others: the first `shared` entries are what all clients share.

    Args:
        weights: the constants that a model may have an addition to, D numbers, in their order.
        private: what each client keeps for itself: patterns of names as in `fnmatch`, separated by "|".
        statistics: names of buffers that are functions of the model and the data.

    Raises:
        UserError: the module has no parameter, or none to train; it has a layer whose buffers change in training
            (BatchNorm and kin) or dropout; a pattern matches nothing, or all.
    """

    def __init__(
        self,
        module: nn.Module,
        weights: Sequence[str] = (),
        private: str | None = None,
        statistics: Collection[str] = (),
    ) -> None:
        refuse_layers(module)
        every: dict[str, Tensor] = dict(module.named_parameters())
        if not every:
            raise UserError("the model has no parameters; give a torch.nn.Module with at least one trainable layer")
        self.shapes = {name: tuple(p.shape) for name, p in every.items() if p.requires_grad}
        if not self.shapes:
            raise UserError(
                "every parameter of the model is frozen (requires_grad=False); leave at least one to train, such as "
                "those of its last layer"
            )
        mine = set() if private is None else _matching(private, [*self.shapes])
        self.in_order = [*self.shapes] == sorted(self.shapes, key=lambda name: name in mine)
        self.shapes = {name: self.shapes[name] for name in sorted(self.shapes, key=lambda name: name in mine)}
        sizes = [math.prod(s) for s in self.shapes.values()]
        self.sizes = dict(zip(self.shapes, sizes, strict=True))
        self.dim = sum(sizes)
        self.shared = sum(size for name, size in self.sizes.items() if name not in mine)
        every |= dict(module.named_buffers())
        moving = {*self.shapes, *statistics}
        self.constants = {name: leaf.detach() for name, leaf in every.items() if name not in moving}
        self.order, self.weights = tuple(every), tuple(weights)
        first = {id(leaf): name for name, leaf in every.items()}
        state = module.state_dict(keep_vars=True)  # where what is tied has all its names, and some buffers have none
        self.state_names = {key: first[id(leaf)] for key, leaf in state.items() if id(leaf) in first}

    @cached_property
    def digest(self) -> str | None:
        """What the constants are, told from others by their SHA-256; None where there are none."""
        if not self.constants:
            return None
        digest = hashlib.sha256()
        for name, leaf in sorted(self.constants.items()):
            digest.update(repr((name, str(leaf.dtype), tuple(leaf.shape))).encode())
            digest.update(raw(leaf).numpy().data)
        return f"{sum(leaf.numel() for leaf in self.constants.values())} numbers, sha256 {digest.hexdigest()}"

    def matrices(self, module: nn.Module) -> tuple[tuple[int, int, int], ...]:
        """(begin, rows, columns) in x of the hidden weight matrices that are trained: those of linear layers and
        convolutions ([out, the rest]) but for the last of these layers."""
        layers = [(name, m) for name, m in module.named_modules() if isinstance(m, nn.Linear | nn.modules.conv._ConvNd)]
        hidden = {f"{name}.weight" if name else "weight" for name, _ in layers[:-1]}
        ends = itertools.accumulate(self.sizes.values())
        begins = dict(zip(self.shapes, ends, strict=True))
        rows = {name: self.shapes[name][0] for name in self.shapes if name in hidden}
        return tuple((begins[k] - self.sizes[k], n, self.sizes[k] // n) for k, n in rows.items())

    def flatten(self, module: nn.Module) -> Tensor:
        """The trainable parameters as one new vector [d]."""
        return self.vector(dict(module.named_parameters())).detach()

    def values(self, x: Tensor, statistics: Mapping[str, Tensor] = NONE) -> dict[str, Tensor]:
        """What the module computes with a model, by name: views of x, and the constants in numbers as wide as x's; of
        statistics those that are passed."""
        x, of = self.split(x)
        wide = {k: v.to(x.dtype) if v.is_floating_point() else v for k, v in of.constants.items()}
        tensors = {**wide, **self.views(x), **statistics}
        return {name: tensors[name] for name in self.order if name in tensors}

    def split(self, x: Tensor) -> tuple[Tensor, Layout]:
        """A model [d] or [d + D] as its parameters [d] and the layout whose constants have its addition."""
        return (x, self) if x.shape[-1] == self.dim else (x[: self.dim], self.over(x[self.dim :]))

    def over(self, addition: Tensor) -> Layout:
        """The layout whose constants have an addition [D]."""
        assert self.digest  # computed before the copy is made, which stands on the same constants
        other, constants, begin = copy.copy(self), dict(self.constants), 0
        for name in self.weights:
            leaf = constants[name]
            more = addition[begin : begin + leaf.numel()].view(leaf.shape)
            constants[name], begin = leaf.to(more.dtype) + more, begin + leaf.numel()
        other.constants = constants
        return other

    def state(self, x: Tensor, statistics: Mapping[str, Tensor] = NONE) -> dict[str, Tensor]:
        """The module's `state_dict` with the parameters x [d] and all its statistics."""
        x, of = self.split(x)
        tensors = {**of.constants, **self.views(x), **statistics}
        return self.views(x) | {key: tensors[name] for key, name in self.state_names.items()}

    def views(self, x: Tensor) -> dict[str, Tensor]:
        """Named trainable parameters as views of x: [..., d] -> {name: [..., *shape]}; no copy."""
        parts = torch.split(x, list(self.sizes.values()), dim=-1)
        return {
            name: part.view(*x.shape[:-1], *shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def vector(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The inverse of `views` for one model: {name: shape} -> [d]."""
        return torch.cat([tensors[name].reshape(-1) for name in self.shapes])


def _matching(patterns: str, names: list[str]) -> set[str]:
    """The names that one of the patterns matches, separated by "|".

    Raises:
        UserError: a pattern matches no name.
    """
    matches: set[str] = set()
    for pattern in patterns.split("|"):
        some = fnmatch.filter(names, pattern)
        if not some:
            layers = dict.fromkeys(f"{name.rpartition('.')[0]}.*" for name in names if "." in name)
            near = difflib.get_close_matches(pattern, [*layers, *names], n=1, cutoff=0.3)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UserError(
                f"local.private {pattern!r} matches no trainable parameter of the model; its names are "
                f"{', '.join(map(repr, names))}{hint}"
            )
        matches.update(some)
    return matches


def refuse_layers(module: nn.Module) -> None:
    """Refuse layers that learn by averaging activations, as no method here says how a server would combine them, and
    layers that draw."""
    for name, layer in module.named_modules():
        if (isinstance(layer, _BatchNorm) or getattr(layer, "track_running_stats", False)) and not is_constant(layer):
            channels = getattr(layer, "num_features", "C")
            raise UserError(
                f"layer {name or 'model'!r} is {type(layer).__name__}, whose running statistics are not parameters "
                f"and would be mixed between clients; use torch.nn.GroupNorm(2, {channels}) in its place, or freeze it "
                "with requires_grad_(False) and eval()"
            )
        if isinstance(layer, _DropoutNd) and layer.p > 0:
            raise UserError(
                f"layer {name or 'model'!r} is {type(layer).__name__}, whose draws no seed of a run governs, so that "
                "no run could be repeated; leave it out"
            )


def is_constant(layer: nn.Module) -> bool:
    """Whether training leaves the layer as it is: it is in evaluation mode, and nothing of it is trained."""
    return not layer.training and not any(p.requires_grad for p in layer.parameters())
