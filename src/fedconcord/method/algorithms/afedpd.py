"""A-FedPD: primal-dual with virtual dual updates for the clients that are absent.

A-FedPD, NeurIPS 2024, Algorithm 1, the accumulating form:
    theta_i <- theta_i - eta (g(theta_i) + lambda_i + rho (theta_i - theta)),   mean = mean_A theta_i,
    lambda_i <- lambda_i + rho (theta_i - theta) if active, lambda_i + rho (mean - theta) if absent,
    theta+ = mean + lambda_bar / rho,   lambda_bar the mean of all lambda_i.
Every absent client's dual moves by the same rho (mean - theta), so nothing loops over them: with s_i = 0 at the start
and s_i += theta_i - mean when active,
    lambda_i = lambda_bar + rho s_i,   lambda_bar = rho (theta - mean),   theta+ = 2 mean+ - mean.
The row s_i lives where the paper keeps the duals, at the server; the method's answer is the mean model, the paper's
output. A server optimiser moves theta and all duals with it, as they are measured from there; those of `afedpd_share`
stay. A-FedPDSAM: ibid., with the SAM gradient. Deviation from public forks: their absent duals are assigned (`=`) and
not added to (`+=`), which does not converge.

`afedpd_share` is ours: absent duals move by kappa (mean - theta), with kappa = S / N the cohort's share of the
clients. The move of few is not given whole to all others then, which diverges where replies are old (tests), and each
D_i may be from a model of the client's own, as in asynchronous rounds: theta+ = mean + lambda_bar / rho, with
    lambda_bar / rho = common + s,   common += kappa sum_A w_i D_i,   s = sum_i p_i s_i.
At a fixed point D_i = 0 and common + s = 0, so that the gradients' mean is 0, for every kappa.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from fedconcord.method.algorithms.fedavg import Radius, sharpness_aware
from fedconcord.method.contract import (
    Algorithm,
    Cohort,
    Constant,
    Facts,
    Local,
    Memory,
    Phases,
    Pull,
    Recommendation,
    Settle,
)
from fedconcord.method.contract.identity import definition
from fedconcord.support.factories import Search
from fedconcord.support.parameters import Positive, about

Rho = Annotated[Positive, about("penalty of the augmented Lagrangian"), Search(0.01, 1.0)]
COUNTED = "its duals are measured from a mean in which every client counts once"
Normalised = Annotated[Literal["uniform", "size"], about("how the server weighs the cohort")]


class Server(NamedTuple):
    x: Tensor  # [d] theta
    mean: Tensor  # [d] the last cohort's mean model


class Row(NamedTuple):
    s: Tensor  # [d] own part of the dual, in model units


class Shared(NamedTuple):
    x: Tensor  # [d] theta
    mean: Tensor  # [d] the last cohort's mean model
    common: Tensor  # [d] the part of all duals that is the same, in model units
    s: Tensor  # [d] sum of p_i s_i over all clients


class Down(NamedTuple):
    x: Tensor  # [d]
    common: Tensor  # [d]


class Moves(NamedTuple):
    move: Tensor  # [d] sum of w_i D_i
    s: Tensor  # [d] sum of p_i D_i
    p: Tensor  # [] sum of p_i


@definition()
def afedpd(rho: Rho = 0.1, weights: Normalised = "uniform") -> Algorithm:
    """A-FedPD: aligned duals, so that returning clients do not bring stale ones.

    A-FedPD, NeurIPS 2024, Algorithm 1.
    """

    def update(server: Server, move: Tensor, cohort: Cohort) -> Server:
        mean = server.x + move
        return Server(2.0 * mean - server.mean, mean)

    return Algorithm(
        init=lambda x, population: Server(x, x),
        init_client=lambda x: Row(torch.zeros_like(x)),
        broadcast=lambda server: server,
        start=lambda down, row, client: Local(down.x, Constant(rho * (down.x - down.mean + row.s)), Pull(rho, down.x)),
        finish=lambda down, row, done, client: (done.x - down.x, Row(row.s + (done.x - down.x))),
        contribute=lambda move, sender, cohort: sender.w * move,
        update=update,
        models=lambda server: {"mean": server.mean, "server": server.x},
        weights=weights,
        phases=Phases(
            settle=Settle(send=lambda down, server: server.mean - down.x, row=lambda shift, row: Row(row.s - shift))
        ),
        facts=Facts(
            group="primal-dual",
            memory=Memory(
                "dual variable -lambda_i",
                lambda server, rows, p, mean: -rho * (server.x - server.mean + rows.s),
                lambda server: -rho * (server.x - server.mean),
                is_dual=True,
                moves_when_absent=True,
            ),
            invariant="duals that are measured from the mean of the cohort's models",
            unfit=(("repeats", COUNTED),),
            remedies=("dissimilar gradients", "stale memory"),
            recommendations=(
                Recommendation(
                    {"skewed": 1},
                    "rho=0.1,local.lr=0.3",
                    "dual variables, absent clients' too, keep large local steps from drifting",
                ),
                Recommendation(
                    {"any": 1},
                    "rho=0.01,local.lr=0.3",
                    "its server steps beyond the cohort's mean, which is early where little drifts",
                ),
            ),
        ),
    )


@definition()
def afedpd_share(rho: Rho = 0.1, weights: Normalised = "uniform") -> Algorithm:
    """A-FedPD whose absent duals move by the cohort's share of its mean move, as asynchronous rounds need.

    After A-FedPD, NeurIPS 2024, Algorithm 1; the share is this library's.
    """

    def update(server: Shared, total: Moves, cohort: Cohort) -> Shared:
        shift, mean = cohort.size / cohort.n * total.move, server.x + total.move
        common, s = server.common + shift, server.s + total.s - total.p * shift
        return Shared(mean + common + s, mean, common, s)

    return replace(
        afedpd(rho, weights),
        init=lambda x, population: Shared(x, x, torch.zeros_like(x), torch.zeros_like(x)),
        broadcast=lambda server: Down(server.x, server.common),
        start=lambda down, row, client: Local(down.x, Constant(rho * (down.common + row.s)), Pull(rho, down.x)),
        contribute=lambda move, sender, cohort: Moves(sender.w * move, sender.p * move, sender.p),
        update=update,
        phases=Phases(
            settle=Settle(lambda down, server: server.common - down.common, lambda shift, row: Row(row.s - shift)),
            asynchronous="undamped",
        ),
        facts=Facts(
            group="primal-dual",
            memory=Memory(
                "dual variable -lambda_i",
                lambda server, rows, p, mean: -rho * (server.common + rows.s),
                lambda server: -rho * (server.common + server.s),
                is_dual=True,
                moves_when_absent=True,
            ),
            invariant="the mean of own duals over all clients",
        ),
    )


@definition()
def afedpdsam(rho: Rho = 0.1, radius: Radius = 0.1, weights: Normalised = "uniform") -> Algorithm:
    """A-FedPDSAM: A-FedPD with sharpness-aware local gradients.

    A-FedPD, NeurIPS 2024.
    """
    return sharpness_aware(afedpd(rho, weights), radius)
