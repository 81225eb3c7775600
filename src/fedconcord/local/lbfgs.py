"""L-BFGS on a client's local problem, by torch's own implementation, one client at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from fedconcord.core import Local, Objective
from fedconcord.local.solver import Solver


def minimise(
    objective: Objective, solver: Solver, local: Local, samples: Tensor, steps: int
) -> tuple[Tensor, int, int]:
    """At most `steps` L-BFGS iterations (strong Wolfe) on L_i(x) = f_i(x) + <linear, x> + prox/2 ||x - anchor||^2.

    Weight decay wd adds wd/2 ||x||^2. Stops early when ||grad L_i||^2 <= the solver's tolerance.

    Args:
        local: of one client, vectors [d].
        samples: all of the client's samples.

    Returns: the minimiser found [d], the iterations and the gradient evaluations it took.
    """
    x = local.x.detach().clone().requires_grad_()
    # the caller's tolerance is the rule, not torch's; the line search keeps its own, as rounding ends it anyway
    optimiser = torch.optim.LBFGS([x], max_iter=1, history_size=10, line_search_fn="strong_wolfe", tolerance_grad=0.0)
    evaluations = taken = 0

    def value_at() -> Tensor:
        nonlocal evaluations
        evaluations += 1
        optimiser.zero_grad()
        with torch.enable_grad():
            value = local.scale * objective.loss(x, samples)
            if local.linear is not None:
                value = value + local.linear @ x
            if local.anchor is not None:
                value = value + 0.5 * (local.prox * (x - local.anchor).square()).sum()
            if solver.weight_decay:
                value = value + 0.5 * solver.weight_decay * x.square().sum()
            value.backward()  # type: ignore[no-untyped-call]
        return value

    for _ in range(steps):
        before = x.detach().clone()
        taken += 1
        optimiser.step(value_at)  # type: ignore[no-untyped-call]
        if torch.equal(before, x):  # rounding leaves nothing to gain
            break
        if solver.tolerance is not None:
            value_at()
            assert x.grad is not None
            if float(x.grad.square().sum()) <= solver.tolerance:
                break
    return x.detach(), taken, evaluations
