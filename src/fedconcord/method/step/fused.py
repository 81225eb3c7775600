"""The local steps of stacked clients where a gradient is only added, and so need not be made."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedconcord.method.contract import Accumulate
from fedconcord.method.contract.pieces import (
    Ascent,
    Constant,
    Decay,
    Dual,
    Momentum,
    Perturbed,
    Pull,
    Scale,
    Snapshot,
    ascent,
)
from fedconcord.method.step.samples import Batches, Samples, pick
from fedconcord.method.step.sizes import Delta, Dog, Fixed, Ruled, length
from fedconcord.method.step.walk import Chain, Source, Walked, rows_of, with_own_state

KNOWN = {Ascent, Perturbed, Snapshot, Scale, Decay, Constant, Dual, Momentum, Pull}


def fused(chain: Chain, source: Source, steps: np.ndarray) -> Walked | None:
    """`walk`, where the problem has a kernel that adds gradients to what they are for; None for all other chains.

    That is where nothing acts on the gradient alone (a clip, a table) or on the direction (a limit, Nesterov's form, a
    matrix), SAM's ascent has no dual, no tolerance asks for more, clients share the numbers rho and kappa, and no two
    of a dual that moves, momentum and a rule of step sizes meet, nor such a dual and a constant. Without momentum a
    step of a given size is x <- (1 - eta (rho + wd)) x - eta kappa g - eta b with b = constant - rho anchor.
    """
    if not isinstance(source, Batches) or source.samples is None or source.objective.accumulate is None:
        return None
    if chain.tolerance is not None or not chain.is_of(KNOWN):
        return None
    momentum, dual, ruled = chain.the(Momentum), chain.the(Dual), not isinstance(chain.size, Fixed)
    pull, scale, sam = chain.the(Pull), chain.the(Scale), chain.the(Ascent)
    if momentum is not None and (momentum.nesterov or dual is not None or ruled):
        return None
    if dual is not None and (ruled or chain.the(Constant) is not None):
        return None
    if (snapshot := chain.the(Snapshot)) is not None and snapshot.c is not None:
        return None
    if sam is not None and (sam.dual is not None or chain.the(Perturbed) is not None):
        return None
    if any(isinstance(number, Tensor) for number in (pull and pull.rho, scale and scale.kappa)):
        return None
    return _fused(source.objective.accumulate, chain, source.samples, steps)


def _fused(accumulate: Accumulate, chain: Chain, batches: Samples, steps: np.ndarray) -> Walked:
    """The steps of a chain that `fused` knows."""
    x = chain.x.expand(len(steps), -1).clone()
    size = with_own_state(chain.size, len(x))
    moving = tuple(with_own_state(piece, len(x)) for piece in chain.pieces if piece.traits.moves)
    moved: dict[type, Any] = {type(piece): piece for piece in moving}
    momentum, dual = moved.get(Momentum), moved.get(Dual)
    buffer = None if momentum is None else momentum.buffer
    pull, decay = chain.the(Pull), chain.the(Decay)
    rho, weight_decay = 0.0 if pull is None else float(pull.rho), 0.0 if decay is None else decay.rate
    constant = None if (shift := chain.the(Constant)) is None else shift.c
    pulled = None if pull is None else pull.rho * pull.anchor
    if dual is not None:
        constant = dual.dual if pulled is None else dual.dual.sub_(pulled)  # pulled comes back after the last step
    elif buffer is None and pulled is not None:
        constant = -pulled if constant is None else constant - pulled
    kappa = 1.0 if (scale := chain.the(Scale)) is None else float(scale.kappa)
    snapshot = None if (reference := chain.the(Snapshot)) is None else reference.z.expand(len(x), -1)
    sam = chain.the(Ascent)
    shift = None if (there := chain.the(Perturbed)) is None else there.shift.expand_as(x)
    above = None if sam is None and shift is None else torch.empty_like(x)
    whole = None
    if isinstance(size, Ruled):
        whole = _Whole(size, torch.empty_like(x), constant, rho + weight_decay)
    alive = (steps[:, None] > np.arange(steps.max(initial=0))).sum(0).tolist()  # a prefix, as clients are sorted
    for k, m in enumerate(alive):
        here = slice(0, m)
        xs, (samples, weight) = x[here], batches.step(here, k)
        at = xs
        if above is not None and shift is not None:
            at = torch.add(xs, shift[here], out=above[here])
        elif above is not None:
            accumulate(above[here], 0.0, 1.0, xs, samples, weight)
            at = ascent(xs, above[here], sam.radius, out=above[here])
        eta = size.at(k) if isinstance(size, Fixed) else 1.0
        if whole is not None:
            into, beta, rate = whole.begin(xs, here)
        elif buffer is not None and momentum is not None:
            into, beta, rate = buffer[here], momentum.beta, 1.0
        else:
            into, beta, rate = xs, 1.0 - eta * (rho + weight_decay), -eta
        accumulate(into, beta, rate * kappa, at, samples, weight)
        if snapshot is not None:
            accumulate(into, 1.0, -rate * kappa, snapshot[here], samples, weight)
        if whole is not None:
            whole = whole.step(k, xs, here)
            continue
        if constant is not None:
            into.add_(pick(constant, here), alpha=rate)
        if buffer is not None:
            if weight_decay:
                into.add_(xs, alpha=weight_decay)
            if pulled is not None:
                xs.mul_(1.0 - eta * rho).add_(pick(pulled, here), alpha=eta)
            xs.sub_(into, alpha=eta)
        if chain.prox is not None:
            xs.copy_(chain.prox(xs, eta))
        if dual is not None:
            dual.dual[here].add_(xs, alpha=dual.rate).sub_(pick(dual.anchor, here), alpha=dual.rate)
    if dual is not None and pulled is not None:
        dual.dual.add_(pulled)
    return Walked(x, moving, size, steps)


class _Whole(NamedTuple):
    """Steps of a rule, whose directions D = kappa g + (rho + wd) x + constant have to be whole before eta is known.

    Beside the gradient's own passes over [S, d], D is read for its norm, for its difference to the last one, which is
    written and read once more, and for the step.
    """

    size: Ruled
    direction: Tensor  # [S, d] the step's
    constant: Tensor | None
    stiffness: float  # rho + weight decay

    def begin(self, xs: Tensor, here: slice) -> tuple[Tensor, float, float]:
        """What the gradient is added to: (into, factor on what there is, factor on the gradient)."""
        into = self.direction[here]
        if self.constant is None and not self.stiffness:
            return into, 0.0, 1.0
        if self.constant is None:
            torch.mul(xs, self.stiffness, out=into)
        elif self.stiffness:
            torch.add(pick(self.constant, here), xs, alpha=self.stiffness, out=into)
        else:
            into.copy_(pick(self.constant, here))
        return into, 1.0, 1.0

    def step(self, k: int, xs: Tensor, here: slice) -> _Whole:
        """Move the models; what the next step begins with."""
        size, v, after = rows_of(self.size, here), self.direction[here], self
        if isinstance(size, Delta):
            eta = size.measured(k, length(v), length(size.last.sub_(v)) if k else None)
            after = self._replace(size=self.size._replace(last=self.direction), direction=self.size.last)  # type: ignore[union-attr, call-arg]
        elif isinstance(size, Dog):
            eta = size.measured(k, length(v), length(xs - size.start))
        else:
            eta = size.measured(k, length(v))
        xs.addcmul_(v, eta, value=-1)
        return after
