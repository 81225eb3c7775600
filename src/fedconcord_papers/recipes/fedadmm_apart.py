"""FedADMM whose runs tell how far its clients' models end from the server's: what Fig. 9 of its paper speaks of.

A client sends ||w_i - theta|| beside its message, of the theta that it was sent, and the mean over a round's clients is
a metric, `clients_apart`. Nothing else is changed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, NamedTuple

from torch import Tensor

from fedconcord.method.algorithms.fedadmm import RHO, Schedule, fedadmm
from fedconcord.method.contract import Algorithm, Client, Cohort, Done, Sender, model_of
from fedconcord.method.contract.identity import definition
from fedconcord.method.wrappers.lift import lift
from fedconcord.support.parameters import Positive, about

APART = "clients_apart"


class Server(NamedTuple):
    inner: Any  # FedADMM's
    apart: Tensor  # [] of the last round

    @property
    def x(self) -> Tensor:
        """The server's model [d]."""
        x: Tensor = self.inner.x
        return x


class Up(NamedTuple):
    inner: Any  # FedADMM's message, or a sum of them
    apart: Tensor  # []


@definition()
def fedadmm_apart(rho: Annotated[Positive | Schedule, about("penalty, as of `fedadmm`")] = RHO) -> Algorithm:
    """FedADMM's released form, with the mean distance of a round's clients from the server's model as a metric.

    Gong, Li, Freris, ICDE 2022, Fig. 9.
    """
    plain = fedadmm(rho=rho)
    lifted = lift(plain, server=lambda inner, x: Server(inner, x.new_zeros(())))

    def finish(down: Any, row: Any, done: Done, client: Client) -> tuple[Up, Any]:
        up, row = lifted.finish(down, row, done, client)
        return Up(up, (done.x - model_of(down)).norm(dim=-1).reshape(done.steps.shape)), row

    def contribute(up: Up, sender: Sender, cohort: Cohort) -> Up:
        return Up(plain.contribute(up.inner, sender, cohort), sender.w * up.apart)

    def update(server: Server, total: Up, cohort: Cohort) -> Server:
        return Server(plain.update(server.inner, total.inner, cohort), total.apart.reshape(()))

    return replace(
        lifted,
        finish=finish,
        contribute=contribute,
        update=update,
        facts=lifted.facts._replace(numbers=lambda server: {APART: float(server.apart)}),
    )
