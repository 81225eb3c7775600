"""FedADMM: primal-dual, with dual variables kept by the clients.

Gong, Li, Freris, ICDE 2022: steps of SGD on the local L_i(w) = f_i(w) + <y_i, w - theta> + rho/2 ||w - theta||^2,
    w_i <- w_i - lr (g(w_i) + y_i + rho (w_i - theta)),   y_i <- y_i + rho (w_i - theta),
    theta <- theta + eta/|A| sum_A Delta_i.
Paper and released code (YonghaiGong/FedADMM) differ in two choices, where a client starts and what it sends, and `form`
states both:
    form               starts from   sends Delta_i
    released           theta         2 (w_i+ - theta)
    paper              its own w_i   (w_i+ + y_i+/rho) - (w_i + y_i/rho)
    paper_from_theta   theta         the same as `paper`
The fourth pair, the code's message from the client's own start, is neither method and cannot be stated: where local
steps move little, a server step of 1 mirrors theta at the mean of the clients' models, and it ends far off
(docs/published.md).

`released` starts from theta, with Delta_i = 2 (w_i - theta). It learns as the paper's experiments do, with rho 0.01 and
eta 1 (or the code's switch [[0, 1], [60, 0.5]]), but is biased to the start, for it stops at:
    grad F = -(|A| rho / (2 eta N)) (theta - theta^0).

`paper` is Algorithm 1: it starts from the client's own w_i, with Delta_i = (w_i+ + y_i+/rho) - (w_i + y_i/rho). It is
exact with eta `participation`, |A|/N. With eta 1, the value of the paper's tables, it is biased away from the start
when clients are absent, and hardly learns on real data (docs/published.md).

`paper_from_theta` is choice II of the paper's Fig. 8, the other start with the rest of Algorithm 1. Where the objective
is flat, w_i+ - w_i is all that theta moved since the client's last round, N/|A| rounds ago, and the server adds it once
more: theta's moves grow by the factor 1 + eta - |A|/N a round. So where clients are absent a server step of 1 has to be
written out, as [[0, 1]]; the default is refused.

With eta `participation` theta is the mean of all w_i + y_i / rho at every update, so that both forms of the paper are
exact without rounds as well, whoever replies how often, unless a factor of staleness damps what they send.

A rho that changes by round (ibid., Fig. 9) leaves every y_i as it is. The server sends the round's rho, as clients know
no round; the paper's message takes away y_i / rho as the client last added it, so that the limit stays exact.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

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
    model_of,
)
from fedconcord.method.contract.identity import definition
from fedconcord.support.factories import Search
from fedconcord.support.parameters import Positive, about

Schedule = Annotated[list[tuple[Annotated[int, Field(ge=0)], Positive]], Field(min_length=1)]
RHO, SERVER_LR, SUM = 0.01, 1.0, "its model is the sum of what clients send once, which nothing else may move"
GROWS = (
    "with form paper_from_theta and {} of {} clients a round, theta's moves grow by the factor 1 + server_lr - |S|/N "
    "where the objective is flat; set server_lr=participation, or write [[0,1]] where a step of 1 is meant"
)


class Server(NamedTuple):
    x: Tensor  # [d]
    rho: Tensor | tuple[()] = ()  # [] of the next round, where it changes


class Row(NamedTuple):
    y: Tensor  # [d] its dual variable
    w: Tensor | tuple[()] = ()  # [d] the client's model; nothing in the released form, which does without
    rho: Tensor | tuple[()] = ()  # [] of its last message, where it changes and the message is Algorithm 1's


@definition(version=2)
def fedadmm(
    rho: Annotated[
        Positive | Schedule,
        Field(
            description="penalty, its inverse is the step of the consensus: a number, or [[round, rho], ...], "
            f"{RHO} before the first"
        ),
        Search(0.001, 1.0),
    ] = RHO,
    server_lr: Annotated[
        Positive | Literal["participation"] | Schedule,
        about("server step size: a number, participation (|S|/N), or [[round, step], ...]"),
        Search(0.5, 1.5, "linear"),
    ] = SERVER_LR,
    form: Annotated[
        Literal["released", "paper", "paper_from_theta"],
        about(
            "start and message: those of the released code; those of the paper, which needs server_lr participation; "
            "or the paper's message with theta as the start"
        ),
    ] = "released",
) -> Algorithm:
    """FedADMM: local augmented Lagrangians, dual variables kept by the clients.

    Gong, Li, Freris, ICDE 2022, Algorithm 1, or its released code.
    """
    keeps_own, changes, first = form != "released", isinstance(rho, list), at(rho, 0, RHO)

    def penalty(down: Tensor | Server, client: Client) -> float | Tensor:
        """rho of this round: a number, or [] and stacked [S, 1]."""
        changed = down.rho if isinstance(down, Server) else ()
        return changed.expand(client.steps.shape) if isinstance(changed, Tensor) else first

    def init_client(x: Tensor) -> Row:
        return Row(torch.zeros_like(x), x if keeps_own else (), x.new_tensor(first) if keeps_own and changes else ())

    def start(down: Tensor | Server, row: Row, client: Client) -> Local:
        x = model_of(down)
        begin = row.w if form == "paper" and isinstance(row.w, Tensor) else x
        return Local(begin, Constant(row.y), Pull(penalty(down, client), x))

    def finish(down: Tensor | Server, row: Row, done: Done, client: Client) -> tuple[Tensor, Row]:
        x, weight = model_of(down), penalty(down, client)
        y = row.y + weight * (done.x - x)
        before = row.w if isinstance(row.w, Tensor) else x
        sent = row.y * (weight / row.rho) if isinstance(row.rho, Tensor) else row.y
        last = weight if keeps_own and isinstance(weight, Tensor) else ()
        return done.x - before + (y - sent) / weight, Row(y, done.x if keeps_own else (), last)

    def update(server: Server, change: Tensor, cohort: Cohort) -> Server:
        eta = cohort.size / cohort.n if server_lr == "participation" else at(server_lr, cohort.round, SERVER_LR)
        if not isinstance(server.rho, Tensor):
            return Server(server.x + eta * change)
        return Server(server.x + eta * change, torch.full_like(server.rho, at(rho, cohort.round + 1, RHO)))

    def refuse(population: Population, cohort: int) -> str | None:
        grows = form == "paper_from_theta" and server_lr == SERVER_LR and cohort < population.n
        return GROWS.format(cohort, population.n) if grows else None

    return Algorithm(
        init=lambda x, population: Server(x, x.new_tensor(first) if changes else ()),
        init_client=init_client,
        broadcast=(lambda server: server) if changes else (lambda server: server.x),
        start=start,
        finish=finish,
        contribute=lambda change, sender, cohort: sender.w * change,
        update=update,
        phases=Phases(asynchronous="undamped" if keeps_own and server_lr == "participation" else None),
        needs=Needs(x0=keeps_own),
        facts=Facts(
            group="primal-dual",
            memory=Memory("dual variable", lambda server, rows, p, mean: -rows.y, is_dual=True),
            invariant="a model that is the sum of all changes of w_i + y_i / rho",
            unfit=(("server", SUM), ("repeats", SUM)) if keeps_own else (),
        ),
        refuse=refuse,
    )


def at(value: float | list[tuple[int, float]], round: int, before: float) -> float:
    """A number, or what [[round, number], ...] says of a round; `before` its first one."""
    if not isinstance(value, list):
        return float(value)
    return next((number for begin, number in sorted(value, reverse=True) if begin <= round), before)
