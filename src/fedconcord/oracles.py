"""The gradient oracles, an axis of its own: which gradient of f_i a local step uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

from pydantic import Field
from torch import Tensor

from fedconcord.core import Algorithm, Client, Done, Local, Oracle, Tree
from fedconcord.errors import UserError
from fedconcord.identity import definition
from fedconcord.transforms.lift import lift_row


def minibatch() -> Oracle:
    """The gradient on the step's mini-batch."""
    return Oracle()


def full() -> Oracle:
    """The gradient on all samples of the client, at every step."""
    return Oracle("full")


def sam(radius: Annotated[float, Field(gt=0, description="length of the ascent step")] = 0.1) -> Oracle:
    """The gradient at x + radius * g / ||g||, on the same mini-batch: two gradients a step.

    Foret et al., ICLR 2021; FedSAM, Qu et al., ICML 2022.
    """
    return Oracle("sam", radius)


def svrg() -> Oracle:
    """g(x) - g(x^t) + grad f_i(x^t), on the step's mini-batch: two gradients a step and a full one a round.

    Johnson and Zhang, NeurIPS 2013.
    """
    return Oracle("svrg")


def saga(
    blocks: Annotated[int, Field(ge=1, description="blocks M that a client's samples are cut in")] = 5,
) -> Oracle:
    """g_j(x) - y_j + mean_j y_j with a table of the last gradients of a client's M blocks, kept across rounds.

    Defazio et al., NeurIPS 2014; with FedAvg it is FedSaga (LoSAC, ACM TKDD 2023, Algorithm 1).
    """
    return Oracle("saga", blocks=blocks)


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
    if algorithm.oracle is not None or algorithm.blocks is not None or algorithm.prelude is not None:
        raise UserError("the method corrects its own gradients; leave local.oracle at minibatch")
    if algorithm.stepwise or algorithm.hessian_at is not None:
        raise UserError("the method prescribes its own local step; leave local.oracle at minibatch")

    def start(down: Tree, row: Tabled, client: Client) -> Local:
        local = algorithm.start(down, row.inner, client)
        mean = local.scale * row.table.mean(-2)
        linear = mean if local.linear is None else local.linear + mean
        return local._replace(linear=linear, table=row.table, table_rate=local.scale / blocks)

    def finish(down: Tree, row: Tabled, done: Done, client: Client) -> tuple[Tree, Tabled]:
        assert done.table is not None
        up, inner = algorithm.finish(down, row.inner, done, client)
        return up, Tabled(inner, done.table)

    lifted = lift_row(algorithm, lambda inner, x: Tabled(inner, x.new_zeros(blocks, len(x))))
    return replace(lifted, start=start, finish=finish, blocks=blocks)


ORACLES: dict[str, Callable[..., Oracle]] = {
    "minibatch": minibatch,
    "full": full,
    "sam": sam,
    "svrg": svrg,
    "saga": saga,
}
