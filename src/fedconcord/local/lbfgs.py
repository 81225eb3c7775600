"""L-BFGS on clients' local problems by torch's own implementation, one client at a time: line searches do not batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedconcord.core import Objective
from fedconcord.core.pieces import HasPotential
from fedconcord.local.walk import Chain, Walked, rows_of


def minimisers(
    objective: Objective, chain: Chain, samples: Sequence[Tensor], steps: np.ndarray
) -> tuple[Walked, np.ndarray]:
    """The minimisers of clients' problems, and the full gradients [S] that each of them took.

    Args:
        samples: all samples of each client.
        steps: [S] iterations at most.
    """
    starts = chain.x.expand(len(steps), -1)
    found = [
        minimise(objective, one(chain, k)._replace(x=start), all_of_it, int(most))
        for k, (start, all_of_it, most) in enumerate(zip(starts, samples, steps, strict=True))
    ]
    x, taken, passes = zip(*found, strict=True)
    return Walked(torch.stack(x), (), chain.size, np.array(taken)), np.array(passes)


def one(chain: Chain, k: int) -> Chain:
    """The chain of client k of a cohort, vectors [d]."""
    rows = torch.tensor(k)
    return chain._replace(pieces=tuple(rows_of(piece, rows) for piece in chain.pieces))


def minimise(objective: Objective, chain: Chain, samples: Tensor, steps: int) -> tuple[Tensor, int, int]:
    """At most `steps` L-BFGS iterations (strong Wolfe) on L_i(x) = f_i(x) and the potentials of the chain's pieces.

    Stops early when ||grad L_i||^2 <= the chain's tolerance.

    Args:
        chain: of one client, vectors [d].
        samples: all of the client's samples.

    Returns: the minimiser found [d], the iterations and the gradient evaluations it took.
    """
    x = chain.x.detach().clone().requires_grad_()
    # the caller's tolerance is the rule, not torch's; the line search keeps its own, as rounding ends it anyway
    optimiser = torch.optim.LBFGS([x], max_iter=1, history_size=10, line_search_fn="strong_wolfe", tolerance_grad=0.0)
    evaluations = taken = 0

    def value_at() -> Tensor:
        nonlocal evaluations
        evaluations += 1
        optimiser.zero_grad()
        with torch.enable_grad():
            value = objective.loss(x, samples)
            for piece in chain.pieces:
                value = piece.potential(value, x) if isinstance(piece, HasPotential) else value
            value.backward()  # type: ignore[no-untyped-call]
        return value

    for _ in range(steps):
        before = x.detach().clone()
        taken += 1
        optimiser.step(value_at)  # type: ignore[no-untyped-call]
        if torch.equal(before, x):  # rounding leaves nothing to gain
            break
        if chain.tolerance is not None:
            value_at()
            assert x.grad is not None
            if float(x.grad.square().sum()) <= chain.tolerance:
                break
    return x.detach(), taken, evaluations
