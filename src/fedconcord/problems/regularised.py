"""A smooth problem with a non-smooth term added: what `regulariser = "l1(0.01)"` makes of any one-block problem."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedconcord.core import Accumulates, Problem, Regulariser, TwoBlock
from fedconcord.errors import UserError

OF_THE_SMOOTH = {"gap", "distance"}  # metrics that compare with the minimiser of the smooth part alone


class Regularised:
    """min sum_i p_i f_i(x) + psi(x) with the f_i of another problem.

    Raises:
        UserError: the problem has a regulariser or two blocks, or psi does not fit its dimension.
    """

    def __init__(self, problem: Problem, regulariser: Regulariser) -> None:
        if problem.regulariser is not None:
            raise UserError(
                f"the problem already has {problem.regulariser.name}, so {regulariser.name} cannot be added; build it "
                "with regularisers.combine of the two"
            )
        if isinstance(problem, TwoBlock):
            raise UserError(f"{regulariser.name} cannot be added to a two-block problem; state it in the problem")
        self.smooth, self.regulariser = problem, regulariser
        self.dim, self.offsets, self.sizes = problem.dim, problem.offsets, problem.sizes
        self.dtype, self.device = problem.dtype, problem.device
        self.accumulate = problem.accumulate if isinstance(problem, Accumulates) else None
        regulariser.value(torch.zeros(self.dim, dtype=self.dtype))

    def init(self, seed: int) -> Tensor:
        return self.smooth.init(seed)

    def gradient(self, x: Tensor, samples: Tensor) -> Tensor:
        """Of the smooth part, as the next three."""
        return self.smooth.gradient(x, samples)

    def loss(self, x: Tensor, samples: Tensor) -> Tensor:
        return self.smooth.loss(x, samples)

    def gradients(self, x: Tensor, samples: Tensor, weight: Tensor | None) -> Tensor:
        return self.smooth.gradients(x, samples, weight)

    def hessian(self, x: Tensor, samples: Tensor) -> Tensor:
        return self.smooth.hessian(x, samples)

    @torch.no_grad()
    def evaluate(self, x: Tensor) -> dict[str, float]:
        """The smooth problem's metrics, `objective` (its train loss or loss plus psi) and `nonzero`, the share of x.

        Without those that compare with the minimiser of the smooth part.
        """
        found = {name: value for name, value in self.smooth.evaluate(x).items() if name not in OF_THE_SMOOTH}
        loss = found.get("train_loss", found.get("loss"))
        if loss is not None:
            found["objective"] = loss + float(self.regulariser.value(x))
        return found | {"nonzero": float((x != 0).double().mean())}

    def export(self, x: Tensor) -> Mapping[str, Tensor]:
        return self.smooth.export(x)

    def label_counts(self) -> np.ndarray | None:
        return self.smooth.label_counts()
