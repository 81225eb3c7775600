"""Supervised learning: a model, a loss and the samples of every client, resident on one device."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedconcord.federation import layers
from fedconcord.federation.adapters import bases, merged, pairs, unmerged
from fedconcord.federation.data.dataset import Dataset, Scale
from fedconcord.federation.objectives import kernels, means, own_code, precision
from fedconcord.federation.objectives.common import alone, counts_of, hessian_of, vectorised
from fedconcord.federation.objectives.evaluation import Forward, Inputs, Resident, Samples, Scores, probe, resident
from fedconcord.federation.objectives.fits import check_fit, check_samples
from fedconcord.federation.objectives.losses import DEFAULT_LOSS, LOSSES, Loss, check_loss
from fedconcord.federation.objectives.metrics import SCORES, Metric, check_metrics, defined, metrics_of, rescaled
from fedconcord.federation.objectives.termed import Batch, Termed, mapped
from fedconcord.federation.transformers import shortened
from fedconcord.method.contract import (
    Accumulate,
    Conditions,
    Evaluator,
    Objective,
    Regulariser,
    Roster,
    objective_of,
    rng,
    roster_of,
)
from fedconcord.method.contract.code import Code, Correct, Visit
from fedconcord.method.contract.flat import Layout
from fedconcord.method.contract.products import AT_ONCE, by_product
from fedconcord.support.errors import UserError

Reader = Callable[[Tensor], tuple[Tensor, Tensor]]
"""samples [..., B] -> their inputs [..., B, *shape] and targets [..., B]."""


class Supervised:
    """f_i(x) = mean loss of the model with parameters x over client i's samples.

    Args:
        build: makes the model; called under a keyed seed for every starting point.
        data: train and test arrays.
        parts: for each client the indices of its train samples, disjoint.
        train_samples: train loss is evaluated on a fixed keyed sample of this many train points (all if fewer).
        regulariser: a non-smooth term of the objective.
        held: for each client the indices of the train samples that it set apart, for validation.
        loss: of a sample; the usual one of the data's target if none (`losses.DEFAULT_LOSS`).
        metrics: of the test set; the usual ones if none.
        norm: how batch normalisation is done.
        numbers: in which gradients are computed; losses, Hessians and the evaluation are in the model's own.

    Raises:
        UserError: a client without samples, features that are not finite, labels out of range, a loss, a metric or a
            model that does not fit the data or training here, or numbers that the processor does not compute in.
    """

    def __init__(
        self,
        build: Callable[[], nn.Module],
        data: Dataset,
        parts: Sequence[np.ndarray],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        train_samples: int = 10_000,
        regulariser: Regulariser | None = None,
        held: Sequence[np.ndarray] | None = None,
        loss: Loss | None = None,
        metrics: Sequence[Metric] = (),
        numbers: precision.Precision = "full",
        norm: layers.Norm = "pooled",
    ) -> None:
        self.regulariser, self.norm = regulariser, norm
        self.dtype, self.device, self.numbers = dtype, torch.device(device), numbers
        precision.check(numbers, dtype, self.device)
        for i, part in enumerate(parts):
            if len(part) == 0:
                raise UserError(f"client {i} of {len(parts)} has no samples; use fewer clients or another partition")
        self.build, self.classes, self.target, self.unit = build, data.classes, data.target, data.unit
        self.loss_of = check_loss(LOSSES[DEFAULT_LOSS[data.target]]() if loss is None else loss, data.target)
        self.metrics = tuple(metrics) or metrics_of((), data.target)
        self.plain = self._built(0).to(dtype=dtype, device=self.device)  # its constants are of no run's seed
        self.seen: Inputs | None = None  # samples whose statistics normalise; None: all that clients train on
        self.replaced = layers.replaced(self.plain, norm)
        self.model = self.replaced.model
        self.layout = Layout(self.model, bases(self.model), statistics=self.replaced.statistics)
        self.pairs, self.dim = pairs(self.model, self.layout), self.layout.dim
        self.pad: int | None = getattr(self.model, "pad", None)  # the token that fills samples up
        self.offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
        order, scale = np.concatenate(parts), data.scale
        self.x, self.y = self.tensors(data.train_x, data.train_y, scale, order)
        self.test_x, self.test_y = self.tensors(data.test_x, data.test_y, scale)
        self.judged = Samples("train", self.x, self.y, self.offsets)  # what `client_scores` are of
        check_samples(self.judged, self.target, data.classes, self.pad)
        self.weigh()
        if held is not None:
            apart = np.concatenate(held)
            ends = np.cumsum([0, *map(len, held)]).astype(np.int64)
            self.judged = Samples("validation", *self.tensors(data.train_x, data.train_y, scale, apart), ends)
            check_samples(self.judged, self.target, data.classes, self.pad)
        none = np.empty((0, *data.shape), np.float32)
        self.data = data._replace(train_x=none, train_y=none, test_x=none, test_y=none)  # all but the samples
        self.probe = probe(len(order), train_samples, self.device)
        self._start: tuple[int, Tensor] | None = None  # a seed and its x^0 [d]
        self._looked: tuple[Tensor, Scores] | None = None  # a model [d] and what it does for every client
        check_fit(self.model, self.loss_of, self.x[:2], self.y[:2], self.target, self.classes, self.pad)
        layers.refuse_draws(self.model, self.x[:3], self.replaced.of)
        check_metrics(self.others, self.in_units(self.test_y), self.classes)
        self.last = len(self.x.shape) == 4 and precision.channels_last(self.model, numbers, self.device)
        # for a GPU vmap makes one grouped convolution; for a CPU that is slower than client after client
        self.in_turn = self.device.type == "cpu" and any(isinstance(m, nn.Conv2d) for m in self.model.modules())
        shorter = torch.bfloat16 if numbers == "bf16" else None
        self._kernel = kernels.kernel(self.model, self.layout, self.loss_of.delta, shorter, self.device)
        self._reader: Reader | None = None  # of training samples, in place of x and y
        self.conditions: Conditions | None = None  # of the round
        self.termed: Termed | None = None  # the loss, where the conditions have a term of it

    def tensors(
        self, x: np.ndarray, y: np.ndarray, scale: Scale | None = None, order: np.ndarray | None = None
    ) -> tuple[Resident, Tensor]:
        """Samples and targets as the model takes them, those in `order` if given."""
        kind = torch.int64 if self.target in ("class", "tokens") else self.dtype
        targets = torch.as_tensor(y if order is None else y[order], dtype=kind, device=self.device)
        return resident(x, scale, self.dtype, self.device, order), targets

    @cached_property
    def objective(self) -> Objective:
        is_plain = self.conditions is None and self.numbers == "full" and self.layout.in_order
        drops, norms = self.replaced.drops, self.replaced.normalises
        is_bare = self.conditions is None and self.factor is None  # every step makes an objective under its conditions
        each = kernels.each(self.model, self.layout, self.loss_of.per_sample, self.samples, self.x) if is_bare else None
        return replace(
            objective_of(self, lambda place: self.alone(place).objective, self.regulariser),
            each=each,
            accumulate=self.accumulate,
            network=kernels.network(self.model, self.loss_of.form, self.layout, self.x, self.y) if is_plain else None,
            sample_size=math.prod(self.x.shape[1:]),
            precision=self.numbers,
            frozen=self.layout.digest,
            draws=None if drops is None else f"layer {drops!r} drops other entries in every step",
            normalises=f"layer {norms[0]!r} normalises by the batch" if norms else None,
            matrices=self.layout.matrices(self.model),
            pairs=self.pairs,
            class_counts=None if self.target != "class" else self.class_counts,
            feature_sums=None if self.termed is None else self.termed.feature_sums(self.samples, self.offsets),
            conditions=self.conditions,
            under=self.under,
            train=self.train,
        )

    def under(self, conditions: Conditions) -> Objective:
        """The objective whose gradients and losses are taken under these conditions."""
        term = conditions.term
        if term is not None and (self.termed is None or self.termed.term is not term):
            few = self.x[:2], self.y[:2]
            self.termed = Termed(term, self.model, self.layout, self.loss_of, self.target, self.replaced.of, few)
        other = copy.copy(self)
        vars(other).pop("objective", None)
        if conditions.addition is not None and (self.conditions is None or self.conditions.addition is None):
            other.layout = self.layout.over(conditions.addition)
            other.termed = self.termed and self.termed.over(other.layout)
        other.conditions = conditions
        return other.objective

    def class_counts(self, places: np.ndarray) -> Tensor:
        """How many samples of each class [S, C] the clients at these places hold."""
        every = (self.objective.samples(place) for place in places.tolist())
        labels = (self.y[mine] if self._reader is None else self._reader(mine)[1] for mine in every)
        return torch.stack([torch.bincount(y, minlength=self.classes) for y in labels]).to(self.dtype)

    @cached_property
    def roster(self) -> Roster:
        return roster_of(self.offsets, self.sizes, self.label_counts)

    @property
    def evaluator(self) -> Evaluator:
        return self

    def alone(self, place: int) -> Supervised:
        """One client's objective, with its own samples and none to judge a model on."""
        first, last = self.offsets[place : place + 2].tolist()
        return self.holding(self.x.copy(slice(first, last)), self.y[first:last].clone())

    def holding(self, x: Resident, y: Tensor) -> Supervised:
        """The same model and loss on the samples of one client, [n, *shape], and their targets."""
        client = alone(self, 0, ())
        client.x, client.y, client.offsets = x, y, np.array([0, len(x)], np.int64)
        client.weigh()
        client.test_x, client.test_y = self.test_x.copy(slice(0)), self.test_y[:0].clone()
        client.judged, client.probe = Samples("train", x, y, client.offsets), self.probe[:0].clone()
        client._looked, client._reader = None, None
        return client

    def reading(self, reader: Reader, offsets: np.ndarray) -> Supervised:
        """The same model and loss on training samples that a function brings, with the offsets [N + 1] of clients."""
        other = copy.copy(self)
        vars(other).pop("objective", None)
        other._reader, other.offsets = reader, offsets
        return other

    def sampled(self, train_samples: int) -> Supervised:
        """The same problem, with a train loss of another number of samples."""
        other = copy.copy(self)
        other.probe = probe(len(self.y), train_samples, self.device)
        return other

    def init(self, seed: int) -> Tensor:
        if self._start is None or self._start[0] != seed:  # to build a large model may take seconds
            self._start = seed, self.layout.flatten(self._built(seed)).to(dtype=self.dtype, device=self.device)
        return self._start[1].clone()

    def _built(self, seed: int) -> nn.Module:
        # torch's layers initialise from the global generator only: fork it, so that nothing else notices
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(rng.torch_seed(seed, rng.Purpose.INIT))
            return self.build()

    def logits(self, x: Tensor, inputs: Tensor) -> Tensor:
        """Outputs [B, classes] of the model with parameters x [d] on inputs [B, *shape]."""
        out: Tensor = functional_call(self.model, self.layout.values(x), (inputs,))
        return out

    def _training_loss(
        self,
        x: Tensor,
        inputs: Tensor,
        targets: Tensor,
        weight: Tensor | None,
        mine: Mapping[str, Tensor],
        numbers: precision.Precision | None = None,
    ) -> Tensor:
        """The loss whose gradient local steps take: outputs in `numbers`, the loss itself in the model's own; `mine`
        are the client's own tensors of the conditions, by field."""
        numbers = numbers or self.numbers
        if self.conditions is not None and self.conditions.term is not None and self.termed is not None:
            return self.termed(x, Batch(inputs, targets, weight, self.conditions, mine, numbers))
        shares = weight if weight is None or self.factor is None else weight / weight.sum()
        with precision.forward(numbers, self.device), self.replaced.of.of_step(mine.get("masks"), shares):
            outputs = self.logits(x, inputs)
        each = self.loss_of.per_sample(outputs.to(self.dtype), targets)
        return each.mean() if weight is None else each @ weight

    def samples(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs [..., B, *shape] and targets [..., B, ...] of training samples [..., B]."""
        inputs, targets = (self.x[samples], self.y[samples]) if self._reader is None else self._reader(samples)
        inputs = inputs if self.pad is None else shortened(inputs, self.pad)
        return inputs, targets[..., : inputs.shape[-1]] if self.target == "tokens" else targets

    def weigh(self) -> None:
        """Set how much the clients and their samples count."""
        self.sizes, self.factor = means.shares(self.loss_of, self.y, self.offsets, self.dtype)

    def weights(self, samples: Tensor, weight: Tensor | None = None) -> Tensor | None:
        """What multiplies the losses of samples [..., B] in a batch that weighs each with weight, or 1/B; None: 1/B."""
        even = 1 / samples.shape[-1] if weight is None else weight
        return weight if self.factor is None else self.factor[samples] * even

    def loss(self, x: Tensor, samples: Tensor) -> Tensor:
        mine = {name: value[0] for name, value in mapped(self.conditions, 0).items()}
        return self._training_loss(x, *self.samples(samples), self.weights(samples), mine, "full")

    def gradient(self, x: Tensor, samples: Tensor) -> Tensor:
        return self._gradient(x, *self.samples(samples), self.weights(samples))

    def _gradient(
        self, x: Tensor, inputs: Tensor, targets: Tensor, weight: Tensor | None = None, row: int = 0
    ) -> Tensor:
        """Each sample weighs weight [B], or 1/B; `row` is the client's in the conditions."""
        mine = {name: value[row] for name, value in mapped(self.conditions, len(inputs)).items()}
        inputs = inputs.contiguous(memory_format=torch.channels_last) if self.last else inputs
        x = x.detach().requires_grad_()
        with precision.products(self.numbers, self.device), torch.enable_grad(), by_product(self.forward.work(inputs)):
            loss = self._training_loss(x, inputs, targets, weight, mine)
            return torch.autograd.grad(loss, x)[0]

    def train(self, code: Code, x: Tensor, samples: list[Tensor], visit: Visit, correct: Correct) -> Tensor:
        """The model [d] that code of the user's makes of x [d] on the samples [B] of each of its steps."""
        return own_code.train(self.plain, self.layout, code, x, [*map(self.samples, samples)], visit, correct)

    def hessian(self, x: Tensor, samples: Tensor) -> Tensor:
        return hessian_of(lambda at: self.loss(at, samples), x)

    def gradients(self, x: Tensor, samples: Tensor, weight: Tensor | None) -> Tensor:
        if self.accumulate is not None:
            g = torch.empty_like(x)
            self.accumulate(g, 0.0, 1.0, x, samples, weight)
            return g
        weight = self.weights(samples, weight)
        inputs, targets = self.samples(samples)
        if self.in_turn or len(x) == 1 or self.forward.work(inputs[0]) > AT_ONCE:
            weights = [None] * len(x) if weight is None else [*weight]
            return torch.stack([*map(self._gradient, x, inputs, targets, weights, range(len(x)))])
        with (
            vectorised(f"model {type(self.model).__name__} or its loss"),
            precision.products(self.numbers, self.device),
        ):
            every = vmap(grad(self._training_loss), in_dims=(0, 0, 0, None if weight is None else 0, 0))
            out: Tensor = every(x, inputs, targets, weight, mapped(self.conditions, inputs.shape[1]))
        return out

    @property
    def accumulate(self) -> Accumulate | None:
        """into <- beta into + alpha gradients, where the model and the loss have a kernel for it."""
        return None if self._kernel is None or self.conditions is not None else self._accumulate

    def _accumulate(
        self, into: Tensor, beta: float, alpha: float, x: Tensor, samples: Tensor, weight: Tensor | None
    ) -> None:
        assert self._kernel is not None
        with precision.products(self.numbers, self.device):
            self._kernel(into, beta, alpha, x, *self.samples(samples), weight)

    def export(self, x: Tensor) -> dict[str, Tensor]:
        return merged(self.model, self.layout.state(x, self.statistics(x)))

    def read(self, state: Mapping[str, Tensor]) -> Tensor:
        """The model [d] that `export` made such a state of; with low-rank adapters one like it, [d + D]."""
        return unmerged(self.model, self.layout, {k: v.to(self.device, self.dtype) for k, v in state.items()})

    def label_counts(self) -> np.ndarray | None:
        return None if self.target != "class" else counts_of(self.y.cpu().numpy(), self.offsets, self.classes)

    def evaluate(self, x: Tensor) -> dict[str, float]:
        """`test_<metric>`, as `test_accuracy` in [0, 1]; `test_loss`, `train_loss` (means; train on a fixed sample).

        With samples set apart also `validation_loss` and for classes `validation_accuracy`, over all of them (a client
        weighs as much as it has), and `validation_client_accuracy`, in which every client weighs the same; other
        targets have other scores (`metrics.SCORES`).
        """
        trained = self.x.taken(self.probe), self.y[self.probe]
        (test, outputs), (train, _) = self.answers(x, (self.test_x, self.test_y), trained)
        pair = self.in_units(outputs), self.in_units(self.test_y)
        metrics = {f"test_{metric.name}": metric.value(*pair) for metric in self.metrics}
        for name, values, targets in (("test_loss", test, self.test_y), ("train_loss", train, trained[1])):
            metrics[name] = means.mean(values, targets, self.loss_of.counts)
        if self.judged.split == "validation" and len(self.judged.y):
            scores = self.client_scores(x)
            metrics |= means.validation(scores, SCORES[self.target].name, scores.samples > 0)
            metrics |= {f"validation_{name}": value for name, value in scores.overall.items()}
        return metrics

    def client_scores(self, x: Tensor) -> Scores:
        """Mean `loss` and score of the model x [d] on every client's samples: all through the model once.

        What was last found is kept: rounds that are evaluated, looked at and the last ask it of one model.
        """
        if self._looked is None or not torch.equal(self._looked[0], x):
            _, inputs, targets, offsets = self.judged
            [(loss, outputs)] = self.answers(x, (inputs, targets))
            score, pair = SCORES[self.target], (self.in_units(outputs), self.in_units(targets))
            each = {"loss": loss, score.name: score.per_sample(*pair)}
            counts = means.tallies(self.judged, self.loss_of, self.target)
            averages = {name: means.by_client(values, offsets, counts[name]) for name, values in each.items()}
            overall = {metric.name: metric.value(*pair) for metric in self.overall}
            higher = {metric.name: metric.higher for metric in self.metrics}
            self._looked = x.clone(), Scores(self.judged.split, np.diff(offsets), averages, overall, counts, higher)
        return self._looked[1]

    @cached_property
    def others(self) -> tuple[Metric, ...]:
        """The metrics that are no mean over samples."""
        return tuple(metric for metric in self.metrics if metric.name != SCORES[self.target].name)

    @cached_property
    def overall(self) -> tuple[Metric, ...]:
        """Of them those that the samples clients are judged on define."""
        targets = self.in_units(self.judged.y)
        return tuple(metric for metric in self.others if defined(metric, targets, self.classes))

    def in_units(self, values: Tensor) -> Tensor:
        """Outputs or targets [..., C]: numbers in the label's own unit, others as they are."""
        return values if self.unit is None else rescaled(values, *self.unit)

    @cached_property
    def forward(self) -> Forward:
        """The model's outputs on many samples."""
        return Forward(self.model, self.layout, self.x[:2])

    def statistics(self, x: Tensor) -> dict[str, Tensor]:
        """What the model x [d] normalises by where it is judged or used, of all clients' training samples or `seen`."""
        return self.forward.statistics(x, self.x if self.seen is None else self.seen, self.replaced)

    @torch.no_grad()
    def answers(self, x: Tensor, *sets: tuple[Inputs, Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Losses [n] and outputs [n, C] of the model x [d] on sets of samples and their targets, in one pass."""
        statistics = self.statistics(x)
        if self.target == "tokens":
            return [means.of_tokens(self.forward, x, statistics, of, self.loss_of) for of in sets]
        outputs = self.forward.outputs(x, [inputs for inputs, _ in sets], statistics)
        return [(self.loss_of.per_sample(out, of[1]), out) for out, of in zip(outputs, sets, strict=True)]
