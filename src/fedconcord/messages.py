"""The form of a method's messages, found without running it: its functions on tensors that have no values."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedconcord.core import Algorithm, Client, Cohort, Done, Population, Tree, tree_bytes, tree_map


class Forms(NamedTuple):
    """What goes to a client and comes from it in a round: trees of tensors [1, ...] without values ('meta')."""

    down: Tree
    up: Tree
    asked: Tree  # from it before the local steps (Mime), or ()
    answer: Tree  # to it in return
    snapshot: bool  # whether a local step evaluates a second gradient, at a snapshot

    @property
    def bytes_down(self) -> int:
        return tree_bytes(self.down) + tree_bytes(self.answer)

    @property
    def bytes_up(self) -> int:
        return tree_bytes(self.up) + tree_bytes(self.asked)


def forms(algorithm: Algorithm, x: Tensor) -> Forms:
    """The forms of one client's messages, for a model like x [d]."""
    server = algorithm.init(x, Population(1, x.new_ones(1)))
    down, held = (tree_map(_bare, tree) for tree in (algorithm.broadcast(server), algorithm.init_client(x)))
    row = tree_map(lambda leaf: leaf.reshape(1, 1) if leaf.ndim == 0 else leaf[None], held)
    bare = _bare(x)
    d, one, many = len(x), bare.new_empty(1, 1), bare.new_empty(1, len(x))
    client = Client(
        id=one.to(torch.int64),
        w=one,
        p=one,
        steps=one,
        inclusion=one,
        lr=1.0,
        noise=lambda n: bare.new_empty(1, n),
        gradient=many,
        hessian=bare.new_empty(1, d, d),
        late=one,
    )
    asked, answer = (), ()
    if algorithm.prelude is not None:
        cohort = Cohort(round=0, n=1, size=1, mass=1.0, mean_steps=1.0, dim=d, coin=0.0, lr=1.0)
        asked, share = many, algorithm.prelude.contribute(client, cohort)
        answer = tree_map(lambda leaf: leaf.sum(0), share)
        down = algorithm.prelude.absorb(down, answer)
    local = algorithm.start(down, row, client)
    linear = None if local.linear is None else local.linear.expand(1, d)
    buffer = many if local.buffer is None else local.buffer.expand(1, d)
    done = Done(local.x.expand(1, d), one, one, linear, local.table, buffer, None if local.tilt is None else many)
    sent, _ = algorithm.finish(down, row, done, client)
    broadcast = tree_map(_bare, algorithm.broadcast(server))
    return Forms(broadcast, sent, asked, answer, local.snapshot is not None)


def _bare(leaf: Any) -> Any:
    return leaf.to("meta") if isinstance(leaf, Tensor) else leaf
