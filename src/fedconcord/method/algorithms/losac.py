"""FedSaga and LoSAC: tables of block gradients at the clients.

LoSAC (ACM TKDD 2023): FedSaga is Algorithm 1, LoSAC Algorithm 2 with eqs. (9)-(13). g_ij is the gradient of block j,
unbiased for grad f_i, and y_ij the last one of it. FedSaga's local step, with the server's step of FedAvg:
    x_i <- x_i - eta (mean_j y_ij - y_ij + g_ij(x_i)),   y_ij <- g_ij.
LoSAC's local step:
    x_i <- x_i - eta (phi_i / N - y_ij + g_ij(x_i)),   phi_i <- phi_i + block_scale (g_ij - y_ij),   y_ij <- g_ij.
scaling `consistent`: x += mean_A Delta x, phi += sum_A Delta phi keeps phi equal to the sum of the tables; `paper`
prints x += (1/N) sum_A, phi += (N/S) sum_A, which is right only for zero tables and constant S. block_scale 1
over-counts phi M times (the published speed-ups, and with a regulariser psi the minimiser of F + psi / M in place of
F + psi); 1/M (`mean`) is SAGA's. Blocks weigh alike, so samples of a client should divide by M. FedSaga's xscale: S, or
N as printed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from fedconcord.method.algorithms.fedavg import Server, fedavg
from fedconcord.method.contract import (
    Algorithm,
    Client,
    Cohort,
    Done,
    Facts,
    Local,
    Memory,
    Needs,
    Phases,
    Prologue,
    Step,
    Table,
)
from fedconcord.method.contract.identity import definition
from fedconcord.support.parameters import Count, Positive, about

Blocks = Annotated[Count, about("number of blocks M that a client's samples are divided into")]


class Row(NamedTuple):
    table: Tensor  # [M, d] last gradient of each block


class Corrected(NamedTuple):
    x: Tensor  # [d]
    phi: Tensor  # [d] phi / N (a server state); change of phi_i / N (a message)


TABLE = "mean of its table"


def _mean(server: Server | Corrected, rows: Row, p: Tensor, mean: Tensor) -> Tensor:
    return rows.table.mean(1)


def _empty(x: Tensor, blocks: int) -> Row:
    return Row(torch.zeros(blocks, len(x), dtype=x.dtype, device=x.device))


@definition()
def fedsaga(
    blocks: Blocks = 5,
    xscale: Annotated[
        Literal["S", "N"],
        about("what the sum over the cohort is divided by: S, its size; N, the number of all clients"),
    ] = "S",
) -> Algorithm:
    """FedSaga: SAGA steps at the clients, FedAvg at the server.

    LoSAC, ACM TKDD 2023, Algorithm 1.
    """

    def update(server: Server, move: Tensor, cohort: Cohort) -> Server:
        return Server(server.x + (move if xscale == "S" else cohort.size / cohort.n * move))

    return replace(
        fedavg(),
        init_client=lambda x: _empty(x, blocks),
        start=lambda x, row, client: Local(x, Table(row.table, row.table.mean(-2), 1 / blocks)),
        finish=lambda x, row, done, client: (done.x - x, Row(done.piece(Table).table)),
        update=update,
        step=Step(blocks=blocks),
        facts=Facts(group="gradient tables", memory=Memory(TABLE, _mean)),
    )


@definition()
def losac(
    blocks: Blocks = 5,
    block_scale: Annotated[
        Positive | Literal["mean"],
        about("weight with which a changed table entry enters phi: 1 as in the paper, mean (1/M) as in SAGA"),
    ] = 1.0,
    scaling: Annotated[Literal["consistent", "paper"], about("which pair of scalings the server uses")] = "consistent",
    init: Annotated[
        Literal["zero", "gradient"],
        about("tables before round 0; for gradient, all clients are asked once"),
    ] = "zero",
) -> Algorithm:
    """LoSAC: clients correct their steps with tables and a running global gradient.

    LoSAC, ACM TKDD 2023, Algorithm 2.
    """
    scale = 1 / blocks if block_scale == "mean" else float(block_scale)

    def finish(down: Corrected, row: Row, done: Done, client: Client) -> tuple[Corrected, Row]:
        ended = done.piece(Table)
        return Corrected(done.x - down.x, ended.mean - down.phi), Row(ended.table)

    def update(server: Corrected, total: Corrected, cohort: Cohort) -> Corrected:
        if scaling == "paper":
            share = cohort.size / cohort.n
            return Corrected(server.x + share * total.x, server.phi + total.phi / share)
        return Corrected(server.x + total.x, server.phi + total.phi)

    prologue = Prologue(
        row=lambda row, gradients: Row(gradients),
        send=lambda gradients, p: scale * p * gradients.sum(0),
        update=lambda server, phi: server._replace(phi=phi),
    )
    return Algorithm(
        init=lambda x, population: Corrected(x, torch.zeros_like(x)),
        init_client=lambda x: _empty(x, blocks),
        broadcast=lambda server: server,
        start=lambda down, row, client: Local(down.x, Table(row.table, down.phi, scale * client.p)),
        finish=finish,
        contribute=lambda up, sender, cohort: Corrected(sender.w * up.x, up.phi),
        update=update,
        phases=Phases(prologue=prologue if init == "gradient" else None, asynchronous="damped"),
        needs=Needs(weight=True),
        step=Step(blocks=blocks),
        facts=Facts(
            group="gradient tables",
            memory=Memory(TABLE, _mean, lambda server: server.phi / (scale * blocks)),
            invariant="phi, the sum of all clients' tables",
        ),
    )
