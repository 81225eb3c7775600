"""A round for each factor of low-rank pairs, one after the other: `factors.rolora`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedconcord.method.contract import Algorithm, Client, Cohort, Done, Local, Sender, Tree, model_of, tree_map
from fedconcord.method.contract.pairs import Pair, Window
from fedconcord.method.wrappers.lift import lift
from fedconcord.support.errors import UserError


class Turns(NamedTuple):
    """A method's server state, or its broadcast, beside the number of the round."""

    inner: Any  # the method's own
    round: Tensor  # [] int64

    @property
    def x(self) -> Tensor:
        """The model that rounds start from [d]."""
        return model_of(self.inner)


def in_turn(algorithm: Algorithm, pairs: tuple[Pair, ...], dim: int, name: str) -> Algorithm:
    """The method in which one factor of each pair moves in a round: vectors [..., d] of clients' rows and of the
    server keep their entries of the other one, and those of messages are sent without them, [..., L]."""
    if algorithm.phases.settle or algorithm.phases.communicates or algorithm.phases.late:
        raise UserError(
            f"aggregate {name} has a round for each factor, one after the other, and this method's rounds are not one "
            "message of each client and one step of the server; use fedavg or scaffold, or lora(train=B)"
        )
    if algorithm.step.code is not None:
        raise UserError(
            f"aggregate {name} holds one factor of each pair still in a round, and client code moves both; leave "
            "local.code out, or use aggregate fedex"
        )
    table = _entries(pairs, dim)
    moves = torch.zeros(2, dim + 1, dtype=torch.bool).scatter(1, table, True)[:, :dim]

    def known(new: Tree, old: Tree, round: Tensor) -> Tree:
        """New vectors with the old entries of what does not move."""
        mask = _row(moves, round)

        def one(after: Tensor, before: Tensor) -> Tensor:
            return torch.where(mask, after, before) if after.ndim and after.shape[-1] == dim else after

        return tree_map(one, new, old)

    def start(down: Turns, row: Tree, client: Client) -> Local:
        local = lifted.start(down, row, client)
        return local.having(Window(_row(moves, down.round).to(local.x.dtype)))

    def finish(down: Turns, row: Tree, result: Done, client: Client) -> tuple[Tree, Tree]:
        up, new = lifted.finish(down, row, result, client)
        places = _row(table, down.round)

        def one(leaf: Tensor) -> Tensor:
            if not leaf.ndim or leaf.shape[-1] != dim:
                return leaf
            return torch.cat([leaf, leaf.new_zeros((*leaf.shape[:-1], 1))], -1)[..., places]

        return tree_map(one, up), known(new, row, down.round)

    def contribute(up: Tree, sender: Sender, cohort: Cohort) -> Tree:
        places = table[cohort.round % 2]

        def one(leaf: Tensor) -> Tensor:
            if not leaf.ndim or leaf.shape[-1] != len(places):
                return leaf
            whole = leaf.new_zeros((*leaf.shape[:-1], dim + 1))
            whole[..., places.to(leaf.device)] = leaf
            return whole[..., :dim]

        return algorithm.contribute(tree_map(one, up), sender, cohort)

    def after(inner: Tree, server: Turns) -> Turns:
        return Turns(known(inner, server.inner, server.round), server.round + 1)

    def unheard(server: Turns, cohort: Cohort) -> Turns:
        inner = algorithm.phases.unheard
        return after(server.inner if inner is None else inner(server.inner, cohort), server)

    lifted = lift(
        algorithm,
        server=lambda inner, x: Turns(inner, torch.zeros((), dtype=torch.int64, device=x.device)),
        down=lambda inner, server: Turns(inner, server.round),
    )
    return replace(
        lifted,
        start=start,
        finish=finish,
        contribute=contribute,
        update=lambda server, total, cohort: after(algorithm.update(server.inner, total, cohort), server),
        phases=lifted.phases._replace(unheard=unheard),
    )


def _row(table: Tensor, round: Tensor) -> Tensor:
    """The row of a table [2, ...] for a round []; on a device by an index that the host does not read."""
    return table.to(round.device).index_select(0, (round % 2).reshape(1))[0]


def _entries(pairs: tuple[Pair, ...], dim: int) -> Tensor:
    """Of even and odd rounds the entries of x that move, [2, L] int64; d stands for none, where they are fewer."""
    owner = torch.zeros(dim, dtype=torch.int64)
    for pair in pairs:
        owner[pair.b : pair.b + pair.outputs * pair.rank] = 1
        owner[pair.a : pair.a + pair.rank * pair.inputs] = 2
    each = [torch.nonzero((owner == 0) | (owner == turn)).flatten() for turn in (1, 2)]
    return torch.nn.utils.rnn.pad_sequence(each, batch_first=True, padding_value=dim)
