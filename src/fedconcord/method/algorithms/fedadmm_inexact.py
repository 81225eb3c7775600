"""Inexact ADMM: the dual variable is updated at every local step.

LoSAC (ACM TKDD 2023), Appendix E, eqs. (81)-(84), after Zhou and Li (arXiv 2204.10607):
    X_i <- (rho eta Z - eta pi_i + X_i - eta g) / (1 + rho eta),   pi_i <- pi_i + rho (X_i - Z),   every local step,
with X_i and pi_i kept across rounds; the implicit step is the explicit one with step size eta / (1 + rho eta). The
server keeps the mean of X_i + pi_i / rho over all clients (stale for the absent) as a running sum. `objective` says how
f_i is scaled: `mean` as printed, f_i / N + ..., so (79) is Z = prox_{psi / (N rho)}(mean); `sum` takes f_i as it is,
which is the same objective times N (psi becomes N psi) and the same method with rho N times larger. Without a
regulariser Z is the mean. Option server_steps: the published 20 proximal-gradient steps (81) from the current Z, which
solve (79) only in part; none: exactly. Deviation: weights are uniform.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from fedconcord.method.contract import (
    Algorithm,
    Client,
    Cohort,
    Done,
    Dual,
    Facts,
    Local,
    Memory,
    Needs,
    Population,
    Pull,
    Scale,
    Step,
)
from fedconcord.method.contract.identity import definition
from fedconcord.support.factories import Search
from fedconcord.support.parameters import Count, Positive, about


class Server(NamedTuple):
    x: Tensor  # [d] Z
    mean: Tensor  # [d] of X_i + pi_i / rho over all clients


class Row(NamedTuple):
    x: Tensor  # [d] X_i, the client's model
    dual: Tensor  # [d] pi_i, its dual variable


@definition()
def fedadmm_inexact(
    rho: Annotated[Positive, about("penalty"), Search(0.1, 10.0)] = 1.0,
    objective: Annotated[
        Literal["sum", "mean"],
        about("factor on f_i beside the penalty: sum is 1; mean is 1/N, as published"),
    ] = "sum",
    server_steps: Annotated[
        Count | None,
        about("number of proximal-gradient steps of the server (20 as published); if none, it solves exactly"),
    ] = None,
    server_lr: Annotated[Positive, about("step size of the server's steps; times N rho it must be below 2")] = 1e-4,
) -> Algorithm:
    """Inexact ADMM: linearised local steps, each followed by a dual step; the server takes the regulariser's prox.

    LoSAC, ACM TKDD 2023, Appendix E; Zhou and Li, 2022.
    """

    def start(z: Tensor, row: Row, client: Client) -> Local:
        return Local(
            row.x,
            Scale(client.p if objective == "mean" else 1.0),
            Dual(row.dual, rho, z),
            Pull(rho, z),
            lr_scale=1.0 / (1.0 + rho * client.lr),
        )

    def finish(z: Tensor, row: Row, done: Done, client: Client) -> tuple[Tensor, Row]:
        dual = done.piece(Dual).dual
        return done.x - row.x + (dual - row.dual) / rho, Row(done.x, dual)

    def update(server: Server, change: Tensor, cohort: Cohort) -> Server:
        mean, pull, psi = server.mean + change, cohort.n * rho, cohort.regulariser
        weight = 1.0 if objective == "mean" else float(cohort.n)  # of psi beside sum_i

        def prox(z: Tensor, eta: float) -> Tensor:
            return z if psi is None else psi.prox(z, eta * weight)

        if server_steps is None:
            return Server(prox(mean, 1.0 / pull), mean)
        z = server.x
        for _ in range(server_steps):
            z = prox(z - server_lr * pull * (z - mean), server_lr)
        return Server(z, mean)

    def refuse(population: Population, cohort: int) -> str | None:
        limit = 2 / (population.n * rho)
        if server_steps is None or server_lr < limit:
            return None
        return f"fedadmm_inexact's server steps need server_lr < 2 / (N rho) = {limit:.3g}, given {server_lr:.3g}"

    def gradients(server: Server, rows: Row, p: Tensor, mean: Tensor) -> Tensor:
        return -rows.dual / p.to(rows.dual)[:, None] if objective == "mean" else -rows.dual  # of p_i f_i there

    return Algorithm(
        init=lambda x, population: Server(x, x),
        init_client=lambda x: Row(x, torch.zeros_like(x)),
        start=start,
        finish=finish,
        contribute=lambda change, sender, cohort: sender.p * change,
        update=update,
        needs=Needs(lr=True, weight=objective == "mean", x0=True),
        step=Step(regularise="server", fixed=True),
        facts=Facts(
            group="primal-dual",
            memory=Memory("dual variable", gradients, is_dual=True),
            invariant="the mean of X_i + pi_i / rho over all clients",
            unfit=(("weight_decay", "objective mean divides f_i by N and no decay"),) if objective == "mean" else (),
        ),
        refuse=refuse,
    )
