"""FedVRA: variance-reduced ADMM with two free parameters a and d.

Wang et al., AAAI 2023, Algorithm 1, with beta = 1 / sum_i omega_i gamma_i:
    local direction g - lambda_i + gamma_i (x_i - x_0),   lambda_i += a_i gamma_i (x_0 - x_i),
    x_0 += beta sum_A omega_i d_i gamma_i (x_i - x_0) - beta lambda,   lambda = sum_i omega_i lambda_i already updated.
The server keeps beta * lambda and the message is c_i (x_i - x_0) with c_i = beta gamma_i: only that product has a
meaning, and it is 1 when all gamma are 0 (the FedAvg and FedNova reductions, where beta alone is 1/0).
omega_i are the objective's weights over all clients. Where the objective has a constraint set, local steps are
projected on it too, which Algorithm 2 leaves to the server; both end at the constrained optimum.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from fedconcord.method.algorithms.family_steps import step_theory
from fedconcord.method.contract import (
    Algorithm,
    Client,
    Cohort,
    Constant,
    Done,
    Facts,
    Local,
    Memory,
    Needs,
    Phases,
    Population,
    Pull,
    Sender,
)
from fedconcord.method.contract.identity import definition
from fedconcord.support.factories import Search
from fedconcord.support.parameters import NotNegative, Positive, about

Rule = Callable[[Sender, Cohort], float | Tensor]  # d_i [] from what the server knows


class Server(NamedTuple):
    x: Tensor  # [d]
    dual: Tensor  # [d] beta * lambda
    beta: Tensor  # [] 1 / sum_i omega_i gamma_i; 0 when every gamma is 0


class Down(NamedTuple):
    x: Tensor  # [d]
    beta: Tensor  # []


class Row(NamedTuple):
    dual: Tensor  # [d] lambda_i


class Sums(NamedTuple):
    move: Tensor  # [d] sum omega_i d_i c_i (x_i - x)
    dual: Tensor  # [d] sum omega_i a_i c_i (x_i - x)


RULES: dict[str, Rule] = {
    "inverse_p": lambda sender, cohort: 1.0 / sender.inclusion,
    "fednova": lambda sender, cohort: cohort.mean_steps / (sender.steps * cohort.mass),
}


@definition()
def fedvra(
    gamma: Annotated[
        NotNegative | list[NotNegative],
        about("penalty: one number, or one for each client"),
        Search(0.01, 1.0),
    ] = 0.1,
    a: Annotated[
        NotNegative | list[NotNegative],
        about("dual step size: one number, or one for each client"),
        Search(0.5, 20.0),
    ] = 7.0,
    d: Annotated[
        Positive | list[Positive] | Literal["inverse_p", "fednova"],
        about(
            "server step size: a number, one for each client, inverse_p (1 / P(client takes part)) or fednova "
            "(Q_eff / (Q_i sum_A p))"
        ),
        Search(1.0, 20.0),
    ] = 10.0,
    weights: Annotated[Literal["uniform", "size"], about("weights omega_i over all clients")] = "uniform",
) -> Algorithm:
    """FedVRA: one family (a, d, gamma) that holds FedAvg, FedProx, FedNova and FedDyn.

    Wang et al., AAAI 2023, Algorithm 1.
    """
    rule: Rule = RULES[d] if isinstance(d, str) else lambda sender, cohort: _of(d, sender.id, sender.p)

    def init(x: Tensor, population: Population) -> Server:
        total = (population.p * torch.as_tensor(gamma, dtype=population.p.dtype, device=population.p.device)).sum()
        return Server(x, torch.zeros_like(x), torch.where(total > 0, 1 / total, total).to(x))

    def finish(down: Down, row: Row, done: Done, client: Client) -> tuple[Tensor, Row]:
        move, penalty = done.x - down.x, _of(gamma, client.id, down.x)
        c = torch.where(down.beta > 0, down.beta * penalty, torch.ones_like(down.beta))
        return c * move, Row(row.dual - _of(a, client.id, down.x) * penalty * move)

    def contribute(up: Tensor, sender: Sender, cohort: Cohort) -> Sums:
        return Sums(sender.p * rule(sender, cohort) * up, sender.p * _of(a, sender.id, sender.p) * up)

    def update(server: Server, total: Sums, cohort: Cohort) -> Server:
        dual = server.dual - total.dual
        x = server.x + total.move - dual
        if cohort.regulariser is not None:  # P_X of Algorithm 2: a step of size 0 projects on X and leaves a penalty be
            x = cohort.regulariser.prox(x, 0.0)
        return Server(x, dual, server.beta)

    def refuse(population: Population, cohort: int) -> str | None:
        for name, value in (("gamma", gamma), ("a", a), ("d", d)):
            if isinstance(value, list) and len(value) != population.n:
                return f"{name} lists {len(value)} values for {population.n} clients; give one number or one a client"
        return None

    return Algorithm(
        init=init,
        init_client=lambda x: Row(torch.zeros_like(x)),
        broadcast=lambda server: Down(server.x, server.beta),
        start=lambda down, row, client: Local(down.x, Constant(-row.dual), Pull(_of(gamma, client.id, down.x), down.x)),
        finish=finish,
        contribute=contribute,
        update=update,
        weights=weights,
        phases=Phases(asynchronous="undamped"),
        needs=Needs(inclusion=d == "inverse_p"),
        facts=Facts(
            group="primal-dual",
            memory=Memory(
                "dual variable lambda_i",
                lambda server, rows, p, mean: rows.dual,
                lambda server: server.dual / server.beta if float(server.beta) > 0 else None,
                is_dual=True,
            ),
            invariant="lambda = sum omega_i lambda_i over all clients",
            unfit=(("tolerance", "d fednova counts planned steps"),) if d == "fednova" else (),
            theory=partial(step_theory, gamma, a, d),
        ),
        refuse=refuse,
    )


def _of(value: float | list[float], id: Tensor, like: Tensor) -> float | Tensor:
    """A number, or those of the clients id: [] and stacked [S, 1]."""
    return torch.as_tensor(value, dtype=like.dtype, device=like.device).take(id) if isinstance(value, list) else value
