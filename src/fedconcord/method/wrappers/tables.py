"""Any method with SAGA's gradient: a table of the last gradient of each of a client's blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from fedconcord.method.contract import Algorithm, Client, Done, Local, Memory, Table, Tree
from fedconcord.method.contract.identity import definition
from fedconcord.method.wrappers.lift import lift
from fedconcord.support.errors import UserError


class Tabled(NamedTuple):
    """A client's state beside its table."""

    inner: Any  # the method's own row
    table: Tensor  # [M, d] last gradient of each block


@definition()
def with_table(algorithm: Algorithm, blocks: int) -> Algorithm:
    """The same method with SAGA's gradient in its local steps, a block a step.

    Raises:
        UserError: the method brings its own gradient or its own local step.
    """
    if algorithm.step.oracle is not None or algorithm.step.blocks is not None or algorithm.phases.prelude is not None:
        raise UserError("the method corrects its own gradients; leave local.oracle at minibatch")
    if algorithm.step.fixed or algorithm.step.hessian_at is not None:
        raise UserError("the method prescribes its own local step; leave local.oracle at minibatch")

    def start(down: Tree, row: Tabled, client: Client) -> Local:
        table = Table(row.table, row.table.mean(-2), 1 / blocks)
        return algorithm.start(down, row.inner, client).having(table)

    def finish(down: Tree, row: Tabled, done: Done, client: Client) -> tuple[Tree, Tabled]:
        up, inner = algorithm.finish(down, row.inner, done, client)
        return up, Tabled(inner, done.piece(Table).table)

    lifted = lift(algorithm, row=lambda inner, x: Tabled(inner, x.new_zeros(blocks, len(x))))
    return replace(
        lifted,
        start=start,
        finish=finish,
        step=lifted.step._replace(blocks=blocks),
        facts=lifted.facts._replace(
            memory=Memory("mean of its table", lambda server, rows, p, mean: rows.table.mean(1))
        ),
    )
