"""Ditto on any method: every client has a model of its own beside, pulled to the server's.

Li et al., ICML 2021, Algorithm 1, as in github.com/litian96/ditto (26d9b29): a second model v_i takes as many steps as
the method's, on the same samples, v <- v - lr (grad f_i(v) + lam (v - x^t)), and changes nothing of the method. lr is
the round's where it is not set, as in that code. lam = 0 is every client alone, and with large lam v is the server's
model. v takes plain steps whatever the method's have: no momentum, decay, schedule or optimiser.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, NamedTuple

from torch import Tensor

from fedconcord.method.contract import Algorithm, Beside, Client, Done, Local, Tree, model_of
from fedconcord.method.contract.facts import Unfit
from fedconcord.method.contract.identity import definition
from fedconcord.method.wrappers.lift import lift
from fedconcord.support.factories import Search
from fedconcord.support.parameters import NotNegative, Positive, about

Pulled = Annotated[
    NotNegative, about("how strongly the client's own model is pulled to the server's"), Search(0.01, 10.0)
]
OwnLR = Annotated[Positive | None, about("step size of the client's own model; if none, the round's")]


PLAIN: tuple[Unfit, str] = "optimiser", "clients' own models take plain steps, which need a size of their own: set lr"


class Row(NamedTuple):
    """A client's state beside its own model."""

    inner: Any  # the method's own
    v: Tensor  # [d]


@definition()
def with_ditto(
    algorithm: Algorithm,
    lam: Pulled = 0.1,
    lr: OwnLR = None,
) -> Algorithm:
    """The same method, whose answer is every client's own model."""
    lifted = lift(algorithm, row=Row)

    def start(down: Tree, row: Row, client: Client) -> Local:
        return lifted.start(down, row, client).having(
            Beside(lam, client.lr if lr is None else lr, model_of(down), row.v)
        )

    def finish(down: Tree, row: Row, end: Done, client: Client) -> tuple[Tree, Row]:
        up, new = lifted.finish(down, row, end, client)
        return up, new._replace(v=end.piece(Beside).v)

    return replace(
        lifted,
        start=start,
        finish=finish,
        client_model=lambda row, x: row.v,
        needs=lifted.needs._replace(x0=True, lr=lifted.needs.lr or lr is None),  # v starts from x0
        facts=lifted.facts._replace(unfit=(*lifted.facts.unfit, *[PLAIN] * (lr is None))),
    )
