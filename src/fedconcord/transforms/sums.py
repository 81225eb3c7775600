"""Whether a server can do a method's rounds that learns the sum of the contributions alone, and what a loss does to it.

A contribution is made with what the server knows of its client and of the cohort. A server that sees sums alone has to
say these beforehand; when a client is lost afterwards, weights and scalars are others (w_i of three clients, not four).
The sum can still be had if each leaf of every contribution is multiplied by one number, the same for all clients: then
so is the sum. Whether it is so is found by trial, not stated by methods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from fedconcord.core import (
    Algorithm,
    Cohort,
    Plan,
    Sender,
    Space,
    Tree,
    cohort_of,
    sender_of,
    tree_leaves,
    tree_map,
    weights,
)
from fedconcord.transforms.forms import forms

Contribute = Callable[[Tree, Sender, Cohort], Tree]
"""Of a method's message, or of its prelude's."""

DIM = 3  # parameters of the model in a trial


def unsummable(algorithm: Algorithm) -> str | None:
    """Why a server that sees sums alone cannot do this method's rounds, or None."""
    if algorithm.phases.prologue is not None:
        return "all clients send gradients before round 0, one by one"
    if algorithm.phases.combine is not None:
        return "its server looks at contributions one by one"
    if algorithm.phases.late:
        return "replies that come in a later round are in no round's sum"
    ids = np.arange(5)
    p = (ids + 1.0) / 40
    plan = Plan(
        *(2, ids, ids + 2, weights.cohort(algorithm.weights, p, np.ones(5), p * 3), p, p * 3, 0.1, 0),
        coin=0.5,
    )
    space = Space(8, DIM, torch.float64, torch.device("cpu"), None)
    for contribute, message in messages(algorithm):
        shares = [contribute(message, sender_of(space, plan, k), cohort_of(space, plan)) for k in range(5)]
        if not all(leaf.is_floating_point() for leaf in tree_leaves(shares[0]).values()):
            return "a contribution has numbers that are not real"
        for lost in (1, 3), (0, 2, 4):
            left = weights.redrawn(plan, ~np.isin(ids, lost), algorithm.weights)
            if factors(contribute, message, space, plan, left) is None:
                return "what a client contributes depends on who else is there, in another way for each client"
    return None


def messages(algorithm: Algorithm) -> list[tuple[Contribute, Tree]]:
    """Each kind of contribution of a round, with a message of `DIM` parameters to try it on."""
    x = torch.zeros(DIM, dtype=torch.float64)
    kinds: list[tuple[Contribute, Tree]] = [(algorithm.contribute, _filled(forms(algorithm, x).up))]
    if algorithm.phases.prelude is not None:
        kinds.insert(0, (algorithm.phases.prelude.contribute, _filled(x)))
    return kinds


def factors(contribute: Contribute, message: Tree, space: Space, before: Plan, after: Plan) -> list[float] | None:
    """By what each leaf of a contribution is multiplied when the clients of a plan become those of another.

    Args:
        message: as `messages` gives it.
        after: of some of the clients of `before`.

    Returns: a number a leaf; None if there is none that all clients have in common.
    """
    space = space._replace(dim=DIM, dtype=torch.float64, device=torch.device("cpu"))

    def shares(plan: Plan) -> list[Tensor]:
        """Each leaf [S, ...] of the contributions of those who are in both."""
        each = [
            list(tree_leaves(contribute(message, sender_of(space, plan, int(k)), cohort_of(space, plan))).values())
            for k in np.flatnonzero(np.isin(plan.ids, after.ids))
        ]
        return [torch.stack(leaves).flatten().double() for leaves in zip(*each, strict=True)]

    return _common(list(zip(shares(before), shares(after), strict=True)))


def _common(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[float] | None:
    factors_of = []
    for old, new in pairs:
        factor = float((old @ new) / (old @ old)) if bool(old.any()) else 1.0
        if not torch.allclose(new, factor * old, rtol=1e-9, atol=1e-12 * float(new.abs().max())):
            return None
        factors_of.append(factor)
    return factors_of


def _filled(tree: Tree) -> Tree:
    """A message with numbers in it: real ones without a pattern, and small whole ones that may be positions."""

    def fill(leaf: Tensor) -> Tensor:
        count = torch.arange(leaf.numel(), dtype=torch.float64).reshape(leaf.shape)
        return (1.0 + count.sqrt() / 3 if leaf.is_floating_point() else count + (leaf.ndim == 0)).to(leaf.dtype)

    return tree_map(fill, tree)
