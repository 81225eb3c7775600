"""FedADMM: primal-dual with the client's own model as warm start.

Gong, Li, Freris, ICDE 2022, Algorithm 1: local L_i(w) = f_i(w) + <y_i, w - theta> + rho/2 ||w - theta||^2; message
Delta_i = (w_i+ + y_i+/rho) - (w_i + y_i/rho); theta <- theta + eta/|A| sum_A Delta_i.
Server step eta: 1 (the paper's tables; under partial participation it keeps an error of order rho), `participation`
(|S|/N, the convergent choice) or a schedule [[round, eta], ...] (Fig. 6). `message=repo` is the released code's
2 (w_i+ - theta), which is biased to the start: it stops where grad F = -(|S| rho / (2 eta N)) (theta - theta^0).
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fedconcord.algorithms.fedavg import Server
from fedconcord.core import Algorithm, Client, Cohort, Done, Local
from fedconcord.identity import definition

Step = Annotated[float, Field(gt=0)]
Schedule = Annotated[list[tuple[Annotated[int, Field(ge=0)], Step]], Field(min_length=1)]


class Row(NamedTuple):
    w: Tensor  # [d] the client's model
    y: Tensor  # [d] its dual variable


@definition()
def fedadmm(
    rho: Annotated[float, Field(gt=0, description="penalty; its inverse is the step of the consensus")] = 0.01,
    server_lr: Annotated[
        Step | Literal["participation"] | Schedule,
        Field(description="server step: a number, participation (|S|/N), or [[round, step], ...]"),
    ] = 1.0,
    start: Annotated[Literal["own", "server"], Field(description="where a client's local steps start")] = "own",
    message: Annotated[Literal["paper", "repo"], Field(description="the paper's message or the released code's")] = (
        "paper"
    ),
) -> Algorithm:
    """FedADMM: local augmented Lagrangians, dual variables kept by the clients.

    Gong, Li, Freris, ICDE 2022, Algorithm 1.
    """

    def finish(x: Tensor, row: Row, done: Done, client: Client) -> tuple[Tensor, Row]:
        y = row.y + rho * (done.x - x)
        before = row.w if message == "paper" else x
        return done.x - before + (y - row.y) / rho, Row(done.x, y)

    def step(cohort: Cohort) -> float:
        if server_lr == "participation":
            return cohort.size / cohort.n
        if isinstance(server_lr, list):
            return next((eta for begin, eta in sorted(server_lr, reverse=True) if begin <= cohort.round), 1.0)
        return float(server_lr)

    return Algorithm(
        init=lambda x, population: Server(x),
        init_client=lambda x: Row(x, torch.zeros_like(x)),
        start=lambda x, row, client: Local(row.w if start == "own" else x, linear=row.y, prox=rho, anchor=x),
        finish=finish,
        needs_x0=True,
        contribute=lambda change, sender, cohort: sender.w * change,
        update=lambda server, change, cohort: Server(server.x + step(cohort) * change),
    )
