"""Supervised learning: a model, a loss and the samples of every client, resident on one device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedconcord.basis.errors import UserError
from fedconcord.core import Accumulate, Evaluator, Objective, Regulariser, Roster, objective_of, rng, roster_of
from fedconcord.core.flat import Layout
from fedconcord.data.dataset import Dataset, Scale
from fedconcord.problems import convolution, dense
from fedconcord.problems.alone import alone
from fedconcord.problems.losses import DEFAULT_LOSS, LOSSES, SCORES, Loss, Metric, check_loss, metrics_of
from fedconcord.problems.per_client import Samples, Scores, by_client
from fedconcord.problems.resident import Resident, resident
from fedconcord.problems.vectorised import vectorised

EVAL_BATCH = 2048
HESSIAN_LIMIT = 4096


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

    Raises:
        UserError: a client without samples, features that are not finite, labels out of range, a loss or a metric for
            another target, or a model with running statistics, with dropout or with other outputs than the data need.
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
    ) -> None:
        self.regulariser = regulariser
        self.dtype, self.device = dtype, torch.device(device)
        for i, part in enumerate(parts):
            if len(part) == 0:
                raise UserError(f"client {i} of {len(parts)} has no samples; use fewer clients or another partition")
        self.build, self.classes, self.target, self.unit = build, data.classes, data.target, data.unit
        self.loss_of = check_loss(LOSSES[DEFAULT_LOSS[data.target]]() if loss is None else loss, data.target)
        self.metrics = tuple(metrics) or metrics_of((), data.target)
        with torch.random.fork_rng(devices=[]):
            self.model = build().to(dtype=dtype, device=self.device)
        self.layout = Layout(self.model)
        self.dim = self.layout.dim
        self.sizes = np.array([len(part) for part in parts], np.float64)
        self.offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
        order = np.concatenate(parts)
        scale = data.scale
        self.x, self.y = self.tensors(data.train_x, data.train_y, scale, order)
        self.test_x, self.test_y = self.tensors(data.test_x, data.test_y, scale)
        self.judged = Samples("train", self.x, self.y, self.offsets)  # what `client_scores` are of
        self._check(data.classes, self.judged)
        if held is not None:
            apart = np.concatenate(held)
            ends = np.cumsum([0, *map(len, held)]).astype(np.int64)
            self.judged = Samples("validation", *self.tensors(data.train_x, data.train_y, scale, apart), ends)
            self._check(data.classes, self.judged)
        none = np.empty((0, *data.shape), np.float32)
        self.data = data._replace(train_x=none, train_y=none, test_x=none, test_y=none)  # all but the samples
        keep = rng.generator(0, rng.Purpose.SPLIT, client=1).permutation(len(order))[:train_samples]
        self.probe = torch.as_tensor(np.sort(keep), device=self.device)
        self._check_outputs()
        delta = self.loss_of.delta
        self._kernel = None if delta is None else dense.kernel(self.model, self.layout, delta)
        if self._kernel is None and delta is not None and self.device.type == "cpu":
            self._kernel = convolution.kernel(self.model, self.layout, delta)
        self.accumulate: Accumulate | None = None if self._kernel is None else self._accumulate
        self._gradients = vmap(grad(self._weighted_loss), in_dims=(0, 0, 0, 0))
        self._gradients_plain = vmap(grad(self.loss_on), in_dims=(0, 0, 0))

    def _check(self, classes: int, of: Samples) -> None:
        """Refuse data that training would only answer with NaN or a traceback."""
        owner = np.repeat(np.arange(len(self.sizes)), np.diff(of.offsets))
        broken = ~of.x.finite()
        if broken.any():
            raise UserError(
                f"client {owner[broken][0]} has {int(broken[owner == owner[broken][0]].sum())} samples with NaN or "
                "infinite features; drop or fill them before the run"
            )
        outside, wanted = ~torch.isfinite(of.y), "which is not finite; drop or fill such samples"
        if self.target == "class":
            outside, wanted = (of.y < 0) | (of.y >= classes), f"outside 0 to {classes - 1}; map labels to 0, 1, ..."
        elif self.target == "labels":
            outside, wanted = ~((of.y >= 0) & (of.y <= 1)), "not between 0 and 1; map labels to 0 and 1"
        wrong = outside.reshape(len(outside), -1).any(1).cpu().numpy()
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            given = of.y[first][outside[first]].flatten()[0].item()
            raise UserError(f"client {owner[first]} has the label {given:g}, {wanted}")

    def _check_outputs(self) -> None:
        """Refuse a model that cannot take the samples, or that answers with another shape than the targets need."""
        few = self.x[:2]
        wanted = (len(few), self.classes)
        try:
            with torch.no_grad():
                given = self.model(few)
        except Exception as error:  # whatever the layers of somebody else's model raise
            why = " ".join(f"{type(error).__name__}: {error}".split())
            kind = str(self.x.dtype).removeprefix("torch.")
            raise UserError(f"the model cannot take samples of shape {tuple(few.shape[1:])} ({kind}): {why}") from error
        shape = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
        if shape != wanted:
            raise UserError(
                f"the model answers {len(few)} samples with {shape}, and the data need {wanted}: one row a sample, "
                f"{self.classes} numbers each"
            )
        each = self.loss_of.per_sample(given, self.y[:2])
        if each.shape != (len(few),):
            raise UserError(
                f"loss {self.loss_of.name} gives shape {tuple(each.shape)} for {len(few)} samples, and one number a "
                f"sample is needed, {(len(few),)}; take the mean over a sample's outputs only"
            )

    def tensors(
        self, x: np.ndarray, y: np.ndarray, scale: Scale | None = None, order: np.ndarray | None = None
    ) -> tuple[Resident, Tensor]:
        """Samples and targets as the model takes them, those in `order` if given."""
        kind = torch.int64 if self.target == "class" else self.dtype
        targets = torch.as_tensor(y if order is None else y[order], dtype=kind, device=self.device)
        return resident(x, scale, self.dtype, self.device, order), targets

    @cached_property
    def objective(self) -> Objective:
        return objective_of(
            self,
            lambda place: self.alone(place).objective,
            accumulate=self.accumulate,
            sample_size=math.prod(self.x.shape[1:]),
            regulariser=self.regulariser,
        )

    @cached_property
    def roster(self) -> Roster:
        return roster_of(self.offsets, self.sizes)._replace(label_counts=self.label_counts)

    @property
    def evaluator(self) -> Evaluator:
        return self

    def alone(self, place: int) -> Supervised:
        """One client's objective, with its own samples and none to judge a model on."""
        first, last = self.offsets[place : place + 2].tolist()
        return self.holding(self.x.copy(slice(first, last)), self.y[first:last].clone())

    def holding(self, x: Resident, y: Tensor) -> Supervised:
        """The same model and loss on the samples of one client, [n, *shape], and their targets."""
        made = alone(self, 0, ())
        made.x, made.y, made.offsets, made.sizes = x, y, np.array([0, len(x)], np.int64), np.array([float(len(x))])
        made.test_x, made.test_y = self.test_x.copy(slice(0)), self.test_y[:0].clone()
        made.probe = self.probe[:0].clone()
        made.judged = Samples("train", x, y, made.offsets)
        made.accumulate = None if made._kernel is None else made._accumulate
        made._gradients = vmap(grad(made._weighted_loss), in_dims=(0, 0, 0, 0))
        made._gradients_plain = vmap(grad(made.loss_on), in_dims=(0, 0, 0))
        return made

    def init(self, seed: int) -> Tensor:
        # torch's layers initialise from the global generator only: fork it, so that nothing else notices
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(rng.torch_seed(seed, rng.Purpose.INIT))
            fresh = self.build()
        return self.layout.flatten(fresh).to(dtype=self.dtype, device=self.device)

    def logits(self, x: Tensor, inputs: Tensor) -> Tensor:
        """Outputs [B, classes] of the model with parameters x [d] on inputs [B, *shape]."""
        out: Tensor = functional_call(self.model, self.layout.views(x), (inputs,))
        return out

    def _weighted_loss(self, x: Tensor, inputs: Tensor, targets: Tensor, weight: Tensor) -> Tensor:
        return self.loss_of.per_sample(self.logits(x, inputs), targets) @ weight

    def gradient(self, x: Tensor, samples: Tensor) -> Tensor:
        return self.gradient_on(x, self.x[samples], self.y[samples])

    def loss(self, x: Tensor, samples: Tensor) -> Tensor:
        return self.loss_on(x, self.x[samples], self.y[samples])

    def hessian(self, x: Tensor, samples: Tensor) -> Tensor:
        return self.hessian_on(x, self.x[samples], self.y[samples])

    # the same on samples that are given: inputs [..., B, *shape] and targets [..., B, ...]

    def loss_on(self, x: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.loss_of.per_sample(self.logits(x, inputs), targets).mean()

    def gradient_on(self, x: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            loss = self.loss_on(x, inputs, targets)
        return torch.autograd.grad(loss, x)[0]

    def hessian_on(self, x: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        if self.dim > HESSIAN_LIMIT:
            raise UserError(
                f"a Hessian of {self.dim} x {self.dim} entries is too large, the limit is {HESSIAN_LIMIT}; use a "
                "smaller model such as logreg, or a method without Newton steps"
            )
        square: Tensor = torch.autograd.functional.hessian(  # type: ignore[no-untyped-call]
            lambda at: self.loss_on(at, inputs, targets), x
        )
        return square

    def gradients(self, x: Tensor, samples: Tensor, weight: Tensor | None) -> Tensor:
        return self.gradients_on(x, *self._at(samples), weight)

    def gradients_on(self, x: Tensor, inputs: Tensor, labels: Tensor, weight: Tensor | None) -> Tensor:
        if self._kernel is not None:
            g = torch.empty_like(x)
            self._kernel(g, 0.0, 1.0, x, inputs, labels, weight)
            return g
        if len(x) == 1 and weight is None:
            return self.gradient_on(x[0], inputs[0], labels[0])[None]
        with vectorised(f"model {type(self.model).__name__} or its loss"):
            if weight is None:
                out: Tensor = self._gradients_plain(x, inputs, labels)
            else:
                out = self._gradients(x, inputs, labels, weight)
        return out

    def _accumulate(
        self, into: Tensor, beta: float, alpha: float, x: Tensor, samples: Tensor, weight: Tensor | None
    ) -> None:
        self.accumulate_on(into, beta, alpha, x, *self._at(samples), weight)

    def accumulate_on(
        self, into: Tensor, beta: float, alpha: float, x: Tensor, inputs: Tensor, targets: Tensor, weight: Tensor | None
    ) -> None:
        assert self._kernel is not None
        self._kernel(into, beta, alpha, x, inputs, targets, weight)

    def _at(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        return self.x[samples], self.y[samples]

    def export(self, x: Tensor) -> dict[str, Tensor]:
        return self.layout.views(x)

    def label_counts(self) -> np.ndarray | None:
        if self.target != "class":
            return None
        owner = np.repeat(np.arange(len(self.sizes)), np.diff(self.offsets))
        counts = np.zeros((len(self.sizes), self.classes), np.int64)
        np.add.at(counts, (owner, self.y.cpu().numpy()), 1)
        return counts

    def evaluate(self, x: Tensor) -> dict[str, float]:
        """`test_<metric>`, as `test_accuracy` in [0, 1]; `test_loss`, `train_loss` (means; train on a fixed sample).

        With samples set apart also `validation_loss` and for classes `validation_accuracy`, over all of them (a client
        weighs as much as it has), and `validation_client_accuracy`, in which every client weighs the same; other
        targets have other scores (`losses.SCORES`).
        """
        test, outputs = self._answers(x, self.test_x, self.test_y)
        train, _ = self._answers(x, self.x[self.probe], self.y[self.probe])
        pair = self.in_units(outputs), self.in_units(self.test_y)
        found = {f"test_{metric.name}": metric.value(*pair) for metric in self.metrics}
        found |= {"test_loss": float(test.double().mean()), "train_loss": float(train.double().mean())}
        if self.judged.split == "validation" and len(self.judged.y):
            scores = self.client_scores(x)
            for name, values in scores.values.items():
                found[f"validation_{name}"] = float(np.nansum(values * scores.samples) / scores.samples.sum())
            score = SCORES[self.target].name
            found[f"validation_client_{score}"] = float(np.nanmean(scores.values[score]))
        return found

    def client_scores(self, x: Tensor) -> Scores:
        """Mean `loss` and score of the model x [d] on every client's samples: all through the model once."""
        _, inputs, targets, offsets = self.judged
        scores = self.scores(x, inputs, targets)
        means = {name: by_client(values, offsets) for name, values in scores.items()}
        return Scores(self.judged.split, np.diff(offsets), means)

    def scores(self, x: Tensor, inputs: Resident | Tensor, targets: Tensor) -> dict[str, Tensor]:
        """`loss` and, as the target has it, `accuracy` or another score [n] of every sample under the model x [d]."""
        loss, outputs = self._answers(x, inputs, targets)
        score = SCORES[self.target]
        return {"loss": loss, score.name: score.per_sample(self.in_units(outputs), self.in_units(targets))}

    def in_units(self, values: Tensor) -> Tensor:
        """Outputs or targets [..., C]: numbers in the label's own unit, others as they are."""
        if self.unit is None:
            return values
        mean, scale = (torch.tensor(part, dtype=torch.float64).to(values) for part in self.unit)
        return values * scale + mean

    @torch.no_grad()
    def _answers(self, x: Tensor, inputs: Resident | Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Losses [n] and outputs [n, C] of the model x [d] on some samples."""
        outputs = [self.logits(x, inputs[a : a + EVAL_BATCH]) for a in range(0, max(len(targets), 1), EVAL_BATCH)]
        whole = torch.cat(outputs)
        return self.loss_of.per_sample(whole, targets), whole
