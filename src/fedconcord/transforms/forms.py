"""What a method's messages look like, found by its own functions: on tensors that have no values, or on two numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedconcord.core import (
    Algorithm,
    Client,
    Cohort,
    Done,
    Population,
    Sender,
    Snapshot,
    Tree,
    map_moves,
    tree_bytes,
    tree_map,
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
    snapshot: bool  # whether a local step evaluates a second gradient, at a snapshot

    @property
    def bytes_down(self) -> int:
        """Before the local steps: what the server sends after them is `settled`."""
        return tree_bytes(self.down) + tree_bytes(self.answer)

    @property
    def bytes_up(self) -> int:
        return tree_bytes(self.up) + tree_bytes(self.asked)


def forms(algorithm: Algorithm, x: Tensor, stacked: bool = False) -> Forms:
    """The forms of one client's messages, for a model like x [d]; `stacked`: what it sends as rows [1, ...]."""
    return _first_round(
        algorithm, x, (1,) * stacked, lambda leaf: leaf.to("meta") if isinstance(leaf, Tensor) else leaf
    )


def message(algorithm: Algorithm, x: Tensor, move: float = 0.0) -> Tree:
    """The first message of a client whose model moved by `move` in both of its coordinates, from a model of ones."""
    return _first_round(algorithm, torch.ones_like(x[:2]), (), lambda leaf: leaf, move).up


def contribution(algorithm: Algorithm, up: Tree, like: Tensor, w: float = 1.0, known: bool = True) -> Tree:
    """What a message [2] contributes with this weight, in numbers like these; nobody knows the steps if not `known`."""
    steps = 1.0 if known else math.nan
    return algorithm.contribute(up, _sender(like.new_ones(()), w, steps), COHORT._replace(mean_steps=steps))


def _first_round(
    algorithm: Algorithm, x: Tensor, lead: tuple[int, ...], place: Callable[[Any], Any], move: float = 0.0
) -> Forms:
    """A client's first round, whose model moves by `move`, with `place` of all that a server has; `lead`: of rows."""
    server = algorithm.init(x, Population(1, x.new_ones(1)))
    broadcast, first_row = (tree_map(place, tree) for tree in (algorithm.broadcast(server), algorithm.init_client(x)))
    like, d, down = place(x), len(x), broadcast
    row = tree_map(lambda leaf: leaf.reshape(lead + (leaf.shape or lead)), first_row)
    one, zeros = like.new_ones(lead + lead), like.new_zeros(*lead, d)
    client = Client(
        id=torch.zeros_like(one, dtype=torch.int64),
        p=one,
        steps=one,
        lr=1.0,
        noise=lambda n: like.new_zeros(*lead, n),
        gradient=zeros,
        hessian=torch.eye(d, dtype=like.dtype, device=like.device).expand(*lead, d, d),
        late=0 * one,
        normal=lambda n: like.new_zeros(*lead, n),
    )
    asked, answer, settled, share = (), (), (), ()
    phases = algorithm.phases
    if phases.prelude is not None:
        asked, answer = zeros, phases.prelude.contribute(zeros, _sender(one), COHORT._replace(dim=d))
        answer = tree_map(lambda leaf: leaf.sum(0), answer) if lead else answer
        down = phases.prelude.absorb(down, answer)
    local = algorithm.start(down, row, client)
    pieces = map_moves(local.pieces, lambda leaf: (leaf.expand(*lead, d) if leaf.ndim < 2 else leaf) + move)
    done = Done(local.x.expand(*lead, d) + move, one, one, pieces)
    if algorithm.step.size is not None:
        done = done._replace(step_size=one, power=one, curvature=one)
    up, _ = algorithm.finish(down, row, done, client)
    if phases.settle is not None:
        settled = tree_map(place, phases.settle.send(algorithm.broadcast(server), server))
    if phases.prologue is not None:
        assert algorithm.step.blocks is not None
        share = phases.prologue.send(like.new_zeros(algorithm.step.blocks, d), like.new_ones(()))
    return Forms(like, broadcast, up, asked, answer, settled, share, local.piece(Snapshot) is not None)


def _sender(one: Tensor, w: float = 1.0, steps: float = 1.0) -> Sender:
    return Sender(torch.zeros_like(one, dtype=torch.int64), w * one, one, steps * one, one, 1.0, 0 * one)
