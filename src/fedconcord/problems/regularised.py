"""A smooth problem with a non-smooth term added: what `regulariser = "l1(0.01)"` makes of any one-block problem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fedconcord.basis.errors import UserError
from fedconcord.core import Evaluator, Objective, Problem, Regulariser

OF_THE_SMOOTH = {"gap", "distance"}  # metrics that compare with the minimiser of the smooth part alone


class Regularised:
    """min sum_i p_i f_i(x) + psi(x) with the f_i of another problem.

    Raises:
        UserError: the problem has a regulariser or two blocks, or psi does not fit its dimension.
    """

    def __init__(self, problem: Problem, regulariser: Regulariser) -> None:
        objective = problem.objective
        if objective.regulariser is not None:
            raise UserError(
                f"the problem already has {objective.regulariser.name}, so {regulariser.name} cannot be added; build "
                "it with regularisers.combine of the two"
            )
        if objective.private is not None:
            raise UserError(f"{regulariser.name} cannot be added to a two-block problem; state it in the problem")
        regulariser.value(torch.zeros(objective.dim, dtype=objective.dtype))
        self.smooth, self.regulariser = problem, regulariser
        self.objective, self.roster = _with(objective, regulariser), problem.roster
        self.evaluator: Evaluator = self

    def init(self, seed: int) -> Tensor:
        return self.smooth.init(seed)

    @torch.no_grad()
    def evaluate(self, x: Tensor) -> dict[str, float]:
        """The smooth problem's metrics, `objective` (its train loss or loss plus psi) and `nonzero`, the share of x.

        Without those that compare with the minimiser of the smooth part.
        """
        measured = self.smooth.evaluator.evaluate(x)
        metrics = {name: value for name, value in measured.items() if name not in OF_THE_SMOOTH}
        loss = metrics.get("train_loss", metrics.get("loss"))
        if loss is not None:
            metrics["objective"] = loss + float(self.regulariser.value(x))
        return metrics | {"nonzero": float((x != 0).double().mean())}

    def export(self, x: Tensor) -> Mapping[str, Tensor]:
        return self.smooth.evaluator.export(x)


def _with(objective: Objective, regulariser: Regulariser) -> Objective:
    return replace(objective, regulariser=regulariser, alone=lambda place: _with(objective.alone(place), regulariser))
