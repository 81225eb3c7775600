"""The form of a method's messages, found without running it: its functions on tensors that have no values, or two."""

from __future__ import annotations

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
    server = algorithm.init(x, Population(1, x.new_ones(1)))
    down, first_row = (tree_map(_bare, tree) for tree in (algorithm.broadcast(server), algorithm.init_client(x)))
    bare, d, lead = _bare(x), len(x), (1,) * stacked
    row = tree_map(lambda leaf: leaf.reshape(lead + (leaf.shape or lead)), first_row)
    one, many = bare.new_empty(lead + lead), bare.new_empty(*lead, d)
    client = Client(
        id=one.to(torch.int64),
        p=one,
        steps=one,
        lr=1.0,
        noise=lambda n: bare.new_empty(*lead, n),
        gradient=many,
        hessian=bare.new_empty(*lead, d, d),
        late=one,
        normal=lambda n: bare.new_empty(*lead, n),
    )
    asked, answer, settled, share = (), (), (), ()
    if algorithm.phases.prelude is not None:
        cohort = Cohort(round=0, n=1, size=1, mass=1.0, mean_steps=1.0, dim=d, coin=0.0, lr=1.0)
        sender = Sender(client.id, one, one, one, one, 1.0)
        asked, answer = many, algorithm.phases.prelude.contribute(many, sender, cohort)
        answer = tree_map(lambda leaf: leaf.sum(0), answer) if stacked else answer
        down = algorithm.phases.prelude.absorb(down, answer)
    local = algorithm.start(down, row, client)
    pieces = map_moves(local.pieces, lambda leaf: leaf.expand(*lead, d) if leaf.ndim < 2 else leaf)
    done = Done(local.x.expand(*lead, d), one, one, pieces)
    if algorithm.step.size is not None:
        done = done._replace(step_size=one, power=one, curvature=one)
    sent, _ = algorithm.finish(down, row, done, client)
    if algorithm.phases.settle is not None:
        settled = tree_map(_bare, algorithm.phases.settle.send(algorithm.broadcast(server), server))
    if algorithm.phases.prologue is not None:
        assert algorithm.step.blocks is not None
        share = algorithm.phases.prologue.send(bare.new_empty(algorithm.step.blocks, d), bare.new_empty(()))
    broadcast = tree_map(_bare, algorithm.broadcast(server))
    return Forms(bare, broadcast, sent, asked, answer, settled, share, local.piece(Snapshot) is not None)


def _bare(leaf: Any) -> Any:
    return leaf.to("meta") if isinstance(leaf, Tensor) else leaf
