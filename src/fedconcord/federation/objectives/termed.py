"""The local loss with a term (`method.contract.terms`): the forward passes that it looks at, and whether it fits."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedconcord.federation import layers
from fedconcord.federation.data.dataset import Target
from fedconcord.federation.objectives import precision
from fedconcord.federation.objectives.losses import Loss
from fedconcord.method.contract import Conditions, Term, View
from fedconcord.method.contract.flat import Layout
from fedconcord.support.errors import UserError, closest, foreign

SLICE = 512  # samples of a client in one pass for its features


def mapped(conditions: Conditions | None, samples: int) -> dict[str, Tensor]:
    """The tensors of clients [S, ...] that a step on so many samples B is taken under: those of the conditions, by
    field, with the keys [S, B] of the samples in place of the clients' streams; without keys where B is 0."""
    if conditions is None:
        return {}
    tensors = conditions.mapped()
    streams = tensors.pop("masks", None)
    if streams is not None and samples:
        tensors["masks"] = layers.sample_keys(streams, conditions.step, samples)
    return tensors


class Tap(NamedTuple):
    """A model of its own whose forward pass leaves the features that a term asks for in `box`."""

    model: nn.Module
    layer: str  # whose outputs or inputs they are; "" for none
    box: list[Any]

    def forward(self, values: Mapping[str, Tensor], inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Outputs [B, C] and features [B, F] of the model with these parameters."""
        self.box.clear()
        outputs: Tensor = functional_call(self.model, dict(values), (inputs,))
        features = self.box[-1] if self.box else None
        self.box.clear()
        return outputs, features.flatten(1) if isinstance(features, Tensor) and features.ndim > 1 else features


def tapped(model: nn.Module, term: Term) -> Tap:
    """The model with a hook on the layer that the term looks at.

    Raises:
        UserError: there is no such layer.
    """
    if not term.has_features:
        return Tap(model, "", [])
    kinds = layers.KeyedDropout | layers.Normalisation
    shared = {id(layer.of): layer.of for layer in model.modules() if isinstance(layer, kinds)}
    clone, box = copy.deepcopy(model, dict(shared)), list[Any]()
    by_name = {name: layer for name, layer in clone.named_modules() if name}
    if term.features:
        if term.features not in by_name:
            near = closest(term.features, by_name)
            raise UserError(
                f"term {term.name} needs features, and the model has no layer {term.features!r}{near}; name one of "
                f"{', '.join(map(repr, by_name)) or 'none'}"
            )
        by_name[term.features].register_forward_hook(lambda module, inputs, output: box.append(output))
        return Tap(clone, term.features, box)
    linear = [name for name, layer in by_name.items() if isinstance(layer, nn.Linear)]
    if not linear:
        raise UserError(
            f"term {term.name} needs features, and the model has no linear layer whose inputs they could be; name a "
            f"layer, as in {term.name}(features={next(reversed(by_name), 'layer')!r})"
        )
    by_name[linear[-1]].register_forward_pre_hook(lambda module, inputs: box.append(inputs[0]))
    return Tap(clone, linear[-1], box)


class Batch(NamedTuple):
    """One client's batch in a local step, and what its loss is taken under."""

    inputs: Tensor  # [B, *shape]
    targets: Tensor  # [B, ...]
    weight: Tensor | None  # [B] of each sample in the mean; None: 1/B
    conditions: Conditions  # of the round
    mine: Mapping[str, Tensor]  # the client's part of them, by field
    numbers: precision.Precision = "full"  # of the forward passes


class Termed:
    """The loss of a batch with a term.

    Args:
        of: the model's passes, whose masks are for it alone: the server's and the last model drop nothing.
        few: some samples [2, *shape], and their targets, on which it is tried.

    Raises:
        UserError: the term does not fit the model, the loss or the kind of target.
    """

    def __init__(
        self,
        term: Term,
        model: nn.Module,
        layout: Layout,
        loss: Loss,
        target: Target,
        of: layers.Pass,
        few: tuple[Tensor, Tensor],
    ) -> None:
        self.term, self.layout, self.loss, self.of = term, layout, loss, of
        if target not in term.targets:
            raise UserError(
                f"term {term.name} is for targets of kind {' or '.join(term.targets)}, and these are of kind {target}; "
                "leave local.term out, or use another"
            )
        if term.loss is not None and term.loss != loss.form:
            raise UserError(
                f"term {term.name} is for the loss {term.loss}, given loss {loss.name}; leave one of them out"
            )
        self.tap = tapped(model, term)
        with torch.enable_grad():
            self._try(layout.flatten(model), *few)

    def _try(self, x: Tensor, inputs: Tensor, targets: Tensor) -> None:
        """What would otherwise only show as a traceback, or not at all, in round 0; x [d] is any model."""
        term, x = self.term, x.requires_grad_()
        outputs, features = self.passes(x, inputs, "full")
        if term.has_features:
            layer = f"layer {self.tap.layer!r}"
            if not isinstance(features, Tensor) or features.shape[:1] != inputs.shape[:1]:
                raise UserError(f"term {term.name} needs features, and {layer} gives no row a sample; name another")
            if not features.requires_grad:
                raise UserError(
                    f"term {term.name} needs features that training changes, and nothing is trained before {layer}; "
                    "name a later layer, or use a deeper model"
                )
        self.form = outputs.shape[-1], 1 + (features.shape[-1] if isinstance(features, Tensor) else 0)  # C, F + 1
        here, counts = x.detach(), x.new_ones(1, outputs.shape[-1])
        conditions = Conditions(term=term, server=here + 0.01, previous=here[None] - 0.01, class_counts=counts)
        mine = {name: value[0] for name, value in conditions.mapped().items()}
        with foreign(f"term {term.name} failed on {len(inputs)} samples"):
            value = term.value(self.view(x, Batch(inputs, targets, None, conditions, mine)))
        shape = (len(inputs),) if term.per == "sample" else ()
        if not isinstance(value, Tensor) or value.shape != shape:
            form = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise UserError(
                f"term {term.name} gives {form} for {len(inputs)} samples; one number a {term.per} is needed, {shape}"
            )
        if not value.requires_grad:
            raise UserError(
                f"term {term.name} has no gradient, so that it would change nothing; compute it from the outputs or "
                "features of the model that is trained, without .item() and detach()"
            )

    def over(self, layout: Layout) -> Termed:
        """The same with other constants in the model."""
        other = copy.copy(self)
        other.layout = layout
        return other

    def passes(self, x: Tensor, inputs: Tensor, numbers: precision.Precision) -> tuple[Tensor, Tensor | None]:
        """Outputs [B, C] and features [B, F] of a batch at x [d], computed in `numbers`."""
        with precision.forward(numbers, x.device):
            outputs, features = self.tap.forward(self.layout.values(x), inputs)
        return outputs.to(x.dtype), features.to(x.dtype) if isinstance(features, Tensor) else features

    def feature_sums(
        self, read: Callable[[Tensor], tuple[Tensor, Tensor]], offsets: np.ndarray
    ) -> Callable[[Tensor, np.ndarray], Tensor] | None:
        """`Objective.feature_sums` of samples that are read; None where the term asks for no prototypes."""

        @torch.no_grad()
        def sums(x: Tensor, places: np.ndarray) -> Tensor:
            total = x.new_zeros(len(places), *self.form)
            for into, at, place in zip(total, x, places.tolist(), strict=True):
                every = torch.arange(offsets[place], offsets[place + 1], device=x.device)
                for inputs, targets in map(read, torch.split(every, SLICE)):
                    _, features = self.passes(at, inputs, "full")
                    assert features is not None
                    into.index_add_(0, targets, torch.cat([features, features.new_ones(len(features), 1)], 1))
            return total

        return sums if "prototypes" in self.term.needs else None

    def view(self, x: Tensor, batch: Batch) -> View:
        """What the term may look at of a batch at x [d]."""
        inputs, targets, weight, conditions, mine, numbers = batch
        with self.of.of_step(mine.get("masks"), weight):
            outputs, features = self.passes(x, inputs, numbers)
        losses = self.loss.per_sample(outputs, targets)
        weights = losses.new_full(losses.shape, 1 / len(losses)) if weight is None else weight
        view = View(outputs, targets, losses, weights, features, class_counts=mine.get("class_counts"))
        if "prototypes" in self.term.needs:
            flat = conditions.prototypes  # none before round 0
            table = losses.new_zeros(self.form) if flat is None else flat.view(self.form)
            view = view._replace(prototypes=table[:, :-1], has_prototype=table[:, -1])
        with torch.no_grad():
            if self.term.looks_at("server"):
                assert conditions.server is not None
                outputs, features = self.passes(conditions.server, inputs, numbers)
                view = view._replace(server_outputs=outputs, server_features=features)
            if self.term.looks_at("previous"):
                outputs, features = self.passes(mine["previous"], inputs, numbers)
                view = view._replace(previous_outputs=outputs, previous_features=features)
        return view

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        """The mean loss [] of a batch with the term, differentiable in the model x [d]."""
        view = self.view(x, batch)
        value = self.term.weight * self.term.value(view)
        each = view.losses if self.term.per == "batch" else view.losses + value
        total = each.mean() if batch.weight is None else each @ batch.weight
        return total + value if self.term.per == "batch" else total
