"""FedADMM: primal-dual, with dual variables kept by the clients.

Gong, Li, Freris, ICDE 2022: local L_i(w) = f_i(w) + <y_i, w - theta> + rho/2 ||w - theta||^2, y_i += rho (w_i - theta),
theta <- theta + eta/|A| sum_A Delta_i. Paper and released code (YonghaiGong/FedADMM) differ in two places that belong
together, so one option `form` names the pair; half of one with half of the other is neither method and may end far off.
    released: starts from theta, Delta_i = 2 (w_i - theta). Learns as the paper's experiments do, with rho 0.01 and
        eta 1 (or the code's switch [[0, 1], [60, 0.5]]), but is biased to the start: it stops where
        grad F = -(|A| rho / (2 eta N)) (theta - theta^0).
    paper: Algorithm 1: starts from the client's own w_i, Delta_i = (w_i+ + y_i+/rho) - (w_i + y_i/rho). Exact with
        eta `participation`, |A|/N. With eta 1, the value of the paper's tables, it is biased away from the start when
        clients are absent, and hardly learns on real data (docs/published.md).
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fedconcord.algorithms.fedavg import Server
from fedconcord.basis.identity import definition
from fedconcord.basis.search import Search
from fedconcord.core import Algorithm, Client, Cohort, Done, Local

Step = Annotated[float, Field(gt=0)]
Schedule = Annotated[list[tuple[Annotated[int, Field(ge=0)], Step]], Field(min_length=1)]


class Row(NamedTuple):
    y: Tensor  # [d] its dual variable
    w: Tensor | tuple[()] = ()  # [d] the client's model; nothing in the released form, which does without


@definition(version=2)
def fedadmm(
    rho: Annotated[
        float, Field(gt=0, description="penalty; its inverse is the step of the consensus"), Search(0.001, 1.0)
    ] = 0.01,
    server_lr: Annotated[
        Step | Literal["participation"] | Schedule,
        Field(description="server step: a number, participation (|S|/N), or [[round, step], ...]"),
        Search(0.5, 1.5, "linear"),
    ] = 1.0,
    form: Annotated[
        Literal["released", "paper"],
        Field(description="the released code's start and message, or the paper's, which wants server_lr participation"),
    ] = "released",
) -> Algorithm:
    """FedADMM: local augmented Lagrangians, dual variables kept by the clients.

    Gong, Li, Freris, ICDE 2022, Algorithm 1, or its released code.
    """
    own = form == "paper"

    def finish(x: Tensor, row: Row, done: Done, client: Client) -> tuple[Tensor, Row]:
        y = row.y + rho * (done.x - x)
        before = row.w if isinstance(row.w, Tensor) else x
        return done.x - before + (y - row.y) / rho, Row(y, done.x if own else ())

    def step(cohort: Cohort) -> float:
        if server_lr == "participation":
            return cohort.size / cohort.n
        if isinstance(server_lr, list):
            return next((eta for begin, eta in sorted(server_lr, reverse=True) if begin <= cohort.round), 1.0)
        return float(server_lr)

    return Algorithm(
        init=lambda x, population: Server(x),
        init_client=lambda x: Row(torch.zeros_like(x), x if own else ()),
        start=lambda x, row, client: Local(row.w if own else x, linear=row.y, prox=rho, anchor=x),
        finish=finish,
        needs_x0=own,
        contribute=lambda change, sender, cohort: sender.w * change,
        update=lambda server, change, cohort: Server(server.x + step(cohort) * change),
        invariant="a model that is the sum of all changes of w_i + y_i / rho",
    )
