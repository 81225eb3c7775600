"""What a method's messages look like, and whether their sum is enough, found by its own functions: on tensors that have
no values, or on a few numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedconcord.method.contract import (
    Algorithm,
    Client,
    Cohort,
    Done,
    Local,
    Plan,
    Population,
    Sender,
    Space,
    Tree,
    cohort_of,
    map_moves,
    sender_of,
    tree_leaves,
    tree_map,
    weights,
)

COHORT = Cohort(round=0, n=1, size=1, mass=1.0, mean_steps=1.0, dim=2, coin=0.0, lr=1.0)


class Forms(NamedTuple):
    """What goes to a client and comes from it in a round: trees of tensors without values ('meta')."""

    x: Tensor  # [d] the model
    down: Tree
    up: Tree
    asked: Tree  # from it before the local steps (Mime), or ()
    answer: Tree  # to it in return
    settled: Tree  # to it after the server's step, or ()
    share: Tree  # from it before round 0, or ()
    local: Local  # what its local steps start from


def forms(algorithm: Algorithm, x: Tensor, stacked: bool = False) -> Forms:
    """The forms of one client's messages, for a model like x [d]; `stacked`: what it sends as rows [1, ...]."""
    return _first_round(
        algorithm, x, (1,) * stacked, lambda leaf: leaf.to("meta") if isinstance(leaf, Tensor) else leaf
    )


def message(algorithm: Algorithm, x: Tensor, move: float = 0.0, steps: float = 1.0) -> Tree:
    """The first message of a client whose model moved by `move` in both of its coordinates, from a model of ones."""
    return _first_round(algorithm, torch.ones_like(x[:2]), (), lambda leaf: leaf, move, steps).up


def contribution(algorithm: Algorithm, up: Tree, like: Tensor, w: float = 1.0, known: bool = True, id: int = 0) -> Tree:
    """What a message [2] contributes with this weight, in numbers like these; nobody knows the steps if not `known`."""
    sender = _sender(like.new_ones(()), w, steps := 1.0 if known else math.nan)
    return algorithm.contribute(up, sender._replace(id=sender.id + id), COHORT._replace(mean_steps=steps))


def _first_round(
    algorithm: Algorithm,
    x: Tensor,
    lead: tuple[int, ...],
    place: Callable[[Any], Any],
    move: float = 0.0,
    steps: float = 1.0,
) -> Forms:
    """A client's first round, whose model moves by `move` in so many steps, with `place` of all that a server has; with
    values where `place` keeps them. `lead`: of rows."""
    server = algorithm.init(x, Population(1, x.new_ones(1)))
    broadcast, first_row = (tree_map(place, tree) for tree in (algorithm.broadcast(server), algorithm.init_client(x)))
    like, d, down = place(x), len(x), broadcast
    row = tree_map(lambda leaf: leaf.reshape(lead + (leaf.shape or lead)), first_row)
    one, zeros = like.new_ones(lead + lead), like.new_zeros(*lead, d)
    client = Client(
        id=torch.zeros_like(one, dtype=torch.int64),
        p=one,
        steps=steps * one,
        lr=1.0,
        noise=lambda n: like.new_zeros(*lead, n),
        gradient=zeros,
        loss=one,
        hessian=torch.eye(d, dtype=like.dtype, device=like.device).expand(*lead, d, d),
        late=0 * one,
        discrete=lambda n: like.new_zeros(*lead, n, dtype=torch.int64),
    )
    asked, answer, settled, share = (), (), (), ()
    phases = algorithm.phases
    if phases.prelude is not None:
        asked, answer = zeros, phases.prelude.contribute(zeros, _sender(one), COHORT._replace(dim=d))
        answer = tree_map(lambda leaf: leaf.sum(0), answer) if lead else answer
        down = phases.prelude.absorb(down, answer)
    local = algorithm.start(down, row, client)
    pieces = map_moves(
        local.pieces, lambda leaf: (leaf.expand(*lead, leaf.shape[-1]) if leaf.ndim < 2 else leaf) + move
    )
    done = Done(local.x.expand(*lead, d) + move, steps * one, steps * one, pieces)
    if algorithm.step.size is not None:
        done = done._replace(step_size=one, power=one, curvature=one)
    up, _ = algorithm.finish(down, row, done, client)
    if phases.settle is not None:
        settled = tree_map(place, phases.settle.send(algorithm.broadcast(server), server))
    if phases.prologue is not None:
        assert algorithm.step.blocks is not None
        share = phases.prologue.send(like.new_zeros(algorithm.step.blocks, d), like.new_ones(()))
    return Forms(like, broadcast, up, asked, answer, settled, share, local)


def _sender(one: Tensor, w: float = 1.0, steps: float = 1.0) -> Sender:
    return Sender(torch.zeros_like(one, dtype=torch.int64), w * one, one, steps * one, one, 1.0, 0 * one)


# -- sums of contributions: whether a server can do a method's rounds that learns these alone, and what a loss does ----
#
# A contribution is made with what the server knows of its client and of the cohort. A server that sees sums alone has
# to say these beforehand; when a client is lost afterwards, weights and scalars are others (w_i of three clients, not
# four). The sum can still be had if each leaf of every contribution is multiplied by one number, the same for all
# clients: then so is the sum. Whether it is so is found by trial, not stated by methods.

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
        is_whole = not all(map(Tensor.is_floating_point, tree_leaves(shares[0]).values()))
        if is_whole and algorithm.facts.protection is None:
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
