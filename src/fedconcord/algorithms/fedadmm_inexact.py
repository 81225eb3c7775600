"""Inexact ADMM: the dual variable is updated at every local step.

LoSAC (ACM TKDD 2023), Appendix E, eqs. (83)-(84), after Zhou and Li (arXiv 2204.10607):
    X_i <- (rho eta Z - eta pi_i + X_i - eta g) / (1 + rho eta),   pi_i <- pi_i + rho (X_i - Z),   every local step,
with X_i and pi_i kept across rounds; the implicit step is the explicit one with step size eta / (1 + rho eta). Z is the
exact minimiser of the server's problem without a regulariser, the mean of X_i + pi_i / rho over all clients (stale for
the absent), kept as a running sum.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fedconcord.algorithms.fedavg import Server
from fedconcord.core import Algorithm, Client, Done, Local


class Row(NamedTuple):
    x: Tensor  # [d] X_i
    dual: Tensor  # [d] pi_i


def fedadmm_inexact(
    rho: Annotated[float, Field(gt=0, description="penalty")] = 1.0,
) -> Algorithm:
    """Inexact ADMM: linearised local steps, each followed by a dual step.

    LoSAC, ACM TKDD 2023, Appendix E; Zhou and Li, 2022.
    """

    def start(z: Tensor, row: Row, client: Client) -> Local:
        return Local(row.x, linear=row.dual, prox=rho, anchor=z, lr_scale=1.0 / (1.0 + rho * client.lr), dual_rate=rho)

    def finish(z: Tensor, row: Row, done: Done, client: Client) -> tuple[Tensor, Row]:
        assert done.linear is not None
        return done.x - row.x + (done.linear - row.dual) / rho, Row(done.x, done.linear)

    return Algorithm(
        init=lambda x, population: Server(x),
        init_client=lambda x: Row(x, torch.zeros_like(x)),
        start=start,
        finish=finish,
        contribute=lambda change, client, cohort: client.p * change,
        update=lambda server, change, cohort: Server(server.x + change),
    )
