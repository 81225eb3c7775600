"""What is optimised, cut in three: the clients' objectives, who holds how many samples, and how a model is judged.

minimise over x   sum_i p_i f_i(x) + psi(x),   f_i(x) = mean over client i's samples of f_ij(x)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedconcord.method.contract.code import Train
from fedconcord.method.contract.pairs import Pair
from fedconcord.method.contract.terms import Term
from fedconcord.method.contract.trees import Tree


class Regulariser(NamedTuple):
    """A non-smooth convex term psi of the objective sum_i p_i f_i(x) + psi(x). Vectors are [..., d]."""

    name: str
    value: Callable[[Tensor], Tensor]  # psi(x) [...]
    prox: Callable[[Tensor, float], Tensor]  # (x, eta) -> argmin_z psi(z) + ||z - x||^2 / (2 eta)


Accumulate = Callable[[Tensor, float, float, Tensor, Tensor, Tensor | None], None]
"""(into [S, d], beta, alpha, x [S, d], samples [S, B], weight [S, B] or None): into <- beta * into + alpha * gradients.

The gradients are those of `Objective.gradients` at x. `into` may be x; with beta 0 it may hold anything. It and
`gradients` may then be called from several threads at once.
"""


LossForm = Literal["cross_entropy", "squared", "logistic"]
"""A loss that compiled steps know, as `objectives.losses` defines it."""


class Network(NamedTuple):
    """A fully connected network with ReLU between its layers, as numbers: what a compiled local step needs to know."""

    widths: tuple[int, ...]  # inputs, hidden layers, outputs; x holds weights [out, in] and biases [out] of each layer
    loss: LossForm
    inputs: Tensor  # [m, inputs] as they lie in memory: bytes, float32 or the objective's dtype
    order: Tensor | None  # [n] int64: sample k is inputs[order[k]]; inputs[k] if none
    table: Tensor | None  # of bytes: what each is read as, [c or 1, 256], for c runs of inputs of the same length
    targets: Tensor  # [n] int64 for cross_entropy, else [n, outputs]


Rows = slice | Tensor
"""Which clients of a cohort: a slice where they are the first ones, else their indices."""


class Conditions(NamedTuple):
    """What the gradients of a round's clients are taken under, beside the model and the samples.

    A field is None where a job has nothing of its kind. Tensors of clients are [S, ...] with at least two axes, numbers
    [S, 1], and follow the rows of x; what all clients share has one axis at most.
    """

    step: int = 0  # the number of the local step in its round, from 0
    masks: Tensor | None = None  # [S, 1] int64: what a client's dropout masks of the round are made of
    addition: Tensor | None = None  # [D] to the frozen weights below low-rank factors
    term: Term | None = None  # of the loss; what it asks for:
    server: Tensor | None = None  # [d] the server's model x^t
    previous: Tensor | None = None  # [S, d] clients' models at the end of their last rounds
    class_counts: Tensor | None = None  # [S, C] samples of each class
    prototypes: Tensor | None = None  # [C (F + 1)] of each class, mean features and 1 for there are some, or 0
    place: Tensor | None = None  # [S, 1] int64: which of the round's clients it is, where steps have noise of their own

    def of(self, rows: Rows, step: int) -> Conditions:
        """Those of some of the clients in a step."""
        theirs: dict[str, Any] = {name: value[rows] for name, value in self.mapped().items()}
        return self._replace(**theirs, step=step)

    def mapped(self) -> dict[str, Tensor]:
        """The tensors of clients, by the names of their fields."""
        return {k: v for k, v in self._asdict().items() if isinstance(v, Tensor) and v.ndim > 1}


class Private(NamedTuple):
    """The private block of a two-block objective f_i(x, y_i) (FedVRA, section 4).

    Before its local steps on x a client takes its steps on y_i at the server's x; y_i is kept with the client's state.
    """

    first: Tensor  # [...] y_i before a client's first round, padded to the largest client
    step: Callable[[Tensor, Tensor, np.ndarray], Tensor]  # (x [d], y [S, ...], places [S]) -> the new y [S, ...]
    objective: Callable[[Tensor, np.ndarray], Objective]  # (y [S, ...], places [S]) -> the objective in x alone


class Parts(NamedTuple):
    """The private part of a model, f_i(x, y_i): local steps move u = [x | y_i], and y_i stays with the client's state.

    Of the pieces of a step those of the user and of a local optimiser act on u, all others on x alone.
    """

    first: Tensor  # [e] y_i before a client's first round
    both: Objective  # f_i of u [d + e]
    before: int | None = None  # steps on y alone before those on x alone; None: the same steps move both
    frozen: bool = False  # no step moves y


@dataclass(frozen=True)
class Objective:
    """f_i of one client or of several side by side: all that a local step may ask.

    Samples lie in one list, client after client: those of the client at place k are offsets[k] .. offsets[k+1]-1. In a
    simulation all clients lie side by side and a client's place is its id; a client that stands alone is at place 0.
    What an objective may lack is None.
    """

    dim: int  # d
    offsets: np.ndarray  # [C + 1] int64
    dtype: torch.dtype
    device: torch.device
    gradient: Callable[[Tensor, Tensor], Tensor]  # (x [d], samples [B]) -> mean gradient [d]: the reference
    gradients: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    """(x [S, d], samples [S, B], weight [S, B], or None for 1/B each) -> gradients [S, d], row by row.

    Padding carries weight 0 and any valid sample index; the result may alias no input.
    """
    loss: Callable[[Tensor, Tensor], Tensor]  # (x [d], samples [B]) -> mean loss []; differentiable in x
    alone: Callable[[int], Objective]  # place -> that client with copies of its own samples, and of no others
    each: Callable[[Tensor, Tensor], Tensor] | None = None
    """A kernel, (x [d], samples [B]) -> the loss of each [B], whose mean `loss` is, whoever the samples are of."""
    hessian: Callable[[Tensor, Tensor], Tensor] | None = None  # (x [d], samples [B]) -> [d, d] of the mean loss
    accumulate: Accumulate | None = None  # a kernel that adds gradients to what they are for
    network: Network | None = None  # the model and its samples, where whole local steps may be compiled
    sample_size: int = 0  # numbers in a sample, where that is known
    private: Private | Parts | None = None
    regulariser: Regulariser | None = None  # psi
    precision: str = "full"  # of gradients, where it is not dtype's: `objectives.precision`
    frozen: str | None = None  # what the model holds beside x, told from others by its digest
    draws: str | None = None  # what of a model is drawn anew in every step, in words: no f_i is asked twice
    normalises: str | None = None  # what of a model looks at a whole batch, in words: f_i is no mean over samples
    matrices: tuple[tuple[int, int, int], ...] = ()  # (begin, rows, columns) in x of the model's hidden weight matrices
    pairs: tuple[Pair, ...] = ()  # its low-rank factors, where both of a pair are trained
    class_counts: Callable[[np.ndarray], Tensor] | None = None  # places [S] -> samples of each class [S, C]
    feature_sums: Callable[[Tensor, np.ndarray], Tensor] | None = None
    """(x [S, d], places [S]) -> [S, C, F + 1]: of each class the sum of its samples' features, and their number; where
    the conditions have a term that asks for prototypes."""
    conditions: Conditions | None = None  # what gradients and losses are taken under
    under: Callable[[Conditions], Objective] | None = None  # the same objective under others
    train: Train | None = None  # a client's local training by code of the user's

    def samples(self, place: int) -> Tensor:
        """All samples [n] of a client."""
        return torch.arange(self.offsets[place], self.offsets[place + 1], device=self.device)

    def taking(self, rows: Rows, step: int) -> Objective:
        """The objective of some clients in a local step."""
        if self.conditions is None:
            return self
        assert self.under is not None
        return self.under(self.conditions.of(rows, step))

    @cached_property
    def largest(self) -> int:
        """The most samples that a client holds."""
        return int(np.diff(self.offsets).max())

    def counts(self, places: np.ndarray) -> np.ndarray:
        """How many samples [S] these clients hold."""
        return np.asarray(self.offsets[places + 1] - self.offsets[places])


class Roster(NamedTuple):
    """Who holds how much: all that a server needs to know of its clients' data. A client's id is its index."""

    samples: np.ndarray  # [N] int64
    sizes: np.ndarray  # [N] float64, what weights by size are proportional to; one and the same array every round
    label_counts: Callable[[], np.ndarray | None] = lambda: None  # samples of each class [N, classes], if there are any

    @property
    def n(self) -> int:
        """The number of clients N."""
        return len(self.samples)


class UnmeasuredError(Exception):
    """A model could not be measured now, though it may be later; why was said where that was seen."""


class Evaluator(Protocol):
    """What is measured of a model, on data of its own; never called inside the timed path."""

    def evaluate(self, x: Tensor) -> dict[str, float]:
        """Metrics of the model x [d].

        Raises:
            UnmeasuredError: there are none now, and the run goes on.
        """

    def export(self, x: Tensor) -> Mapping[str, Tensor]:
        """The model x [d] as the named tensors that its user knows."""


class Problem(Protocol):
    """A federation: its objectives, its roster, its evaluator, and where it starts."""

    @property
    def objective(self) -> Objective:
        """What clients may be asked of their f_i."""

    @property
    def roster(self) -> Roster:
        """Who holds how much."""

    @property
    def evaluator(self) -> Evaluator:
        """What is measured of a model."""

    def init(self, seed: int) -> Tensor:
        """The starting point x^0 [d], keyed by the seed."""


class TwoBlockRow(NamedTuple):
    """A client's state where it has a private block, or private parts of its model."""

    row: Tree  # the method's
    private: Tensor  # [...] y_i


def roster_of(
    offsets: np.ndarray,
    sizes: np.ndarray | None = None,
    label_counts: Callable[[], np.ndarray | None] = lambda: None,
) -> Roster:
    """The roster of clients whose samples lie between offsets [N + 1]; sizes are those numbers if not given."""
    samples = np.diff(offsets).astype(np.int64)
    weights = samples.astype(np.float64) if sizes is None else np.asarray(sizes, np.float64)
    return Roster(samples, weights, label_counts)


class Differentiable(Protocol):
    """A class whose methods are an objective's."""

    dim: int
    offsets: np.ndarray
    dtype: torch.dtype
    device: torch.device

    def gradient(self, x: Tensor, samples: Tensor) -> Tensor: ...

    def gradients(self, x: Tensor, samples: Tensor, weight: Tensor | None) -> Tensor: ...

    def loss(self, x: Tensor, samples: Tensor) -> Tensor: ...

    def hessian(self, x: Tensor, samples: Tensor) -> Tensor: ...


def objective_of(
    of: Differentiable, alone: Callable[[int], Objective], regulariser: Regulariser | None = None
) -> Objective:
    """The objective that such a class computes; whoever has more of `Objective` to offer replaces these fields."""
    return Objective(
        dim=of.dim,
        offsets=of.offsets,
        dtype=of.dtype,
        device=of.device,
        gradient=of.gradient,
        gradients=of.gradients,
        loss=of.loss,
        alone=alone,
        hessian=of.hessian,
        regulariser=regulariser,
    )
