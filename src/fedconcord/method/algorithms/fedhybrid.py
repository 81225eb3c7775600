"""FedHybrid: gradient clients and Newton clients in one primal-dual method, all clients every round.

Niu and Wei, arXiv 2106.01279, as their code has it (xiaochunniu/FedHybrid; its dual is minus ours, its mu is rho):
    x_0 = mean_i (x_i + lambda_i / rho),   x_i+ = x_i - s_i B_i^{-1} (grad f_i(x_i) + lambda_i + rho (x_i - x_0)),
    lambda_i+ = lambda_i + C_i (x_i - x_0), with the *old* x_i.
Newton clients (the first ids): B_i = grad^2 f_i(x_i) + rho I, s_i = newton_lr, C_i = newton_dual_lr B_i. Gradient
clients: B_i = I, s_i = the local step size, C_i = gradient_dual_lr I. Their alpha_1, alpha_2 are the s_i, their
beta_1, beta_2 the dual step sizes. One step a round, with full gradients; strongly convex problems only.
"""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedconcord.method.algorithms.fedadmm_inexact import Row
from fedconcord.method.contract import (
    Algorithm,
    Client,
    Constant,
    Done,
    Facts,
    Local,
    Memory,
    Needs,
    Newton,
    Oracle,
    Pull,
    Step,
)
from fedconcord.method.contract.identity import definition
from fedconcord.support.factories import Search
from fedconcord.support.parameters import Chance, Fraction, Positive, about


class Server(NamedTuple):
    x: Tensor  # [d] x_0
    newton: Tensor  # [] clients with a smaller id take Newton steps


@definition(version=2)
def fedhybrid(
    rho: Annotated[Positive, about("penalty of the augmented Lagrangian"), Search(0.1, 10.0)] = 1.0,
    newton_share: Annotated[Chance, about("share of the clients with Newton steps, rounded up")] = 0.5,
    newton_lr: Annotated[Fraction, about("step size of Newton clients")] = 1.0,
    gradient_dual_lr: Annotated[Positive, about("dual step size of gradient clients")] = 0.5,
    newton_dual_lr: Annotated[Positive, about("dual step size of Newton clients, relative to the curvature")] = 0.5,
) -> Algorithm:
    """FedHybrid: clients that can take Newton steps do, the others take gradient steps; strongly convex problems only.

    Niu and Wei, arXiv 2106.01279, 2021.
    """

    def curvature(down: Server, client: Client) -> tuple[Tensor, Tensor]:
        """Whether the client is a Newton client [], and its grad^2 f_i + rho I [d, d]."""
        assert client.hessian is not None
        eye = torch.eye(client.hessian.shape[-1], dtype=client.hessian.dtype, device=client.hessian.device)
        return (client.id < down.newton).to(client.hessian), client.hessian + rho * eye

    def start(down: Server, row: Row, client: Client) -> Local:
        newton, B = curvature(down, client)
        eye = torch.eye(B.shape[-1], dtype=B.dtype, device=B.device)
        # the engine steps by eta B^{-1}: scale B so that a Newton client's step is newton_lr
        flag = newton[..., None] if newton.ndim else newton
        metric = flag * B * (client.lr / newton_lr) + (1 - flag) * eye
        return Local(row.x, Constant(row.dual), Pull(rho, down.x), Newton(metric))

    def finish(down: Server, row: Row, done: Done, client: Client) -> tuple[Tensor, Row]:
        newton, B = curvature(down, client)
        gap = row.x - down.x
        curved = newton_dual_lr * (B @ gap[..., None])[..., 0]
        dual = row.dual + newton * curved + (1 - newton) * gradient_dual_lr * gap
        return done.x - row.x + (dual - row.dual) / rho, Row(done.x, dual)

    return Algorithm(
        init=lambda x, population: Server(
            x, torch.tensor(math.ceil(round(newton_share * population.n, 9)), dtype=x.dtype, device=x.device)
        ),
        init_client=lambda x: Row(x, torch.zeros_like(x)),
        broadcast=lambda server: server,
        start=start,
        finish=finish,
        contribute=lambda change, sender, cohort: sender.p * change,
        update=lambda server, change, cohort: server._replace(x=server.x + change),
        needs=Needs(lr=True, everyone=True, x0=True),
        step=Step(oracle=Oracle("full"), steps=1, hessian_at=lambda down, row: row.x),
        facts=Facts(
            group="primal-dual",
            memory=Memory("dual variable", lambda server, rows, p, mean: -rows.dual, is_dual=True),
            invariant="x_0, the mean of x_i + lambda_i / rho over all clients",
            unfit=(("server", "its model has to be the mean of x_i + lambda_i / rho over all clients"),),
        ),
    )
